package rig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
)

// TestTimesPastTheDeadline are told of attempts that ended behind it.
func TestTimesPastTheDeadline(t *testing.T) {
	t.Parallel()

	start := time.Now()
	at := func(s chunk.AttemptState, ms int) metadata.Moment {
		return metadata.Moment{State: s, At: start.Add(time.Duration(ms) * time.Millisecond)}
	}
	back := []metadata.Moment{at(chunk.Preparing, -50), at(chunk.Fencing, 0), at(chunk.AttemptAborting, 1040), at(chunk.AttemptAborted, 1410)}
	c := Cell{Component: "worker", Point: "switch.fenced"}
	c.late(back)
	c.late([]metadata.Moment{at(chunk.Fencing, 0), at(chunk.Published, 300), at(chunk.Open, 1200)})
	c.late([]metadata.Moment{at(chunk.Fencing, 0), at(chunk.Open, 400)})
	c.late([]metadata.Moment{at(chunk.Preparing, 0)})
	require.Equal(t, []float64{410, 200}, c.WatchdogMS)
	require.Equal(t, []float64{40, 0}, c.FoundMS)
	require.Empty(t, c.ReturnMS)

	c = Cell{Component: "worker", Point: AbortingPoint}
	c.late(back) // at the deadline of the way back, 1,340, others take over
	require.Equal(t, []float64{70}, c.WatchdogMS)
	require.Equal(t, []float64{0}, c.FoundMS)

	for returned, want := range map[int][]float64{800: {410}, 1300: {110}, 1500: nil} {
		c = Cell{Component: "source", Point: "switch.fenced", returned: start.Add(time.Duration(returned) * time.Millisecond)}
		c.late(back)
		require.Equal(t, want, c.ReturnMS)
		require.Empty(t, c.WatchdogMS)
	}
}
