package proxy

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
)

// A route that is announced with its placement is read from nowhere; after a gap
// in the announcements it is not believed alone.
func TestAnnouncedRouteIsTakenWithoutReading(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	p := f.start(Config{})
	require.Eventually(t, func() bool { return p.read.Load() == p.heard.Load() && p.hearing.Load() }, waitFor, tick)
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	e := p.routing.entry(firstChunk)
	old := e.route.Load()
	at := old.Placement
	at.ID++
	change := RouteChange{Database: testDatabase, Chunk: firstChunk, Token: old.Token + 1, Placement: &at}
	require.True(t, p.takeRoute(t.Context(), change))
	require.Equal(t, at, e.route.Load().Placement)
	require.Len(t, e.past.all(), 1)

	far := chunk.Placement{ID: 99, Chunk: firstChunk, Shard: "shard-z"}
	change.Token++
	change.Placement = &far
	require.False(t, p.takeRoute(t.Context(), change), "its shard must be looked up")

	p.hear(t.Context(), Announcement{Lost: true})
	change.Placement = &at
	require.False(t, p.takeRoute(t.Context(), change))
	require.Equal(t, old.Token+1, e.route.Load().Token)
}

// places is where placements lie.
type places map[chunk.PlacementID]chunk.Placement

// Placement implements [Places].
func (p places) Placement(_ context.Context, id chunk.PlacementID) (chunk.Placement, error) {
	return p[id], nil
}

// While an attempt is prepared, a proxy makes as many connections to its target as it
// has to its source: behind the publish everybody who was held wants one at once.
func TestTargetIsReadyBeforeItOpens(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	to := newFakeShard(t)
	f.shards["shard-b"] = Shard{Shard: chunk.Shard{Name: "shard-b", URI: fmt.Sprintf("mongodb://%s/?directConnection=true", to.listener.Addr())}}
	ports := f.ports()
	ports.Places = places{99: {ID: 99, Chunk: firstChunk, Shard: "shard-b"}}
	p := New(Config{ID: "proxy-1"}, ports)
	f.run(p)
	source := p.routing.entry(firstChunk).route.Load()
	source.pool.Warm(5)
	require.Eventually(t, func() bool { return source.pool.Open() == 5 }, waitFor, tick)

	p.hear(t.Context(), Announcement{Notice: &chunk.Notice{
		Attempt: 6, State: chunk.Preparing, Source: source.Placement.ID, Target: 99, Chunks: []chunk.ID{firstChunk},
	}})
	require.Eventually(t, func() bool { return p.pools.has("shard-b") }, waitFor, tick)
	target, err := p.pools.get(t.Context(), "shard-b")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return target.Open() == 5 }, waitFor, tick)
}

// Who was held comes to the shard all at once, and is not made to wait there for a probe
// of what it does at once.
func TestHeldRequestsAreExpected(t *testing.T) {
	t.Parallel()

	f, s := newFakeFleet(t, 1)
	s.answers(func(bson.Raw) bson.D { return emptyCursorReply() })
	p := f.start(Config{})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	e := p.routing.entry(firstChunk)
	serving := e.route.Load()
	m := move{f: f, id: firstChunk, notice: chunk.Notice{
		Attempt: 6, Source: serving.Placement.ID, Target: 99, Chunks: []chunk.ID{firstChunk},
		DeadlineUnixMS: time.Now().Add(time.Minute).UnixMilli(),
	}}
	m.state(chunk.Closing)
	found := make(chan error, 1)
	go func() { found <- coll.FindOne(t.Context(), bson.D{{Key: "origin", Value: "x"}}).Err() }()
	require.Eventually(t, func() bool {
		e.room.mu.Lock()
		defer e.room.mu.Unlock()
		return e.room.waiting == 1
	}, waitFor, tick)
	require.Zero(t, serving.pool.Gate().State().Expecting)
	m.state(chunk.AttemptAborted)
	require.ErrorIs(t, <-found, mongo.ErrNoDocuments)
	require.NotZero(t, serving.pool.Gate().State().Expecting)
}
