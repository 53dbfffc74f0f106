package replication

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/testkit"
)

// TestLanes runs against one shard, each part with a migration of its own.
func TestLanes(t *testing.T) {
	t.Parallel()
	server := testkit.Shard(t)
	client := connect(t, server)
	for name, test := range map[string]func(*testing.T, *world){
		"apply in order":                       testOrder,
		"leave out repetitions":                testRepetitions,
		"stop at a wrong count":                testCount,
		"stop at a hole":                       testHole,
		"skip their own label on the way back": testLabels,
		"stop at their own label":              testOwnLabel,
		"start at their marker":                testStart,
		"change no value":                      testValues,
		"take equal ids for one":               testNumericIDs,
		"rule by windows":                      testWindows,
		"never upsert a delta":                 testMissing,
		"stop where a document differs":        testExisting,
		"quarantine what they can't read":      testPoison,
		"stop at DDL":                          testDDL,
		"follow DDL":                           testDDLFollowed,
		"stop at DDL that cannot be followed":  testDDLRefused,
		"let TTL change":                       testTTL,
		"keep transactions whole":              testTransactions,
		"save soon behind a batch":             testSavesSoonBehindABatch,
		"notice between saves":                 testClosedBetweenSaves,
		"split what is too large":              testLarge,
		"pass markers at once":                 testMarkers,
		"pause":                                testPause,
		"respect a collation":                  testCollation,
		"bypass validators":                    testValidator,
		"ignore other databases":               testForeign,
		"take odd names as they are":           testEnvelope,
		"measure what they write":              testAmplification,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, worldOn(t, server, client))
		})
	}
}

func testOrder(t *testing.T, w *world) {
	for i := range 50 {
		w.inserted(bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}})
	}
	r := w.run(w.cfg)
	for round := range 20 {
		for i := range 50 {
			w.updated(i, bson.D{{Key: "n", Value: round + 1}})
		}
	}
	w.replaced(bson.D{{Key: "_id", Value: 7}, {Key: "new", Value: true}})
	w.deleted(8)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 49)
	for _, doc := range got {
		want := bson.D{{Key: "_id", Value: int(doc.Lookup("_id").AsInt64())}, {Key: "n", Value: 20}}
		if want[0].Value == 7 {
			want[1] = bson.E{Key: "new", Value: true}
		}
		require.Equal(t, raw(t, want), doc)
	}
	ctx, m := context.Background(), w.cfg.Direction.Migration
	require.NoError(t, CloseLanes(ctx, w.client, w.sessions, m, 0, 6))
	for range 2 { // a closed lane is not taken again
		err := r.wait()
		require.True(t, failure.HasCode(err, "lane.closed"), "%v", err)
		require.True(t, failure.Is(err, failure.Lost))
		r = w.run(w.cfg)
	}
	require.NoError(t, ReopenLanes(ctx, w.client, w.sessions, m, 0, 5)) // it was not this attempt that closed them
	require.True(t, failure.HasCode(w.run(w.cfg).wait(), "lane.closed"))
	require.NoError(t, ReopenLanes(ctx, w.client, w.sessions, m, 0, 6))
	r = w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	require.True(t, failure.Is(CloseLanes(ctx, w.client, w.sessions, m, 0, 6), failure.Lost), "a late coordinator closed lanes after its way back")
	w.passes(w.mark(chunk.ValidateMarker, 3))
	require.NoError(t, CloseLanes(ctx, w.client, w.sessions, m, 0, 7))
	require.True(t, failure.HasCode(r.wait(), "lane.closed"))
	require.NoError(t, CloseLanes(ctx, w.client, w.sessions, m, 0, math.MaxInt64), "the end closes what is closed")
	require.NoError(t, ReopenLanes(ctx, w.client, w.sessions, m, 0, 7))
	require.True(t, failure.HasCode(w.run(w.cfg).wait(), "lane.closed"), "the end is the end")
}

// applied sums up what the lanes say they have applied.
func (w *world) applied() (n int64) {
	w.t.Helper()
	all, err := ReadCheckpoints(context.Background(), w.client, w.cfg.Direction.Migration, w.cfg.Direction.Attempt)
	require.NoError(w.t, err)
	for _, c := range all {
		n += c.Applied
	}
	return n
}

// Capture sends again what it is not sure of, and Kafka gives it again after a
// restart: B104, B115, B119.
func testRepetitions(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.A{}}})
	r := w.run(w.cfg)
	const n = 100
	for i := range n {
		w.updated(1, bson.D{{Key: fmt.Sprintf("a.%d", i), Value: i}})
		if i%10 != 0 {
			continue
		}
		w.log.mu.Lock() // the newest of the log, again
		for _, p := range w.log.parts {
			p.records = append(p.records, p.records[max(0, len(p.records)-40):]...)
		}
		w.log.mu.Unlock()
		w.log.repeat = i
		require.ErrorIs(t, r.end(), context.Canceled)
		r = w.run(w.cfg)
	}
	w.passes(w.mark(chunk.ValidateMarker, 1))
	got := contents(t, w.target().Collection("c"))
	for _, doc := range got {
		a, err := doc.Lookup("a").Array().Values()
		require.NoError(t, err)
		require.Len(t, a, n)
	}
	require.EqualValues(t, n+1, w.applied())
}

func testCount(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.log.mu.Lock()
	for _, p := range w.log.parts {
		p.count++ // a record that never came
	}
	w.log.mu.Unlock()
	w.mark(chunk.ValidateMarker, 1)
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.count_mismatch"), "%v", err)
	require.True(t, failure.Is(err, failure.Mismatch))
}

func testHole(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.updated(1, bson.D{{Key: "n", Value: 1}})
	w.updated(1, bson.D{{Key: "n", Value: 2}})
	w.mark(chunk.ValidateMarker, 1)
	lost := 0
	for _, p := range w.log.parts {
		for i, e := range p.records {
			if e.Op == event.Update {
				p.records = append(p.records[:i:i], p.records[i+1:]...)
				lost++
				break
			}
		}
	}
	require.Equal(t, 1, lost)
	w.log.add(t, event.Event{Op: event.Mark, ClusterTime: bson.Timestamp{T: 1 << 30}, Marker: &chunk.Marker{Kind: chunk.HeartbeatMarker}})
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.count_mismatch"), "%v", err)
	require.Empty(t, w.reports.diverged)
	doc := contents(t, w.target().Collection("c"))
	for _, d := range doc {
		require.Equal(t, bson.Type(0), d.Lookup("n").Type, "nothing beyond the hole was applied")
	}
}

// reverse turns the world round: the lanes start at an open marker.
func (w *world) reverse(a chunk.AttemptID) {
	w.t.Helper()
	w.cfg.Direction.Attempt = a
	w.mark(chunk.OpenMarker, 1)
}

// What the lanes of one direction write must not come back by the other: B180.
func testLabels(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: "before the open marker"}})
	w.reverse(6)
	mine := w.on(event.Insert, "labelled")
	mine.Document, mine.Label = raw(t, bson.D{{Key: "_id", Value: "labelled"}}), w.cfg.Direction.Migration
	w.log.add(t, mine)
	for _, op := range []event.Op{event.Update, event.Delete} { // of something that is not there: it would diverge
		e := w.on(op, "labelled too")
		e.Change, e.Label = raw(t, bson.D{{Key: "updatedFields", Value: bson.D{{Key: "a", Value: 2}}}}), w.cfg.Direction.Migration
		w.log.add(t, e)
	}
	other := w.on(event.Insert, "another migration's")
	other.Document, other.Label = raw(t, bson.D{{Key: "_id", Value: "another migration's"}}), w.cfg.Direction.Migration+1000
	w.log.add(t, other)
	w.inserted(bson.D{{Key: "_id", Value: "an application's"}})
	w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 2)
	require.EqualValues(t, 2, w.applied())
}

func testOwnLabel(t *testing.T, w *world) {
	mine := w.on(event.Insert, "labelled")
	mine.Document, mine.Label = raw(t, bson.D{{Key: "_id", Value: "labelled"}}), w.cfg.Direction.Migration
	w.log.add(t, mine)
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.own_label"), "%v", err)
}

func testStart(t *testing.T, w *world) {
	w.log = newFakeLog(partitions)
	w.cfg.Log = w.log
	w.inserted(bson.D{{Key: "_id", Value: "too early"}})
	w.updated("never there", bson.D{{Key: "a", Value: 1}})
	w.mark(chunk.ValidateMarker, 1)
	own := w.cfg.Direction.Migration
	w.cfg.Direction.Migration = own + 1000
	w.mark(chunk.StartMarker, 0)
	w.cfg.Direction.Migration = own
	w.inserted(bson.D{{Key: "_id", Value: "too early as well"}})
	w.mark(chunk.StartMarker, 0)
	w.inserted(bson.D{{Key: "_id", Value: "in time"}})
	w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	require.Len(t, contents(t, w.target().Collection("c")), 1)
}

// everyType is a document with a field of each BSON type, and values that tools
// of this kind have changed: B001, B005, B007, B009, B011.
func everyType(t testing.TB, id any, v int) bson.D {
	t.Helper()
	nan, err := bson.ParseDecimal128("NaN")
	require.NoError(t, err)
	dec, err := bson.ParseDecimal128("1.00")
	require.NoError(t, err)
	badText := bson.RawValue{Type: bson.TypeString, Value: []byte{3, 0, 0, 0, 'A', 0xff, 0}}
	return bson.D{
		{Key: "_id", Value: id}, {Key: "v", Value: v}, {Key: "z", Value: 1}, {Key: "double", Value: 1.5}, {Key: "nan", Value: math.NaN()},
		{Key: "inf", Value: math.Inf(-1)}, {Key: "negative zero", Value: math.Copysign(0, -1)}, {Key: "string", Value: "s\x00t"}, {Key: "bad text", Value: badText},
		{Key: "doc", Value: bson.D{{Key: "q", Value: 1}, {Key: "b", Value: bson.D{}}, {Key: "$x", Value: 1}, {Key: "a.b", Value: 1}}}, {Key: "array", Value: bson.A{1, bson.A{}, bson.D{}, nil}},
		{Key: "binary", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}}, {Key: "old binary", Value: bson.Binary{Subtype: 2, Data: []byte{1}}},
		{Key: "undefined", Value: bson.Undefined{}}, {Key: "oid", Value: bson.NewObjectID()}, {Key: "bool", Value: true}, {Key: "date", Value: bson.DateTime(-1)},
		{Key: "null", Value: nil}, {Key: "regex", Value: bson.Regex{Pattern: "^a", Options: "im"}}, {Key: "pointer", Value: bson.DBPointer{DB: "d.c", Pointer: bson.NewObjectID()}},
		{Key: "js", Value: bson.JavaScript("1")}, {Key: "symbol", Value: bson.Symbol("s")}, {Key: "scope", Value: bson.CodeWithScope{Code: "1", Scope: bson.D{{Key: "x", Value: 1}}}},
		{Key: "int", Value: int32(1)}, {Key: "ts", Value: bson.Timestamp{T: 1, I: 2}}, {Key: "long", Value: int64(1)}, {Key: "decimal", Value: dec}, {Key: "decimal nan", Value: nan},
		{Key: "min", Value: bson.MinKey{}}, {Key: "max", Value: bson.MaxKey{}}, {Key: "empty ts", Value: bson.Timestamp{}}, {Key: "inner", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}}},
		{Key: "$dollar", Value: 1}, {Key: "dot.ted", Value: 1}, {Key: "", Value: "no name"},
	}
}

func testValues(t *testing.T, w *world) {
	badText := true
	if _, err := w.source().Collection("c").InsertOne(context.Background(), everyType(t, 1, 1)); err != nil {
		t.Logf("the server stores no invalid UTF-8: %v", err)
		badText = false
	}
	everyType := func(t *testing.T, id any, v int) bson.D {
		d := everyType(t, id, v)
		if !badText {
			d = slices.DeleteFunc(d, func(e bson.E) bool { return e.Key == "bad text" })
		}
		return d
	}
	w.run(w.cfg)
	want := map[docKey]bson.Raw{}
	note := func(doc bson.D) {
		k, err := keyOf("c", raw(t, doc).Lookup("_id"))
		require.NoError(t, err)
		want[k] = raw(t, doc)
	}
	for i, id := range []any{
		1, "text", 2.5, nil, true, bson.NewObjectID(), bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 2}}, bson.D{{Key: "y", Value: 2}, {Key: "x", Value: 1}},
		bson.DateTime(5), bson.Timestamp{}, bson.MinKey{}, bson.MaxKey{}, bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}, math.NaN(), "507f1f77bcf86cd799439011",
	} {
		if w.fixes(id) {
			t.Logf("the server does not let a document with _id %v be replaced", id)
			continue
		}
		inserted := everyType(t, id, i)
		w.inserted(inserted)
		w.mark(chunk.ValidateMarker, int64(1000+3*i))
		replaced := everyType(t, id, i+100)
		switch i % 3 {
		case 0:
			note(inserted)
		case 1:
			w.replaced(replaced)
			note(replaced)
		default:
			w.updated(id, bson.D{{Key: "v", Value: -1}, {Key: "inner.ts", Value: bson.Timestamp{T: 1}}, {Key: "empty too", Value: bson.Timestamp{}}})
			inserted[1].Value = -1
			for j := range inserted {
				if inserted[j].Key == "inner" {
					inserted[j].Value = bson.D{{Key: "ts", Value: bson.Timestamp{T: 1}}}
				}
			}
			note(append(inserted, bson.E{Key: "empty too", Value: bson.Timestamp{}}))
		}
	}
	w.passes(w.mark(chunk.ValidateMarker, 1))
	equal(t, want, contents(t, w.target().Collection("c")))
}

// fixes reports whether the server takes the replacement of a document with this
// _id for a change of the _id.
func (w *world) fixes(id any) bool {
	w.t.Helper()
	c, filter := w.source().Collection("fixed"), bson.D{{Key: "_id", Value: id}}
	_, err := c.InsertOne(context.Background(), filter)
	require.NoError(w.t, err)
	_, err = c.ReplaceOne(context.Background(), filter, append(filter, bson.E{Key: "a", Value: 1}))
	return mongocode.Has(err, immutableField)
}

// 1, 1.0 and NumberLong(1) are one _id; what is stored keeps its type: B015.
func testNumericIDs(t *testing.T, w *world) {
	w.run(w.cfg)
	w.inserted(bson.D{{Key: "_id", Value: int32(1)}, {Key: "v", Value: 1}})
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.deleted(1.0)
	w.inserted(bson.D{{Key: "_id", Value: int64(1)}, {Key: "v", Value: 2}})
	w.updated(1.0, bson.D{{Key: "w", Value: 1}})
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.updated(int32(1), bson.D{{Key: "v", Value: 3}})
	w.passes(w.mark(chunk.ValidateMarker, 3))
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 1)
	for _, doc := range got {
		require.Equal(t, raw(t, bson.D{{Key: "_id", Value: int64(1)}, {Key: "v", Value: 3}, {Key: "w", Value: 1}}), doc)
	}
}

// turns counts the lanes' writes of their checkpoints.
func (w *world) turns() (n int64) {
	w.t.Helper()
	all, err := ReadCheckpoints(context.Background(), w.client, w.cfg.Direction.Migration, w.cfg.Direction.Attempt)
	require.NoError(w.t, err)
	for _, c := range all {
		n += c.Turn
	}
	return n
}

// Lanes of a crowd hardly ever save a position behind others' events, but for a while
// behind their own: a comparison of what has changed waits for a heartbeat, which need not
// be the first one.
func testSavesSoonBehindABatch(t *testing.T, w *world) {
	w.cfg.IdleSave = func() time.Duration { return time.Hour }
	w.run(w.cfg)
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.until("the batch", func() bool { return w.applied() == 1 })
	for round := range int64(3) {
		w.log.add(t, event.Event{Op: event.Mark, Marker: &chunk.Marker{Kind: chunk.HeartbeatMarker, Round: round}})
		w.until("the position behind it", func() bool {
			all, err := ReadCheckpoints(context.Background(), w.client, w.cfg.Direction.Migration, w.cfg.Direction.Attempt)
			require.NoError(t, err)
			return slices.ContainsFunc(all, func(c Checkpoint) bool { return c.Applied == 1 && c.Seq == w.log.seq })
		})
	}
}

// A switch waits for lanes that have not noticed yet that they were closed, and those of
// a crowd do not save for long.
func testClosedBetweenSaves(t *testing.T, w *world) {
	w.cfg.IdleSave = func() time.Duration { return time.Hour }
	r := w.run(w.cfg)
	w.log.add(t, event.Event{Op: event.Mark, Marker: &chunk.Marker{Kind: chunk.HeartbeatMarker}})
	w.until("a position that is not saved", func() bool {
		all := r.lanes.Status()
		return len(all) == partitions && !slices.ContainsFunc(all, func(s Status) bool { return s.Seq != w.log.seq })
	})
	require.NoError(t, CloseLanes(context.Background(), w.client, w.sessions, w.cfg.Direction.Migration, 0, 6))
	select {
	case <-r.done:
	case <-time.After(90 * time.Second):
		require.Fail(t, "the lanes do not notice that they were closed")
	}
	require.True(t, failure.HasCode(r.err, "lane.closed"), "%v", r.err)
}

func testTransactions(t *testing.T, w *world) {
	w.cfg.Limits.Docs, w.cfg.Limits.TransactionDocs = 10, 100
	w.cfg.Limits.IdleSave = time.Hour
	r := w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	r.lanes.Pause()
	// All in one partition, as the lanes see it.
	session := raw(t, bson.D{{Key: "id", Value: 1}})
	ids := w.inPartition(0, 150)
	add := func(txn int64, ids []any) {
		for _, id := range ids {
			e := w.on(event.Insert, id)
			e.Document, e.Session, e.TxnNumber = raw(t, bson.D{{Key: "_id", Value: id}}), session, txn
			w.log.add(t, e)
		}
	}
	before := w.turns()
	add(1, ids[:90])
	w.mark(chunk.ValidateMarker, 2)
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 3))
	// Two markers for each lane; cut at 10 events it would be 8 more. A lane that
	// was just about to look may have begun before the pause.
	require.LessOrEqual(t, w.turns(), before+2*partitions+1, "a transaction, with the marker after it, is one transaction")
	before = w.turns()
	r.lanes.Pause()
	add(2, ids[90:])
	for _, id := range w.inPartition(0, 200)[150:] {
		w.inserted(bson.D{{Key: "_id", Value: id}})
	}
	w.mark(chunk.ValidateMarker, 4)
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 5))
	require.Greater(t, w.turns(), before+2*partitions, "what is no transaction is cut at the limit")
}

// inPartition gives the first n numbers whose documents are in the partition.
func (w *world) inPartition(p int32, n int) (ids []any) {
	for i := 0; len(ids) < n; i++ {
		e := w.on(event.Delete, i)
		if at, err := e.Partition(partitions, event.ByDocument); err == nil && at == p {
			ids = append(ids, i)
		}
	}
	return ids
}

// B045: many large documents in one batch. The test's server takes less than
// 5 MB in one transaction.
func testLarge(t *testing.T, w *world) {
	w.cfg.Limits.ImageBytes = 3 << 20
	r := w.run(w.cfg)
	r.lanes.Pause()
	ids := w.inPartition(0, 8)
	large := strings.Repeat("x", 2<<20)
	for _, id := range ids {
		w.inserted(bson.D{{Key: "_id", Value: id}, {Key: "large", Value: large}})
	}
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 1))
	r.lanes.Pause()
	for _, id := range ids { // small events, large documents
		w.updated(id, bson.D{{Key: "n", Value: 1}})
	}
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 2))
	n, err := w.target().Collection("c").CountDocuments(context.Background(), bson.D{{Key: "n", Value: 1}})
	require.NoError(t, err)
	require.EqualValues(t, 8, n)
	require.EqualValues(t, 16, w.applied())
}

func testMarkers(t *testing.T, w *world) {
	w.cfg.Limits.IdleSave, w.cfg.Limits.IdleCheck = time.Hour, time.Hour
	r := w.run(w.cfg)
	for i := range int64(5) {
		w.passes(w.mark(chunk.ValidateMarker, i))
	}
	key := w.mark(chunk.DrainedMarker, 1)
	w.passes(key)
	// Others' markers and heartbeats are no markers of this migration.
	w.log.add(t, event.Event{Op: event.Mark, Marker: &chunk.Marker{Kind: chunk.HeartbeatMarker, Round: 1, At: time.Now()}})
	w.log.add(t, event.Event{Op: event.Mark, Marker: &chunk.Marker{Kind: chunk.FinalMarker, Migration: w.cfg.Direction.Migration + 1}})
	w.log.add(t, event.Event{Op: event.Mark, Marker: &chunk.Marker{Kind: chunk.OpenMarker, Migration: w.cfg.Direction.Migration, Placement: w.cfg.Direction.Target.ID}})
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	require.Eventually(t, func() bool { return w.applied() == 1 }, 10*time.Second, time.Millisecond)
	ok, err := w.passed(key)
	require.NoError(t, err)
	require.True(t, ok)
	require.Positive(t, r.lanes.Rates().Latency.Count)
	require.Positive(t, r.lanes.Rates().Events)
	for _, s := range r.lanes.Status() {
		require.True(t, s.Running)
		require.Equal(t, key, s.Marker)
	}
}

func testPause(t *testing.T, w *world) {
	r := w.run(w.cfg)
	first := w.mark(chunk.ValidateMarker, 1)
	w.passes(first)
	r.lanes.Pause()
	require.True(t, r.lanes.Paused())
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	second := w.mark(chunk.ValidateMarker, 2)
	var lag atomic.Bool
	require.Eventually(t, func() bool {
		for _, s := range r.lanes.Status() {
			lag.Store(s.Lag > 30*time.Millisecond)
			if !lag.Load() {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond, "what waits counts as lag")
	require.Zero(t, w.applied())
	r.lanes.Resume()
	w.passes(second)
	require.EqualValues(t, 1, w.applied())
}

// "A" is not "a", whatever the collection's collation says: B079.
func testCollation(t *testing.T, w *world) {
	ctx := context.Background()
	require.NoError(t, w.target().CreateCollection(ctx, "c", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
	r := w.run(w.cfg)
	w.inserted(bson.D{{Key: "_id", Value: "a"}, {Key: "n", Value: 1}})
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.deleted("a")
	w.inserted(bson.D{{Key: "_id", Value: "A"}, {Key: "n", Value: 1}})
	w.passes(w.mark(chunk.ValidateMarker, 2))
	w.updated("A", bson.D{{Key: "n", Value: 2}})
	w.passes(w.mark(chunk.ValidateMarker, 3))
	for _, doc := range contents(t, w.target().Collection("c")) {
		require.Equal(t, raw(t, bson.D{{Key: "_id", Value: "A"}, {Key: "n", Value: 2}}), doc)
	}
	w.updated("a", bson.D{{Key: "n", Value: 3}})
	err := r.wait()
	require.True(t, failure.HasCode(err, "lane.missing_document"), "the update of another document was taken for one of this: %v", err)
}

// B085: the document is older than the validator, on the source too.
func testValidator(t *testing.T, w *world) {
	require.NoError(t, w.target().CreateCollection(context.Background(), "c", options.CreateCollection().SetValidator(bson.D{{Key: "a", Value: bson.D{{Key: "$exists", Value: true}}}})))
	w.run(w.cfg)
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.updated(1, bson.D{{Key: "b", Value: 1}})
	w.passes(w.mark(chunk.ValidateMarker, 2))
	require.Len(t, contents(t, w.target().Collection("c")), 1)
}

// B099: nothing happens here and much elsewhere; the position moves all the same.
func testForeign(t *testing.T, w *world) {
	w.run(w.cfg)
	for i := range 300 {
		e := w.on(event.Insert, i)
		e.Database, e.Document = "elsewhere", raw(t, bson.D{{Key: "_id", Value: i}})
		w.log.add(t, e)
	}
	w.log.add(t, event.Event{Op: event.Mark, Marker: &chunk.Marker{Kind: chunk.HeartbeatMarker}})
	require.Eventually(t, func() bool {
		all, err := ReadCheckpoints(context.Background(), w.client, w.cfg.Direction.Migration, 0)
		if err != nil || len(all) != partitions {
			return false
		}
		for _, c := range all {
			if c.Seq != w.log.seq {
				return false
			}
		}
		return true
	}, 10*time.Second, 5*time.Millisecond)
	require.Zero(t, w.applied())
	names, err := w.target().ListCollectionNames(context.Background(), bson.D{})
	require.NoError(t, err)
	require.Empty(t, names)
}

// B013, B034, B039: user data that looks like an envelope, and updates that say nothing.
func testEnvelope(t *testing.T, w *world) {
	w.run(w.cfg)
	odd := bson.D{
		{Key: "_id", Value: 1}, {Key: "op", Value: "d"}, {Key: "ns", Value: "x"}, {Key: "o", Value: bson.D{{Key: "$_dummy", Value: 1}}}, {Key: "ts", Value: 5}, {Key: "$v", Value: 2},
		{Key: "diff", Value: bson.D{{Key: "d", Value: bson.D{{Key: "a", Value: false}}}}}, {Key: "applyOps", Value: bson.A{}}, {Key: "keep", Value: 1}, {Key: "arr", Value: bson.A{"a", "b"}},
	}
	w.inserted(odd)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.updated(1, bson.D{})
	e := w.on(event.Update, 1)
	e.Change = raw(t, bson.D{{Key: "updatedFields", Value: bson.D{}}, {Key: "removedFields", Value: bson.A{}}, {Key: "truncatedArrays", Value: bson.A{bson.D{{Key: "field", Value: "arr"}, {Key: "newSize", Value: 1}}}}})
	w.log.add(t, e)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	odd[len(odd)-1].Value = bson.A{"a"}
	for _, doc := range contents(t, w.target().Collection("c")) {
		require.Equal(t, raw(t, odd), doc)
	}
}
