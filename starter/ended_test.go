package starter

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
)

// ending plays Temporal with one workflow.
type ending struct {
	client.Client
	first  string
	status enumspb.WorkflowExecutionStatus
	err    error
}

// DescribeWorkflowExecution implements [client.Client].
func (e *ending) DescribeWorkflowExecution(context.Context, string, string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	return &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{
		Status: e.status, FirstRunId: e.first, Execution: &commonpb.WorkflowExecution{RunId: "r9"},
	}}, e.err
}

// GetWorkflowHistory implements [client.Client].
func (e *ending) GetWorkflowHistory(_ context.Context, _, run string, _ bool, _ enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	return &lastEvent{reason: "too slow, run " + run}
}

// lastEvent is a history of one event.
type lastEvent struct {
	reason string
	read   bool
}

func (l *lastEvent) HasNext() bool { return !l.read }

func (l *lastEvent) Next() (*historypb.HistoryEvent, error) {
	l.read = true
	return &historypb.HistoryEvent{Attributes: &historypb.HistoryEvent_WorkflowExecutionTerminatedEventAttributes{
		WorkflowExecutionTerminatedEventAttributes: &historypb.WorkflowExecutionTerminatedEventAttributes{Identity: "ann", Reason: l.reason},
	}}, nil
}

// TestOnlyWhatTemporalSaysHasEnded counts as ended: never what runs, and never what could
// not be asked for.
func TestOnlyWhatTemporalSaysHasEnded(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		ending
		how string
	}{
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}, ""},
		{ending{status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}, ""},
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW}, ""},
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED}, ""},
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED}, ""},
		{ending{first: "r2", status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}, "another run has its name"},
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED}, "its workflow was terminated by ann: too slow, run r9"},
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_FAILED}, "its workflow has ended (failed)"},
		{ending{first: "r1", status: enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT}, "its workflow has ended (timedout)"},
		{ending{err: &serviceerror.NotFound{}}, "does not know its workflow any more"},
	} {
		how, err := New(&c.ending).Ended(t.Context(), "rebalance/drain/a", "r1")
		require.NoError(t, err)
		if c.how == "" {
			require.Empty(t, how)
		}
		require.Contains(t, how, c.how)
	}
	for _, err := range []error{errors.New("no answer"), &serviceerror.Unavailable{}, &serviceerror.NamespaceNotFound{}} {
		how, got := New(&ending{err: err}).Ended(t.Context(), "rebalance/drain/a", "r1")
		require.ErrorIs(t, got, err)
		require.Empty(t, how)
	}
}
