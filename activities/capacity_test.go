package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
	"drover/replication"
)

// TestCapacityIsMeasuredBehindABacklogOnly: lanes that wait for changes, or skip
// those of others, say nothing about their target.
func TestCapacityIsMeasuredBehindABacklogOnly(t *testing.T) {
	t.Parallel()
	start := time.Unix(100, 0)
	for name, tc := range map[string]struct {
		backlog []int64
		dealt   float64 // records a second
		want    bool
	}{
		"behind":         {[]int64{5000, 4000, 3000}, 1000, true},
		"caught up":      {[]int64{5000, 4000, 10}, 1000, false},
		"was in sync":    {[]int64{10, 4000, 5000}, 1000, false},
		"gap in it":      {[]int64{5000, 10, 5000}, 1000, false},
		"others' mostly": {[]int64{5000, 4000, 3000}, 5000, false},
	} {
		m := &applyMeter{}
		var saturated, ok bool
		var rate float64
		for i, backlog := range tc.backlog {
			rate, saturated, ok = m.observe(start.Add(time.Duration(i)*time.Second), int64(1000*i), replication.Forecast{Backlog: backlog, Apply: tc.dealt})
			require.Equal(t, i == 2, ok, name)
		}
		require.InDelta(t, 1000, rate, 1e-9, name)
		require.Equal(t, tc.want, saturated, name)
	}
}

// TestCapacityIsTheSumOfAllLanes of a target, and kept when it is better.
func TestCapacityIsTheSumOfAllLanes(t *testing.T) {
	t.Parallel()
	c := &capacities{}
	now := time.Unix(1_000_000, 0)
	_, ok := c.note(now, "b", 1, 300, false)
	require.False(t, ok, "nothing was held by the target")
	best, ok := c.note(now, "b", 2, 700, true)
	require.True(t, ok)
	require.InDelta(t, 1000, best, 0)
	_, ok = c.note(now, "b", 2, 700, true)
	require.True(t, ok, "the statement failed: it is tried again")
	c.keep(now, "b", best)
	_, ok = c.note(now, "b", 2, 720, true)
	require.False(t, ok, "hardly better")
	c.forget("b", 1)
	best, ok = c.note(now, "b", 2, 1500, true)
	require.True(t, ok)
	require.InDelta(t, 1500, best, 0)
	c.keep(now, "b", best)
	_, ok = c.note(now.Add(keptFor-1), "b", 2, 400, true)
	require.False(t, ok, "a target that was faster lately")
	best, ok = c.note(now.Add(keptFor), "b", 2, 400, true)
	require.True(t, ok, "the metadata decides whether the better one is over")
	require.InDelta(t, 400, best, 0)
	_, ok = c.note(now, "x", 9, 1, true)
	require.True(t, ok, "another shard")
}

// TestDemandIsDividedAmongLegs of one source.
func TestDemandIsDividedAmongLegs(t *testing.T) {
	t.Parallel()
	legs := []metadata.Migration{
		{ID: 1, Source: chunk.Placement{ID: 10}}, {ID: 2, Source: chunk.Placement{ID: 10}}, {ID: 3, Source: chunk.Placement{ID: 11}},
	}
	require.Equal(t, map[chunk.MigrationID]float64{1: 50, 2: 50, 3: 7}, demands(legs, map[chunk.PlacementID]float64{10: 100, 11: 7}))
}
