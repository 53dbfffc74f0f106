package starter

import (
	"context"
	"time"

	"go.temporal.io/sdk/client"

	"drover/contract"
)

// reconcileSchedule is the id of the schedule that brings the fleet to its file.
const reconcileSchedule = "reconcile-fleet"

// Reconcile lets a schedule bring the fleet to its file; one that exists is changed.
func (s *Starter) Reconcile(ctx context.Context, every time.Duration, in contract.ReconcileInput) error {
	return s.schedule(ctx, reconcileSchedule, every, &client.ScheduleWorkflowAction{
		ID: reconcileSchedule, Workflow: contract.ReconcileWorkflow, Args: []any{in}, TaskQueue: contract.ControlQueue,
		WorkflowExecutionTimeout: time.Hour, StaticSummary: "bring the fleet to its file",
	})
}

// Unreconcile removes the schedule. What runs goes on.
func (s *Starter) Unreconcile(ctx context.Context) error { return s.unschedule(ctx, reconcileSchedule) }

// LastReconcile gives what the newest run that was completed came to, nil when there is
// none, and with what error a newer one has ended.
func (s *Starter) LastReconcile(ctx context.Context) (out *contract.FleetReconciled, failed, err error) {
	return last[contract.FleetReconciled](ctx, s, reconcileSchedule)
}
