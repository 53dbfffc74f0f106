package replication

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
)

// swallower stands between a client and a shard. It lets commands through and,
// while it is told to, swallows the answers to those that hold a word: the
// command takes effect, and its client sees the connection break.
type swallower struct {
	to        string
	word      []byte
	left      atomic.Int64 // answers to be swallowed
	swallowed atomic.Int64
}

// serve takes connections until the listener is closed.
func (s *swallower) serve(l net.Listener, group *sync.WaitGroup) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		group.Go(func() { s.pass(client) })
	}
}

// pass joins one connection to the shard.
func (s *swallower) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", s.to) //nolint:noctx // it ends with the client's connection
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var swallow atomic.Bool
	go func() {
		defer func() { _ = server.Close() }()
		b := make([]byte, 1<<16)
		for {
			n, err := client.Read(b)
			if bytes.Contains(b[:n], s.word) && s.left.Add(-1) >= 0 {
				swallow.Store(true)
			}
			if _, werr := server.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}()
	b := make([]byte, 1<<16)
	for {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		if swallow.Load() {
			s.swallowed.Add(1)
			return
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}

// behind gives the world's target through a swallower of answers to commands
// with the word.
func (w *world) behind(word string) *swallower {
	w.t.Helper()
	u, err := url.Parse(w.server.AdminURI())
	require.NoError(w.t, err)
	s := &swallower{to: u.Host, word: []byte(word)}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed by the test
	require.NoError(w.t, err)
	var group sync.WaitGroup
	group.Go(func() { s.serve(l, &group) })
	u.Host = l.Addr().String()
	client, err := mongo.Connect(options.Client().ApplyURI(u.String()))
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		_ = client.Disconnect(context.Background())
		_ = l.Close()
		group.Wait()
	})
	w.cfg.Target = client
	return s
}

// A commit took effect and its answer was lost, that of the driver's own retry
// too: the lane asks the checkpoint, and applies nothing twice.
func TestLanesLostAnswer(t *testing.T) {
	t.Parallel()
	shared := newWorld(t)
	for word, name := range map[string]string{
		"commitTransaction":         "of a commit",
		chunk.CheckpointsCollection: "of a checkpoint",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := worldOn(t, shared.server, shared.client)
			s := w.behind(word)
			r := w.run(w.cfg)
			id := w.inPartition(0, 1)[0]
			w.inserted(bson.D{{Key: "_id", Value: id}, {Key: "list", Value: bson.A{}}, {Key: "gone", Value: 1}})
			w.passes(w.mark(chunk.ValidateMarker, 1))
			for round := range 10 {
				s.left.Store(2) // the answer, and that to the retry
				w.updated(id, bson.D{{Key: "n", Value: round}})
				if round == 5 {
					e := w.on("update", id) // this one can't be applied twice
					e.Change = raw(t, bson.D{{Key: "removedFields", Value: bson.A{"gone"}}})
					w.log.add(t, e)
				}
				w.passes(w.mark(chunk.ValidateMarker, int64(2+round)))
			}
			require.Positive(t, s.swallowed.Load())
			require.EqualValues(t, 12, w.applied())
			require.NotEmpty(t, r.lanes.Status())
			for _, doc := range contents(t, w.target().Collection("c")) {
				require.Equal(t, raw(t, bson.D{{Key: "_id", Value: id}, {Key: "list", Value: bson.A{}}, {Key: "n", Value: 9}}), doc)
			}
		})
	}
}
