package flow

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
)

// Call runs a and waits for its result.
func Call[In, Out any](ctx workflow.Context, o workflow.ActivityOptions, a contract.Activity[In, Out], in In) (Out, error) {
	var out Out
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), a.Name, in).Get(ctx, &out)
	return out, err
}

// Start runs a without waiting.
func Start[In, Out any](ctx workflow.Context, o workflow.ActivityOptions, a contract.Activity[In, Out], in In) workflow.Future {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, o), a.Name, in)
}

// Code gives the code of the typed failure in err, "" where there is none.
func Code(err error) string {
	if e, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return e.Type()
	}
	return ""
}

// Cause gives the sentence to show to a person: the innermost typed failure.
func Cause(err error) string {
	if e, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		return e.Message()
	}
	return err.Error()
}

// Hint gives the advice that goes with the failure, "" where there is none.
func Hint(err error) string {
	e, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok || !e.HasDetails() {
		return ""
	}
	var kind, hint string
	if e.Details(&kind, &hint) != nil {
		return ""
	}
	return hint
}
