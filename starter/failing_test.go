package starter

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/timestamppb"

	"drover/contract"
)

// described is a Temporal that tells of one run.
type described struct {
	client.Client
	run *workflowservice.DescribeWorkflowExecutionResponse
}

// DescribeWorkflowExecution implements [client.Client].
func (d described) DescribeWorkflowExecution(context.Context, string, string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	return d.run, nil
}

// TestFailingSteps: what Temporal tries again is told with its error and its advice;
// what runs for the first time, or has failed without a word, is not.
func TestFailingSteps(t *testing.T) {
	t.Parallel()
	next := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	activity := func(name string, attempt int32, err error) *workflow.PendingActivityInfo {
		a := &workflow.PendingActivityInfo{ActivityType: &commonpb.ActivityType{Name: name}, Attempt: attempt}
		if err != nil {
			a.LastFailure = temporal.GetDefaultFailureConverter().ErrorToFailure(err)
		}
		return a
	}
	full := temporal.NewApplicationErrorWithOptions("bucket drover is full", "s3.full",
		temporal.ApplicationErrorOptions{Details: []any{"transient", "make room"}})
	waiting := activity("ImportChunk", 4, full)
	waiting.NextAttemptScheduleTime = timestamppb.New(next)
	s := New(described{run: &workflowservice.DescribeWorkflowExecutionResponse{
		PendingActivities: []*workflow.PendingActivityInfo{
			activity("ReplicateChanges", 1, nil), waiting, activity("CheckGate", 2, temporal.NewApplicationError("gone", "x")), activity("Quiet", 2, nil),
		},
		PendingWorkflowTask: &workflow.PendingWorkflowTaskInfo{Attempt: stuckTask + 1},
	}})
	got := s.failing(t.Context(), "migrate/app/0001")
	require.Equal(t, []contract.FailingStep{
		{Step: "ImportChunk", Tries: 3, Code: "s3.full", Error: "bucket drover is full", Hint: "make room", Next: next},
		{Step: "CheckGate", Tries: 1, Code: "x", Error: "gone"},
		{Step: "the workflow itself", Tries: stuckTask, Error: "its worker cannot run it",
			Hint: "its last WorkflowTaskFailed event says why: temporal workflow show -w migrate/app/0001"},
	}, got)
	require.Equal(t, "ImportChunk failed 3 times and is tried again: bucket drover is full; make room", got[0].String())
	require.Equal(t, "CheckGate failed once and is tried again: gone", got[1].String())
	require.Equal(t, got[0].String(), contract.Status{Failing: got}.Why(nil))
}
