package starter

import (
	"context"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/failure"
)

// CloneID is the workflow id of a clone: one of a chunk, a time and a shard is made
// once.
func CloneID(in contract.CloneInput) string {
	id := fmt.Sprintf("clone/%s/%s/%s", in.Chunk, in.To, in.At.UTC().Format(time.RFC3339Nano))
	if in.DryRun {
		return "plan-" + id
	}
	return id
}

// Clone starts a clone.
func (s *Starter) Clone(ctx context.Context, in contract.CloneInput) (Run, error) {
	reuse := enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY
	if in.DryRun {
		reuse = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	}
	return s.begin(ctx, client.StartWorkflowOptions{
		ID: CloneID(in), WorkflowIDReusePolicy: reuse,
		StaticSummary: fmt.Sprintf("clone %s at %s to %s", in.Chunk, in.At.UTC().Format(time.RFC3339), in.To),
		TypedSearchAttributes: temporal.NewSearchAttributes(
			contract.ChunkIDAttribute.ValueSet(string(in.Chunk)), contract.TargetShardAttribute.ValueSet(in.To)),
	}, contract.CloneChunkWorkflow, in, "the clone of "+string(in.Chunk),
		failure.New(failure.Invalid, "clone.exists", "a clone of %s at that time is there or being made on %s", in.Chunk, in.To).
			WithHint("drover chunk clones lists them"))
}

// CloneResult waits for the end of a run, and tells where the clone is.
func (s *Starter) CloneResult(ctx context.Context, r Run) (contract.CloneResult, error) {
	var out contract.CloneResult
	err := s.result(ctx, r, &out)
	return out, err
}

// DropClone drops a finished clone.
func (s *Starter) DropClone(ctx context.Context, in contract.CloneEnd) error {
	run, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: fmt.Sprintf("drop-clone/%d", in.Clone), TaskQueue: contract.ControlQueue, StaticSummary: fmt.Sprintf("drop clone %d", in.Clone),
	}, contract.DropCloneWorkflow, in)
	if err != nil {
		return fmt.Errorf("drop clone %d: %w", in.Clone, err)
	}
	return s.result(ctx, Run{WorkflowID: run.GetID(), RunID: run.GetRunID()}, nil)
}
