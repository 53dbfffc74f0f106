package workflows_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/workflows"
)

// reconcile plays one run over a fleet that lacks an index, and whose rules ask for moves.
func reconcile(t *testing.T, in contract.ReconcileInput, version int64, moves int) (r contract.FleetReconciled, made int, h *herd) {
	t.Helper()

	h = newHerd()
	h.env.RegisterWorkflowWithOptions(workflows.ReconcileFleet, workflow.RegisterOptions{Name: contract.ReconcileWorkflow})
	missing := []contract.MissingChange{{Kind: "index.create", Subject: "shop"}}
	contract.LookAtDesired.Register(h.env, func(context.Context, contract.None) (contract.ReconcileLook, error) {
		return contract.ReconcileLook{Version: version, Missing: missing}, nil
	})
	contract.MakeMissing.Register(h.env, func(_ context.Context, in contract.ReconcileLook) (contract.ReconcileLook, error) {
		made++
		return contract.ReconcileLook{Version: in.Version}, nil
	})
	contract.PlanReconcile.Register(h.env, func(context.Context, contract.ReconcileInput) (contract.FleetPlan, error) {
		return contract.FleetPlan{Moves: intentOf(moves).Moves}, nil
	})
	h.env.ExecuteWorkflow(contract.ReconcileWorkflow, in)
	require.NoError(t, h.env.GetWorkflowError())
	require.NoError(t, h.env.GetWorkflowResult(&r))
	return r, made, h
}

// TestReconciliationEndsWithTheRefusal of a file that does not fit any more; the next run
// looks again.
func TestReconciliationEndsWithTheRefusal(t *testing.T) {
	t.Parallel()

	h := newHerd()
	h.env.RegisterWorkflowWithOptions(workflows.ReconcileFleet, workflow.RegisterOptions{Name: contract.ReconcileWorkflow})
	contract.LookAtDesired.Register(h.env, func(context.Context, contract.None) (contract.ReconcileLook, error) {
		return contract.ReconcileLook{Version: 4, Refused: "line 3: database old is not in the file"}, nil
	})
	h.env.ExecuteWorkflow(contract.ReconcileWorkflow, contract.ReconcileInput{Execute: true})
	require.NoError(t, h.env.GetWorkflowError())
	var r contract.FleetReconciled
	require.NoError(t, h.env.GetWorkflowResult(&r))
	require.Contains(t, r.Held, "version 4 of the fleet file does not fit")
	require.Contains(t, r.Held, "database old is not in the file")
	require.Empty(t, r.Started)
}

// TestReconciliationIsADryRunByDefault: it says what is missing and would move.
func TestReconciliationIsADryRunByDefault(t *testing.T) {
	t.Parallel()

	r, made, h := reconcile(t, contract.ReconcileInput{}, 3, 2)
	require.True(t, r.DryRun)
	require.Zero(t, made)
	require.Len(t, r.Look.Missing, 1)
	require.Len(t, r.Plan.Moves, 2)
	require.Equal(t, "a dry run starts nothing", r.Held)
	require.Empty(t, h.begun)
}

// TestReconciliationMakesAndMoves: first what needs no move.
func TestReconciliationMakesAndMoves(t *testing.T) {
	t.Parallel()

	r, made, _ := reconcile(t, contract.ReconcileInput{Execute: true}, 3, 2)
	require.Equal(t, 1, made)
	require.Len(t, r.Made, 1)
	require.Empty(t, r.Look.Missing)
	require.Equal(t, "rebalance/reconcile", r.Started)

	r, _, _ = reconcile(t, contract.ReconcileInput{Execute: true}, 3, 0)
	require.Equal(t, "nothing has to move", r.Held)
	r, made, _ = reconcile(t, contract.ReconcileInput{Execute: true}, 0, 2)
	require.Zero(t, made)
	require.Equal(t, "no fleet file was applied", r.Held)
	require.Empty(t, r.Started)
}
