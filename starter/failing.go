package starter

import (
	"context"

	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/flow"
)

// stuckTask is how often a workflow's own task has failed before it is shown: one that
// a worker left behind is simply run again.
const stuckTask = 3

// failing lists what Temporal tries again of a workflow's run: its activities that
// failed and wait for their next try or are at it, and the workflow itself where no
// worker can run its code.
func (s *Starter) failing(ctx context.Context, workflowID string) []contract.FailingStep {
	const asks = "DescribeWorkflowExecution"
	d, err := s.client.DescribeWorkflowExecution(ctx, workflowID, "")
	if err != nil { // what the workflow said is not lost for it
		return []contract.FailingStep{{Step: asks, Tries: 1, Error: err.Error(), Hint: "what else fails is not known"}}
	}
	var out []contract.FailingStep
	for _, a := range d.GetPendingActivities() {
		if f, ok := failingActivity(a); ok {
			out = append(out, f)
		}
	}
	if t := d.GetPendingWorkflowTask(); t.GetAttempt() > stuckTask {
		out = append(out, contract.FailingStep{
			Step: "the workflow itself", Tries: int(t.GetAttempt()) - 1, Error: "its worker cannot run it",
			Hint: "its last WorkflowTaskFailed event says why: temporal workflow show -w " + workflowID,
		})
	}
	return out
}

// failingActivity tells of an activity that has failed before, if it has.
func failingActivity(a *workflow.PendingActivityInfo) (contract.FailingStep, bool) {
	if a.GetLastFailure() == nil || a.GetAttempt() < 2 {
		return contract.FailingStep{}, false
	}
	cause := temporal.GetDefaultFailureConverter().FailureToError(a.GetLastFailure())
	out := contract.FailingStep{
		Step: a.GetActivityType().GetName(), Tries: int(a.GetAttempt()) - 1, Code: flow.Code(cause), Error: flow.Cause(cause), Hint: flow.Hint(cause),
	}
	if next := a.GetNextAttemptScheduleTime(); next != nil {
		out.Next = next.AsTime()
	}
	return out, true
}
