package scenario_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
)

// TestLiveMoveRollbackAndForth is the demonstration in small, with one proxy
// that hears no announcement.
func TestLiveMoveRollbackAndForth(t *testing.T) {
	f := newFleet(t)
	f.startProxy("deaf", "--deaf")
	f.startWorker("worker")
	f.startWork(false)
	f.migrate(contract.Automatic)
	f.await("burn-in", inBurnIn)
	f.ask(contract.RollbackUpdate)
	f.await("the way back", func(st contract.Status) bool {
		return st.Phase == chunk.BurnIn && st.Serving.ID == st.Source.ID && st.WaitingFor != ""
	})
	f.ask(contract.ApproveUpdate)
	f.await("burn-in again", inBurnIn)
	r := f.complete()
	f.check(false)

	published := 0
	for _, s := range r.Switches {
		if s.Published {
			published++
		}
	}
	require.Equal(t, 3, published)
	placements, err := f.store.Placements(t.Context(), f.hot.Placement.Shard)
	require.NoError(t, err)
	for _, p := range placements {
		require.NotEqual(t, f.hot.Placement.ID, p.ID, "the old placement is still there")
	}
	f.checkClone()
}

// TestAbortLeavesNothing gives up in the middle.
func TestAbortLeavesNothing(t *testing.T) {
	f := newFleet(t)
	f.startWorker("worker", "--gate-lag", "1ns") // the gate refuses for ever
	f.startWork(false)
	f.migrate(contract.Automatic)
	f.await("the gate", func(st contract.Status) bool { return st.Gate != nil && !st.Gate.Go && st.WaitingFor != "" })
	f.ask(contract.AbortUpdate)
	_, err := f.starter.Result(t.Context(), f.hot.Chunk.ID)
	require.ErrorContains(t, err, "aborted by an operator")
	f.check(false)
	placements, err := f.store.Placements(t.Context(), f.target())
	require.NoError(t, err)
	require.Empty(t, placements)
}
