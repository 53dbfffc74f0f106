package proxy

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// cursorShards answers finds with a cursor that goes on, and getMores with its
// end; it keeps what came.
type cursorShards struct {
	mu   sync.Mutex
	sent []sent
}

// answer is the shards' script.
func (c *cursorShards) answer(s *sent) bson.D {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, *s)
	cursor := bson.D{{Key: "id", Value: int64(7)}, {Key: "ns", Value: s.db + ".legs"}}
	switch s.name {
	case "find":
		return bson.D{{Key: "cursor", Value: append(cursor, bson.E{Key: "firstBatch", Value: bson.A{bson.D{{Key: "n", Value: 1}}}})}}
	case "getMore":
		cursor[0].Value = int64(0)
		return bson.D{{Key: "cursor", Value: append(cursor, bson.E{Key: "nextBatch", Value: bson.A{bson.D{{Key: "n", Value: 2}}}})}}
	default:
		return bson.D{}
	}
}

// named gives the commands of one name that came.
func (c *cursorShards) named(name string) []sent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.sent), func(s sent) bool { return s.name != name })
}

// lsidOf makes a session's element.
func lsidOf(id string) bson.E {
	return bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte(id)}}}}
}

// A getMore once went without the session of its cursor, and failed after the
// first batch: every command of a cursor has the session that it began with.
func TestCursorKeepsItsSession(t *testing.T) {
	t.Parallel()

	shards := &cursorShards{}
	f, _, _ := newScripted(t, 2, shards.answer)
	c := dialRaw(t, f.start(Config{}))
	on := bson.E{Key: "$db", Value: testDatabase}
	for name, filter := range map[string]bson.D{"one chunk": {{Key: "origin", Value: "x"}}, "several": {}} {
		shards.sent = nil
		got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: filter}, {Key: "batchSize", Value: 1}, lsidOf(testSession), on})
		id := got.Lookup("cursor", "id").Int64()
		require.NotZero(t, id, name)
		got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "legs"}, lsidOf("another-session-"), on})
		require.Equal(t, codeCursorNotFound, codeOf(got), "%s: no other session reads it", name)
		got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "other"}, lsidOf(testSession), on})
		require.Equal(t, codeUnauthorized, codeOf(got), "%s: nor by another name", name)
		for id != 0 {
			got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "legs"}, lsidOf(testSession), on})
			require.Equal(t, int64(1), numberAt(got, "ok"), "%s: %v", name, got)
			id = got.Lookup("cursor", "id").Int64()
		}
		for _, more := range shards.named("getMore") {
			i := slices.IndexFunc(shards.sent, func(s sent) bool { return s.name == "find" && s.db == more.db })
			require.Equal(t, shards.sent[i].body.Lookup("lsid"), more.body.Lookup("lsid"), name)
			require.Equal(t, "legs", more.body.Lookup("collection").StringValue())
		}
	}
}

// Clients that ended their sessions once left cursors open on every shard.
func TestEndedSessionLeavesNoCursor(t *testing.T) {
	t.Parallel()

	shards := &cursorShards{}
	f, _, _ := newScripted(t, 4, shards.answer)
	p := f.start(Config{})
	c := dialRaw(t, p)
	got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "batchSize", Value: 1}, lsidOf(testSession), {Key: "$db", Value: testDatabase}})
	require.NotZero(t, got.Lookup("cursor", "id").Int64())
	sessions := bson.A{lsidOf(testSession).Value, lsidOf("another-session-").Value}
	c.run(bson.D{{Key: "refreshSessions", Value: sessions}, {Key: "$db", Value: "admin"}})
	require.Empty(t, shards.named("killCursors"))
	c.run(bson.D{{Key: "endSessions", Value: sessions}, {Key: "$db", Value: "admin"}})
	require.Len(t, shards.named("killCursors"), 4)
	require.Empty(t, p.cursors.all)
}

// A session that a client keeps alive is not forgotten, however long its cursor
// is not read.
func TestRefreshedSessionLives(t *testing.T) {
	t.Parallel()

	f, _, _ := newScripted(t, 1, func(*sent) bson.D { return bson.D{} })
	p := f.start(Config{})
	old := time.Now().Add(-sessionLife)
	kept, lost := p.sessions.of([]byte(testSession), "", old), p.sessions.of([]byte("another-session-"), "", old)
	dialRaw(t, p).run(bson.D{{Key: "refreshSessions", Value: bson.A{lsidOf(testSession).Value}}, {Key: "$db", Value: "admin"}})
	p.sessions.sweep(time.Now().Add(time.Second))
	require.Same(t, kept, p.sessions.of([]byte(testSession), "", time.Now()))
	require.NotSame(t, lost, p.sessions.of([]byte("another-session-"), "", time.Now()))
}

// A client that says no more after its request still gets the reply.
func TestHalfClosedClient(t *testing.T) {
	t.Parallel()

	f, _, _ := newScripted(t, 2, func(s *sent) bson.D { return batchReply(s.db+".legs", bson.D{{Key: "n", Value: 1}}) })
	c := dialRaw(t, f.start(Config{}))
	id := c.send(0, bson.D{{Key: "find", Value: "legs"}, {Key: "$db", Value: testDatabase}})
	require.NoError(t, c.nc.(*net.TCPConn).CloseWrite())
	to, got := c.read()
	require.Equal(t, id, to)
	require.Len(t, firstDocs(t, got), 2)
	c.ended()
}

// A client that sends and does not read costs its own connection's buffers and
// no more: its requests wait in the socket.
func TestSlowReader(t *testing.T) {
	t.Parallel()

	const requests = 200
	big := bson.D{{Key: "v", Value: bytes.Repeat([]byte{'x'}, 1<<20)}}
	f, a, b := newScripted(t, 2, func(s *sent) bson.D { return batchReply(s.db+".legs", big) })
	p := f.start(Config{})
	slow, quick := dialRaw(t, p), dialRaw(t, p)
	for range requests {
		slow.send(0, bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin", Value: "x"}}}, {Key: "$db", Value: testDatabase}})
	}
	require.Equal(t, int64(1), numberAt(quick.run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}), "ok"))
	require.Less(t, len(a.commands())+len(b.commands()), requests/2)
	for i := range int32(requests) {
		to, _ := slow.read()
		require.Equal(t, i+1, to)
	}
}

// A batch that fails in the middle of a merge ends the cursor: documents that
// were taken for it were skipped by the next getMore.
func TestFailedBatchEndsTheCursor(t *testing.T) {
	t.Parallel()

	shards := &cursorShards{}
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		if s.name == "getMore" {
			return bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: int32(codeMaxTimeMSExpired)}, {Key: "errmsg", Value: "operation exceeded time limit"}}
		}
		return shards.answer(s)
	})
	c := dialRaw(t, f.start(Config{}))
	got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "batchSize", Value: 1}, {Key: "$db", Value: testDatabase}})
	more := bson.D{{Key: "getMore", Value: got.Lookup("cursor", "id").Int64()}, {Key: "collection", Value: "legs"}, {Key: "$db", Value: testDatabase}}
	require.Equal(t, codeMaxTimeMSExpired, codeOf(c.run(more)))
	require.Equal(t, codeCursorNotFound, codeOf(c.run(more)))
	require.Len(t, shards.named("killCursors"), 2)
}

// The shortest message with a checksum holds an empty command.
func TestShortestChecksummedMessage(t *testing.T) {
	t.Parallel()

	f, _, _ := newScripted(t, 1, func(*sent) bson.D { return bson.D{} })
	p := f.start(Config{})
	bad := dialRaw(t, p)
	msg := wire.BeginMsg(nil, 1, 0, wire.ChecksumPresent)
	msg = append(msg, emptyDocument...)
	wire.SetLength(msg, 4)
	_, err := bad.nc.Write(append(msg, checksumOf(msg)...))
	require.NoError(t, err)
	bad.ended()
	require.Equal(t, int64(1), numberAt(dialRaw(t, p).run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}), "ok"))
}

// Clients that leave half-read cursors over several chunks once filled the proxy's
// memory: there is a bound, and what is read to its end, or given up, makes room.
func TestHalfReadCursorsAreBounded(t *testing.T) {
	t.Parallel()

	big := bson.D{{Key: "v", Value: bytes.Repeat([]byte{'x'}, 1<<20)}}
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		if s.name == "killCursors" {
			return bson.D{}
		}
		reply := batchReply(s.db+".legs", big, big)
		reply[0].Value.(bson.D)[1].Value = int64(7)
		return reply
	})
	p := f.start(Config{CursorBytes: 10 << 20})
	c := dialRaw(t, p)
	find := func() bson.Raw {
		return c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "batchSize", Value: 2}, {Key: "$db", Value: testDatabase}})
	}
	var open bson.A
	for range 2 { // two chunks with two documents of 1 MB each
		got := find()
		require.NotZero(t, got.Lookup("cursor", "id").Int64(), "%v", got)
		open = append(open, got.Lookup("cursor", "id").Int64())
	}
	require.Equal(t, codeMemoryLimit, codeOf(find()))
	require.Less(t, p.cursors.bytes.Load(), int64(10<<20), "a refused one keeps nothing")
	c.run(bson.D{{Key: "killCursors", Value: "legs"}, {Key: "cursors", Value: open}, {Key: "$db", Value: testDatabase}})
	require.Zero(t, p.cursors.bytes.Load())
	require.NotZero(t, find().Lookup("cursor", "id").Int64())
}
