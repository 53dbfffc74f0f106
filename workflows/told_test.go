package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/workers"
)

// standstill is a fleet whose worker stands still, or is in trouble: what it runs beside
// the steps does not end as cancelled when it is cancelled, but with an error.
type standstill struct {
	interceptor.WorkerInterceptorBase
	err error
}

// InterceptWorkflow implements [interceptor.WorkerInterceptor].
func (s *standstill) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &stillInbound{interceptor.WorkflowInboundInterceptorBase{Next: next}, s.err}
}

type stillInbound struct {
	interceptor.WorkflowInboundInterceptorBase
	err error
}

// Init implements [interceptor.WorkflowInboundInterceptor].
func (i *stillInbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&stillOutbound{interceptor.WorkflowOutboundInterceptorBase{Next: out}, i.err})
}

type stillOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	err error
}

// ExecuteActivity implements [interceptor.WorkflowOutboundInterceptor].
func (o *stillOutbound) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	f := o.Next.ExecuteActivity(ctx, name, args...)
	switch name {
	case contract.ReplicateChanges.Name, contract.VerifyChanges.Name, contract.WatchSwitch.Name:
		return stillFuture{f, o.err}
	}
	return f
}

// stillFuture ends with an error where it was cancelled.
type stillFuture struct {
	workflow.Future
	err error
}

// Get implements [workflow.Future].
func (f stillFuture) Get(ctx workflow.Context, v any) error {
	err := f.Future.Get(ctx, v)
	if temporal.IsCanceledError(err) {
		return f.err
	}
	return err
}

// TestWhatWasToldToEndMayFail: the verification on a worker that stood still once
// ended by its heartbeat right after a switch, and one whose shard was just down by that;
// the move waited for a person with "burn-in failed: canceled".
func TestWhatWasToldToEndMayFail(t *testing.T) {
	t.Parallel()

	for name, err := range map[string]error{
		"by its heartbeat": temporal.NewHeartbeatTimeoutError(),
		"in trouble":       temporal.NewApplicationError("server selection error", "shard.unreachable"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			toldToEnd(t, err)
		})
	}
}

// toldToEnd goes through a move in which what was told to end ends with err.
func toldToEnd(t *testing.T, err error) {
	t.Helper()
	w := newWorld()
	w.watchOpen = true
	env := newEnv(t, w)
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&workers.Failures{}, &standstill{err: err}}})
	calm := func(at time.Duration, serving chunk.PlacementID) {
		env.RegisterDelayedCallback(func() {
			st := status(t, env)
			require.Empty(t, st.Attention)
			require.Equal(t, serving, st.Serving.ID)
		}, at)
	}
	var refused error
	calm(30*time.Minute, target.ID)
	ask(env, time.Hour, contract.RollbackUpdate, &refused)
	calm(90*time.Minute, source.ID)
	ask(env, 2*time.Hour, contract.PauseUpdate, &refused)
	ask(env, 3*time.Hour, contract.ResumeUpdate, &refused)
	ask(env, 4*time.Hour, contract.ApproveUpdate, &refused)
	calm(5*time.Hour, target.ID)
	ask(env, 6*time.Hour, contract.DrillUpdate, &refused)
	calm(7*time.Hour, target.ID)
	ask(env, 8*time.Hour, contract.CompleteUpdate, &refused)
	start(env, input)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
}
