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
	f.awaitDeath(first, point)
	f.startWorker("lives")
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(false)
}

// awaitDeath waits until a worker has died at its point.
func (f *fleet) awaitDeath(p *process, point string) {
	f.t.Helper()
	if !eventually(f.t, p.ended) {
		st, err := f.starter.Status(f.t.Context(), f.hot.Chunk.ID)
		f.t.Fatalf("the worker never came to %s: the move is at %q, waiting for %q, attention %q (%v)", point, st.Step, st.WaitingFor, st.Attention, err)
	}
}

// TestWorkerKilledInRegistration: one dies behind the rows, and the next one behind what
// it has made on the target. Who comes then adopts both, and in the end nothing is left.
func TestWorkerKilledInRegistration(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	first := f.startWorker("dies", "--die-at", "register.recorded")
	f.startWork(false)
	f.migrate(contract.Automatic)
	f.awaitDeath(first, "register.recorded")
	f.awaitDeath(f.startWorker("dies too", "--die-at", "register.provisioned"), "register.provisioned")
	f.startWorker("lives")
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(false)
	all, err := f.store.Placements(t.Context(), f.target())
	require.NoError(t, err)
	require.Len(t, all, 1, "a copy that nobody knows of")
}

func TestWorkerKilledInImport(t *testing.T) {
	t.Parallel()
	killedAt(t, "import.stored")
}

func TestWorkerKilledInReplication(t *testing.T) {
	t.Parallel()
	killedAt(t, "lane.written")
}

func TestWorkerKilledBehindFence(t *testing.T) {
	t.Parallel()
	killedAt(t, "switch.fenced")
}

func TestWorkerKilledBeforePublish(t *testing.T) {
	t.Parallel()
	killedAt(t, "switch.ready")
}

func TestWorkerKilledBehindPublish(t *testing.T) {
	t.Parallel()
	killedAt(t, "switch.published")
}

func TestWorkerKilledBetweenGrantAndOpen(t *testing.T) {
	t.Parallel()
	killedAt(t, "switch.granted")
}

// TestFencedShardRestarts kills the source's server while it is fenced. The
// fence is data on the shard: it holds over the restart, and a worker that finds no
// Temporal takes the attempt back.
func TestFencedShardRestarts(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	first := f.startWorker("dies", "--die-at", "switch.fenced")
	f.startWork(true)
	f.migrate(contract.Automatic)
	f.awaitDeath(first, "switch.fenced")
	source := f.shards[f.hot.Placement.Shard]
	source.Kill(t)
	source.Restart(t)
	at, err := f.store.LatestAttempt(t.Context(), f.hot.Chunk.ID)
	require.NoError(t, err)
	require.Equal(t, chunk.Fencing, at.State, "nobody has touched the attempt")
	f.startWorker("blind", "--temporal-address", "127.0.0.1:1")
	require.True(t, eventually(t, func() bool {
		at, err := f.store.LatestAttempt(t.Context(), f.hot.Chunk.ID)
		return err == nil && at.State == chunk.AttemptAborted
	}), "the watchdog waits for Temporal")
	f.startWorker("lives")
	f.await("burn-in", inBurnIn)
	f.complete()
	f.check(true)
}

// TestTargetRestartsWhileLanesRun kills the target's server in replication. In
// burn-in the workflow is terminated: started again it knows who serves.
func TestTargetRestartsWhileLanesRun(t *testing.T) {
	t.Parallel()

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
	f.startAgain(contract.Manual)
	f.await("burn-in, where it stood", inBurnIn)
	f.complete()
	f.check(false)
}
