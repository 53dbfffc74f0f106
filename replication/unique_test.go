package replication

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/testkit"
)

// TestUnique moves values of a unique index between documents, faster than
// lanes agree: B086, B087.
func TestUnique(t *testing.T) {
	t.Parallel()
	server := testkit.Shard(t)
	client := connect(t, server)
	for name, test := range map[string]func(*testing.T, *world){
		"swap within a batch":           testSwap,
		"rotate within a batch":         testRotate,
		"move to a faster lane":         testFasterLane,
		"change while parked":           testParkedChanges,
		"another owner while parked":    testParkedRestart,
		"hold for good":                 testHeld,
		"parked by a loader":            testLoader,
		"released in the server's eyes": testPhantom,
		"many conflicts at once":        testManyConflicts,
		"many swaps in a batch":         testManySwaps,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := worldOn(t, server, client)
			w.uniqueU()
			test(t, w)
		})
	}
}

// with is a document with a unique value.
func with(id any, u string) bson.D { return bson.D{{Key: "_id", Value: id}, {Key: "u", Value: u}} }

// us gives the unique values by _id, as text.
func (w *world) us() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	for _, doc := range contents(w.t, w.target().Collection("c")) {
		u, _ := doc.Lookup("u").StringValueOK()
		all[doc.Lookup("_id").String()] = u
	}
	return all
}

// num is how an int32 _id shows in [world.us].
func num(n any) string { return fmt.Sprintf(`{"$numberInt":"%d"}`, n) }

func (w *world) sets(id any, u string) { w.updated(id, bson.D{{Key: "u", Value: u}}) }

func testSwap(t *testing.T, w *world) {
	ids := w.inPartition(0, 2)
	r := w.run(w.cfg)
	w.inserted(with(ids[0], "x"))
	w.inserted(with(ids[1], "y"))
	w.passes(w.mark(chunk.ValidateMarker, 1))
	for round := range 4 {
		r.lanes.Pause()
		was := w.us()
		w.sets(ids[0], "tmp")
		w.sets(ids[1], was[num(ids[0])])
		w.sets(ids[0], was[num(ids[1])])
		r.lanes.Resume()
		w.passes(w.mark(chunk.ValidateMarker, int64(2+round)))
		require.Zero(t, w.parkedNow(), "a swap within a batch needs no parking")
		require.Equal(t, map[string]string{num(ids[0]): was[num(ids[1])], num(ids[1]): was[num(ids[0])]}, w.us())
	}
}

func testRotate(t *testing.T, w *world) {
	const n = 40
	ids := w.inPartition(0, n+1)
	r := w.run(w.cfg)
	for i := range n {
		w.inserted(with(ids[i], fmt.Sprint(i)))
	}
	w.passes(w.mark(chunk.ValidateMarker, 1))
	r.lanes.Pause()
	w.sets(ids[n-1], "tmp")
	for i := n - 2; i >= 0; i-- {
		w.sets(ids[i], fmt.Sprint(i+1))
	}
	w.sets(ids[n-1], "0")
	w.deleted(ids[0])
	w.inserted(with(ids[n], "1"))
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.comesHome()
	want := map[string]string{num(ids[n-1]): "0", num(ids[n]): "1"}
	for i := 1; i < n-1; i++ {
		want[num(ids[i])] = fmt.Sprint(i + 1)
	}
	require.Equal(t, want, w.us())
}

// split starts the lanes one by one, so that some may be slower.
func (w *world) split() []*Lane {
	w.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	lanes := make([]*Lane, partitions)
	done := make(chan error, partitions)
	for p := range lanes {
		l, err := NewLane(w.cfg, int32(p))
		require.NoError(w.t, err)
		require.NoError(w.t, l.Take(ctx))
		lanes[p] = l
		go func() { done <- l.Run(ctx) }()
	}
	w.t.Cleanup(func() {
		stop()
		for range lanes {
			require.ErrorIs(w.t, <-done, context.Canceled)
		}
	})
	return lanes
}

// T1 releases "x" on document a, T2 takes it on b; b's lane is the faster one.
func testFasterLane(t *testing.T, w *world) {
	a, b, c := w.inPartition(0, 1)[0], w.inPartition(1, 1)[0], w.inPartition(2, 1)[0]
	lanes := w.split()
	w.inserted(with(a, "x"))
	w.inserted(with(c, "z"))
	w.passes(w.mark(chunk.ValidateMarker, 1))
	lanes[0].hold.set(true)
	w.deleted(a)
	w.inserted(with(b, "x"))
	w.sets(c, "y")
	w.until("b to be parked", func() bool { return lanes[1].Status().Parked == 1 })
	w.sets(b, "z") // z is free by now, x is not
	w.sets(c, "x")
	w.until("b home and c parked", func() bool { return lanes[1].Status().Parked == 0 && lanes[2].Status().Parked == 1 })
	require.Equal(t, map[string]string{num(a): "x", num(b): "z"}, w.us())
	lanes[0].hold.set(false)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.comesHome()
	require.Equal(t, map[string]string{num(b): "z", num(c): "x"}, w.us())

	// A swap of documents whose lanes do not run at the same time.
	lanes[1].hold.set(true)
	w.sets(b, "tmp")
	w.sets(c, "z")
	w.sets(b, "x")
	w.until("c to be parked", func() bool { return lanes[2].Status().Parked == 1 })
	lanes[1].hold.set(false)
	w.passes(w.mark(chunk.ValidateMarker, 3))
	w.comesHome()
	require.Equal(t, map[string]string{num(b): "x", num(c): "z"}, w.us())
}

func testParkedChanges(t *testing.T, w *world) {
	a, b := w.inPartition(0, 1)[0], w.inPartition(1, 2)
	lanes := w.split()
	w.inserted(with(a, "x"))
	w.passes(w.mark(chunk.ValidateMarker, 1))
	lanes[0].hold.set(true)
	w.sets(a, "y")
	w.inserted(with(b[0], "x"))
	w.until("b to be parked", func() bool { return lanes[1].Status().Parked == 1 })
	w.updated(b[0], bson.D{{Key: "n", Value: 1}}) // a parked document is not missing
	w.updated(b[0], bson.D{{Key: "n", Value: 2}})
	w.inserted(bson.D{{Key: "_id", Value: b[1]}})
	w.until("the next document", func() bool { return len(w.us()) == 2 })
	require.EqualValues(t, 1, w.parkedNow())
	w.deleted(b[0])
	w.until("nothing parked", func() bool { return w.parkedNow() == 0 })
	w.inserted(with(b[0], "x"))
	w.until("b to be parked again", func() bool { return w.parkedNow() == 1 })
	e := w.on("replace", b[0])
	e.Document = raw(t, append(with(b[0], "x"), bson.E{Key: "whole", Value: true}))
	w.log.add(t, e)
	lanes[0].hold.set(false)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.comesHome()
	for _, doc := range contents(t, w.target().Collection("c")) {
		if doc.Lookup("_id").AsInt64() == int64(b[0].(int)) {
			require.Equal(t, bson.Raw(e.Document), doc)
		}
	}
}

func testParkedRestart(t *testing.T, w *world) {
	a, b := w.inPartition(0, 1)[0], w.inPartition(1, 1)[0]
	_, err := w.target().Collection("c").InsertOne(context.Background(), with(a, "x"))
	require.NoError(t, err)
	r := w.run(w.cfg)
	w.inserted(with(b, "x"))
	w.passes(w.mark(chunk.ValidateMarker, 1))
	require.EqualValues(t, 1, w.parkedNow())
	require.ErrorIs(t, r.end(), context.Canceled)
	w.updated(b, bson.D{{Key: "n", Value: 1}})
	r = w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	n, err := r.lanes.ParkedCount(context.Background())
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	w.deleted(a)
	w.passes(w.mark(chunk.ValidateMarker, 3))
	w.comesHome()
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 1)
	for _, doc := range got {
		require.Equal(t, raw(t, append(with(b, "x"), bson.E{Key: "n", Value: 1})), doc)
	}
}

// The source never released it: the document waits, it is neither skipped nor
// forced, and the count says so.
func testHeld(t *testing.T, w *world) {
	_, err := w.target().Collection("c").InsertOne(context.Background(), with(9, "k"))
	require.NoError(t, err)
	w.run(w.cfg)
	w.inserted(with(2, "k"))
	for i := range int64(3) {
		w.passes(w.mark(chunk.ValidateMarker, i))
		require.EqualValues(t, 1, w.parkedNow())
		require.Equal(t, map[string]string{num(9): "k"}, w.us())
	}
}

// Loaders park in the same form, without a lane to say of whose partition.
func testLoader(t *testing.T, w *world) {
	ctx := context.Background()
	home := raw(t, with(1.0, "k"))
	_, err := w.target().Collection("c").InsertOne(ctx, with(2, "k"))
	require.NoError(t, err)
	_, err = w.client.Database(chunk.SystemDatabase).Collection(chunk.ParkedCollection).InsertOne(ctx, bson.D{
		{Key: "_id", Value: bson.D{{Key: "m", Value: int64(w.cfg.Direction.Migration)}, {Key: "c", Value: "c"}, {Key: "id", Value: 1.0}}},
		{Key: "doc", Value: bson.Binary{Data: home}}, {Key: "index", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "key", Value: bson.D{{Key: "u", Value: "k"}}}, {Key: "at", Value: time.Now()},
	})
	require.NoError(t, err)
	w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	require.EqualValues(t, 1, w.parkedNow())
	w.updated(int64(1), bson.D{{Key: "n", Value: 1}}) // by another numeric type of the same _id
	w.deleted(2)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.comesHome()
	for _, doc := range contents(t, w.target().Collection("c")) {
		require.True(t, bytes.Equal(raw(t, append(with(1.0, "k"), bson.E{Key: "n", Value: 1})), doc), doc.String())
	}
}

// The value came by an insert and went by an update: the dev server refuses to
// insert it again, though nobody holds it.
func testPhantom(t *testing.T, w *world) {
	_, err := w.target().Collection("c").Indexes().CreateOne(context.Background(), mongo.IndexModel{
		Keys: bson.D{{Key: "m", Value: 1}, {Key: "deep.er", Value: 1}}, Options: options.Index().SetUnique(true),
	})
	require.NoError(t, err)
	deep := func(id any, v int) bson.D {
		return append(with(id, fmt.Sprint("u", id)), bson.E{Key: "m", Value: 1}, bson.E{Key: "deep", Value: bson.D{{Key: "er", Value: v}, {Key: "x", Value: 1}}}, bson.E{Key: "t", Value: bson.Timestamp{}})
	}
	w.run(w.cfg)
	ids := w.inPartition(0, 3)
	w.inserted(deep(ids[0], 1))
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.replaced(deep(ids[0], 2))
	w.inserted(deep(ids[1], 1))
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.comesHome()
	w.inserted(deep(ids[2], 3))
	w.passes(w.mark(chunk.ValidateMarker, 3))
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 3)
	for i, v := range []int{2, 1, 3} {
		k, err := keyOf("c", raw(t, deep(ids[i], v)).Lookup("_id"))
		require.NoError(t, err)
		require.Equal(t, raw(t, deep(ids[i], v)), got[k])
	}
}

// A batch with more conflicts than are taken one by one is split.
// Each swap that a server does not let pass cost a transaction of the whole batch: lanes
// that were behind met more of them in each batch, and never came back.
func testManySwaps(t *testing.T, w *world) {
	const n = 3 * maxConflicts
	ids := w.inPartition(0, 2*n)
	w.cfg.Metrics = NewMetrics(prometheus.NewRegistry())
	r := w.run(w.cfg)
	for i, id := range ids {
		w.inserted(with(id, fmt.Sprint(i)))
	}
	w.passes(w.mark(chunk.ValidateMarker, 1))
	want := map[string]string{}
	r.lanes.Pause()
	for i := range n {
		a, b := ids[2*i], ids[2*i+1]
		w.sets(a, "tmp")
		w.sets(b, fmt.Sprint(2*i))
		w.sets(a, fmt.Sprint(2*i+1))
		want[num(a)], want[num(b)] = fmt.Sprint(2*i+1), fmt.Sprint(2*i)
	}
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 2))
	require.Equal(t, want, w.us())
	require.Zero(t, w.parkedNow())
	require.LessOrEqual(t, testutil.ToFloat64(w.cfg.Metrics.conflicts), 1.0, "the index is met once")

	// Values that were released where the lanes did not see it, as by applications
	// before a switch: the dev shards refuse to insert them.
	c := w.target().Collection("c")
	for i := range n {
		_, err := c.InsertOne(context.Background(), with(fmt.Sprint("was ", i), fmt.Sprint("released ", i)))
		require.NoError(t, err)
		_, err = c.UpdateByID(context.Background(), fmt.Sprint("was ", i), bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: fmt.Sprint("other ", i)}}}})
		require.NoError(t, err)
	}
	r.lanes.Pause()
	for i := range n {
		w.sets(ids[i], fmt.Sprint("released ", i))
	}
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 3))
	require.Zero(t, w.parkedNow())
	require.LessOrEqual(t, testutil.ToFloat64(w.cfg.Metrics.conflicts), 2.0, "and once that the server wants them around")
}

func testManyConflicts(t *testing.T, w *world) {
	const n = 3 * maxConflicts
	held := make([]any, n)
	ids := w.inPartition(0, n)
	for i := range held {
		held[i] = with(fmt.Sprint("held ", i), fmt.Sprint(i))
	}
	_, err := w.target().Collection("c").InsertMany(context.Background(), held)
	require.NoError(t, err)
	r := w.run(w.cfg)
	r.lanes.Pause()
	for i := range n {
		w.inserted(with(ids[i], fmt.Sprint(i)))
	}
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 1))
	require.EqualValues(t, n, w.parkedNow())
	for i := range n {
		w.deleted(fmt.Sprint("held ", i))
	}
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.comesHome()
	require.Len(t, w.us(), n)
	require.EqualValues(t, 2*n, w.applied())
}
