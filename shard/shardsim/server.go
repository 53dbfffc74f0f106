package shardsim

import (
	"bytes"
	"net"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// conn is one client's connection to a member.
type conn struct {
	node         *node
	net          net.Conn
	id           int64
	user         string
	pending      string // who is logging in
	conversation *scram.ServerConversation
}

// serve accepts connections until the listener is closed. A process that is down
// resets them.
func (n *node) serve() {
	for {
		c, err := n.listener.Accept()
		if err != nil {
			return
		}
		s := n.set
		s.mu.Lock()
		select {
		case <-s.done:
			s.mu.Unlock()
			_ = c.Close()
			return
		default:
		}
		if !n.up {
			s.mu.Unlock()
			_ = c.Close()
			continue
		}
		s.connids++
		x := &conn{node: n, net: c, id: s.connids}
		n.conns[x] = true
		s.mu.Unlock()
		s.wg.Go(func() {
			x.talk()
			_ = c.Close()
			s.mu.Lock()
			delete(n.conns, x)
			s.mu.Unlock()
		})
	}
}

// hangUp closes all connections of a node.
func (n *node) hangUp() {
	for c := range n.conns {
		_ = c.net.Close()
	}
}

// talk answers requests one after the other until the connection ends.
func (c *conn) talk() {
	r := wire.NewReader(c.net)
	for {
		m, err := r.Next()
		if err != nil {
			return
		}
		body, more, err := command(m)
		if err != nil {
			return
		}
		reply, drop := c.handle(body)
		if drop {
			return
		}
		if more {
			continue
		}
		if _, err := c.net.Write(frame(m, mustMarshal(reply))); err != nil {
			return
		}
	}
}

// command gives the command of a message as one document; more tells that no
// answer is wanted.
func command(m wire.Message) (body bson.Raw, more bool, err error) {
	if m.Op == wire.OpQuery {
		q, err := wire.ParseQuery(m)
		if err != nil {
			return nil, false, err //nolint:wrapcheck // it only ends the connection
		}
		return bytes.Clone(q.Body), false, nil
	}
	var msg wire.Msg
	if err := wire.ParseMsg(m, &msg); err != nil {
		return nil, false, err //nolint:wrapcheck // it only ends the connection
	}
	more = msg.Flags&wire.MoreToCome != 0
	if len(msg.Sequences) == 0 {
		return bytes.Clone(msg.Body), more, nil
	}
	var d bson.D
	if err := bson.Unmarshal(msg.Body, &d); err != nil {
		return nil, false, err //nolint:wrapcheck // it only ends the connection
	}
	for _, s := range msg.Sequences {
		list := bson.A{}
		for docs := s.Docs; len(docs) > 0; {
			var doc []byte
			doc, docs = wire.NextDocument(docs)
			list = append(list, bson.Raw(bytes.Clone(doc)))
		}
		d = append(d, bson.E{Key: string(s.Name), Value: list})
	}
	return mustMarshal(d), more, nil
}

// frame wraps a reply in the form of its request.
func frame(m wire.Message, reply bson.Raw) []byte {
	if m.Op == wire.OpQuery {
		return wire.AppendReply(nil, 1, m.RequestID, reply)
	}
	out := append(wire.BeginMsg(nil, 1, m.RequestID, 0), reply...)
	wire.SetLength(out, 0)
	return out
}

// handle runs one command from its arrival to its answer.
func (c *conn) handle(body bson.Raw) (reply bson.D, drop bool) {
	n := c.node
	s := n.set
	s.mu.Lock()
	defer s.mu.Unlock()
	elements, err := body.Elements()
	if err != nil || len(elements) == 0 {
		return failed(codeBadValue, "no command"), false
	}
	call := Call{Host: n.host, User: c.user, Command: elements[0].Key(), Body: body}
	call.DB, _ = body.Lookup("$db").StringValueOK()
	if !n.up {
		return nil, true
	}
	for n.silent { // the client is kept waiting
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.done:
		}
		s.mu.Lock()
		select {
		case <-s.done:
			return nil, true
		default:
		}
	}
	op := s.begin(c, call)
	process := n.process
	defer delete(n.ops, op.id)
	if reply, drop = s.strike(Arrived, call, op); reply == nil && !drop {
		reply, drop = c.checked(call, op)
	}
	if n.process != process || !n.up { // it died meanwhile
		return nil, true
	}
	if _, lost := s.strike(Done, call, op); lost {
		return nil, true
	}
	if drop {
		return nil, true
	}
	ts, _ := n.optime()
	if retryLabel(body, reply) {
		reply = append(reply, bson.E{Key: "errorLabels", Value: bson.A{"RetryableWriteError"}})
	}
	if stateChanged(reply) { // so that clients know whether they have heard of it
		reply = append(reply, n.topologyVersion())
	}
	return append(reply, bson.E{Key: "operationTime", Value: ts}), false
}

// checked runs a command if its user may.
func (c *conn) checked(call Call, op *operation) (bson.D, bool) {
	n := c.node
	if r := c.authorize(call); r != nil {
		return r, false
	}
	op.checked = true
	if r, drop := n.set.strike(Checked, call, op); r != nil || drop {
		return r, drop
	}
	if op.killed != 0 {
		return failed(op.killed, "operation was interrupted"), false
	}
	return c.run(call), false
}

// run runs a command.
func (c *conn) run(call Call) bson.D {
	n, body := c.node, call.Body
	if run, known := commands[call.Command]; known {
		return run(c, call)
	}
	switch call.Command {
	case "replSetGetStatus":
		return n.status()
	case "replSetGetConfig":
		if n.config == nil {
			return failed(codeNotYetInitialized, "no replset config has been received")
		}
		r := bson.D{{Key: "config", Value: n.config.document()}}
		if on, _ := body.Lookup("commitmentStatus").BooleanOK(); on {
			r = append(r, bson.E{Key: "commitmentStatus", Value: n.role == primary && n.installed(n.config)})
		}
		return append(r, ok()...)
	case "replSetReconfig":
		return n.reconfigure(body)
	case "replSetStepDown":
		return n.stepDown(body)
	case "replSetFreeze":
		return n.freeze(body)
	case "replSetSyncFrom":
		return ok()
	case "replSetResizeOplog":
		return n.resizeOplog(body)
	default:
		return failed(codeCommandNotFound, "no such command: '"+call.Command+"'")
	}
}

// commands are those that need more than the node.
var commands = map[string]func(c *conn, call Call) bson.D{}

// init fills the table: its functions look into it through other commands.
func init() { //nolint:gochecknoinits // the table and the functions in it name each other
	hello := func(c *conn, call Call) bson.D { return c.node.hello(call.Body) }
	end := func(*conn, Call) bson.D { return ok() }
	for name, run := range map[string]func(c *conn, call Call) bson.D{
		"hello": hello, "isMaster": hello, "ismaster": hello, "ping": end, "endSessions": end, "killCursors": end,
		"buildInfo": (*conn).buildInfo, "serverStatus": (*conn).serverStatus, "hostInfo": (*conn).hostInfo, "saslStart": (*conn).sasl, "saslContinue": (*conn).sasl, "connectionStatus": (*conn).connectionStatus,
		"invalidateUserCache": (*conn).invalidate, "createUser": (*conn).createUser, "createRole": (*conn).createRole, "dropRole": (*conn).dropRole,
		"grantRolesToUser": (*conn).grantRoles, "usersInfo": (*conn).usersInfo, "rolesInfo": (*conn).rolesInfo,
		"find": (*conn).find, "aggregate": (*conn).aggregate, "collStats": (*conn).collStats,
		"insert": (*conn).insert, "update": (*conn).update, "delete": (*conn).remove, "create": end,
		"commitTransaction": (*conn).commit, "abortTransaction": (*conn).abort,
		"killOp": (*conn).killOp, "killSessions": (*conn).killSessions, "killAllSessionsByPattern": (*conn).killPattern,
	} {
		commands[name] = run
	}
}

// buildInfo tells the version that is played.
func (c *conn) buildInfo(Call) bson.D {
	return append(bson.D{{Key: "version", Value: "8.0.0"}, {Key: "versionArray", Value: bson.A{8, 0, 0, 0}}}, ok()...)
}
