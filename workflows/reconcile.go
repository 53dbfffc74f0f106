package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// ReconcileFleet brings the fleet to the fleet file that was applied last: first what
// needs no move, then the moves that its placement rules ask for, as an intent. Without
// Execute it only says what is missing. It can be run again at any time: what is there
// is left alone, and the same intent is not started twice.
func ReconcileFleet(ctx workflow.Context, in contract.ReconcileInput) (contract.FleetReconciled, error) {
	out := contract.FleetReconciled{DryRun: !in.Execute}
	look, err := flow.Call(ctx, named(flow.Quick(), "compare the fleet with its file"), contract.LookAtDesired, contract.None{})
	if err != nil {
		return out, err
	}
	out.Look = look
	if look.Version == 0 {
		out.Held = "no fleet file was applied"
		return out, nil
	}
	if look.Refused != "" {
		out.Held = refusedFile(look)
		return out, nil
	}
	if in.Execute && len(look.Missing) > 0 {
		left, err := flow.Call(ctx, flow.Named(flow.Bulk(), "make", "make what is missing"), contract.MakeMissing, look)
		if err != nil {
			return out, err
		}
		out.Made, out.Look = look.Missing, left
		if left.Refused != "" {
			out.Held = refusedFile(left)
			return out, nil
		}
	}
	if out.Plan, err = flow.Call(ctx, flow.Named(flow.Bulk(), "plan", "read every shard and plan the moves"), contract.PlanReconcile, in); err != nil {
		return out, err
	}
	switch {
	case len(out.Plan.Moves) == 0:
		out.Held = "nothing has to move"
	case !in.Execute:
		out.Held = "a dry run starts nothing"
	default:
		_, out.Started, out.Held = startIntent(ctx, contract.RebalanceInput{
			Kind: contract.ReconcileIntent, Moves: out.Plan.Moves, FiguresAt: out.Plan.FiguresAt, AtOnce: in.AtOnce, BurnIn: in.BurnIn,
			RequestedBy: "reconciliation", Reason: "the placement rules of the fleet file",
		}, "bring chunks to where the placement rules want them")
	}
	return out, nil
}

// refusedFile says that nothing is made of a file that does not fit the fleet.
func refusedFile(look contract.ReconcileLook) string {
	return fmt.Sprintf("version %d of the fleet file does not fit the fleet any more, and nothing of it is made until one that fits is applied: %s", look.Version, look.Refused)
}
