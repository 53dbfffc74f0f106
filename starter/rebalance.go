package starter

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"drover/contract"
	"drover/internal/failure"
)

// balanceSchedule is the id of the schedule of the balancer's rounds.
const balanceSchedule = "balance-rounds"

// Rebalance starts an intent; the same one is refused while it runs, never joined.
func (s *Starter) Rebalance(ctx context.Context, in contract.RebalanceInput) (Run, error) {
	id := contract.RebalanceID(in.Kind, in.Subject)
	return s.begin(ctx, client.StartWorkflowOptions{
		ID:                    id,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         fmt.Sprintf("%s %s: %d moves", in.Kind, in.Subject, len(in.Moves)),
		StaticDetails:         in.Reason,
	}, contract.RebalanceWorkflow, in, id,
		failure.New(failure.Invalid, "rebalance.running", "%s runs already", id).
			WithHint("drover rebalance status %s shows it", id))
}

// openPoll is how often an intent, or a season, is asked whether it was admitted.
const openPoll = 250 * time.Millisecond

// Opened waits until an intent or a season is admitted, and gives its refusal where it is not.
// False: no worker has answered before ctx ended.
func (s *Starter) Opened(ctx context.Context, run Run) (bool, error) {
	tick := time.NewTicker(openPoll)
	defer tick.Stop()
	for {
		d, err := s.client.DescribeWorkflowExecution(ctx, run.WorkflowID, run.RunID)
		if err != nil {
			return false, fmt.Errorf("look at %s: %w", run.WorkflowID, err)
		}
		if d.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			return true, s.result(ctx, run, nil)
		}
		if v, err := s.client.QueryWorkflow(ctx, run.WorkflowID, "", contract.StatusQuery); err == nil {
			var st struct{ OpenedAt time.Time }
			if err := v.Get(&st); err == nil && !st.OpenedAt.IsZero() {
				return true, nil
			}
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
	}
}

// RebalanceStatus asks the newest run of an intent where it is.
func (s *Starter) RebalanceStatus(ctx context.Context, id string) (contract.RebalanceState, error) {
	var st contract.RebalanceState
	v, err := s.client.QueryWorkflow(ctx, id, "", contract.StatusQuery)
	if err != nil {
		return st, noIntent(err, id)
	}
	return st, v.Get(&st)
}

// StopRebalance lets an intent start no further move.
func (s *Starter) StopRebalance(ctx context.Context, id string, in contract.UpdateInput) (contract.RebalanceState, error) {
	var st contract.RebalanceState
	h, err := s.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: id, UpdateName: contract.StopUpdate, Args: []any{in}, WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return st, noIntent(err, id)
	}
	return st, h.Get(ctx, &st)
}

// noIntent says that Temporal knows no such intent.
func noIntent(err error, id string) error {
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return failure.New(failure.Invalid, "rebalance.not_running", "%s does not run", id).WithHint("drover rebalance status lists the intents")
	}
	return fmt.Errorf("ask %s: %w", id, err)
}

// Balance lets a schedule run the balancer's rounds; one that exists is changed.
func (s *Starter) Balance(ctx context.Context, every time.Duration, in contract.RoundInput) error {
	return s.schedule(ctx, balanceSchedule, every, &client.ScheduleWorkflowAction{
		ID: balanceSchedule, Workflow: contract.BalanceRoundWorkflow, Args: []any{in}, TaskQueue: contract.ControlQueue,
		WorkflowExecutionTimeout: 30 * time.Minute, StaticSummary: "a round of the balancer",
	})
}

// Unbalance removes the schedule. What runs goes on.
func (s *Starter) Unbalance(ctx context.Context) error { return s.unschedule(ctx, balanceSchedule) }
