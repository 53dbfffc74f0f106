package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/admission"
	"drover/proxy/auth"
	"drover/proxy/wire"
)

// errClientLeft ends a request whose client has closed its connection.
var errClientLeft = errors.New("the client has left")

// client is one connection of a client. One goroutine serves it: requests that
// come faster than replies go wait in the socket.
type client struct {
	p       *Proxy
	nc      net.Conn
	id      int32
	reader  *wire.Reader
	msg     wire.Msg
	cmd     wire.Command
	out     []byte
	user    string      // empty: nobody has logged in
	login   *auth.Login // under way, nil: none
	turn    uint32      // number of the request that is being worked on
	req     request     // which it is
	batch   batch       // which it has, if it is one
	docs    []bson.Raw  // of it
	legs    legs        // of it
	scratch []byte      // for the shapes of requests
	habits  *habits     // of caller
	caller  caller
	app     string // what the client calls itself
	hellos  int    // that it has said
	packed  wire.Compressor

	busy    atomic.Bool // a request is being worked on
	retired atomic.Bool
	watched watch
}

// watch is the look at a client while parts of its request wait.
type watch struct {
	mu   sync.Mutex
	by   int // parts that wait
	left chan struct{}
	done chan struct{} // closed when nobody reads the connection any more
}

// newClient takes over an accepted connection.
func newClient(p *Proxy, nc net.Conn) *client {
	return &client{p: p, nc: nc, id: p.lastID.Add(1), reader: wire.NewReader(nc)}
}

// What an idle connection keeps at most.
const (
	keptReply      = 64 * 1024 // bytes
	keptStatements = 64
)

// serve answers requests until the connection ends. A panic costs this
// connection and nothing else.
func (c *client) serve(ctx context.Context) {
	defer func() {
		if r := recover(); r != nil {
			c.p.log.ErrorContext(ctx, "request panicked", "client", c.id, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
		_ = c.nc.Close()
		c.p.forget(c)
	}()
	if c.p.secure(ctx, c.nc) != nil {
		return
	}
	for {
		m, err := c.reader.Next()
		if err != nil {
			if errors.Is(err, wire.ErrMalformed()) {
				c.p.metrics.refused("malformed")
				c.p.log.WarnContext(ctx, "client sent what is no message", "client", c.id, "error", err)
			}
			return
		}
		c.busy.Store(true)
		err = c.handle(ctx, m)
		c.busy.Store(false)
		if err != nil {
			if errors.Is(err, wire.ErrMalformed()) {
				c.p.metrics.refused("malformed")
				c.p.log.WarnContext(ctx, "client sent what is no message", "client", c.id, "error", err)
			}
			return
		}
		if c.retired.Load() {
			return
		}
		c.lighten(len(m.Raw))
	}
}

// lighten gives up what a large request, or its reply, took: nothing may point into its
// message any more.
func (c *client) lighten(size int) {
	if cap(c.out) > keptReply {
		c.out = nil
	}
	if size > keptReply || cap(c.docs) > keptStatements {
		c.msg, c.cmd, c.req, c.batch, c.docs = wire.Msg{}, wire.Command{}, request{}, batch{}, nil
	}
}

// retire ends the connection once it has answered what it is working on.
func (c *client) retire() {
	c.retired.Store(true)
	if !c.busy.Load() {
		// An idle one waits in a read. One that becomes busy just now loses its
		// connection before anything was sent.
		_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// handle answers one message; an error ends the connection.
func (c *client) handle(ctx context.Context, m wire.Message) error {
	c.packed = m.Compressor
	switch m.Op {
	case wire.OpMsg:
		if err := wire.ParseMsg(m, &c.msg); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if err := wire.ParseCommand(c.msg.Body, &c.cmd); err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		c.out = wire.BeginMsg(c.out[:0], c.p.lastID.Add(1), m.RequestID, 0)
		quiet := c.msg.Flags&wire.MoreToCome != 0
		if err := c.answer(ctx, len(c.out), quiet); err != nil {
			return err
		}
		if quiet {
			return nil
		}
		return c.send()
	case wire.OpQuery:
		return c.handshakeQuery(ctx, m)
	default:
		return fmt.Errorf("opcode %d: %w", m.Op, wire.ErrMalformed())
	}
}

// answer runs the parsed command and appends the reply's document at.
func (c *client) answer(ctx context.Context, at int, quiet bool) error {
	start := time.Now()
	c.legs.reset()
	c.turn++
	c.req = request{client: c, id: uint64(uint32(c.id))<<32 | uint64(c.turn), cmd: &c.cmd, sequences: c.msg.Sequences, start: start, quiet: quiet} //nolint:gosec // any 32 bits
	q := &c.req
	if c.cmd.MaxTimeMS > 0 {
		q.deadline = start.Add(time.Duration(c.cmd.MaxTimeMS) * time.Millisecond)
	}
	cmd, known := c.p.commands[string(c.cmd.Name)]
	if !known {
		cmd = c.p.commands[unknownCommand]
	}
	ctx, span := c.p.traceRequest(ctx, q, cmd)
	err := c.p.permit(q, cmd)
	if err == nil {
		err = cmd.check(q)
	}
	if err == nil && cmd.data {
		err = c.p.admit(ctx, q)
	}
	if err == nil {
		err = c.p.plan(ctx, cmd, q)
	}
	q.endRequest(span, q.failed, err)
	if errors.Is(err, errClientLeft) {
		return err
	}
	if err != nil {
		c.out = c.p.asRefusal(ctx, err).appendError(c.out[:at])
	}
	failed := err != nil || q.failed
	if failed && quiet {
		c.p.metrics.unheard.Inc()
	}
	c.p.finish(ctx, cmd, q, failed, err, len(c.out)-at)
	return nil
}

// maxPlans bounds how often a command is planned anew because chunks of it were
// split or merged.
const maxPlans = 4

// plan runs a command, and again where its chunks were split or merged before
// anything of it had run: it is another plan then.
func (p *Proxy) plan(ctx context.Context, cmd *command, q *request) error {
	at := len(q.client.out)
	for n := 1; ; n++ {
		err := cmd.run(ctx, p, q)
		r, ok := errors.AsType[*refusal](err)
		if !ok || !r.ended || n == maxPlans {
			return err
		}
		q.client.out = q.client.out[:at]
	}
}

// send writes the reply that stands in out.
func (c *client) send() error {
	wire.SetLength(c.out, 0)
	out := c.out
	if c.packed != wire.Noop {
		var err error
		if out, err = wire.Compress(out, c.packed); err != nil {
			return fmt.Errorf("compress reply: %w", err)
		}
	}
	if _, err := c.nc.Write(out); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	return nil
}

// handshakeQuery answers what old drivers begin with. Any other command must
// come as OP_MSG.
func (c *client) handshakeQuery(ctx context.Context, m wire.Message) error {
	query, err := wire.ParseQuery(m)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if err := wire.ParseCommand(query.Body, &c.cmd); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	c.cmd.DB, c.msg.Sequences = query.Database, nil
	c.out = c.out[:0]
	switch string(c.cmd.Name) {
	case "hello", "isMaster", "ismaster":
		if err := c.answer(ctx, 0, false); err != nil {
			return err
		}
	default:
		c.out = refuse(codeOpQueryUnsupported, "command %s must be sent as OP_MSG", c.cmd.Name).appendError(c.out)
	}
	reply := wire.AppendReply(nil, c.p.lastID.Add(1), m.RequestID, c.out)
	if _, err := c.nc.Write(reply); err != nil {
		return fmt.Errorf("write reply: %w", err)
	}
	return nil
}

// watch looks, while the request waits, whether the client is still there. The
// channel is closed when it has left; the function ends the look.
func (c *client) watch() (<-chan struct{}, func()) {
	w := &c.watched
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by++; w.by == 1 {
		left, done := make(chan struct{}), make(chan struct{})
		w.left, w.done = left, done
		go func() {
			defer close(done)
			// Bytes mean another request behind this one: the client is there,
			// and nothing can be said any more.
			if err := c.reader.Await(); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				close(left)
			}
		}()
	}
	return w.left, c.unwatch
}

// unwatch ends one part's look; with the last one the connection is free again.
func (c *client) unwatch() {
	w := &c.watched
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by--; w.by > 0 {
		return
	}
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	if !c.retired.Load() {
		_ = c.nc.SetReadDeadline(time.Time{})
	}
}

// request is one command of a client while it is being worked on.
type request struct {
	client    *client
	id        uint64 // tells it from every other one
	cmd       *wire.Command
	sequences []wire.Sequence
	start     time.Time
	deadline  time.Time // by its maxTimeMS; zero: none
	quiet     bool      // no reply is wanted
	failed    bool      // a shard's own error was passed on

	way leg // of a request that goes to one chunk

	share *admission.Tenant // of the command's database, nil: it has no policy

	session *session // nil: the command has none
	txn     *txn     // nil: not in a transaction
}

// reply appends a whole document as the reply.
func (q *request) reply(doc []byte) { q.client.out = append(q.client.out, doc...) }

// build appends a reply that fn fills, with ok: 1 at its end.
func (q *request) build(fn func(dst []byte) []byte) {
	at, dst := bsoncore.AppendDocumentStart(q.client.out)
	dst = fn(dst)
	dst = bsoncore.AppendDoubleElement(dst, "ok", 1)
	q.client.out, _ = bsoncore.AppendDocumentEnd(dst, at)
}

// command is how one command is answered.
type command struct {
	name    string
	run     func(ctx context.Context, p *Proxy, q *request) error
	data    bool // works on a collection's documents: may carry a session and a transaction
	writes  bool // changes documents
	need    need
	metrics commandMetrics
}

// check refuses what no command may carry, and finds the session.
func (c *command) check(q *request) error {
	if len(q.cmd.DB) == 0 {
		return refuse(codeFailedToParse, "$db is missing")
	}
	if q.cmd.Deep {
		return errDeep()
	}
	if q.cmd.Internal != nil {
		q.client.p.metrics.refused("internal_field")
		return refuse(codeInvalidOptions, "the field '%s' is for members of a cluster only", q.cmd.Internal)
	}
	if q.cmd.LSID != nil {
		q.session = q.client.p.sessions.of(q.cmd.LSID, q.client.user, q.start)
	}
	if q.cmd.HasTxnNumber && q.session == nil {
		return refuse(codeInvalidOptions, "txnNumber needs a session")
	}
	if q.cmd.Transaction && !q.cmd.HasTxnNumber {
		return refuse(codeInvalidOptions, "autocommit needs a txnNumber")
	}
	if q.cmd.Transaction && !c.data && c.name != "commitTransaction" && c.name != "abortTransaction" {
		return refuse(codeNotInTransaction, "%s is not possible in a transaction", c.name)
	}
	if !c.data {
		return nil
	}
	if err := q.checkReadConcern(); err != nil {
		return err
	}
	return q.client.p.transaction(q, q.start)
}

// unknownCommand is the name under which whatever is not served is counted.
const unknownCommand = "other"

// refuseUnknown answers whatever the proxy does not serve.
func refuseUnknown(_ context.Context, p *Proxy, q *request) error {
	p.metrics.refused("unknown_command")
	return refuse(codeCommandNotFound, "no such command: '%s'", q.cmd.Name)
}

// commandTable makes the table of every command that is served.
func commandTable(m *metrics) map[string]*command {
	t := map[string]*command{}
	for _, c := range []*command{
		{name: "hello", run: hello},
		{name: "ping", run: ping},
		{name: "buildInfo", run: buildInfo},
		{name: "connectionStatus", run: connectionStatus},
		{name: "whatsmyuri", run: whatsMyURI},
		{name: "getParameter", run: getParameter},
		{name: "getCmdLineOpts", run: getCmdLineOpts},
		{name: "getLog", run: getLog},
		{name: "hostInfo", run: hostInfo},
		{name: "serverStatus", run: serverStatus},
		{name: "dbStats", run: stats},
		{name: "collStats", run: stats},
		{name: "saslStart", run: saslStart},
		{name: "saslContinue", run: saslContinue},
		{name: "listDatabases", run: listDatabases},
		{name: "listCollections", run: listCollections},
		{name: "listIndexes", run: listIndexes},
		{name: "insert", run: insert, data: true, writes: true},
		{name: "update", run: update, data: true, writes: true},
		{name: "delete", run: remove, data: true, writes: true},
		{name: "findAndModify", run: findAndModify, data: true, writes: true},
		{name: "find", run: find, data: true},
		{name: "getMore", run: getMore, data: true},
		{name: "killCursors", run: killCursors, data: true},
		{name: "count", run: count, data: true},
		{name: "aggregate", run: aggregate, data: true},
		{name: "distinct", run: distinct, data: true},
		{name: "commitTransaction", run: commitTransaction},
		{name: "abortTransaction", run: abortTransaction},
		{name: "endSessions", run: endSessions},
		{name: "refreshSessions", run: refreshSessions},
		{name: "startSession", run: startSession},
		{name: "explain", run: explainCommand},
		{name: "logout", run: logout},
		{name: "create", run: create},
		{name: "drop", run: drop},
		{name: "createIndexes", run: createIndexes},
		{name: "dropIndexes", run: dropIndexes},
		{name: "collMod", run: collMod},
		{name: "shardCollection", run: shardCollection},
		{name: unknownCommand, run: refuseUnknown},
	} {
		c.metrics, c.need = m.command(c.name), needOf(c.name)
		t[c.name] = c
	}
	for name := range refusedCommands {
		t[name] = &command{name: name, run: refuseKnown, need: anyUser, metrics: t[unknownCommand].metrics}
	}
	for alias, name := range map[string]string{
		"isMaster": "hello", "ismaster": "hello", "buildinfo": "buildInfo", "findandmodify": "findAndModify", "deleteIndexes": "dropIndexes", "dbstats": "dbStats", "collstats": "collStats",
	} {
		t[alias] = t[name]
	}
	return t
}
