package tracing

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	temporalotel "go.temporal.io/sdk/contrib/opentelemetry"
	"go.temporal.io/sdk/interceptor"
)

// mostCommands bounds the spans of one run of an activity: one that follows a shard
// for days sends commands without end.
const mostCommands = 100

// Interceptors make spans of workflows and activities, each below the one that
// started it. Give them to Temporal's client: its workers use them too.
func Interceptors(t trace.Tracer) ([]interceptor.ClientInterceptor, error) {
	spans, err := temporalotel.NewTracingInterceptor(temporalotel.TracerOptions{Tracer: t})
	if err != nil {
		return nil, fmt.Errorf("make spans of workflows: %w", err)
	}
	return []interceptor.ClientInterceptor{spans}, nil
}

// Budget gives each run of an activity what [Commands] may spend. A worker needs it
// beside [Interceptors].
type Budget struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity implements [interceptor.WorkerInterceptor].
func (*Budget) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &budgetInbound{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type budgetInbound struct {
	interceptor.ActivityInboundInterceptorBase
}

// left is what an activity may still spend.
type left struct{ commands atomic.Int64 }

// leftKey is where a context has it.
type leftKey struct{}

// ExecuteActivity implements [interceptor.ActivityInboundInterceptor].
func (b *budgetInbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	l := &left{}
	l.commands.Store(mostCommands)
	out, err := b.Next.ExecuteActivity(context.WithValue(ctx, leftKey{}, l), in)
	if over := -l.commands.Load(); over > 0 {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Int64("drover.commands_without_span", over))
	}
	return out, err
}

// Commands makes a span of each command that an activity sends to a shard, below the
// activity's own, up to a bound. It shows names only: no filter, no document.
func Commands(t trace.Tracer) *event.CommandMonitor {
	var running sync.Map // by connection and request
	key := func(connection string, request int64) string { return fmt.Sprint(connection, "/", request) }
	end := func(e event.CommandFinishedEvent, err error) {
		v, ok := running.LoadAndDelete(key(e.ConnectionID, e.RequestID))
		if !ok {
			return
		}
		span := v.(trace.Span) //nolint:forcetypeassert,revive // nothing else is stored
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
	return &event.CommandMonitor{
		Started: func(ctx context.Context, e *event.CommandStartedEvent) {
			l, ok := ctx.Value(leftKey{}).(*left)
			if !ok || !trace.SpanFromContext(ctx).IsRecording() || l.commands.Add(-1) < 0 {
				return
			}
			server, _, _ := strings.Cut(e.ConnectionID, "[")
			_, span := t.Start(ctx, e.CommandName, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
				attribute.String("db.system.name", "mongodb"), attribute.String("db.operation.name", e.CommandName),
				attribute.String("db.namespace", e.DatabaseName), attribute.String("server.address", server)))
			running.Store(key(e.ConnectionID, e.RequestID), span)
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { end(e.CommandFinishedEvent, nil) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { end(e.CommandFinishedEvent, e.Failure) },
	}
}
