package proxy

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// fakeShard is a primary in this process: it shakes hands and answers whatever
// the test says. It needs no server, so that what the proxy decides before a
// shard is asked can be seen at once.
type fakeShard struct {
	listener net.Listener

	mu     sync.Mutex
	tls    *tls.Config               // nil: plain
	answer func(cmd bson.Raw) bson.D // nil: {ok: 1}
	asked  []bson.Raw                // data commands, oldest first
	canned []byte                    // the whole reply to anything but hello, for benchmarks
	conns  map[net.Conn]struct{}
}

// newFakeShard starts one until the test ends.
func newFakeShard(t testing.TB) *fakeShard {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &fakeShard{listener: l, conns: map[net.Conn]struct{}{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[nc] = struct{}{}
			s.mu.Unlock()
			wg.Go(func() { s.serve(nc) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.cut()
		wg.Wait()
	})
	return s
}

// answers sets what data commands are answered with.
func (s *fakeShard) answers(fn func(cmd bson.Raw) bson.D) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = fn
}

// seen gives the data commands that arrived.
func (s *fakeShard) seen() []bson.Raw {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]bson.Raw(nil), s.asked...)
}

// cut ends every connection.
func (s *fakeShard) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for nc := range s.conns {
		_ = nc.Close()
	}
}

// serve answers one connection.
func (s *fakeShard) serve(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	nc, err := s.wrapped(nc)
	if err != nil {
		return
	}
	r := wire.NewReader(nc)
	for {
		m, err := r.Next()
		if err != nil {
			return
		}
		var msg wire.Msg
		if wire.ParseMsg(m, &msg) != nil {
			return
		}
		if canned := s.canned; canned != nil && msg.Body[5] != 'h' {
			binary.LittleEndian.PutUint32(canned[8:], uint32(m.RequestID))
			if _, err := nc.Write(canned); err != nil {
				return
			}
			continue
		}
		body, err := bson.Marshal(s.reply(append(bson.Raw(nil), msg.Body...)))
		if err != nil {
			return
		}
		out := append(wire.BeginMsg(nil, 1, m.RequestID, 0), body...)
		wire.SetLength(out, 0)
		if _, err := nc.Write(out); err != nil {
			return
		}
	}
}

// reply makes the answer to one command.
func (s *fakeShard) reply(cmd bson.Raw) bson.D {
	name := ""
	if elements, err := cmd.Elements(); err == nil && len(elements) > 0 {
		name = elements[0].Key()
	}
	if name == "hello" {
		return bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "maxWireVersion", Value: 25}, {Key: "ok", Value: 1.0}}
	}
	s.mu.Lock()
	s.asked = append(s.asked, cmd)
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		return bson.D{{Key: "ok", Value: 1.0}}
	}
	return answer(cmd)
}

// emptyCursorReply is what a shard says to a find that matches nothing.
func emptyCursorReply() bson.D {
	return bson.D{
		{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: bson.A{}}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.legs"}}},
		{Key: "ok", Value: 1.0},
	}
}

// newFakeFleet is a fleet whose chunks all lie on one fake shard.
func newFakeFleet(t testing.TB, chunks int, databases ...string) (*fleet, *fakeShard) {
	t.Helper()
	s := newFakeShard(t)
	f := &fleet{
		t: t, acked: make(chan chunk.Ack, 1000), shards: map[string]Shard{}, databases: map[string]chunk.Database{},
		routes: map[chunk.ID]chunk.Route{}, attempts: map[chunk.ID]chunk.Notice{}, ears: map[int]func(Announcement){},
		granted: map[chunk.PlacementID]chunk.AttemptID{}, attempt: 5, token: 100, lastID: 40,
	}
	f.shards["shard-a"] = Shard{Shard: chunk.Shard{
		Name: "shard-a", URI: fmt.Sprintf("mongodb://%s/?directConnection=true", s.listener.Addr()),
	}}
	if len(databases) == 0 {
		databases = []string{testDatabase}
	}
	for _, name := range databases {
		f.databases[name] = chunk.Database{Name: name, KeySpace: chunk.Hashed, Collections: []chunk.Collection{
			{Name: "legs", ShardKey: "origin"}, {Name: "byid", ShardKey: "_id"},
		}}
		for i, r := range chunk.Hashed.Split(chunks) {
			id := chunk.NewID(name, i+1)
			f.lastID++
			f.token++
			f.routes[id] = chunk.Route{
				Chunk: chunk.Chunk{ID: id, Database: name, Range: r}, Token: f.token,
				Placement: chunk.Placement{ID: f.lastID, Chunk: id, Shard: "shard-a", Database: chunk.PhysicalName(id, f.lastID), State: chunk.Live},
			}
		}
	}
	return f, s
}

// BenchmarkPassThrough measures what the proxy allocates for one targeted find
// and one targeted update, without driver and server.
func BenchmarkPassThrough(b *testing.B) {
	lsid := bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}
	on := bson.E{Key: "$db", Value: testDatabase}
	filter := bson.D{{Key: "origin", Value: "x"}}
	for name, doc := range map[string]bson.D{
		"Find": {{Key: "find", Value: "legs"}, {Key: "filter", Value: filter}, {Key: "limit", Value: int64(1)}, {Key: "singleBatch", Value: true}, lsid, on},
		"Update": {{Key: "update", Value: "legs"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: filter}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}},
		}}}, lsid, on},
	} {
		b.Run(name, func(b *testing.B) {
			f, s := newFakeFleet(b, 2)
			reply := bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}, {Key: "ok", Value: 1.0}}
			if name == "Find" {
				reply = emptyCursorReply()
			}
			s.canned = append(wire.BeginMsg(nil, 1, 0, 0), raw(b, reply)...)
			wire.SetLength(s.canned, 0)
			p := f.start(Config{})
			c := dialRaw(b, p)
			msg := c.encode(0, doc)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.nc.Write(msg); err != nil {
					b.Fatal(err)
				}
				if _, err := c.r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
