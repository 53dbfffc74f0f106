package starter

import (
	"context"
	"errors"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
)

// schedule lets an action run again and again, one at a time, the first at once;
// a schedule that exists is changed.
func (s *Starter) schedule(ctx context.Context, id string, every time.Duration, action *client.ScheduleWorkflowAction) error {
	spec := client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: every}}}
	_, err := s.client.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID: id, Spec: spec, Action: action, Overlap: enumspb.SCHEDULE_OVERLAP_POLICY_SKIP, TriggerImmediately: true,
	})
	if !errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		return err
	}
	return s.client.ScheduleClient().GetHandle(ctx, id).Update(ctx, client.ScheduleUpdateOptions{
		DoUpdate: func(u client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
			u.Description.Schedule.Action, u.Description.Schedule.Spec = action, &spec
			return &client.ScheduleUpdate{Schedule: &u.Description.Schedule}, nil
		},
	})
}

// last gives what the newest run of a schedule that has ended came to, nil when there
// is none.
func last[T any](ctx context.Context, s *Starter, id string) (*T, error) {
	d, err := s.client.ScheduleClient().GetHandle(ctx, id).Describe(ctx)
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return nil, nil //nolint:nilnil // there is no such schedule
	}
	if err != nil {
		return nil, err
	}
	for i := len(d.Info.RecentActions) - 1; i >= 0; i-- {
		a := d.Info.RecentActions[i].StartWorkflowResult
		if a == nil {
			continue
		}
		state, err := s.client.DescribeWorkflowExecution(ctx, a.WorkflowID, a.FirstExecutionRunID)
		if err != nil || state.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			continue
		}
		var out T
		err = s.client.GetWorkflow(ctx, a.WorkflowID, a.FirstExecutionRunID).Get(ctx, &out)
		return &out, err
	}
	return nil, nil //nolint:nilnil // none has ended
}

// unschedule removes a schedule; one that does not exist is no error.
func (s *Starter) unschedule(ctx context.Context, id string) error {
	err := s.client.ScheduleClient().GetHandle(ctx, id).Delete(ctx)
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return nil
	}
	return err
}
