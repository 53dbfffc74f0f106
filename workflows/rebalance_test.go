package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/workers"
	"drover/workflows"
)

// herd is a fleet of which the moves are played.
type herd struct {
	env     *testsuite.TestWorkflowEnvironment
	takes   time.Duration // of a move until its burn-in
	burnIn  time.Duration
	fail    map[chunk.ID]error
	phases  map[chunk.ID]chunk.Phase
	wants   map[chunk.ID]string    // attention, once it serves
	times   map[chunk.ID]time.Time // when each began
	kinds   map[string]bool        // of the moves that began
	running int
	most    int // that copied at once
	begun   []chunk.ID
	refuse  error // of the admission
	closed  []contract.IntentClosed
}

// newHerd plays moves that take a minute and an hour of burn-in.
func newHerd() *herd {
	h := &herd{
		env: new(testsuite.WorkflowTestSuite).NewTestWorkflowEnvironment(), takes: time.Minute, burnIn: time.Hour,
		fail: map[chunk.ID]error{}, phases: map[chunk.ID]chunk.Phase{}, wants: map[chunk.ID]string{},
		times: map[chunk.ID]time.Time{}, kinds: map[string]bool{},
	}
	h.env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&workers.Failures{}}})
	h.env.RegisterWorkflowWithOptions(workflows.Rebalance, workflow.RegisterOptions{Name: contract.RebalanceWorkflow})
	h.env.RegisterWorkflowWithOptions(workflows.BalanceRound, workflow.RegisterOptions{Name: contract.BalanceRoundWorkflow})
	h.env.RegisterWorkflowWithOptions(h.move, workflow.RegisterOptions{Name: contract.MigrateChunkWorkflow})
	contract.OpenIntent.Register(h.env, func(context.Context, contract.IntentInput) (contract.IntentOpened, error) {
		return contract.IntentOpened{At: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}, h.refuse
	})
	contract.CloseIntent.Register(h.env, func(_ context.Context, in contract.IntentClosed) (contract.None, error) {
		h.closed = append(h.closed, in)
		return contract.None{}, nil
	})
	contract.LookAtMoves.Register(h.env, func(_ context.Context, in contract.LookInput) (out []contract.SeenMove, _ error) {
		for _, c := range in.Chunks {
			if p, ok := h.phases[c]; ok {
				seen := contract.SeenMove{Chunk: c, Phase: p}
				if p == chunk.BurnIn {
					seen.Attention = h.wants[c]
				}
				out = append(out, seen)
			}
		}
		return out, nil
	})
	return h
}

// move is the double of a move.
func (h *herd) move(ctx workflow.Context, in contract.MigrateInput) (contract.MigrateResult, error) {
	h.begun = append(h.begun, in.Chunk)
	h.times[in.Chunk], h.kinds[in.Kind] = workflow.Now(ctx), true
	if err := h.fail[in.Chunk]; err != nil {
		return contract.MigrateResult{}, err
	}
	h.running++
	h.most = max(h.most, h.running)
	h.phases[in.Chunk] = chunk.Importing
	err := workflow.Sleep(ctx, h.takes)
	h.running--
	if err != nil {
		h.phases[in.Chunk] = chunk.Aborted
		return contract.MigrateResult{Phase: chunk.Aborted}, err
	}
	h.phases[in.Chunk] = chunk.BurnIn
	if err := workflow.Sleep(ctx, h.burnIn); err != nil {
		return contract.MigrateResult{}, err
	}
	h.phases[in.Chunk] = chunk.Done
	return contract.MigrateResult{Phase: chunk.Done}, nil
}

// intentOf asks for n moves.
func intentOf(n int) contract.RebalanceInput {
	in := contract.RebalanceInput{Kind: contract.DrainIntent, Subject: "shard-a", AtOnce: 2, RequestedBy: "ann"}
	for i := range n {
		in.Moves = append(in.Moves, contract.PlannedMove{Chunk: chunk.NewID("shop", i+1), From: "shard-a", To: "shard-b", Reason: "shard-a is drained"})
	}
	return in
}

// run carries an intent out.
func (h *herd) run(t *testing.T, in contract.RebalanceInput) contract.RebalanceResult {
	t.Helper()
	h.env.ExecuteWorkflow(contract.RebalanceWorkflow, in)
	require.True(t, h.env.IsWorkflowCompleted())
	require.NoError(t, h.env.GetWorkflowError())
	var r contract.RebalanceResult
	require.NoError(t, h.env.GetWorkflowResult(&r))
	return r
}

// TestIntentMovesSoManyAtOnce: a move that serves, in burn-in, makes room for the next.
func TestIntentMovesSoManyAtOnce(t *testing.T) {
	t.Parallel()

	h := newHerd()
	began := h.env.Now()
	r := h.run(t, intentOf(7))
	require.Equal(t, 7, r.Done)
	require.Len(t, h.begun, 7)
	require.Equal(t, 2, h.most, "at once")
	require.Less(t, h.env.Now().Sub(began), 2*time.Hour, "burn-in of one does not hold up the next")
	require.Len(t, h.closed, 1)
}

// TestIntentGoesOnWhenAMoveFails and says why that one did.
func TestIntentGoesOnWhenAMoveFails(t *testing.T) {
	t.Parallel()

	h := newHerd()
	h.fail["shop/0002"] = temporal.NewNonRetryableApplicationError("no room on shard-b", "gate.room", nil)
	r := h.run(t, intentOf(4))
	require.Equal(t, 3, r.Done)
	require.Equal(t, 1, r.Failed)
	require.Equal(t, contract.MoveFailed, r.Moves[1].State)
	require.Contains(t, r.Moves[1].Why, "no room on shard-b")
}

// TestWaveBeginsWhenTheOneBeforeHasServed: a campaign takes so many shards at once.
func TestWaveBeginsWhenTheOneBeforeHasServed(t *testing.T) {
	t.Parallel()

	h := newHerd()
	in := intentOf(4)
	in.Kind, in.AtOnce, in.Soak = contract.UpgradeIntent, 4, contract.Duration(20*time.Minute)
	in.Moves[2].Wave, in.Moves[3].Wave = 1, 1
	r := h.run(t, in)
	require.Equal(t, 4, r.Done)
	require.Equal(t, map[string]bool{contract.UpgradeKind: true}, h.kinds)
	first, second := h.times["shop/0002"], h.times["shop/0003"]
	require.GreaterOrEqual(t, second.Sub(first), h.takes+20*time.Minute)
	require.Less(t, second.Sub(first), h.burnIn, "burn-in goes on beside the next wave")
	require.Equal(t, h.times["shop/0003"], h.times["shop/0004"])
}

// TestCampaignStopsAtTheFirstFailure: of a move, or of a chunk that is worse off.
func TestCampaignStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()

	for name, trouble := range map[string]func(*herd){
		"failed": func(h *herd) {
			h.fail["shop/0001"] = temporal.NewNonRetryableApplicationError("they differ", "validation.mismatch", nil)
		},
		"worse p99": func(h *herd) { h.wants["shop/0001"] = "after attempt 3 on shard-b: p99 90ms, was 4ms" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHerd()
			trouble(h)
			in := intentOf(3)
			in.AtOnce, in.Soak, in.StopAtFirst = 1, contract.Duration(20*time.Minute), true
			in.Moves[1].Wave, in.Moves[2].Wave = 1, 2
			r := h.run(t, in)
			require.Contains(t, r.Stopped, "at the first failure, of shop/0001")
			require.Equal(t, []chunk.ID{"shop/0001"}, h.begun)
			require.Equal(t, 2, r.NotBegun)

			h = newHerd()
			trouble(h)
			in.StopAtFirst = false
			h.run(t, in)
			require.Len(t, h.begun, 3, "others go on")
		})
	}
}

// TestIntentStops: no further move is started, those that run go on to their end.
func TestIntentStops(t *testing.T) {
	t.Parallel()

	h := newHerd()
	h.env.RegisterDelayedCallback(func() {
		h.env.UpdateWorkflow(contract.StopUpdate, "", &answered{t: t}, contract.UpdateInput{By: "bob", Reason: "incident"})
	}, 90*time.Second)
	r := h.run(t, intentOf(9))
	require.Equal(t, "by bob: incident", r.Stopped)
	require.Equal(t, len(h.begun), r.Done)
	require.Equal(t, 9-len(h.begun), r.NotBegun)
	require.Positive(t, r.NotBegun)
}

// answered fails the test when an update is refused.
type answered struct{ t *testing.T }

// Accept implements [testsuite.TestUpdateCallback].
func (a *answered) Accept() {}

// Reject implements it.
func (a *answered) Reject(err error) { require.NoError(a.t, err) }

// Complete implements it.
func (a *answered) Complete(_ any, err error) { require.NoError(a.t, err) }

// TestIntentThatFightsStartsNothing: the refusal names the open one.
func TestIntentThatFightsStartsNothing(t *testing.T) {
	t.Parallel()

	h := newHerd()
	h.refuse = failure.New(failure.Invalid, "rebalance.fights", "it fights rebalance/binpack")
	h.env.ExecuteWorkflow(contract.RebalanceWorkflow, intentOf(2))
	require.ErrorContains(t, h.env.GetWorkflowError(), "it fights rebalance/binpack")
	require.Empty(t, h.begun)
	require.Empty(t, h.closed, "it was never open")
}

// TestCancelledIntentLeavesItsMovesAlone and is closed.
func TestCancelledIntentLeavesItsMovesAlone(t *testing.T) {
	t.Parallel()

	h := newHerd()
	h.env.RegisterDelayedCallback(h.env.CancelWorkflow, 30*time.Second)
	h.env.ExecuteWorkflow(contract.RebalanceWorkflow, intentOf(2))
	var cancelled *temporal.CanceledError
	require.True(t, errors.As(h.env.GetWorkflowError(), &cancelled))
	require.Len(t, h.closed, 1)
	for c, p := range h.phases {
		require.NotEqual(t, chunk.Aborted, p, "%s was cancelled with the intent", c)
	}
}

// TestIntentGoesOnInAFurtherRun: what runs is found by the metadata, what waits is started.
func TestIntentGoesOnInAFurtherRun(t *testing.T) {
	t.Parallel()

	h := newHerd()
	in := intentOf(3)
	st := contract.RebalanceState{ID: "rebalance/drain/shard-a", Kind: in.Kind, Run: "r1", OpenedAt: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	for i, m := range in.Moves {
		st.Moves = append(st.Moves, contract.MoveState{PlannedMove: m, State: []string{contract.MoveRunning, contract.MoveServing, contract.MoveWaiting}[i]})
	}
	in.Moves, in.Resumed = nil, &st
	h.phases["shop/0001"], h.phases["shop/0002"] = chunk.Switching, chunk.BurnIn
	h.env.RegisterDelayedCallback(func() { h.phases["shop/0001"], h.phases["shop/0002"] = chunk.Aborted, chunk.Done }, 10*time.Minute)
	r := h.run(t, in)
	require.Equal(t, []chunk.ID{"shop/0003"}, h.begun)
	require.Equal(t, 2, r.Done)
	require.Equal(t, 1, r.Failed)
	require.Equal(t, "r1", h.closed[0].Run)
}

func TestIntentRefusesBadInput(t *testing.T) {
	t.Parallel()

	twice := intentOf(2)
	twice.Moves[1].Chunk = twice.Moves[0].Chunk
	nowhere := intentOf(1)
	nowhere.Moves[0].To = ""
	for i, in := range []contract.RebalanceInput{{Kind: contract.DrainIntent}, twice, nowhere} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()

			h := newHerd()
			h.env.ExecuteWorkflow(contract.RebalanceWorkflow, in)
			var e *temporal.ApplicationError
			require.ErrorAs(t, h.env.GetWorkflowError(), &e)
			require.Equal(t, "rebalance.bad_input", e.Type())
			require.Empty(t, h.begun)
		})
	}
}

// round plays one round of the balancer over a plan.
func round(t *testing.T, h *herd, plan contract.FleetPlan, in contract.RoundInput) contract.RoundResult {
	t.Helper()

	contract.PlanRound.Register(h.env, func(context.Context, contract.RoundInput) (contract.FleetPlan, error) { return plan, nil })
	contract.RecordRound.Register(h.env, func(_ context.Context, r contract.RoundResult) (contract.RoundResult, error) { return r, nil })
	h.env.ExecuteWorkflow(contract.BalanceRoundWorkflow, in)
	require.NoError(t, h.env.GetWorkflowError())
	var r contract.RoundResult
	require.NoError(t, h.env.GetWorkflowResult(&r))
	return r
}

func TestRoundIsADryRunByDefault(t *testing.T) {
	t.Parallel()

	h := newHerd()
	r := round(t, h, contract.FleetPlan{Moves: intentOf(2).Moves}, contract.RoundInput{})
	require.True(t, r.DryRun)
	require.Empty(t, r.Started)
	require.Equal(t, "a dry run starts nothing", r.Held)
	require.Empty(t, h.begun)
	require.Len(t, r.Plan.Moves, 2, "it says what it would do")
}

func TestRoundStartsItsPlanAsAnIntent(t *testing.T) {
	t.Parallel()

	h := newHerd()
	r := round(t, h, contract.FleetPlan{Moves: intentOf(2).Moves}, contract.RoundInput{Execute: true})
	require.Equal(t, "rebalance/rebalance", r.Started)
	require.Empty(t, r.Held)

	h = newHerd()
	r = round(t, h, contract.FleetPlan{}, contract.RoundInput{Execute: true})
	require.Equal(t, "nothing has to move", r.Held)
}
