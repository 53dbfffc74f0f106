package starter

import (
	"context"
	"errors"
	"fmt"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
)

// Ended says how the workflow of a first run has ended; "" while it runs. Only what
// Temporal says counts: not being able to ask is an error, and no end.
func (s *Starter) Ended(ctx context.Context, workflowID, firstRun string) (how string, err error) {
	d, err := s.client.DescribeWorkflowExecution(ctx, workflowID, "")
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return "Temporal does not know its workflow any more", nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for workflow %s: %w", workflowID, err)
	}
	info := d.GetWorkflowExecutionInfo()
	if first := info.GetFirstRunId(); first != "" && first != firstRun {
		return "its workflow has ended, and another run has its name", nil
	}
	switch status := info.GetStatus(); status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED,
		enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		return "its workflow has ended (" + strings.ToLower(status.String()) + ")", nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		return "its workflow was terminated" + s.terminated(ctx, workflowID, info.GetExecution().GetRunId()), nil
	default:
		return "", nil // it runs, goes on in a further run, or is in a state that this version does not know
	}
}

// terminated says by whom a run was terminated and why, where Temporal tells.
func (s *Starter) terminated(ctx context.Context, workflowID, run string) string {
	events := s.client.GetWorkflowHistory(ctx, workflowID, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	if !events.HasNext() {
		return ""
	}
	e, err := events.Next()
	if err != nil {
		return ""
	}
	end := e.GetWorkflowExecutionTerminatedEventAttributes()
	return strings.TrimSuffix(fmt.Sprintf(" by %s: %s", end.GetIdentity(), end.GetReason()), ": ")
}
