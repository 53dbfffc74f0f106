package starter

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/failure"
)

// scheduled plays Temporal with one schedule, whose runs ended as the states say, the
// newest last. What a completed one came to tells which it is.
type scheduled struct {
	client.Client
	states []enumspb.WorkflowExecutionStatus
}

// ids names runs.
const ids = "0123456789"

// ScheduleClient implements [client.Client].
func (s *scheduled) ScheduleClient() client.ScheduleClient { return schedules{of: s} }

// schedules is its only schedule.
type schedules struct {
	client.ScheduleClient
	of *scheduled
}

// GetHandle implements [client.ScheduleClient].
func (s schedules) GetHandle(context.Context, string) client.ScheduleHandle {
	return schedule{of: s.of}
}

// schedule is a handle of it.
type schedule struct {
	client.ScheduleHandle
	of *scheduled
}

// Describe implements [client.ScheduleHandle].
func (s schedule) Describe(context.Context) (*client.ScheduleDescription, error) {
	d := &client.ScheduleDescription{}
	for i := range s.of.states {
		d.Info.RecentActions = append(d.Info.RecentActions, client.ScheduleActionResult{
			StartWorkflowResult: &client.ScheduleWorkflowExecution{WorkflowID: "w", FirstExecutionRunID: ids[i : i+1]},
		})
	}
	return d, nil
}

// DescribeWorkflowExecution implements [client.Client].
func (s *scheduled) DescribeWorkflowExecution(_ context.Context, _, run string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	return &workflowservice.DescribeWorkflowExecutionResponse{
		WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Status: s.states[run[0]-'0']},
	}, nil
}

// GetWorkflow implements [client.Client].
func (s *scheduled) GetWorkflow(_ context.Context, _, run string) client.WorkflowRun {
	return ended{run: run, state: s.states[run[0]-'0']}
}

// ended is one run.
type ended struct {
	client.WorkflowRun
	run   string
	state enumspb.WorkflowExecutionStatus
}

// Get implements [client.WorkflowRun].
func (e ended) Get(_ context.Context, out any) error {
	if e.state != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		return temporal.NewNonRetryableApplicationError("run "+e.run, "fleet.bad_file", nil)
	}
	out.(*contract.FleetReconciled).Held = e.run
	return nil
}

// TestNewestRunThatFailedIsTold, also where one before it was completed: what that one
// found is not how the fleet is now.
func TestNewestRunThatFailedIsTold(t *testing.T) {
	t.Parallel()

	const (
		runs      = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
		completed = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
		broken    = enumspb.WORKFLOW_EXECUTION_STATUS_FAILED
	)
	for name, c := range map[string]struct {
		states     []enumspb.WorkflowExecutionStatus
		out, fault string
	}{
		"none":                    {},
		"the first one runs":      {states: []enumspb.WorkflowExecutionStatus{runs}},
		"completed":               {states: []enumspb.WorkflowExecutionStatus{completed, completed, runs}, out: "1"},
		"failed before it":        {states: []enumspb.WorkflowExecutionStatus{broken, completed}, out: "1"},
		"failed behind it":        {states: []enumspb.WorkflowExecutionStatus{completed, broken, broken, runs}, out: "0", fault: "run 2"},
		"none was ever completed": {states: []enumspb.WorkflowExecutionStatus{broken, broken}, fault: "run 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, failed, err := New(&scheduled{states: c.states}).LastReconcile(t.Context())
			require.NoError(t, err)
			if c.fault == "" {
				require.NoError(t, failed)
			} else {
				require.ErrorContains(t, failed, c.fault)
				require.True(t, failure.HasCode(failed, "fleet.bad_file"))
			}
			if c.out == "" {
				require.Nil(t, out)
			} else {
				require.Equal(t, c.out, out.Held)
			}
		})
	}
}
