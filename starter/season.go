package starter

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"drover/contract"
	"drover/internal/failure"
)

// Season starts a season; the same one is refused while it runs, never joined.
func (s *Starter) Season(ctx context.Context, in contract.SeasonInput) (Run, error) {
	id := contract.SeasonID(in.Name)
	return s.begin(ctx, client.StartWorkflowOptions{
		ID:                    id,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         fmt.Sprintf("%g times the load from %s to %s", in.Factor, in.At.UTC().Format("2006-01-02"), in.Until.UTC().Format("2006-01-02")),
		StaticDetails:         in.Reason,
	}, contract.SeasonWorkflow, in, id,
		failure.New(failure.Invalid, "rebalance.running", "%s runs already", id).WithHint("drover capacity status %s shows it", in.Name))
}

// SeasonStatus asks the newest run of a season where it is.
func (s *Starter) SeasonStatus(ctx context.Context, name string) (contract.SeasonState, error) {
	var st contract.SeasonState
	v, err := s.client.QueryWorkflow(ctx, contract.SeasonID(name), "", contract.StatusQuery)
	if err != nil {
		return st, noIntent(err, contract.SeasonID(name))
	}
	return st, v.Get(&st)
}

// StopSeason ends a season: it starts no further moves.
func (s *Starter) StopSeason(ctx context.Context, name string, in contract.UpdateInput) (contract.SeasonState, error) {
	var st contract.SeasonState
	h, err := s.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: contract.SeasonID(name), UpdateName: contract.StopUpdate, Args: []any{in}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return st, noIntent(err, contract.SeasonID(name))
	}
	return st, h.Get(ctx, &st)
}
