package scenario_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
)

// killedAt lets a worker die at a place and another one go on.
func killedAt(t *testing.T, point string) {
	t.Helper()
	f := newFleet(t)
	first := f.startWorker("dies", "--die-at", point)
	f.startWork(false)
	f.migrate(contract.Automatic)
	require.True(t, eventually(t, func() bool {
		select {
		case <-first.done:
			return true
		default:
			return false
		}
	}), "the worker never came to %s", point)
	f.startWorker("lives")
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(false)
}

func TestWorkerKilledInImport(t *testing.T)      { killedAt(t, "import.stored") }
func TestWorkerKilledInReplication(t *testing.T) { killedAt(t, "lane.written") }
func TestWorkerKilledBeforePublish(t *testing.T) { killedAt(t, "switch.ready") }

// TestFencedShardRestarts kills the source's server while it is fenced. The
// fence is data on the shard: it holds over the restart, and the attempt goes
// back or forward by itself.
func TestFencedShardRestarts(t *testing.T) {
	f := newFleet(t)
	first := f.startWorker("dies", "--die-at", "switch.fenced")
	f.startWork(true)
	f.migrate(contract.Automatic)
	require.True(t, eventually(t, func() bool {
		select {
		case <-first.done:
			return true
		default:
			return false
		}
	}))
	source := f.shards[f.hot.Placement.Shard]
	source.Kill(t)
	source.Restart(t)
	at, err := f.store.LatestAttempt(t.Context(), f.hot.Chunk.ID)
	require.NoError(t, err)
	require.Equal(t, chunk.Fencing, at.State, "nobody has touched the attempt")
	f.startWorker("lives")
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(true)
}

// TestTargetRestartsWhileLanesRun kills the target's server in replication.
func TestTargetRestartsWhileLanesRun(t *testing.T) {
	f := newFleet(t)
	f.startWorker("worker")
	f.startWork(false)
	f.migrate(contract.Manual)
	f.await("the approval", waitsForApproval)
	target := f.shards[f.target()]
	target.Kill(t)
	target.Restart(t)
	f.ask(contract.ApproveUpdate)
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(false)
}
