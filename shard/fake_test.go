package shard_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/shard"
)

// fakeSet is a replica set of several members that speaks just enough of the wire
// protocol for the barrier and the drain. The real server of these tests has one
// member, lists no operations and keeps no cache of users; a mongod's side of the
// story is told here, as its documentation and its source tell it.
type fakeSet struct {
	mu      sync.Mutex
	nodes   []*fakeNode
	replies map[string]bson.D // by command, in place of its own answer
}

// fakeNode is one member. Its fields are guarded by the set's lock.
type fakeNode struct {
	set         *fakeSet
	id          int
	addr        string
	listener    net.Listener
	silent      bool           // takes connections and never answers
	down        bool           // what the others see
	applied     bson.Timestamp // what it has applied
	granted     bool           // what its cache of users says of the write grant
	stale       bool           // the cache keeps that until it is emptied
	invalidated int
	operations  []bson.D // what $currentOp shows
	killed      []any    // operations and sessions
}

// newFakeSet starts n members; the first is primary, and has dropped the grant at
// time 10.
func newFakeSet(t *testing.T, n int) (*fakeSet, *shard.Set) {
	t.Helper()
	s := &fakeSet{}
	var wg sync.WaitGroup
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed by the test
		require.NoError(t, err)
		node := &fakeNode{set: s, id: i, addr: l.Addr().String(), listener: l, applied: bson.Timestamp{T: 10}}
		s.nodes = append(s.nodes, node)
		wg.Go(func() { node.serve(&wg) })
	}
	clients := shard.NewClients(secret, shard.Options{})
	t.Cleanup(func() {
		require.NoError(t, clients.Close(t.Context()))
		for _, node := range s.nodes {
			require.NoError(t, node.listener.Close())
		}
		wg.Wait()
	})
	set, err := clients.Set(chunk.Shard{
		Name: "s1", URI: "mongodb://" + s.nodes[0].addr + "/?directConnection=true",
		Capabilities: chunk.Capabilities{ListsOperations: true, KillsSessionsByUser: true, InvalidatesUserCache: true, Members: n},
	})
	require.NoError(t, err)
	return s, set
}

// with runs fn under the set's lock.
func (s *fakeSet) with(fn func(nodes []*fakeNode)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s.nodes)
}

// serve accepts connections until the listener is closed.
func (n *fakeNode) serve(wg *sync.WaitGroup) {
	for {
		c, err := n.listener.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer func() { _ = c.Close() }()
			_ = n.talk(c) // it ends when the client leaves
		})
	}
}

// fakeConn is one connection's login.
type fakeConn struct {
	user         string
	conversation *scram.ServerConversation
}

// talk answers one connection's requests: OP_MSG, and OP_QUERY of the first hello.
func (n *fakeNode) talk(c net.Conn) error {
	var login fakeConn
	for {
		var head [16]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		body := make([]byte, binary.LittleEndian.Uint32(head[:])-16)
		if _, err := io.ReadFull(c, body); err != nil {
			return err
		}
		id, opcode := binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[12:])
		var cmd bson.Raw
		switch opcode {
		case 2013: // flags, kind 0
			cmd = body[5:]
		case 2004: // flags, name, skip, limit
			end := 4
			for body[end] != 0 {
				end++
			}
			cmd = body[end+9:]
		default:
			return fmt.Errorf("opcode %d", opcode)
		}
		cmd = cmd[:binary.LittleEndian.Uint32(cmd)]
		n.set.mu.Lock()
		silent := n.silent
		n.set.mu.Unlock()
		if silent {
			continue
		}
		reply, err := bson.Marshal(n.answer(&login, cmd))
		if err != nil {
			return err
		}
		if _, err := c.Write(frame(id, opcode, reply)); err != nil {
			return err
		}
	}
}

// frame wraps a reply in the form of its request.
func frame(id, opcode uint32, reply []byte) []byte {
	prefix, code := []byte{0, 0, 0, 0, 0}, uint32(2013)
	if opcode == 2004 { // flags, cursor, start, one document
		prefix, code = make([]byte, 20), 1
		prefix[16] = 1
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(16+len(prefix)+len(reply)))
	out = binary.LittleEndian.AppendUint32(out, 1)
	out = binary.LittleEndian.AppendUint32(out, id)
	out = binary.LittleEndian.AppendUint32(out, code)
	return append(append(out, prefix...), reply...)
}

// failed is an error reply.
func failed(code int, name string) bson.D {
	return bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: code}, {Key: "codeName", Value: name}, {Key: "errmsg", Value: name}}
}

// answer runs one command.
func (n *fakeNode) answer(login *fakeConn, cmd bson.Raw) bson.D {
	n.set.mu.Lock()
	defer n.set.mu.Unlock()
	elements, err := cmd.Elements()
	if err != nil {
		return failed(22, "InvalidBSON")
	}
	ok := bson.D{{Key: "ok", Value: 1}, {Key: "operationTime", Value: n.applied}}
	if r, found := n.set.replies[elements[0].Key()]; found {
		return append(r, ok...)
	}
	switch elements[0].Key() {
	case "hello", "isMaster", "ismaster":
		return append(bson.D{
			{Key: "setName", Value: "rs"}, {Key: "me", Value: n.addr}, {Key: "hosts", Value: []string{n.addr}},
			{Key: "isWritablePrimary", Value: n.id == 0}, {Key: "ismaster", Value: n.id == 0}, {Key: "secondary", Value: n.id != 0},
			{Key: "helloOk", Value: true}, {Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21},
			{Key: "maxBsonObjectSize", Value: 16 << 20}, {Key: "maxMessageSizeBytes", Value: 48 << 20}, {Key: "maxWriteBatchSize", Value: 100000},
			{Key: "logicalSessionTimeoutMinutes", Value: 30},
		}, ok...)
	case "saslStart", "saslContinue":
		return login.sasl(cmd)
	case "ping", "endSessions":
		return ok
	case "replSetGetStatus":
		return append(n.status(), ok...)
	case "replSetGetConfig":
		return append(n.config(), ok...)
	case "invalidateUserCache":
		n.invalidated++
		n.stale = false
		return ok
	case "connectionStatus":
		return append(n.privileges(login.user), ok...)
	case "delete":
		switch {
		case !n.mayWrite():
			return failed(13, "Unauthorized")
		case n.id != 0:
			return failed(10107, "NotWritablePrimary")
		default:
			return append(bson.D{{Key: "n", Value: 0}}, ok...)
		}
	case "aggregate":
		batch := n.operations
		if batch == nil {
			batch = []bson.D{}
		}
		return append(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "admin.$cmd.aggregate"}, {Key: "firstBatch", Value: batch}}}}, ok...)
	case "killOp", "killSessions":
		return append(n.kill(cmd), ok...)
	default:
		return failed(59, "CommandNotFound")
	}
}

// mayWrite tells what the node's cache of users says.
func (n *fakeNode) mayWrite() bool { return n.granted && (n.stale || n.applied.T < 10) }

// privileges answers connectionStatus.
func (n *fakeNode) privileges(user string) bson.D {
	list := bson.A{bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "flights_0042_p42"}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: bson.A{"find", "listCollections"}}}}
	if n.mayWrite() {
		list = append(list, bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "flights_0042_p42"}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: bson.A{"insert", "remove"}}})
	}
	return bson.D{{Key: "authInfo", Value: bson.D{
		{Key: "authenticatedUsers", Value: bson.A{bson.D{{Key: "user", Value: user}, {Key: "db", Value: "admin"}}}},
		{Key: "authenticatedUserPrivileges", Value: list},
	}}}
}

// kill notes what is killed and ends it.
func (n *fakeNode) kill(cmd bson.Raw) bson.D {
	if op, err := cmd.LookupErr("op"); err == nil {
		n.killed = append(n.killed, op.AsInt64())
		n.operations = nil
		return nil
	}
	var k struct {
		Sessions []struct {
			ID  bson.Binary `bson:"id"`
			UID bson.Binary `bson:"uid"`
		} `bson:"killSessions"`
	}
	if err := bson.Unmarshal(cmd, &k); err != nil {
		return failed(22, "InvalidBSON")
	}
	for _, s := range k.Sessions {
		n.killed = append(n.killed, fmt.Sprintf("%x/%x", s.ID.Data, s.UID.Data))
	}
	n.operations = nil
	return nil
}

// config answers replSetGetConfig.
func (n *fakeNode) config() bson.D {
	var members bson.A
	for _, m := range n.set.nodes {
		members = append(members, bson.D{{Key: "_id", Value: m.id}, {Key: "host", Value: m.addr}, {Key: "votes", Value: 1}, {Key: "priority", Value: 1.0}})
	}
	return bson.D{{Key: "config", Value: bson.D{{Key: "version", Value: 1}, {Key: "members", Value: members}, {Key: "settings", Value: bson.D{{Key: "electionTimeoutMillis", Value: 100}}}}}}
}

// status answers replSetGetStatus. What is down has not been heard of for a second.
func (n *fakeNode) status() bson.D {
	const now = bson.DateTime(1_800_000_000_000)
	var members bson.A
	for _, m := range n.set.nodes {
		x := bson.D{{Key: "_id", Value: m.id}, {Key: "name", Value: m.addr}, {Key: "health", Value: 1.0}, {Key: "stateStr", Value: "SECONDARY"},
			{Key: "lastHeartbeatRecv", Value: now}, {Key: "configVersion", Value: 1}}
		if m.id == 0 {
			x[3].Value = "PRIMARY"
		}
		if m.down {
			x[2].Value, x[3].Value, x[4].Value = 0.0, "(not reachable/healthy)", now-1000
		}
		if m == n {
			x = append(x, bson.E{Key: "self", Value: true})
		}
		members = append(members, x)
	}
	return bson.D{{Key: "term", Value: int64(1)}, {Key: "date", Value: now}, {Key: "members", Value: members},
		{Key: "optimes", Value: bson.D{{Key: "appliedOpTime", Value: bson.D{{Key: "ts", Value: n.applied}, {Key: "t", Value: int64(1)}}}}}}
}

// sasl logs a user in by SCRAM-SHA-256.
func (l *fakeConn) sasl(cmd bson.Raw) bson.D {
	_, payload, _ := cmd.Lookup("payload").BinaryOK()
	if l.conversation == nil {
		server, err := scram.SHA256.NewServer(func(user string) (scram.StoredCredentials, error) {
			client, err := scram.SHA256.NewClientUnprepped(user, shard.Password(secret, "s1", user), "")
			if err != nil {
				return scram.StoredCredentials{}, errors.New("no such user")
			}
			l.user = user
			return client.GetStoredCredentials(scram.KeyFactors{Salt: "salt of the test", Iters: 4096}), nil
		})
		if err != nil {
			return failed(18, "AuthenticationFailed")
		}
		l.conversation = server.NewConversation()
	}
	out, err := l.conversation.Step(string(payload))
	if err != nil {
		return failed(18, "AuthenticationFailed")
	}
	return bson.D{{Key: "ok", Value: 1}, {Key: "conversationId", Value: 1}, {Key: "done", Value: l.conversation.Done()}, {Key: "payload", Value: bson.Binary{Data: []byte(out)}}}
}
