package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// CloneChunk copies a chunk as it was at some time into a database of its own, which
// no route leads to. A dry run ends with the plan. What a failed one has made is
// removed again.
func CloneChunk(ctx workflow.Context, in contract.CloneInput) (contract.CloneResult, error) {
	if in.Chunk == "" || in.To == "" || in.At.IsZero() || in.At.After(workflow.Now(ctx)) {
		return contract.CloneResult{}, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("want a chunk, a shard and a time that is over; got %q, %q and %s", in.Chunk, in.To, in.At.Format(time.RFC3339)), "clone.bad_input", nil)
	}
	workflow.SetCurrentDetails(ctx, "plan")
	plan, err := flow.Call(ctx, named(flow.Quick(), "see what the clone would be made of"), contract.PlanClone, in)
	if err != nil || in.DryRun {
		return contract.CloneResult{ClonePlan: plan}, err
	}
	run := workflow.GetInfo(ctx).WorkflowExecution
	id := run.ID + "/" + run.RunID // one that failed may be asked for again
	workflow.SetCurrentDetails(ctx, fmt.Sprintf("copy %d documents and replay until %s", plan.Documents, in.At.Format(time.RFC3339)))
	done, err := flow.Call(ctx, flow.Named(flow.Bulk(), "clone", "load the import and replay the log"), contract.MakeClone,
		contract.CloneWork{ClonePlan: plan, WorkflowID: id})
	if err == nil {
		workflow.SetCurrentDetails(ctx, "clone "+done.Database+" on "+in.To)
		return done, nil
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if _, dropErr := flow.Call(ctx, flow.Bulk(), contract.DropClone, contract.CloneEnd{WorkflowID: id}); dropErr != nil {
		workflow.GetLogger(ctx).Error("What was made of a clone is not removed", "error", dropErr)
	}
	return contract.CloneResult{ClonePlan: plan}, err
}

// DropClone drops a finished clone on an operator's word.
func DropClone(ctx workflow.Context, in contract.CloneEnd) error {
	_, err := flow.Call(ctx, flow.Bulk(), contract.DropClone, in)
	return err
}
