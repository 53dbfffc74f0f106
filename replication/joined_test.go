package replication

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	mongoevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/stoppoint"
)

// sent collects the names of the commands that a client sends in transactions.
type sent struct {
	mu    sync.Mutex
	names []string
}

// client connects to the world's shard.
func (s *sent) client(w *world) *mongo.Client {
	w.t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(w.server.AdminURI()).SetMonitor(&mongoevent.CommandMonitor{
		Started: func(_ context.Context, e *mongoevent.CommandStartedEvent) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, err := e.Command.LookupErr("autocommit"); err == nil {
				s.names = append(s.names, e.CommandName)
			}
		},
	}))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// A transaction of a lane that keeps up is mostly round trips: where a server takes all
// writes in one command there are its reads, that one and the commit.
func TestJoinedWrites(t *testing.T) {
	t.Parallel()
	shared := newWorld(t)
	for joins, want := range map[bool][]string{
		true:  {"find", "find", "bulkWrite", "commitTransaction"},
		false: {"find", "find", "update", "delete", "update", "insert", "update", "commitTransaction"},
	} {
		t.Run(fmt.Sprint(joins), func(t *testing.T) {
			t.Parallel()
			w := worldOn(t, shared.server, shared.client)
			var docs []any
			for id := range 3 {
				docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: 0}})
			}
			for _, c := range []string{"c", "other"} {
				_, err := w.target().Collection(c).InsertMany(t.Context(), docs)
				require.NoError(t, err)
			}
			w.updated(0, bson.D{{Key: "n", Value: 1}})
			w.deleted(1)
			w.inserted(bson.D{{Key: "_id", Value: 3}, {Key: "n", Value: 3}})
			elsewhere := w.on(event.Update, 2)
			elsewhere.Collection = "other"
			elsewhere.Change = raw(t, bson.D{{Key: "updatedFields", Value: bson.D{{Key: "n", Value: 2}}}, {Key: "removedFields", Value: bson.A{}}, {Key: "truncatedArrays", Value: bson.A{}}})
			w.log.add(t, elsewhere)

			s := &sent{}
			require.True(t, w.cfg.JoinsWrites, "the dev server knows bulkWrite")
			w.cfg.Target, w.cfg.JoinsWrites = s.client(w), joins
			l, err := NewLane(w.cfg, 0)
			require.NoError(t, err)
			require.NoError(t, l.Take(t.Context()))
			defer l.release(context.Background())
			require.NoError(t, l.commitAll(t.Context(), w.whole()))
			require.Equal(t, want, s.names)
			require.EqualValues(t, 4, w.applied())
			for c, want := range map[string]string{"c": "0:1 2:0 3:3", "other": "0:0 1:0 2:2"} {
				var got []string
				for _, doc := range contents(t, w.target().Collection(c)) {
					got = append(got, fmt.Sprintf("%d:%d", doc.Lookup("_id").AsInt64(), doc.Lookup("n").AsInt64()))
				}
				slices.Sort(got)
				require.Equal(t, want, strings.Join(got, " "))
			}
		})
	}
}

// whole is one batch of all events of the world's log.
func (w *world) whole() *batch {
	var all []*event.Event
	for _, p := range w.log.parts {
		for _, e := range p.records {
			if e.Op.OnDocument() {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b *event.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	b := &batch{}
	for _, e := range all {
		b.add(record{event: e, pos: position{seq: e.Seq, offset: e.Seq}})
	}
	return b
}

// sparing is [Sessions] that kill none, as when a former owner begins a transaction
// right after its session was killed.
type sparing struct{}

// KillSession implements [Sessions].
func (sparing) KillSession(context.Context, string, []byte) error { return nil }

// A deposed owner whose transaction has read, and not yet written, holds nobody up. When
// it wakes it changes nothing, and what it finds says nothing of the move: the newer
// owner has deleted the document by then that its event changes, or has gone on with it.
func TestLanesZombieThatHasRead(t *testing.T) {
	t.Parallel()
	shared := newWorld(t)
	for _, point := range []string{"lane.begun", "lane.read"} {
		for _, joins := range []bool{true, false} {
			for _, deleted := range []bool{true, false} {
				t.Run(fmt.Sprint(point, joins, deleted), func(t *testing.T) {
					t.Parallel()
					w := worldOn(t, shared.server, shared.client)
					w.cfg.Sessions, w.cfg.JoinsWrites = sparing{}, w.cfg.JoinsWrites && joins
					w.wakesAZombie(point, deleted)
				})
			}
		}
	}
}

// A joined command of a former owner writes no document, not even into its transaction:
// who wants them waits for nobody, and nobody has to find what holds them.
func TestJoinedWritesOfAFormerOwner(t *testing.T) {
	t.Parallel()
	shared := newWorld(t)
	for name, gone := range map[string]bool{"taken": false, "removed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := worldOn(t, shared.server, shared.client)
			require.True(t, w.cfg.JoinsWrites, "the dev server knows bulkWrite")
			c := w.target().Collection("c")
			_, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 0}, {Key: "n", Value: 0}})
			require.NoError(t, err)
			w.updated(0, bson.D{{Key: "n", Value: 1}})
			l, err := NewLane(w.cfg, 0)
			require.NoError(t, err)
			require.NoError(t, l.Take(t.Context()))
			defer l.release(context.Background())
			if gone {
				_, err = checkpoints(w.client).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: l.id}})
				require.NoError(t, err)
			} else {
				_, err = checkpoints(w.client).UpdateByID(t.Context(), l.id, bson.D{{Key: "$inc", Value: bson.D{{Key: "epoch", Value: 1}}}})
				require.NoError(t, err)
				docs, err := l.group(w.whole())
				require.NoError(t, err)
				require.NoError(t, l.sess.StartTransaction())
				err = l.change(mongo.NewSessionContext(t.Context(), l.sess), goal{pos: position{seq: 2}}, docs, func() error { return resolveAll(docs, l.cfg.Fold) })
				require.ErrorIs(t, err, errMoved)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				_, err = c.UpdateByID(ctx, 0, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 2}}}})
				cancel()
				require.NoError(t, err)
				l.abort(t.Context())
			}
			err = l.commitAll(t.Context(), w.whole())
			require.True(t, failure.Is(err, failure.Lost), "%v", err)
			n, err := checkpoints(w.client).CountDocuments(t.Context(), bson.D{{Key: "_id", Value: l.id}})
			require.NoError(t, err)
			want := map[bool][]int64{true: {0, 0}, false: {1, 2}}[gone]
			for _, doc := range contents(t, c) {
				require.Equal(t, want, []int64{n, doc.Lookup("n").AsInt64()})
			}
		})
	}
}

// What a server refuses for how it is asked goes apart; what may pass, and what is to be
// said of the writes themselves, does not switch joining off.
func TestRefusesJoining(t *testing.T) {
	t.Parallel()
	for code, want := range map[int32]bool{
		mongocode.Unauthorized: true, mongocode.CommandNotFound: true, mongocode.InvalidOptions: true, mongocode.BSONObjectTooLarge: true,
		mongocode.DuplicateKey: false, mongocode.WriteConflict: false, mongocode.NoSuchTransaction: false, mongocode.NotWritablePrimary: false,
		internalError: false, tooLargeForCache: false,
	} {
		require.Equal(t, want, refusesJoining(mongo.CommandError{Code: code}), "%d", code)
	}
	require.False(t, refusesJoining(errDied))
	require.False(t, refusesJoining(nil))
}

// A server whose bulkWrite always ends in an internal error is written to apart long before
// the lane gives up; one that does so now and then, as when it comes up, is not.
func TestJoinedWritesThatNeverSucceedGoApart(t *testing.T) {
	t.Parallel()
	internal := bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: internalError}, {Key: "errmsg", Value: "oops"}}
	met := bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}}
	broken := bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: internalError}}
	batch := func(answers ...bson.D) bson.D {
		return bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "firstBatch", Value: answers}}}}
	}
	almost := slices.Repeat([]bson.D{internal}, joinedInternals-1)
	for name, tt := range map[string]struct {
		answers []bson.D
		batches int
		tries   int // joined ones until writes go apart; 0: they never do
	}{
		"the command always fails":  {slices.Repeat([]bson.D{internal}, 2*internalErrors), 1, joinedInternals},
		"a write in it always does": {slices.Repeat([]bson.D{batch(met, broken)}, 2*internalErrors), 1, joinedInternals},
		"now and then":              {slices.Concat(almost, []bson.D{batch(met, met)}, almost, []bson.D{batch(met, met)}), 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			l := scripted(t, tt.answers...)
			l.cfg.JoinsWrites, l.log = true, slog.New(slog.NewTextHandler(&log, nil))
			image := raw(t, bson.D{{Key: "_id", Value: 1}})
			docs := []*document{{collection: "c", probe: true, old: image, now: image}}
			tries, apart := 0, false
			for range tt.batches {
				require.NoError(t, l.patiently(t.Context(), func(ctx context.Context) error {
					if apart = !l.joins(docs); apart {
						return nil
					}
					tries++
					return l.writeJoined(ctx, goal{}, (&writes{collection: "c", replaces: docs}).commands())
				}))
			}
			require.Equal(t, tt.tries > 0, apart)
			require.Equal(t, apart, strings.Contains(log.String(), "writes are sent apart from now on"))
			require.Equal(t, cmp.Or(tt.tries, len(tt.answers)), tries)
		})
	}
}

// Two collections of a joined command may have the same key: the answer's place tells
// which document broke its index, and where there is none the writes go apart.
func TestJoinedConflict(t *testing.T) {
	t.Parallel()
	image := raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "u", Value: "x"}})
	docs := []*document{{collection: "a", now: image}, {collection: "b", now: image}}
	broken := raw(t, bson.D{{Key: "code", Value: mongocode.DuplicateKey}, {Key: "keyPattern", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "keyValue", Value: bson.D{{Key: "u", Value: "x"}}}})
	var c *conflict
	require.ErrorAs(t, unwrittenJoined(mongo.WriteException{WriteErrors: mongo.WriteErrors{{Index: 1, Code: mongocode.DuplicateKey, Raw: broken}}}, docs, 2), &c)
	require.Same(t, docs[1], c.doc)
	require.False(t, c.vague)
	require.ErrorAs(t, unwrittenJoined(mongo.CommandError{Code: mongocode.DuplicateKey, Raw: broken}, docs, 0), &c)
	require.True(t, c.vague)
}

// wakesAZombie lets an owner stop at a point for as long as a newer one needs.
func (w *world) wakesAZombie(point string, deleted bool) {
	w.t.Helper()
	id := w.inPartition(0, 1)[0]
	_, err := w.target().Collection("c").InsertOne(w.t.Context(), bson.D{{Key: "_id", Value: id}})
	require.NoError(w.t, err)
	r := w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	_ = r.end()
	w.updated(id, bson.D{{Key: "n", Value: 1}})

	reached, wake := make(chan struct{}), make(chan struct{})
	woken := false // the lane's alone
	zombie := w.cfg
	zombie.Points = stoppoint.New(func(_ context.Context, name string) error {
		switch {
		case name == point && !woken:
			close(reached)
			<-wake
			woken = true
		case name == "lane.committed" && woken:
			return errDied // it must not come to that
		}
		return nil
	})
	old, err := NewLane(zombie, 0)
	require.NoError(w.t, err)
	require.NoError(w.t, old.Take(w.t.Context()))
	end := make(chan error, 1)
	go func() { end <- old.Run(context.Background()) }()
	<-reached
	want := 0
	if deleted {
		w.deleted(id)
	} else {
		w.updated(id, bson.D{{Key: "n", Value: 2}})
		want = 1
	}
	w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 2))
	close(wake)
	err = <-end
	require.True(w.t, failure.Is(err, failure.Lost), "%v", err)
	require.EqualValues(w.t, 2, w.applied())
	require.Empty(w.t, w.reports.diverged)
	left := contents(w.t, w.target().Collection("c"))
	require.Len(w.t, left, want)
	for _, doc := range left {
		require.EqualValues(w.t, 2, doc.Lookup("n").AsInt64())
	}
}
