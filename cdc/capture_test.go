package cdc_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/internal/testkit"
)

const database = "flights_0003_p42"

// write is one acknowledged change: the document and the version it got.
type write struct {
	id      string
	version int32
}

// writers change documents until they are stopped, and remember what was
// acknowledged.
type writers struct {
	stop atomic.Bool
	wg   sync.WaitGroup
	mu   sync.Mutex
	done []write
}

// load starts n writers, each with documents of its own; one in four changes
// two documents in a transaction.
func (b *bundle) load(t testing.TB, n int) *writers {
	t.Helper()
	b.begun(t)
	w := &writers{}
	for i := range n {
		w.wg.Go(func() { b.writer(t.Context(), w, i) })
	}
	t.Cleanup(func() { w.end() })
	return w
}

// end stops the writers and gives what was acknowledged.
func (w *writers) end() []write {
	w.stop.Store(true)
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done
}

// count is how many writes are acknowledged so far.
func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.done)
}

// writer is one of them. A write without an answer is written again under
// another version, so that each acknowledged version exists once.
func (b *bundle) writer(ctx context.Context, w *writers, number int) {
	coll := b.client.Database(database).Collection("c")
	for version := int32(1); !w.stop.Load() && ctx.Err() == nil; version++ {
		id := string(rune('a'+number)) + string(rune('a'+version%7))
		ids := []string{id}
		var err error
		if version%4 == 0 {
			ids = append(ids, id+"2")
			err = b.inTransaction(ctx, func(ctx context.Context) error {
				for _, id := range ids {
					if err := put(ctx, coll, id, version); err != nil {
						return err
					}
				}
				return nil
			})
		} else {
			err = put(ctx, coll, id, version)
		}
		if err != nil {
			continue
		}
		w.mu.Lock()
		for _, id := range ids {
			w.done = append(w.done, write{id, version})
		}
		w.mu.Unlock()
	}
}

// put sets a document's version.
func put(ctx context.Context, coll *mongo.Collection, id string, version int32) error {
	key := bson.D{{Key: "_id", Value: id}}
	res, err := coll.UpdateOne(ctx, key, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: version}}}})
	if err == nil && res.MatchedCount == 0 {
		_, err = coll.InsertOne(ctx, append(key, bson.E{Key: "v", Value: version}))
	}
	return err
}

// inTransaction runs fn in a transaction.
func (b *bundle) inTransaction(ctx context.Context, fn func(context.Context) error) error {
	return b.client.UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, fn(ctx) })
		return err
	})
}

// complete checks that the log has each acknowledged write exactly once, in the
// order of each document's versions, and that partitions have gap-free records.
func complete(t testing.TB, log [][]*event.Event, done []write) {
	t.Helper()
	times := map[write]int{}
	newest := map[string]int32{}
	for _, events := range log {
		for i, e := range events {
			if i > 0 {
				require.Equal(t, events[i-1].Seq, e.Prev)
			}
			if !e.Op.OnDocument() {
				continue
			}
			w := write{id: e.ID().StringValue()}
			doc := bson.Raw(e.Document)
			if e.Op == event.Update {
				doc = bson.Raw(e.Change).Lookup("updatedFields").Document()
			}
			w.version = doc.Lookup("v").Int32()
			times[w]++
			require.Greater(t, w.version, newest[w.id], "%s goes back", w.id)
			newest[w.id] = w.version
		}
	}
	for _, w := range done {
		require.Equal(t, 1, times[w], "%s version %d", w.id, w.version)
	}
}

var errCrash = errors.New("crash")

// Fault B104 and its kind: a capture that dies anywhere and starts again leaves
// a log which, repetitions dropped, has every write once and in order.
func TestCaptureKilledAnywhereUnderLoad(t *testing.T) {
	t.Parallel()

	b := setup(t, testkit.Kafka(t))
	var deaths sync.Map
	var countdown atomic.Int64
	stops := stoppoint.New(func(_ context.Context, name string) error {
		n := int64(1)
		if name != "capture.sent" { // rarer than single records
			n = 20
		}
		if left := countdown.Add(-n); left > -n && left <= 0 {
			deaths.Store(name, true)
			return errCrash
		}
		return nil
	})
	countdown.Store(50)
	c := b.capture(stops)
	c.Settings.BatchSize = 7 // transactions go over several batches
	first := start(t, c)
	load := b.load(t, 4)
	<-first.done
	require.ErrorIs(t, first.err, errCrash)
	for range 20 {
		countdown.Store(1 + rand.Int64N(300))
		next := start(t, c)
		<-next.done
		require.ErrorIs(t, next.err, errCrash)
	}
	countdown.Store(1 << 60)
	start(t, c)
	was := load.count()
	require.Eventually(t, func() bool { return load.count() > was+100 }, time.Minute, 10*time.Millisecond)
	done := load.end()
	complete(t, b.read(t, b.seam(t)), done)
	n := 0
	deaths.Range(func(name, _ any) bool { n++; t.Logf("died at %s", name); return true })
	require.Greater(t, n, 1, "it always died at the same place")
	require.Greater(t, len(done), 500)
}

func TestShardKilledUnderCapture(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	running := start(t, b.capture(nil))
	load := b.load(t, 3)
	for range 3 {
		was := load.count()
		require.Eventually(t, func() bool { return load.count() > was+100 }, time.Minute, 5*time.Millisecond)
		b.shard.Kill(t)
		b.shard.Restart(t)
	}
	was := load.count()
	require.Eventually(t, func() bool { return load.count() > was+100 }, time.Minute, 5*time.Millisecond)
	done := load.end()
	complete(t, b.read(t, b.seam(t)), done)
	require.ErrorIs(t, running.stop(), context.Canceled)
}

// Faults B096 and B099: the position follows an idle stream, never past what
// was not delivered.
func TestPositionAdvancesWhileNothingMoves(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	c := b.capture(nil)
	c.Settings.HeartbeatEvery = time.Hour
	start(t, c)
	b.seam(t)
	// changes that go into no log
	_, err := b.client.Database(chunk.SystemDatabase).Collection("parked").InsertOne(t.Context(), bson.D{})
	require.NoError(t, err)
	first, _ := b.positions.of(t, b.name)
	require.Eventually(t, func() bool {
		p, _ := b.positions.of(t, b.name)
		return p.Seq > first.Seq
	}, time.Minute, 5*time.Millisecond)
}

// A second capture takes over; the first one notices and stops.
func TestNewerCaptureWins(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	old := start(t, b.capture(nil))
	load := b.load(t, 2)
	b.seam(t)
	fresh := start(t, b.capture(nil))
	<-old.done
	require.True(t, failure.Is(old.err, failure.Lost), "%v", old.err)
	was := load.count()
	require.Eventually(t, func() bool { return load.count() > was+50 }, time.Minute, 5*time.Millisecond)
	done := load.end()
	complete(t, b.read(t, b.seam(t)), done)
	require.ErrorIs(t, fresh.stop(), context.Canceled)
}

// Faults B091, B093: what the shard no longer has ends capture for good, and no
// restart begins again at "now".
func TestLostHistoryIsNeverSkipped(t *testing.T) {
	t.Parallel()

	for name, lose := range map[string]func(t *testing.T, b *bundle){
		"the shard was put back": func(t *testing.T, b *bundle) {
			t.Helper()
			_, err := b.client.Database("drover").Collection("markers").UpdateOne(t.Context(),
				bson.D{{Key: "_id", Value: "heartbeat"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "round", Value: int64(0)}}}})
			require.NoError(t, err)
		},
		"the shard is empty": func(t *testing.T, b *bundle) {
			t.Helper()
			require.NoError(t, b.client.Database("drover").Drop(t.Context()))
		},
		"the token means nothing": func(t *testing.T, b *bundle) {
			t.Helper()
			p, _ := b.positions.of(t, b.name)
			token, err := bson.Marshal(bson.D{{Key: "_data", Value: "82FF"}})
			require.NoError(t, err)
			p.Token = token
			value, err := bson.Marshal(p)
			require.NoError(t, err)
			b.positions.values[b.name] = value
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := setup(t, nil)
			running := start(t, b.capture(nil))
			b.seam(t)
			require.ErrorIs(t, running.stop(), context.Canceled)
			lose(t, b)
			for range 2 {
				again := start(t, b.capture(nil))
				<-again.done
				require.True(t, failure.HasCode(again.err, "capture.history_lost"), "%v", again.err)
				require.True(t, failure.Is(again.err, failure.Invalid))
			}
			p, _ := b.positions.of(t, b.name)
			require.NotEmpty(t, p.Lost)
		})
	}
}

// Fault B101: the address of a shard now leads to another server.
func TestPositionOfAnotherShard(t *testing.T) {
	t.Parallel()

	b, other := setup(t, nil), setup(t, nil)
	one, two := start(t, b.capture(nil)), start(t, other.capture(nil))
	b.seam(t)
	other.seam(t)
	require.ErrorIs(t, one.stop(), context.Canceled)
	require.ErrorIs(t, two.stop(), context.Canceled)
	b.client = other.client
	again := start(t, b.capture(nil))
	<-again.done
	require.True(t, failure.HasCode(again.err, "capture.wrong_source"), "%v", again.err)
}

func TestPartitionsNeverChange(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	require.ErrorIs(t, start(t, b.capture(nil)).afterFirst(t, b).stop(), context.Canceled)
	c := b.capture(nil)
	c.Topic.Partitions = 8
	again := start(t, c)
	<-again.done
	require.True(t, failure.HasCode(again.err, "log.partitions_differ"), "%v", again.err)
}

// afterFirst waits until something is captured.
func (r *running) afterFirst(t testing.TB, b *bundle) *running {
	t.Helper()
	b.seam(t)
	return r
}

// A position store that is down delays nothing but the position.
func TestPositionStoreDown(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	start(t, b.capture(nil))
	b.seam(t)
	b.positions.setBroken(errors.New("no connection"))
	before, _ := b.positions.of(t, b.name)
	for range 3 {
		b.seam(t)
	}
	after, _ := b.positions.of(t, b.name)
	require.Equal(t, before.Seq, after.Seq)
	b.positions.setBroken(nil)
	require.Eventually(t, func() bool {
		p, _ := b.positions.of(t, b.name)
		return p.Seq > before.Seq
	}, time.Minute, 5*time.Millisecond)
}

// fail lets the next n reports fail.
func (s *stragglers) fail(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = n
}

func (p *positions) setBroken(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = err
}

func TestStragglersAreReported(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	start(t, b.capture(nil))
	coll := b.client.Database(database).Collection("c")
	put := func(id int) {
		_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
		require.NoError(t, err)
	}
	b.begun(t)
	put(1)
	b.marker(t, chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: 6, Placement: 42, Round: 1})
	b.stragglers.fail(3)
	put(2)
	b.marker(t, chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 8, Placement: 42, Round: 1})
	put(3)
	log := b.read(t, b.seam(t))
	require.Len(t, changes(log), 3, "a straggler is in the log too")
	list := b.stragglers.list()
	require.Len(t, list, 1)
	require.Equal(t, "write", list[0].Kind)
	require.Equal(t, int32(2), list[0].Event.Lookup("documentKey", "_id").Int32())
}

// Fault B121: an offset that is not there is never replaced by another.
func TestOffsetOutOfRange(t *testing.T) {
	t.Parallel()

	for name, brokers := range map[string][]string{"fake": nil, "real": testkit.Kafka(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := setup(t, brokers)
			start(t, b.capture(nil))
			end := b.seam(t)
			for _, from := range []int64{-1, end[0].Offset + 1_000_000} {
				err := b.log.Read(t.Context(), b.name, 0, from, func(int64, *event.Event) error { return errors.New("a record") })
				require.True(t, failure.HasCode(err, "log.offset_out_of_range"), "%d: %v", from, err)
			}
			// cut the front off, as retention does
			ends, err := b.log.EndOffsets(t.Context(), b.name)
			require.NoError(t, err)
			err = b.cut(t, ends).Read(t.Context(), b.name, 0, 0, func(int64, *event.Event) error { return errors.New("a record") })
			require.True(t, failure.HasCode(err, "log.offset_out_of_range"), "%v", err)
		})
	}
}

func TestMarkersAreFoundFromBothSides(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	start(t, b.capture(nil))
	b.seam(t)
	from, err := b.log.EndOffsets(t.Context(), b.name)
	require.NoError(t, err)
	m := chunk.Marker{Kind: chunk.StartMarker, Migration: 9, Placement: 42, Round: 1}
	key := b.marker(t, m)
	forward, err := b.log.FindMarker(t.Context(), b.name, key, from)
	require.NoError(t, err)
	for range 8 {
		b.seam(t)
	}
	backward, err := b.log.FindMarker(t.Context(), b.name, key, nil)
	require.NoError(t, err)
	require.Equal(t, forward, backward)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = b.log.FindMarker(ctx, b.name, "start/m1/a1/p1/r1", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTopicIsMadeOnce(t *testing.T) {
	t.Parallel()

	client, err := kgo.NewClient(kgo.SeedBrokers(testkit.Kafka(t)...))
	require.NoError(t, err)
	defer client.Close()
	name := "t" + bson.NewObjectID().Hex()
	for range 2 {
		require.NoError(t, cdc.EnsureTopic(t.Context(), client, name, cdc.TopicSettings{Partitions: 3}))
	}
	err = cdc.EnsureTopic(t.Context(), client, name, cdc.TopicSettings{Partitions: 5})
	require.True(t, failure.HasCode(err, "log.partitions_differ"), "%v", err)
}

// The rights that a shard's capture user has are enough, and it can't be
// mistaken for a user who may write elsewhere.
func TestCaptureWithItsOwnRights(t *testing.T) {
	t.Parallel()

	b := setup(t, nil)
	admin := b.client.Database("admin")
	resource := func(db, coll string, actions ...string) bson.D {
		return bson.D{
			{Key: "resource", Value: bson.D{{Key: "db", Value: db}, {Key: "collection", Value: coll}}},
			{Key: "actions", Value: actions},
		}
	}
	require.NoError(t, admin.RunCommand(t.Context(), bson.D{
		{Key: "createRole", Value: "capture_test"}, {Key: "roles", Value: bson.A{}},
		{Key: "privileges", Value: bson.A{
			resource("", "", "changeStream", "find", "listIndexes"),
			resource("drover", "markers", "find", "insert", "update"),
		}},
	}).Err())
	require.NoError(t, admin.RunCommand(t.Context(), bson.D{
		{Key: "createUser", Value: chunk.CaptureUser}, {Key: "pwd", Value: "secret"}, {Key: "roles", Value: bson.A{"capture_test"}},
	}).Err())
	coll := b.client.Database(database).Collection("c")
	_, err := coll.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(1 << 30),
	})
	require.NoError(t, err)
	c := b.capture(nil)
	c.Client = connect(t, strings.Replace(b.shard.URI(), "mongodb://", "mongodb://"+chunk.CaptureUser+":secret@", 1))
	start(t, c)
	b.begun(t)
	_, err = coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err)
	b.marker(t, chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: 6, Placement: 42, Round: 1})
	_, err = coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err)
	b.seam(t)
	list := b.stragglers.list()
	require.Len(t, list, 1)
	require.Equal(t, "ttl-suspect", list[0].Kind)
}
