package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// uniqueU makes the unique index on u on both sides.
func (w *world) uniqueU() {
	w.t.Helper()
	for _, db := range []*mongo.Database{w.source(), w.target()} {
		_, err := db.Collection("c").Indexes().CreateOne(context.Background(), mongo.IndexModel{
			Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true).SetSparse(true),
		})
		require.NoError(w.t, err)
	}
}

// application changes documents of the source as applications do: counters,
// arrays, replacements, deletes, transactions, and unique values that move from
// one document to another.
type application struct {
	t  testing.TB
	db *mongo.Database
	r  *rand.Rand
	n  int

	edits, again int // see [application.edit]
}

func (a *application) step() {
	a.t.Helper()
	ctx, c := context.Background(), a.db.Collection("c")
	id := func() bson.D { return bson.D{{Key: "_id", Value: a.r.IntN(60)}} }
	var err error
	a.n++
	switch a.r.IntN(8) {
	case 0:
		_, err = c.UpdateOne(ctx, id(), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "$set", Value: bson.D{{Key: "z", Value: a.n}, {Key: "b", Value: a.n}}}}, options.UpdateOne().SetUpsert(true))
	case 1:
		_, err = c.UpdateOne(ctx, id(), bson.D{{Key: "$push", Value: bson.D{{Key: "list", Value: bson.D{{Key: "$each", Value: bson.A{a.n, a.n}}, {Key: "$slice", Value: -20}}}}}})
	case 2:
		_, err = c.ReplaceOne(ctx, id(), bson.D{{Key: "whole", Value: a.n}})
	case 3:
		_, err = c.DeleteOne(ctx, id())
	case 4, 5:
		err = a.trade(id(), id())
	case 6:
		err = a.transfer(id(), id())
	default:
		_, err = c.UpdateOne(ctx, id(), mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "list", Value: bson.D{{Key: "$slice", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$list", bson.A{}}}}, 3}}}}}}}})
	}
	// The dev server takes a value for held that came by an insert and went by an
	// update; an application would see an error too.
	if !mongo.IsDuplicateKeyError(err) {
		require.NoError(a.t, err)
	}
}

// trade lets two documents swap a unique value.
func (a *application) trade(x, y bson.D) error {
	ctx, c := context.Background(), a.db.Collection("c")
	set := func(id bson.D, u any) error {
		_, err := c.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: u}}}}, options.UpdateOne().SetUpsert(true))
		return err
	}
	var docs [2]struct {
		U string `bson:"u"`
	}
	for i, id := range []bson.D{x, y} {
		if err := c.FindOne(ctx, id).Decode(&docs[i]); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
			return err
		}
		if docs[i].U == "" {
			docs[i].U = fmt.Sprintf("fresh %d %d", a.n, i)
		}
	}
	if x[0].Value == y[0].Value {
		return nil
	}
	return errors.Join(set(x, fmt.Sprintf("tmp %d", a.n)), set(y, docs[0].U), set(x, docs[1].U))
}

// transfer changes two documents in one transaction.
func (a *application) transfer(x, y bson.D) error {
	return a.transaction(func(ctx context.Context) error {
		c := a.db.Collection("c")
		if _, err := c.UpdateOne(ctx, x, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: -1}}}}); err != nil {
			return err
		}
		_, err := c.UpdateOne(ctx, y, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err
	})
}

// transaction does work in one.
func (a *application) transaction(work func(context.Context) error) error {
	return a.db.Client().UseSession(context.Background(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, work(ctx) })
		return err
	})
}

// events counts the events on documents of the source in the log.
func (l *fakeLog) events(db string) (n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.parts {
		var last int64
		for _, e := range p.records {
			if e.Op.OnDocument() && e.Database == db && e.Seq > last {
				n++
			}
			last = max(last, e.Seq)
		}
	}
	return n
}

// lanesPoints are the places where a lane may die.
var lanePoints = []string{"lane.taken", "lane.begun", "lane.read", "lane.checkpoint", "lane.written", "lane.committed"}

// mortal makes lanes die after some passes, at each point in turn, or where r says.
type mortal struct {
	mu   sync.Mutex
	r    *rand.Rand
	next int
	left int
	died map[string]int
}

func (m *mortal) hit(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if lanePoints[m.next%len(lanePoints)] != name {
		return nil
	}
	if m.left--; m.left >= 0 {
		return nil
	}
	m.died[name]++
	m.next++
	m.left = m.next % 4
	if m.r != nil {
		m.next, m.left = m.r.IntN(len(lanePoints)), m.r.IntN(6)
		if m.next == 0 { // a lane is taken once
			m.left = 0
		}
	}
	return errDied
}

// Whoever dies, at whatever moment, and whatever comes twice: each event takes
// effect once, and the target is the source byte for byte.
func TestLanesExactlyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.uniqueU()
	stop := w.follow()
	defer stop()
	w.log.repeat = 30
	w.cfg.Limits.Docs = 17
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	app := &application{t: t, db: w.source(), r: rand.New(rand.NewPCG(seed, 1))}
	death := &mortal{died: map[string]int{}}
	w.dying(death, func() {
		for n := 0; n < 300 || n < 5000 && !everywhere(death); n++ {
			app.step()
		}
	})
	require.True(t, everywhere(death), "%v", death.died)
	w.run(w.cfg)
	key := w.realMarker(chunk.Marker{Kind: chunk.ValidateMarker, Round: 1})
	w.passes(key)
	w.comesHome()
	t.Logf("deaths: %v, sessions killed: %d, events: %d", death.died, w.sessions.killed.Load(), w.applied())
	require.Equal(t, w.log.events(w.cfg.Direction.Source.Database), w.applied())
	equal(t, contents(t, w.source().Collection("c")), contents(t, w.target().Collection("c")))
	require.Empty(t, w.reports.diverged)
	require.Empty(t, w.reports.quarantined)
}

// dying runs lanes that die again and again until work is done.
func (w *world) dying(death *mortal, work func()) {
	w.t.Helper()
	deadly := w.cfg
	deadly.Points = stoppoint.New(death.hit)
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	for alive := true; alive; {
		r := w.run(deadly)
		select {
		case <-r.done:
			require.ErrorIs(w.t, r.err, errDied)
		case <-done:
			_ = r.end() // it may die on the way
			alive = false
		}
	}
}

// everywhere reports whether lanes have died at each point thrice.
func everywhere(m *mortal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range lanePoints {
		if m.died[p] < 3 {
			return false
		}
	}
	return true
}

// realMarker writes a marker on the source's shard itself, so that it comes after
// everything that was done.
func (w *world) realMarker(m chunk.Marker) string {
	w.t.Helper()
	m.Migration, m.Placement = w.cfg.Direction.Migration, w.cfg.Direction.Source.ID
	doc := append(bson.D{{Key: "_id", Value: m.Key()}}, bson.E{Key: "kind", Value: m.Kind}, bson.E{Key: "migration", Value: m.Migration},
		bson.E{Key: "attempt", Value: m.Attempt}, bson.E{Key: "placement", Value: m.Placement}, bson.E{Key: "round", Value: m.Round}, bson.E{Key: "at", Value: time.Now()})
	_, err := w.from.Database(chunk.SystemDatabase).Collection(chunk.MarkersCollection).InsertOne(context.Background(), doc)
	require.NoError(w.t, err)
	return m.Key()
}

// parkedNow counts the parked documents.
func (w *world) parkedNow() int64 {
	w.t.Helper()
	n, err := ParkedCount(context.Background(), w.client, w.cfg.Direction.Migration)
	require.NoError(w.t, err)
	return n
}

// comesHome waits until nothing is parked.
func (w *world) comesHome() {
	w.t.Helper()
	w.until("parked documents to come home", func() bool { return w.parkedNow() == 0 })
}

// A deposed owner that wakes up in the middle of its work is refused by the
// server, wherever it stood: B140.
func TestLanesZombie(t *testing.T) {
	t.Parallel()
	shared := newWorld(t)
	for _, point := range lanePoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := worldOn(t, shared.server, shared.client)
			ids := w.inPartition(0, 10)
			w.inserted(bson.D{{Key: "_id", Value: ids[0]}, {Key: "n", Value: 0}})

			reached, wake := make(chan struct{}), make(chan struct{})
			var once sync.Once
			zombie := w.cfg
			zombie.Points = stoppoint.New(func(ctx context.Context, name string) error {
				if name == point {
					once.Do(func() {
						close(reached)
						<-wake
					})
				}
				return nil
			})
			old, err := NewLane(zombie, 0)
			require.NoError(t, err)
			end := make(chan error, 1)
			go func() {
				err := old.Take(context.Background())
				if err == nil {
					err = old.Run(context.Background())
				}
				end <- err
			}()
			<-reached

			w.run(w.cfg) // takes every lane
			for i := range 20 {
				w.updated(ids[0], bson.D{{Key: "n", Value: i + 1}})
			}
			w.passes(w.mark(chunk.ValidateMarker, 1))
			close(wake)
			err = <-end
			require.True(t, failure.Is(err, failure.Lost), "%v", err)
			for i := range 20 {
				w.updated(ids[0], bson.D{{Key: "n", Value: i + 100}})
			}
			w.passes(w.mark(chunk.ValidateMarker, 2))
			require.EqualValues(t, 41, w.applied())
			for _, doc := range contents(t, w.target().Collection("c")) {
				require.EqualValues(t, 119, doc.Lookup("n").AsInt64())
			}
		})
	}
}

// The target dies and comes back in the middle of everything.
func TestLanesOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(w.cfg)
	for i := range 40 {
		w.inserted(bson.D{{Key: "_id", Value: i}, {Key: "list", Value: bson.A{}}})
	}
	// A dev server that dies while it makes the file of a collection never opens that
	// file again: the first death comes when every collection has been written to.
	w.passes(w.mark(chunk.ValidateMarker, 100))
	for round := range 3 {
		for i := range 40 {
			for k := range 5 {
				w.updated(i, bson.D{{Key: fmt.Sprintf("list.%d", round*5+k), Value: round}})
			}
		}
		w.server.Kill(t)
		troubled := func() bool {
			for _, s := range r.lanes.Status() {
				if s.Trouble != "" {
					return true
				}
			}
			return false
		}
		w.until("a lane in trouble", troubled)
		w.server.Restart(t)
		w.passes(w.mark(chunk.ValidateMarker, int64(round)))
		w.until("no trouble", func() bool { return !troubled() })
	}
	require.EqualValues(t, 40+3*200, w.applied())
	for _, doc := range contents(t, w.target().Collection("c")) {
		list, err := doc.Lookup("list").Array().Values()
		require.NoError(t, err)
		require.Len(t, list, 15)
	}
}

// A commit whose time was over before it was sent leaves the lane's session as good as
// any other.
func TestLanesCommitTimesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late := w.cfg
	late.Limits.Try = 5 * time.Second
	var once sync.Once
	late.Points = stoppoint.New(func(ctx context.Context, name string) error {
		if name == "lane.written" {
			once.Do(func() { <-ctx.Done() })
		}
		return nil
	})
	w.inserted(bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 0}})
	w.run(late)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	require.EqualValues(t, 1, w.applied())
}

// A lane whose role was dropped stops at once and for good.
func TestLanesRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	require.NoError(t, w.client.Database("admin").RunCommand(ctx, bson.D{
		{Key: "createUser", Value: "lane"}, {Key: "pwd", Value: "pw"}, {Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: chunk.SystemDatabase}}}},
	}).Err())
	client, err := mongo.Connect(options.Client().ApplyURI(w.server.URI()).SetAuth(options.Credential{Username: "lane", Password: "pw", AuthSource: "admin"}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Disconnect(ctx) })
	w.cfg.Target = client
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	err = w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.refused"), "%v", err)
	require.True(t, failure.Is(err, failure.Lost))
	require.Empty(t, contents(t, w.target().Collection("c")))
}
