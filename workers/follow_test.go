package workers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

// logs writes the captured logs of shards, of one partition each.
type logs struct {
	t      *testing.T
	client *kgo.Client
	seq    map[string]int64
	count  map[string]int64
	began  time.Time
	n      int
}

// put appends an event; each is a second later than the one before.
func (l *logs) put(shard string, e event.Event) {
	l.t.Helper()
	l.n++
	e.Prev, e.Count, e.Wall = l.seq[shard], 0, l.began.Add(time.Duration(l.n)*time.Second)
	if e.Op == event.Mark {
		e.Count, l.count[shard] = l.count[shard], 0
	} else {
		l.count[shard]++
	}
	l.seq[shard]++
	e.Seq = l.seq[shard]
	value, err := e.Encode()
	require.NoError(l.t, err)
	require.NoError(l.t, l.client.ProduceSync(l.t.Context(), &kgo.Record{Topic: chunk.Topic(shard), Value: value}).FirstErr())
}

// mark appends a marker.
func (l *logs) mark(shard string, m chunk.Marker) {
	l.t.Helper()
	l.put(shard, event.Event{Op: event.Mark, Database: chunk.SystemDatabase, Marker: &m})
}

// insert appends a document with the number of the event.
func (l *logs) insert(p chunk.Placement, label chunk.MigrationID) {
	l.t.Helper()
	key, err := bson.Marshal(bson.D{{Key: "_id", Value: l.n + 1}})
	require.NoError(l.t, err)
	l.put(p.Shard, event.Event{Op: event.Insert, Label: label, Database: p.Database, Collection: "c", Key: key, Document: key})
}

// published brings a registered split to its end, as a switch would.
func published(t *testing.T, s *metadata.Store, m metadata.Migration) metadata.Attempt {
	t.Helper()
	ctx := t.Context()
	phases := []chunk.Phase{chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching}
	for i := range phases[1:] {
		require.NoError(t, s.SetPhase(ctx, m.ID, phases[i], phases[i+1]))
	}
	legs, err := s.Legs(ctx, m.ID)
	require.NoError(t, err)
	for _, l := range legs {
		require.NoError(t, s.SetPlacementState(ctx, l.Target.ID, chunk.Loading, chunk.Mirror))
	}
	a, err := s.BeginAttempt(ctx, m.ID, "try", time.Minute)
	require.NoError(t, err)
	r := metadata.PublishRequest{Attempt: a.ID, CatalogVersion: 1}
	for _, name := range []string{"a", "b", "c"} {
		l, err := s.AcquireLease(ctx, name, "switch", metadata.SharedLease, time.Minute)
		require.NoError(t, err)
		r.Leases = append(r.Leases, l)
	}
	advance := func(from, to chunk.AttemptState, deadline time.Duration) {
		_, err := s.AdvanceAttempt(ctx, a.ID, from, to, metadata.AdvanceOptions{Deadline: deadline})
		require.NoError(t, err)
	}
	advance(chunk.Preparing, chunk.Fencing, time.Minute)
	advance(chunk.Fencing, chunk.Closing, 0)
	_, err = s.Publish(ctx, r)
	require.NoError(t, err)
	advance(chunk.Published, chunk.Open, 0)
	a, err = s.Attempt(ctx, a.ID)
	require.NoError(t, err)
	return a
}

// newLogs makes three shards and a database of two chunks, and what reads its changes.
func newLogs(t *testing.T, store *metadata.Store) (*logs, *Changes) {
	t.Helper()
	ctx := t.Context()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	l := &logs{t: t, client: client, seq: map[string]int64{}, count: map[string]int64{}, began: time.Now()}
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, store.AddShard(ctx, chunk.Shard{Name: name, URI: "mongodb://" + name}))
		require.NoError(t, cdc.EnsureTopic(ctx, client, name, cdc.TopicSettings{Partitions: 1}))
	}
	_, err = store.CreateDatabase(ctx, chunk.Database{Name: "app", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "k"}}}, []metadata.NewChunk{
		{Range: chunk.Range{Hi: "\x40"}, Shard: "a"}, {Range: chunk.Range{Lo: "\x40", Hi: chunk.KeyMax}, Shard: "b"},
	})
	require.NoError(t, err)
	require.NoError(t, store.Activate(ctx, "app"))
	log, err := cdc.NewLog(cluster.ListenAddrs())
	require.NoError(t, err)
	t.Cleanup(log.Close)
	return l, &Changes{Store: store, Replay: &cdc.Replay{Log: log}}
}

// follow gives the changes behind a position, up to the heartbeats behind everything, and
// the position behind each.
func follow(t *testing.T, changes *Changes, from Position) (got, positions []string) {
	t.Helper()
	end := errors.New("enough")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := changes.Follow(ctx, from, func(c Change, p Position) error {
		if c.Event == nil {
			return end
		}
		got, positions = append(got, fmt.Sprint(c.Chunk, " ", c.Event.ID().AsInt64())), append(positions, p.String())
		return nil
	})
	require.ErrorIs(t, err, end)
	return got, positions
}

// TestFollowGoesThroughASplit: the stream of a database, begun before one of its chunks
// was split and after that, has each change once, the parts' behind the whole's, and goes
// on from any position that it gave.
func TestFollowGoesThroughASplit(t *testing.T) {
	t.Parallel()
	store := metadatatest.Open(t)
	ctx := t.Context()
	l, changes := newLogs(t, store)
	routes, err := store.Routes(ctx, "app")
	require.NoError(t, err)
	whole, other := routes[0].Placement, routes[1].Placement

	l.insert(whole, 0)
	l.insert(other, 0)
	l.insert(whole, 0)
	m, err := store.RegisterReshape(ctx, metadata.ReshapeRequest{
		Chunks: []chunk.ID{whole.Chunk}, WorkflowID: "split", RequestedBy: "test",
		Targets: []metadata.NewRange{{Range: chunk.Range{Hi: "\x20"}, Shard: "c"}, {Range: chunk.Range{Lo: "\x20", Hi: "\x40"}, Shard: "b"}},
	})
	require.NoError(t, err)
	a := published(t, store, m)
	require.Len(t, a.Legs, 2)
	left, right := a.Legs[0].Target, a.Legs[1].Target
	l.insert(left, m.ID) // what lanes write is no change
	l.insert(right, m.ID)
	l.insert(whole, 0)
	l.mark("a", chunk.Marker{Kind: chunk.FinalMarker, Migration: m.ID, Attempt: a.ID, Placement: whole.ID})
	for _, p := range []chunk.Placement{left, right} {
		l.mark(p.Shard, chunk.Marker{Kind: chunk.OpenMarker, Migration: m.ID, Attempt: a.ID, Placement: p.ID})
	}
	l.insert(right, 0)
	l.insert(other, 0)
	l.insert(left, 0)
	l.n += 100
	for range 2 {
		for _, name := range []string{"a", "b", "c"} {
			l.mark(name, chunk.Marker{Kind: chunk.HeartbeatMarker, Round: int64(l.n)})
		}
	}
	want := []string{
		fmt.Sprint(whole.Chunk, " 1"), fmt.Sprint(other.Chunk, " 2"), fmt.Sprint(whole.Chunk, " 3"), fmt.Sprint(whole.Chunk, " 6"),
		fmt.Sprint(right.Chunk, " 10"), fmt.Sprint(other.Chunk, " 11"), fmt.Sprint(left.Chunk, " 12"),
	}

	begin, err := changes.Begin(ctx, "app", l.began.Add(-time.Hour))
	require.NoError(t, err)
	got, positions := follow(t, changes, begin)
	require.Equal(t, want, got)
	for n, p := range positions {
		from, err := ParsePosition(p)
		require.NoError(t, err)
		rest, _ := follow(t, changes, from)
		if n+1 < len(want) {
			require.Equal(t, want[n+1:], rest, "behind change %d", n+1)
		}
	}
	now, err := changes.Begin(ctx, "app", time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Len(t, now, 3)
	require.NotContains(t, now, whole.Chunk)
}
