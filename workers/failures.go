package workers

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"drover/internal/failure"
)

// Failures is the only place where a Go error becomes a Temporal failure.
type Failures struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity implements [interceptor.WorkerInterceptor].
func (*Failures) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &failureInbound{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type failureInbound struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity implements [interceptor.ActivityInboundInterceptor].
func (f *failureInbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	out, err := f.Next.ExecuteActivity(ctx, in)
	return out, toTemporal(ctx, err)
}

// maxMessage keeps an error well below what Temporal stores of a failure.
const maxMessage = 2000

// onDelay is when work goes on that ended without a fault. What lives for days ends so again and
// again: its policy, which counts all attempts there ever were, would let it wait longer each time.
const onDelay = time.Second

// toTemporal changes only errors of ours: cancellation and errors that are
// already Temporal's keep their meaning.
func toTemporal(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, cancelled := errors.AsType[*temporal.CanceledError](context.Cause(ctx)); cancelled && errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	e, ok := errors.AsType[*failure.Error](err)
	if !ok {
		return err
	}
	msg := err.Error()
	if len(msg) > maxMessage {
		msg = msg[:maxMessage] + "..."
	}
	o := temporal.ApplicationErrorOptions{NonRetryable: !e.Kind.Retryable(), Details: []any{e.Kind.String(), e.Hint}}
	switch e.Code {
	case "worker.stopping", "shard.renewed":
		o.Category, o.NextRetryDelay = temporal.ApplicationErrorCategoryBenign, onDelay
	case "lane.closed":
		o.Category = temporal.ApplicationErrorCategoryBenign
	}
	return temporal.NewApplicationErrorWithOptions(msg, e.Code, o)
}
