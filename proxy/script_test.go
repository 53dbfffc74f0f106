package proxy

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

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

// scripted speaks the wire protocol and answers by its script: for tests of
// what the proxy asks and makes of answers, without a server.
type scripted struct {
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
func (s *scripted) commands() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// serve accepts until the listener closes.
func (s *scripted) serve() {
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
func (s *scripted) talk(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	r := wire.NewReader(nc)
	for {
		m, err := r.Next()
		if err != nil {
			return
		}
		var msg wire.Msg
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
		wire.SetLength(out, 0)
		if _, err := nc.Write(out); err != nil {
			return
		}
	}
}

// fake adds a shard that answers by a script.
func (f *fleet) scripted(name string, answer script) *scripted {
	f.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(f.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(f.t, err)
	s := &scripted{t: f.t, name: name, listener: l, answer: answer}
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

// newScripted gives a hashed database of n chunks, by turns on two shards that
// answer by a script.
func newScripted(t testing.TB, n int, answer script, collections ...chunk.Collection) (f *fleet, a, b *scripted) {
	t.Helper()
	f = newFleet(t, 0, 0, collections...)
	a, b = f.scripted("shard-a", answer), f.scripted("shard-b", answer)
	for i, r := range chunk.Hashed.Split(n) {
		f.route(i+1, r, []string{"shard-a", "shard-b"}[i%2])
	}
	return f, a, b
}

// codeOf gives the code of a reply, -1 when it has none.
func codeOf(reply bson.Raw) code { return code(numberAt(reply, "code")) }

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
}

// checksumOf gives the bytes that end a message with a checksum.
func checksumOf(msg []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(msg, crc32.MakeTable(crc32.Castagnoli)))
}
