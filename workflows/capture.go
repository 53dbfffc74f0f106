package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// CaptureShard keeps the capture and the archive of one shard running, for as
// long as the shard is registered.
func CaptureShard(ctx workflow.Context, in contract.CaptureInput) error {
	status := contract.CaptureStatus{Shard: in.Shard, State: "running", Restarts: in.Failures}
	err := workflow.SetQueryHandler(ctx, contract.StatusQuery, func() (contract.CaptureStatus, error) { return status, nil })
	if err != nil {
		return err
	}
	captured := flow.Start(ctx, flow.Named(flow.Bulk(), "capture", "capture "+in.Shard), contract.RunCapture, in)
	archived := flow.Start(ctx, flow.Named(flow.Bulk(), "archive", "archive the log of "+in.Shard), contract.RunArchive, in)

	var cause error
	workflow.NewSelector(ctx).
		AddFuture(captured, func(f workflow.Future) { cause = f.Get(ctx, nil) }).
		AddFuture(archived, func(f workflow.Future) { cause = f.Get(ctx, nil) }).
		Select(ctx)
	if ctx.Err() != nil || temporal.IsCanceledError(cause) {
		return ctx.Err()
	}
	if flow.Code(cause) == "capture.history_lost" {
		status.State, status.LastError = "needs recopy", flow.Cause(cause)
		if err := workflow.UpsertTypedSearchAttributes(ctx, contract.NeedsAttentionAttribute.ValueSet(true)); err != nil {
			return err
		}
		return cause // clear and final: every move of the shard needs a recopy
	}
	// Anything else that ended a loop which should not end: start over, slowly.
	if err := workflow.Sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	in.Failures++
	return workflow.NewContinueAsNewError(ctx, CaptureShard, in)
}
