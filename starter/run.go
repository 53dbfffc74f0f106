package starter

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/failure"
)

// Run names one started run.
type Run struct {
	WorkflowID string `json:"workflowID"`
	RunID      string `json:"runID"`
}

// begin starts a workflow that o names. One of that id that is in its way is refused
// with taken, never joined.
func (s *Starter) begin(ctx context.Context, o client.StartWorkflowOptions, workflow string, in any, what string, taken error) (Run, error) {
	o.TaskQueue, o.WorkflowExecutionErrorWhenAlreadyStarted = contract.ControlQueue, true
	run, err := s.client.ExecuteWorkflow(ctx, o, workflow, in)
	if _, is := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); is {
		return Run{}, taken
	}
	if err != nil {
		return Run{}, fmt.Errorf("start %s: %w", what, err)
	}
	return Run{WorkflowID: run.GetID(), RunID: run.GetRunID()}, nil
}

// result waits for the end of a run and reads what it gave. A failure keeps its code
// and its hint.
func (s *Starter) result(ctx context.Context, r Run, out any) error {
	err := s.client.GetWorkflow(ctx, r.WorkflowID, r.RunID).Get(ctx, out)
	e, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok {
		return err
	}
	var kind, hint string
	if e.HasDetails() {
		_ = e.Details(&kind, &hint) // an error without them has no hint
	}
	return failure.New(failure.Invalid, e.Type(), "%s", e.Message()).WithHint("%s", hint)
}
