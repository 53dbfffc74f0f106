package starter

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/failure"
)

// watchSchedule is the id of the schedule that looks at the fleet.
const watchSchedule = "remediation-watch"

// planID is the workflow id of dry runs: any number of them beside a real one.
const planID = "remediation-plan/"

// Remediate starts the remediation of a shard, or a dry run of it; one that runs
// already is refused, never joined.
func (s *Starter) Remediate(ctx context.Context, in contract.RemediateInput) (Run, error) {
	id, summary := contract.RemediateID(in.Shard), "remediate "+in.Shard
	if !in.Execute {
		id, summary = fmt.Sprintf("%s%s/%d", planID, in.Shard, time.Now().UnixMilli()), "plan for "+in.Shard
	}
	return s.begin(ctx, client.StartWorkflowOptions{
		ID:                    id,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         summary,
		StaticDetails:         in.Reason,
		TypedSearchAttributes: temporal.NewSearchAttributes(contract.ShardNameAttribute.ValueSet(in.Shard)),
	}, contract.RemediateShardWorkflow, in, "the remediation of "+in.Shard,
		failure.New(failure.Invalid, "remediation.running", "shard %s is under remediation already", in.Shard).
			WithHint("drover shard remediate %s --status shows it", in.Shard))
}

// RemediationResult waits for the end of a run.
func (s *Starter) RemediationResult(ctx context.Context, r Run) (contract.RemediateResult, error) {
	var out contract.RemediateResult
	err := s.result(ctx, r, &out)
	return out, err
}

// RemediationStatus asks the newest run of a shard's remediation where it is.
func (s *Starter) RemediationStatus(ctx context.Context, shard string) (contract.RemediationStatus, error) {
	var st contract.RemediationStatus
	v, err := s.client.QueryWorkflow(ctx, contract.RemediateID(shard), "", contract.StatusQuery)
	if err != nil {
		return st, noRemediation(err, shard)
	}
	if err := v.Get(&st); err != nil {
		return st, err
	}
	st.Failing = s.failing(ctx, contract.RemediateID(shard))
	return st, nil
}

// AbortRemediation ends a run after the operation that goes on.
func (s *Starter) AbortRemediation(ctx context.Context, shard string, in contract.UpdateInput) (contract.RemediationStatus, error) {
	var st contract.RemediationStatus
	h, err := s.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: contract.RemediateID(shard), UpdateName: contract.AbortUpdate, Args: []any{in},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return st, noRemediation(err, shard)
	}
	return st, h.Get(ctx, &st)
}

func noRemediation(err error, shard string) error {
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return failure.New(failure.Invalid, "remediation.not_running", "no remediation of shard %s is known to Temporal", shard).
			WithHint("drover shard remediate %s makes a plan", shard)
	}
	return fmt.Errorf("ask the remediation of %s: %w", shard, err)
}

// Watch lets a schedule look at the fleet; one that exists is changed.
func (s *Starter) Watch(ctx context.Context, every time.Duration, in contract.WatchInput) error {
	return s.schedule(ctx, watchSchedule, every, &client.ScheduleWorkflowAction{
		ID: watchSchedule, Workflow: contract.WatchFleetWorkflow, Args: []any{in}, TaskQueue: contract.ControlQueue,
		WorkflowExecutionTimeout: time.Hour, StaticSummary: "look at the fleet",
	})
}

// Unwatch removes the schedule. What runs goes on.
func (s *Starter) Unwatch(ctx context.Context) error { return s.unschedule(ctx, watchSchedule) }

// LastWatch gives the newest look at the fleet that has ended, nil when there is none.
func (s *Starter) LastWatch(ctx context.Context) (*contract.WatchResult, error) {
	out, _, err := last[contract.WatchResult](ctx, s, watchSchedule)
	return out, err
}
