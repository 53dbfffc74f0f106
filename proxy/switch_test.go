package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// firstChunk is the chunk that the tests move.
var firstChunk = chunk.NewID(testDatabase, 1)

// load writes and reads one chunk through some proxies until stopped, and knows
// what it was told.
type load struct {
	errs    chan error
	acked   []atomic.Int64
	stale   atomic.Int64
	stop    chan struct{}
	wg      sync.WaitGroup
	clients []*mongo.Client
	keys    []string
}

// startLoad runs n writers over the clients.
func startLoad(clients []*mongo.Client, keys []string, n int) *load {
	l := &load{errs: make(chan error, 1000), acked: make([]atomic.Int64, n), stop: make(chan struct{}), clients: clients, keys: keys}
	for w := range n {
		l.wg.Go(func() { l.write(w) })
	}
	return l
}

// write counts one document up and reads it back each time.
func (l *load) write(w int) {
	ctx := context.Background()
	c := l.clients[w%len(l.clients)].Database(testDatabase).Collection("legs")
	id := bson.D{{Key: "_id", Value: fmt.Sprintf("load-%d", w)}, {Key: "origin", Value: l.keys[w%len(l.keys)]}}
	if _, err := c.InsertOne(ctx, append(id, bson.E{Key: "n", Value: int64(0)})); err != nil {
		l.errs <- err
		return
	}
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		res, err := c.UpdateOne(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}})
		if err != nil {
			l.errs <- fmt.Errorf("update: %w", err)
			return
		}
		l.acked[w].Add(res.ModifiedCount)
		var doc struct{ N int64 }
		other := l.clients[(w+1)%len(l.clients)].Database(testDatabase).Collection("legs")
		if err := other.FindOne(ctx, id).Decode(&doc); err != nil {
			l.errs <- fmt.Errorf("find: %w", err)
			return
		}
		if doc.N != l.acked[w].Load() {
			l.stale.Add(1)
		}
	}
}

// end stops the load and checks what is there against what was acknowledged.
func (l *load) end(t *testing.T, f *fleet) {
	t.Helper()
	close(l.stop)
	l.wg.Wait()
	close(l.errs)
	for err := range l.errs {
		require.NoError(t, err)
	}
	require.Zero(t, l.stale.Load(), "reads that did not see an acknowledged write")
	serving := f.routes[firstChunk].Placement
	for w := range l.acked {
		var doc struct{ N int64 }
		require.NoError(t, f.roots[serving.Shard].Database(serving.Database).Collection("legs").
			FindOne(context.Background(), bson.D{{Key: "_id", Value: fmt.Sprintf("load-%d", w)}}).Decode(&doc))
		require.Equal(t, l.acked[w].Load(), doc.N, "writer %d", w)
	}
}

// progress waits until every writer has been acknowledged n more times.
func (l *load) progress(t *testing.T, n int64) {
	t.Helper()
	start := make([]int64, len(l.acked))
	for w := range l.acked {
		start[w] = l.acked[w].Load()
	}
	require.Eventually(t, func() bool {
		if len(l.errs) > 0 {
			return true
		}
		for w := range l.acked {
			if l.acked[w].Load() < start[w]+n {
				return false
			}
		}
		return true
	}, 20*time.Second, 5*time.Millisecond)
}

func TestSwitchUnderLoad(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		name         string
		deaf, silent bool // one proxy is deaf; nobody is told anything
	}{{name: "Heard"}, {name: "OneDeaf", deaf: true}, {name: "NothingAnnounced", silent: true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			f := newFleet(t, 3, 2)
			hears := f.start(Config{ID: "hears"})
			other := f.start(Config{ID: "other", Deaf: tc.deaf})
			clients := []*mongo.Client{f.dial(hears), f.dial(other)}
			l := startLoad(clients, f.keysOf(4)[firstChunk], 8)
			l.progress(t, 20)
			for _, shard := range []string{"shard-c", "shard-a", "shard-c"} {
				m := f.newMove(firstChunk, shard)
				m.silent = tc.silent
				m.waitForAcks = 2
				if tc.deaf {
					m.waitForAcks = 1
				}
				if tc.silent || tc.deaf {
					m.drain = 200 * time.Millisecond
				}
				m.run()
				l.progress(t, 20)
			}
			l.end(t, f)
		})
	}
}

// A transaction that was open at the fence once committed on the old placement
// afterwards: the commit needs no privilege. It must be on neither side.
func TestTransactionOverFence(t *testing.T) {
	t.Parallel()

	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("Deaf=%v", deaf), func(t *testing.T) {
			t.Parallel()

			f := newFleet(t, 2, 2)
			p := f.start(Config{Deaf: deaf})
			c := f.dial(p)
			coll := c.Database(testDatabase).Collection("legs")
			key := f.keysOf(1)[firstChunk][0]
			ctx := t.Context()
			s, err := c.StartSession()
			require.NoError(t, err)
			defer s.EndSession(ctx)
			require.NoError(t, s.StartTransaction())
			_, err = coll.InsertOne(mongo.NewSessionContext(ctx, s), bson.D{{Key: "_id", Value: "t"}, {Key: "origin", Value: key}})
			require.NoError(t, err)

			m := f.newMove(firstChunk, "shard-b")
			if deaf {
				m.waitForAcks = 0
			}
			m.fence()
			err = s.CommitTransaction(ctx)
			se := mongo.ServerError(nil)
			require.ErrorAs(t, err, &se)
			require.True(t, se.HasErrorLabel(labelTransient), "%v", err)
			m.shut()
			m.publish()
			m.open()
			require.Zero(t, f.physical(m.from, "legs"))
			require.Zero(t, f.physical(m.to, "legs"))
		})
	}
}

func TestWithTransactionOverSwitch(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	c := f.dial(p)
	coll := c.Database(testDatabase).Collection("legs")
	keys := f.keysOf(2)
	key := keys[firstChunk][0]
	ctx := t.Context()
	s, err := c.StartSession()
	require.NoError(t, err)
	defer s.EndSession(ctx)
	tries := 0
	m := f.newMove(firstChunk, "shard-b")
	var moved sync.WaitGroup
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		tries++
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "origin", Value: key}}); err != nil {
			return nil, err
		}
		if tries == 1 {
			m.fence()
			moved.Go(func() { m.shut(); m.publish(); m.open() })
		}
		_, err := coll.UpdateOne(ctx, bson.D{{Key: "origin", Value: key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return nil, err
	})
	require.NoError(t, err)
	moved.Wait()
	require.Equal(t, 2, tries)
	require.Zero(t, f.physical(m.from, "legs"))
	require.Equal(t, int64(1), f.physical(m.to, "legs"))

	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		if _, err := coll.InsertOne(ctx, bson.D{{Key: "origin", Value: key}}); err != nil {
			return nil, err
		}
		_, err := coll.InsertOne(ctx, bson.D{{Key: "origin", Value: keys[chunk.NewID(testDatabase, 2)][0]}})
		return nil, err
	})
	var ce mongo.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, int32(codeNotInTransaction), ce.Code)
	require.ErrorContains(t, err, "one chunk")
}

// Where lanes are near, reads lose their grants before the row says so. Each of them was
// sent to the shard again at each look at the row until then.
func TestReadRefusedWhileFencingWaitsForTheNextState(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{SwitchWait: time.Minute})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	doc := bson.D{{Key: "_id", Value: "x"}, {Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}
	_, err := coll.InsertOne(t.Context(), doc)
	require.NoError(t, err)

	m := f.newMove(firstChunk, "shard-b")
	m.near = true
	m.fence()
	before := testutil.ToFloat64(p.metrics.resent)
	found := make(chan error, 1)
	go func() { found <- coll.FindOne(t.Context(), doc).Err() }()
	room := &p.routing.entry(firstChunk).room
	require.Eventually(t, func() bool {
		polls, _, _ := room.look(0)
		return testutil.ToFloat64(p.metrics.held) == 1 && polls > 4
	}, time.Minute, time.Millisecond)
	require.Equal(t, before+1, testutil.ToFloat64(p.metrics.resent), "sent again by a look at the row that shows nothing new")
	m.shut()
	m.publish()
	m.open()
	require.NoError(t, <-found)
}

func TestHoldEnds(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{SwitchWait: 100 * time.Millisecond, LiveWait: 300 * time.Millisecond})
	c := f.dial(p)
	coll := c.Database(testDatabase).Collection("legs")
	key := f.keysOf(1)[firstChunk][0]
	doc := bson.D{{Key: "_id", Value: "x"}, {Key: "origin", Value: key}}
	_, err := coll.InsertOne(t.Context(), doc)
	require.NoError(t, err)

	m := f.newMove(firstChunk, "shard-b")
	m.fence()
	require.NoError(t, coll.FindOne(t.Context(), doc).Err(), "reads are not held while fencing")
	_, err = coll.UpdateOne(t.Context(), doc, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	var we mongo.ServerError
	require.ErrorAs(t, err, &we)
	require.True(t, we.HasErrorCode(int(codeExceededTimeLimit)), "%v", err)
	require.True(t, we.HasErrorLabel(labelRetryableWrite))
	require.True(t, we.HasErrorLabel(labelNothingRan))

	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	_, err = coll.UpdateOne(ctx, doc, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	require.Error(t, err, "a client with a shorter deadline gives up itself")

	// Going back lets them on; what clients have given up is never sent.
	m.back()
	require.Eventually(t, func() bool {
		res, err := coll.UpdateOne(t.Context(), doc, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err == nil && res.ModifiedCount == 1
	}, 5*time.Second, 10*time.Millisecond)
	var got struct{ N int }
	require.NoError(t, coll.FindOne(t.Context(), bson.D{{Key: "origin", Value: key}}).Decode(&got))
	require.Equal(t, 1, got.N)
}

// A notice of the end may be lost. The announcement expires and the row decides.
func TestLostEnd(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	doc := bson.D{{Key: "_id", Value: "x"}, {Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}
	m := f.newMove(firstChunk, "shard-b")
	m.fence()
	m.shut()
	m.silent = true
	m.publish()
	m.open()
	_, err := coll.InsertOne(t.Context(), doc)
	require.NoError(t, err)
	require.Equal(t, int64(1), f.physical(m.to, "legs"))
}

func TestCursorsOverSwitch(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	keys := f.keysOf(1)
	ctx := t.Context()
	var docs []any
	for i := range 50 {
		docs = append(docs, bson.D{{Key: "origin", Value: keys[firstChunk][0]}, {Key: "n", Value: i}},
			bson.D{{Key: "origin", Value: keys[chunk.NewID(testDatabase, 2)][0]}, {Key: "n", Value: i}})
	}
	_, err := coll.InsertMany(ctx, docs)
	require.NoError(t, err)
	moving, err := coll.Find(ctx, bson.D{{Key: "origin", Value: keys[firstChunk][0]}})
	require.NoError(t, err)
	require.True(t, moving.Next(ctx))
	staying, err := coll.Find(ctx, bson.D{{Key: "origin", Value: keys[chunk.NewID(testDatabase, 2)][0]}})
	require.NoError(t, err)
	moving.SetBatchSize(5)
	small, err := coll.Find(ctx, bson.D{{Key: "origin", Value: keys[firstChunk][0]}}, batchOf(5))
	require.NoError(t, err)
	stayingSmall, err := coll.Find(ctx, bson.D{{Key: "origin", Value: keys[chunk.NewID(testDatabase, 2)][0]}}, batchOf(5))
	require.NoError(t, err)

	f.newMove(firstChunk, "shard-b").run()

	n := 0
	for stayingSmall.Next(ctx) {
		n++
	}
	require.NoError(t, stayingSmall.Err())
	require.Equal(t, 50, n)
	require.NoError(t, staying.Close(ctx))
	for small.Next(ctx) {
	}
	var ce mongo.CommandError
	require.ErrorAs(t, small.Err(), &ce)
	require.Equal(t, int32(codeCursorNotFound), ce.Code)
}

// With the metadata down everything goes on by cached routes, and the fence
// document of a placement that was left says where its chunk is.
func TestMetadataDown(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	for _, root := range f.roots {
		f.must(root, "admin", bson.D{{Key: "createRole", Value: "fences"}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{bson.D{
			{Key: "resource", Value: bson.D{{Key: "db", Value: chunk.SystemDatabase}, {Key: "collection", Value: chunk.FencesCollection}}}, {Key: "actions", Value: bson.A{"find"}},
		}}}})
		f.must(root, "admin", bson.D{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: bson.A{"fences"}}})
	}
	p := f.start(Config{})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	doc := bson.D{{Key: "_id", Value: "x"}, {Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}
	_, err := coll.InsertOne(t.Context(), doc)
	require.NoError(t, err)
	m := f.newMove(firstChunk, "shard-b")
	m.silent = true
	m.fence()
	m.shut()
	m.publish()
	m.open()
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	fences := f.roots[m.from.Shard].Database(chunk.SystemDatabase).Collection(chunk.FencesCollection)
	_, err = fences.InsertOne(t.Context(), bson.D{
		{Key: "_id", Value: int64(m.from.ID)}, {Key: "attempt", Value: int64(m.attempt)}, {Key: "state", Value: "fenced"},
		{Key: "forward", Value: bson.D{{Key: "shard", Value: m.to.Shard}, {Key: "placement", Value: int64(m.to.ID)}, {Key: "database", Value: m.to.Database}, {Key: "token", Value: int64(f.token)}}},
	})
	require.NoError(t, err)
	res, err := coll.UpdateOne(t.Context(), doc, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	require.NoError(t, err)
	require.Equal(t, int64(1), res.ModifiedCount)
	require.NoError(t, coll.FindOne(t.Context(), doc).Err())
	_, err = coll.Database().Collection("unknown").InsertOne(t.Context(), bson.D{})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "metadata is down", "causes go to the log")
	f.mu.Lock()
	f.down = false
	f.mu.Unlock()
}
