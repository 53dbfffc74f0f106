package tracing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/event"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// One trace leads from a workflow to its activity and on to the commands on shards,
// which are bounded and show names only.
func TestSpansFromWorkflowToShard(t *testing.T) {
	t.Parallel()

	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	monitor := Commands(tracer)
	spans, err := Interceptors(tracer)
	require.NoError(t, err)
	both, ok := spans[0].(interceptor.WorkerInterceptor)
	require.True(t, ok, "what the client has, its workers use")

	env := new(testsuite.WorkflowTestSuite).NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{both, &Budget{}}})
	send := func(ctx context.Context, id int64, failure error) {
		monitor.Started(ctx, &event.CommandStartedEvent{CommandName: "find", DatabaseName: "flights_0001_p1", RequestID: id, ConnectionID: "h1:27017[-5]"})
		done := event.CommandFinishedEvent{CommandName: "find", RequestID: id, ConnectionID: "h1:27017[-5]"}
		if failure != nil {
			monitor.Failed(ctx, &event.CommandFailedEvent{CommandFinishedEvent: done, Failure: failure})
			return
		}
		monitor.Succeeded(ctx, &event.CommandSucceededEvent{CommandFinishedEvent: done})
	}
	env.RegisterActivityWithOptions(func(ctx context.Context) error {
		send(ctx, 1, nil)
		send(ctx, 2, errors.New("not primary"))
		for id := range int64(mostCommands) {
			send(ctx, 3+id, nil)
		}
		send(context.WithoutCancel(t.Context()), 999, nil) // nobody's activity
		return nil
	}, activity.RegisterOptions{Name: "Act"})
	env.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		return workflow.ExecuteActivity(ctx, "Act").Get(ctx, nil)
	}, workflow.RegisterOptions{Name: "Flow"})
	env.ExecuteWorkflow("Flow")
	require.NoError(t, env.GetWorkflowError())

	byName := map[string][]sdktrace.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		byName[s.Name()] = append(byName[s.Name()], s)
	}
	act, flow := byName["RunActivity:Act"], byName["RunWorkflow:Flow"]
	require.Len(t, act, 1)
	require.Len(t, flow, 1)
	require.Len(t, byName["find"], mostCommands)
	require.Equal(t, flow[0].SpanContext().TraceID(), act[0].SpanContext().TraceID())
	first, second := byName["find"][0], byName["find"][1]
	require.Equal(t, act[0].SpanContext().SpanID(), first.Parent().SpanID())
	require.Equal(t, "not primary", second.Status().Description)
	shown := map[string]string{}
	for _, a := range first.Attributes() {
		shown[string(a.Key)] = a.Value.Emit()
	}
	require.Equal(t, map[string]string{
		"db.system.name": "mongodb", "db.operation.name": "find", "db.namespace": "flights_0001_p1", "server.address": "h1:27017",
	}, shown)
	over := int64(0)
	for _, a := range act[0].Attributes() {
		if a.Key == "drover.commands_without_span" {
			over = a.Value.AsInt64()
		}
	}
	require.EqualValues(t, 2, over)
}
