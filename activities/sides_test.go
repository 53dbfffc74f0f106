package activities

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/shard"
	"drover/switchover"
)

// A shard that cannot be dialled once held the lock that all others needed: one dead
// shard stopped every switch and the watchdog.
func TestShardThatHangsHoldsUpNoOther(t *testing.T) {
	t.Parallel()

	c := &sideCache{slots: map[string]*sideSlot{}}
	dialling, answer := make(chan struct{}), make(chan error)
	slow := func(context.Context, string) (*Side, error) { close(dialling); return &Side{}, <-answer }
	got := make(chan error, 1)
	go func() {
		_, err := c.get(context.WithoutCancel(t.Context()), "dead", slow)
		got <- err
	}()
	<-dialling

	opened := 0
	fast := func(context.Context, string) (*Side, error) { opened++; return &Side{}, nil }
	one, err := c.get(t.Context(), "alive", fast)
	require.NoError(t, err)
	again, err := c.get(t.Context(), "alive", fast)
	require.NoError(t, err)
	require.Same(t, one, again)
	require.Equal(t, 1, opened)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.get(ctx, "dead", fast)
	require.ErrorIs(t, err, context.Canceled, "who waits may give up")
	answer <- errors.New("no route")
	require.ErrorContains(t, <-got, "no route")
	_, err = c.get(t.Context(), "dead", fast)
	require.NoError(t, err, "a dial that failed is tried again")
}

// A side lives as long as its worker, and placements' numbers are never used again.
func TestFenceLeavesNothingInMemory(t *testing.T) {
	t.Parallel()

	s := &Side{cuts: map[cutKey]shard.Cut{}, foreseen: map[chunk.PlacementID][]shard.Grant{}}
	for id := range chunk.PlacementID(2) {
		s.foreseen[id] = []shard.Grant{{Attempt: 1}}
		s.cuts[cutKey{id, switchover.Writes}], s.cuts[cutKey{id, switchover.Reads}] = shard.Cut{}, shard.Cut{}
	}
	s.Forget(chunk.Placement{ID: 1})
	require.Len(t, s.foreseen, 1)
	require.Contains(t, s.foreseen, chunk.PlacementID(0), "another chunk's fence may be under way")
	require.Len(t, s.cuts, 2)
	s.Forget(chunk.Placement{ID: 0})
	require.Empty(t, s.foreseen)
	require.Empty(t, s.cuts)
}
