package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"

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
