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
	err error  // nil: nothing stands still yet
	of  string // activity; empty: all that run beside the steps
}

// InterceptWorkflow implements [interceptor.WorkerInterceptor].
func (s *standstill) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &stillInbound{interceptor.WorkflowInboundInterceptorBase{Next: next}, s}
}

type stillInbound struct {
	interceptor.WorkflowInboundInterceptorBase
	still *standstill
}

// Init implements [interceptor.WorkflowInboundInterceptor].
func (i *stillInbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&stillOutbound{interceptor.WorkflowOutboundInterceptorBase{Next: out}, i.still})
}

type stillOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	still *standstill
}

// ExecuteActivity implements [interceptor.WorkflowOutboundInterceptor].
func (o *stillOutbound) ExecuteActivity(ctx workflow.Context, name string, args ...any) workflow.Future {
	f := o.Next.ExecuteActivity(ctx, name, args...)
	switch name {
	case contract.ReplicateChanges.Name, contract.VerifyChanges.Name, contract.WatchSwitch.Name:
		if o.still.of == "" || o.still.of == name {
			return stillFuture{f, o.still}
		}
	}
	return f
}

// stillFuture ends with an error where it was cancelled.
type stillFuture struct {
	workflow.Future
	still *standstill
}

// Get implements [workflow.Future].
func (f stillFuture) Get(ctx workflow.Context, v any) error {
	err := f.Future.Get(ctx, v)
	if temporal.IsCanceledError(err) && f.still.err != nil {
		return f.still.err
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

// TestWhatFailsBehindAPublishIsNamed: the lanes of the new direction, or the verification of the old one,
// that failed while a rollback was being concluded ran again before the step ended, and
// the move waited for a person with "burn-in failed: canceled".
func TestWhatFailsBehindAPublishIsNamed(t *testing.T) {
	t.Parallel()

	lanes := func(w *world, _ *standstill) {
		w.failAt, w.failCount = contract.ReplicateChanges.Name, w.calls[contract.ReplicateChanges.Name]+1
	}
	verification := func(_ *world, s *standstill) {
		s.err = temporal.NewNonRetryableApplicationError("a document differs", "validation.mismatch", nil)
	}
	for name, fault := range map[string]struct {
		asked, want string
		fail        func(*world, *standstill)
	}{
		"lanes":            {contract.RollbackUpdate, "a delta met no document", lanes},
		"verification":     {contract.RollbackUpdate, "a document differs", verification},
		"lanes of a drill": {contract.DrillUpdate, "a delta met no document", lanes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, still := newWorld(), &standstill{of: contract.VerifyChanges.Name}
			env := newEnv(t, w)
			env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&workers.Failures{}, still}})
			env.RegisterDelayedCallback(func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.concluding = true
				fault.fail(w, still)
			}, time.Hour)
			ask(env, 2*time.Hour, fault.asked, new(error))
			env.RegisterDelayedCallback(func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.concluding, still.err = false, nil
				w.end(env, contract.ConcludeSwitch.Name, contract.None{})
			}, 3*time.Hour)
			env.RegisterDelayedCallback(func() {
				st := status(t, env)
				require.Contains(t, st.Attention, "burn-in failed: ")
				require.Contains(t, st.Attention, fault.want)
				if len(st.Drills) > 0 {
					require.Contains(t, st.Drills[0].Outcome, fault.want)
				}
				require.Equal(t, source.ID, st.Serving.ID)
			}, 4*time.Hour)
			ask(env, 5*time.Hour, contract.ResumeUpdate, new(error))
			ask(env, 6*time.Hour, contract.ApproveUpdate, new(error))
			ask(env, 7*time.Hour, contract.CompleteUpdate, new(error))
			start(env, input)

			require.NoError(t, env.GetWorkflowError())
			require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
		})
	}
}
