package proxy

import (
<<<<<<< HEAD
	"context"
	"encoding/binary"
	"fmt"
	"net"
=======
	"bytes"
	"net"
	"slices"
>>>>>>> 36de071 (Check a retried write against former routes that this proxy never held)
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

<<<<<<< HEAD
// fakeShard is a primary in this process: it shakes hands and answers whatever
// the test says. It needs no server, so that what the proxy decides before a
// shard is asked can be seen at once.
type fakeShard struct {
	listener net.Listener

	mu     sync.Mutex
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
		s.mu.Lock()
		for nc := range s.conns {
			_ = nc.Close()
		}
		s.mu.Unlock()
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

// serve answers one connection.
func (s *fakeShard) serve(nc net.Conn) {
=======
// sent is one command as a shard of a test got it.
type sent struct {
	shard, name, db string
	body            bson.Raw
	sequences       map[string][]bson.Raw
}

// list gives an array of documents, from beside the body or from in it.
func (s *sent) list(t testing.TB, name string) []bson.Raw {
	t.Helper()
	if docs, ok := s.sequences[name]; ok {
		return docs
	}
	var out []bson.Raw
	values, err := s.body.Lookup(name).Array().Values()
	require.NoError(t, err)
	for _, v := range values {
		out = append(out, v.Document())
	}
	return out
}

// script answers commands in a shard's place.
type script func(s *sent) bson.D

// fakeShard speaks the wire protocol and answers by its script: for tests of
// what the proxy asks and makes of answers, without a server.
type fakeShard struct {
	t        testing.TB
	name     string
	listener net.Listener
	answer   script
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	seen  []sent
}

// commands gives what has come so far.
func (s *fakeShard) commands() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// serve accepts until the listener closes.
func (s *fakeShard) serve() {
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, nc)
		s.mu.Unlock()
		s.wg.Go(func() { s.talk(nc) })
	}
}

// talk answers one connection.
func (s *fakeShard) talk(nc net.Conn) {
>>>>>>> 36de071 (Check a retried write against former routes that this proxy never held)
	defer func() { _ = nc.Close() }()
	r := wire.NewReader(nc)
	for {
		m, err := r.Next()
		if err != nil {
			return
		}
		var msg wire.Msg
<<<<<<< HEAD
		if wire.ParseMsg(m, &msg) != nil {
			return
		}
		if canned := s.canned; canned != nil && msg.Body[5] != 'h' {
			binary.LittleEndian.PutUint32(canned[8:], uint32(m.RequestID)) //nolint:gosec // any 32 bits
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
=======
		var cmd wire.Command
		if wire.ParseMsg(m, &msg) != nil || wire.ParseCommand(msg.Body, &cmd) != nil {
			s.t.Errorf("%s got what is no command", s.name)
			return
		}
		one := sent{shard: s.name, name: string(cmd.Name), db: string(cmd.DB), body: bytes.Clone(msg.Body), sequences: map[string][]bson.Raw{}}
		for _, q := range msg.Sequences {
			for docs := q.Docs; len(docs) > 0; {
				var doc []byte
				doc, docs = wire.NextDocument(docs)
				one.sequences[string(q.Name)] = append(one.sequences[string(q.Name)], bytes.Clone(doc))
			}
		}
		reply := bson.D{{Key: "isWritablePrimary", Value: true}, {Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 25}}
		if one.name != "hello" {
			s.mu.Lock()
			s.seen = append(s.seen, one)
			s.mu.Unlock()
			reply = s.answer(&one)
		}
		if !slices.ContainsFunc(reply, func(e bson.E) bool { return e.Key == "ok" }) {
			reply = append(reply, bson.E{Key: "ok", Value: 1.0})
		}
		doc, err := bson.Marshal(reply)
		if err != nil {
			s.t.Errorf("reply of %s: %v", s.name, err)
			return
		}
		out := wire.BeginMsg(nil, 1, m.RequestID, 0)
		out = append(out, doc...)
>>>>>>> 36de071 (Check a retried write against former routes that this proxy never held)
		wire.SetLength(out, 0)
		if _, err := nc.Write(out); err != nil {
			return
		}
	}
}

<<<<<<< HEAD
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
=======
// fake adds a shard that answers by a script.
func (f *fleet) fake(name string, answer script) *fakeShard {
	f.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(f.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	s := &fakeShard{t: f.t, name: name, listener: l, answer: answer}
	s.wg.Go(s.serve)
	f.t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for _, nc := range s.conns {
			_ = nc.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shards[name] = Shard{Shard: chunk.Shard{Name: name, URI: "mongodb://" + l.Addr().String() + "/?directConnection=true"}}
	return s
}

// keeps makes a shard one that keeps records of retryable writes.
func (f *fleet) keeps(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.shards[name]
	s.Capabilities.KeepsTransactionRecord = true
	f.shards[name] = s
}

// route puts the chunk with the given number and range on a shard.
func (f *fleet) route(n int, r chunk.Range, shard string) chunk.Route {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := chunk.NewID(testDatabase, n)
	f.lastID++
	f.token++
	out := chunk.Route{
		Chunk: chunk.Chunk{ID: id, Database: testDatabase, Range: r}, Token: f.token,
		Placement: chunk.Placement{ID: f.lastID, Chunk: id, Shard: shard, Database: chunk.PhysicalName(id, f.lastID), State: chunk.Live},
	}
	f.routes[id] = out
	return out
}

// newFakeFleet gives a hashed database of n chunks, by turns on two shards that
// answer by a script.
func newFakeFleet(t testing.TB, n int, answer script, collections ...chunk.Collection) (f *fleet, a, b *fakeShard) {
	t.Helper()
	f = newFleet(t, 0, 0, collections...)
	a, b = f.fake("shard-a", answer), f.fake("shard-b", answer)
	for i, r := range chunk.Hashed.Split(n) {
		f.route(i+1, r, []string{"shard-a", "shard-b"}[i%2])
	}
	return f, a, b
}

// codeOf gives the code of a reply, -1 when it has none.
func codeOf(reply bson.Raw) code { return code(numberAt(reply, "code")) } //nolint:gosec // codes are small

// numberAt gives a number of a reply, -1 when there is none.
func numberAt(reply bson.Raw, path ...string) int64 {
	v, err := reply.LookupErr(path...)
	if err != nil {
		return -1
	}
	n, ok := wire.Element{Type: v.Type, Value: v.Value}.Number()
	if !ok {
		return -1
	}
	return n
>>>>>>> 36de071 (Check a retried write against former routes that this proxy never held)
}
