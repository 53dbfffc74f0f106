package starter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/failure"
)

// lookAgain is the pause between two looks at a move that is being registered.
const lookAgain = 150 * time.Millisecond

// Registered waits until a move that was just started is registered: its rows
// exist and its target is made. A refusal is returned with its code. ok is false
// when ctx ended before, which happens as long as no worker runs; the move waits
// for one.
func (s *Starter) Registered(ctx context.Context, run Run) (ok bool, err error) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		done, err := s.registered(ctx, run)
		if ctx.Err() != nil {
			return false, nil
		}
		if done || err != nil {
			return done, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
	}
}

// registered looks once.
func (s *Starter) registered(ctx context.Context, run Run) (bool, error) {
	d, err := s.client.DescribeWorkflowExecution(ctx, run.WorkflowID, run.RunID)
	if err != nil {
		return false, fmt.Errorf("look at the move %s: %w", run.WorkflowID, err)
	}
	if d.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return true, refused(s.client.GetWorkflow(ctx, run.WorkflowID, run.RunID).Get(ctx, nil))
	}
	v, err := s.client.QueryWorkflow(ctx, run.WorkflowID, run.RunID, contract.StatusQuery)
	if err != nil {
		return false, nil //nolint:nilerr // no worker has taken it yet: look again
	}
	var st contract.Status
	if err := v.Get(&st); err != nil {
		return false, fmt.Errorf("read the state of %s: %w", run.WorkflowID, err)
	}
	if st.Attention != "" {
		return true, failure.New(failure.Invalid, "migration.attention", "%s", st.Attention)
	}
	return st.Migration != 0, nil
}

// refused gives a workflow's failure as ours, with its code, and with its hint where
// it has one.
func refused(err error) error {
	e, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok {
		return err
	}
	out := failure.New(failure.Invalid, e.Type(), "%s", strings.TrimPrefix(e.Message(), e.Type()+": "))
	var kind, hint string
	if e.HasDetails() && e.Details(&kind, &hint) == nil && hint != "" {
		return out.WithHint("nothing was changed; %s; then start the move again", hint)
	}
	return out.WithHint("nothing was changed; mend what it says and start the move again")
}
