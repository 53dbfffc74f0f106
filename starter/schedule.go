package starter

import (
	"cmp"
	"context"
	"errors"
	"slices"
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

// last gives what the newest run of a schedule that was completed came to, nil when there
// is none, and with what error a newer one has ended.
func last[T any](ctx context.Context, s *Starter, id string) (out *T, failed, err error) {
	d, err := s.client.ScheduleClient().GetHandle(ctx, id).Describe(ctx)
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return nil, nil, nil // there is no such schedule
	}
	if err != nil {
		return nil, nil, err
	}
	for _, action := range slices.Backward(d.Info.RecentActions) {
		a := action.StartWorkflowResult
		if a == nil {
			continue
		}
		state, err := s.client.DescribeWorkflowExecution(ctx, a.WorkflowID, a.FirstExecutionRunID)
		if err != nil || state.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			continue
		}
		out = new(T)
		err = s.result(ctx, Run{a.WorkflowID, a.FirstExecutionRunID}, out)
		if state.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			return out, failed, err
		}
		failed = cmp.Or(failed, err)
	}
	return nil, failed, nil
}

// unschedule removes a schedule; one that does not exist is no error.
func (s *Starter) unschedule(ctx context.Context, id string) error {
	err := s.client.ScheduleClient().GetHandle(ctx, id).Delete(ctx)
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return nil
	}
	return err
}
