package activities

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/replication"
)

// One leg that does not converge holds the whole move, whatever the others'
// backlogs; else the longest backlog counts.
func TestTheWorstLegSpeaksForTheMove(t *testing.T) {
	t.Parallel()
	f := func(p replication.Pace, backlog int64) replication.Forecast {
		return replication.Forecast{Pace: p, Backlog: backlog}
	}
	stuck, stucker := f(replication.NotConverging, 2000), f(replication.NotConverging, 3000)
	far, near := f(replication.CatchingUp, 90_000), f(replication.InSync, 10)
	for _, all := range [][]replication.Forecast{{stuck, far, near}, {far, stuck, near}, {near, far, stuck}} {
		require.Equal(t, stuck, worstOf(all))
	}
	require.Equal(t, stucker, worstOf([]replication.Forecast{stucker, far, stuck}))
	require.Equal(t, far, worstOf([]replication.Forecast{near, far, near}))
	require.Equal(t, replication.Forecast{}, worstOf(nil))
}
