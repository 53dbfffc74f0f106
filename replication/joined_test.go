package replication

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	mongoevent "go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
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
			if joins && !w.cfg.JoinsWrites {
				return // the server of this machine does not know it
			}
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
