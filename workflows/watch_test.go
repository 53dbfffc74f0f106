package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/remediation"
)

// fleetSurvey has five shards to mend, two of one cell.
func fleetSurvey() contract.Survey {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := contract.Survey{Shards: 9, Healthy: 3, Now: now, Silent: []string{"quiet"}}
	for _, c := range []struct {
		shard, domain string
		tolerance     int
	}{{"a", "cell-1", 1}, {"b", "cell-1", 0}, {"c", "cell-2", 1}, {"d", "cell-3", 1}, {"e", "cell-4", 1}} {
		s.Candidates = append(s.Candidates, remediation.Candidate{
			Shard: c.shard, Domain: c.domain, Cost: 37, Since: now.Add(-time.Hour), Health: remediation.Health{Writable: true, Tolerance: c.tolerance},
		})
	}
	return s
}

// look runs one look and gives what it led to, and the shards whose remediation began.
func look(t *testing.T, s contract.Survey, in contract.WatchInput) (contract.WatchResult, []string) {
	t.Helper()

	c := broken(t)
	env := ward(t, c)
	contract.SurveyFleet.Register(env, func(context.Context, contract.WatchInput) (contract.Survey, error) { return s, nil })
	recorded := 0
	contract.RecordWatch.Register(env, func(context.Context, contract.WatchResult) (contract.None, error) {
		recorded++
		return contract.None{}, nil
	})
	var begun []string
	env.SetOnChildWorkflowStartedListener(func(info *workflow.Info, _ workflow.Context, _ converter.EncodedValues) {
		begun = append(begun, info.WorkflowExecution.ID)
	})
	env.ExecuteWorkflow(contract.WatchFleetWorkflow, in)
	require.NoError(t, env.GetWorkflowError())
	var r contract.WatchResult
	require.NoError(t, env.GetWorkflowResult(&r))
	require.Equal(t, 1, recorded)
	return r, begun
}

func TestWatchStartsWhatTheRatesAllow(t *testing.T) {
	t.Parallel()

	rates := remediation.Rates{AtOnce: 3, PerHour: 1000}
	r, begun := look(t, fleetSurvey(), contract.WatchInput{Execute: true, Rates: rates})
	require.Equal(t, []string{"b", "c", "d"}, r.Admitted, "the worst first, one of each cell, three at once")
	require.Equal(t, []string{"remediate/b", "remediate/c", "remediate/d"}, begun)
	require.ElementsMatch(t, []remediation.Held{{Shard: "a", Reason: remediation.HeldDomain}, {Shard: "e", Reason: remediation.HeldAtOnce}}, r.Held)
	require.Equal(t, []string{contract.RateLimited, contract.HealthSilent}, r.Conditions)
}

func TestWatchIsADryRunByDefault(t *testing.T) {
	t.Parallel()

	r, begun := look(t, fleetSurvey(), contract.WatchInput{Rates: remediation.DefaultRates})
	require.True(t, r.DryRun)
	require.Empty(t, begun)
	require.NotEmpty(t, r.Admitted, "it says what it would start")

	stopped := fleetSurvey()
	stopped.Stopped = "by ann: incident"
	_, begun = look(t, stopped, contract.WatchInput{Execute: true, Rates: remediation.DefaultRates})
	require.Empty(t, begun, "the stop switch is on")
}

// TestWatchKeepsTheHoursBudget: what began within the hour counts, ended or not.
func TestWatchKeepsTheHoursBudget(t *testing.T) {
	t.Parallel()

	s := fleetSurvey()
	s.Started = []remediation.Started{
		{Shard: "x", Domain: "cell-9", At: s.Now.Add(-time.Minute), Cost: 60, Ended: true},
		{Shard: "y", Domain: "cell-2", At: s.Now.Add(-3 * time.Hour), Cost: 500, Waiting: true},
	}
	r, begun := look(t, s, contract.WatchInput{Execute: true, Rates: remediation.Rates{AtOnce: 9, PerHour: 100}})
	require.Equal(t, []string{"remediate/b"}, begun)
	require.Contains(t, r.Held, remediation.Held{Shard: "c", Reason: remediation.HeldDomain})
	require.Contains(t, r.Held, remediation.Held{Shard: "d", Reason: remediation.HeldPerHour})
	require.Contains(t, r.Conditions, contract.LeaseHeldLong)
}

// both runs a move and a remediation of one of its shards beside each other.
func both(ctx workflow.Context) error {
	child := func(id, name string, in any) workflow.ChildWorkflowFuture {
		return workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: id}), name, in)
	}
	in := input
	in.Complete, in.BurnIn = contract.Automatic, contract.Duration(time.Minute)
	move := child("migrate/d/0001", contract.MigrateChunkWorkflow, in)
	if err := move.GetChildWorkflowExecution().Get(ctx, nil); err != nil {
		return err
	}
	remedy := child("remediate/a", contract.RemediateShardWorkflow, order)
	if err := remedy.Get(ctx, nil); err != nil {
		return err
	}
	return move.Get(ctx, nil)
}

// beside runs both in one world, where the remediation's lease and the attempts
// exclude each other, and gives the move's status at the end.
func beside(t *testing.T, w *world, c *clinic) *testsuite.TestWorkflowEnvironment {
	t.Helper()

	w.beside = true
	env := newEnv(t, w)
	c.register(env)
	c.moves = []string{"migrate/d/0001"}
	// The environment completes no pending activity of a child workflow, so nothing
	// here waits for lanes and verification to run beside it.
	serve(env, w, contract.ReplicateUntilInSync, func(contract.DirectionInput) (contract.SyncResult, error) { return contract.SyncResult{}, nil })
	serve(env, w, contract.AuditChunk, func(contract.DirectionInput) (contract.AuditResult, error) {
		return contract.AuditResult{Documents: 10}, nil
	})
	env.RegisterWorkflowWithOptions(both, workflow.RegisterOptions{Name: "both"})
	return env
}

// TestAnElectionIsWantedWhileTheShardIsFenced: the source's primary dies inside the
// window. The attempt goes back; remediation waits for that and then hands the
// primary's office over; the next attempt waits for the lease and publishes.
func TestAnElectionIsWantedWhileTheShardIsFenced(t *testing.T) {
	t.Parallel()

	w, c := newWorld(), broken(t)
	var fences, windows int
	open, ended := false, false
	env := beside(t, w, c)
	c.closed = func() bool { return open || !ended } // the lease is wanted from the window on
	c.strike = func(int, contract.OperationInput, func()) (out contract.OperationResult, err error, answered bool) {
		return out, nil, false
	}
	serve(env, w, contract.CheckGate, func(contract.GateInput) (contract.GateReport, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.held || ended && !c.healthy() {
			return contract.GateReport{Checks: []contract.Check{{Number: 5, Name: "leases", Value: "held", Limit: "free", Hint: "wait"}}}, nil
		}
		return contract.GateReport{Go: true}, nil
	})
	serve(env, w, contract.SwitchRoute, func(in contract.AttemptRef) (contract.SwitchResult, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		fences++
		require.False(t, c.held, "nobody fences while a remediation acts")
		if fences > 1 {
			w.serving, w.fenced = target.ID, false
			w.published[in.Attempt] = true
			return contract.SwitchResult{Attempt: in.Attempt, Published: true}, nil
		}
		open, w.fenced = true, true
		c.truth.Members[0].State, c.truth.Members[0].Primary = remediation.Recovering, false // an election is wanted
		c.truth.Members[1].State = remediation.Healthy
		return contract.SwitchResult{}, failure.New(failure.Transient, "shard.no_primary", "an election is under way")
	})
	serve(env, w, contract.SettleAttempt, func(in contract.SettleInput) (contract.SwitchResult, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		require.False(t, c.held, "the window ends before the lease is given")
		windows++
		w.fenced, open, ended = false, false, true
		return contract.SwitchResult{Attempt: in.Attempt, Reason: in.Reason}, nil
	})
	env.ExecuteWorkflow("both")
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, 2, fences)
	require.Equal(t, 1, windows)
	require.True(t, c.healthy())
	require.NotEmpty(t, c.performed)
	require.Equal(t, chunk.Done, w.phases[len(w.phases)-1])
	require.Equal(t, target.ID, w.serving)
}

// TestATargetIsRebuiltDuringItsImport: the move is told by signal and goes on; its
// switch happens after the remediation.
func TestATargetIsRebuiltDuringItsImport(t *testing.T) {
	t.Parallel()

	w, c := newWorld(), broken(t)
	env := beside(t, w, c)
	importing, rebuilt := make(chan struct{}), make(chan struct{})
	contract.ImportChunk.Register(env, func(ctx context.Context, _ contract.ImportInput) (contract.ImportResult, error) {
		close(importing)
		select {
		case <-rebuilt:
			return contract.ImportResult{Documents: 10, Bytes: 100, Slices: 1}, nil
		case <-ctx.Done():
			return contract.ImportResult{}, ctx.Err()
		}
	})
	began := false
	c.closed = func() bool { // the remediation begins in the middle of the import
		select {
		case <-importing:
			began = true
		default:
		}
		return !began
	}
	c.strike = func(_ int, in contract.OperationInput, _ func()) (out contract.OperationResult, err error, answered bool) {
		if in.Step.Destroys {
			close(rebuilt)
		}
		return out, nil, false
	}
	env.ExecuteWorkflow("both")
	require.NoError(t, env.GetWorkflowError())
	require.True(t, c.healthy())
	require.Equal(t, chunk.Done, w.phases[len(w.phases)-1])
	v, err := env.QueryWorkflowByID("migrate/d/0001", contract.StatusQuery)
	require.NoError(t, err)
	var st contract.Status
	require.NoError(t, v.Get(&st))
	require.Equal(t, "a by remediate/a", st.UnderRepair)
}
