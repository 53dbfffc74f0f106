package workflows_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/workers"
	"drover/workflows"
)

// longHistory is more than a run may have before it hands over.
const longHistory = 1_600

// grows lets the history be long from a time on.
func grows(env *testsuite.TestWorkflowEnvironment, at time.Duration) {
	env.RegisterDelayedCallback(func() { env.SetCurrentHistoryLength(longHistory) }, at)
}

// handedOver gives what a run left to the next one: with nothing running.
func handedOver(t *testing.T, w *world, env *testsuite.TestWorkflowEnvironment) contract.MigrateRun {
	t.Helper()
	again, ok := errors.AsType[*workflow.ContinueAsNewError](env.GetWorkflowError())
	require.True(t, ok, "%v", env.GetWorkflowError())
	require.Equal(t, contract.MigrateChunkWorkflow, again.WorkflowType.Name)
	require.Zero(t, w.running, "lanes run on without a run to hear of them")
	require.Zero(t, w.verifying)
	require.False(t, w.fenced)
	require.Empty(t, w.dropped, "it was taken for a failure")
	var in contract.MigrateRun
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(again.Input, &in))
	require.NotNil(t, in.Carry)
	return in
}

// TestLongWaitAtTheGateIsHandedOver: the second run goes on where the first stood, with
// what an operator said, and does nothing again that was done.
func TestLongWaitAtTheGateIsHandedOver(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	env := newEnv(t, w)
	ask(env, time.Minute, contract.PauseUpdate, new(error))
	askWith(env, 2*time.Minute, contract.ResumeUpdate, contract.UpdateInput{OnDDL: contract.FollowOnDDL}, new(error))
	var before contract.Status
	env.RegisterDelayedCallback(func() { before = status(t, env) }, 4*time.Minute)
	grows(env, 5*time.Minute)
	start(env, input)

	in := handedOver(t, w, env)
	require.Equal(t, 1, in.Carry.Runs)
	require.Equal(t, contract.FollowOnDDL, in.OnDDL)
	audits := w.calls["AuditChunk"]
	w.gateNo = 0
	env = newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Equal(t, chunk.BurnIn, st.Phase)
		require.Equal(t, before.Import, st.Import)
		require.Equal(t, before.Ref, st.Ref)
	}, time.Hour)
	ask(env, 2*time.Hour, contract.CompleteUpdate, new(error))
	env.ExecuteWorkflow(workflows.MigrateChunk, in)

	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
	require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
	for _, once := range []string{"RegisterMigration", "ImportChunk", "ValidateChunk", "DropSource"} {
		require.Equal(t, 1, w.calls[once], once)
	}
	require.Equal(t, audits, w.calls["AuditChunk"], "the audit is of the switch that waits, not of the run")
	require.Equal(t, contract.FollowOnDDL, w.lanes[len(w.lanes)-1].OnDDL)
	require.Equal(t, 1, w.maxRunning)
}

// TestStepKeepsItsTime over runs, and so does burn-in.
func TestStepKeepsItsTime(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	env := newEnv(t, w)
	grows(env, time.Minute)
	start(env, input)
	in := handedOver(t, w, env)
	ends := env.Now()
	env = newEnv(t, w)
	env.SetStartTime(ends.Add(time.Minute))
	env.RegisterDelayedCallback(func() {
		require.Equal(t, in.Carry.Status.StepSince.UTC(), status(t, env).StepSince.UTC())
		env.CancelWorkflow()
	}, time.Minute)
	env.ExecuteWorkflow(workflows.MigrateChunk, in)
	require.Equal(t, map[chunk.PlacementID]bool{target.ID: true}, w.dropped, "the second run is no less a move")

	w = newWorld()
	env = newEnv(t, w)
	began := env.Now()
	grows(env, time.Hour)
	ask(env, 2*time.Hour, contract.DrillUpdate, new(error)) // burn-in looks at its history when it was asked for something
	in = contract.MigrateRun{MigrateInput: contract.MigrateInput{Chunk: "d/0001", To: "b"}}
	env.ExecuteWorkflow(workflows.MigrateChunk, in)
	in = handedOver(t, w, env)
	ends = env.Now()
	env = newEnv(t, w)
	env.SetStartTime(ends)
	env.ExecuteWorkflow(workflows.MigrateChunk, in)
	require.NoError(t, env.GetWorkflowError())
	require.WithinDuration(t, began.Add(24*time.Hour), env.Now(), 5*time.Minute)
	var r contract.MigrateResult
	require.NoError(t, env.GetWorkflowResult(&r))
	require.Len(t, r.Switches, 3, "of all runs")
}

// TestDrillIsHandedOver between its two switches.
func TestDrillIsHandedOver(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	grows(env, time.Hour)
	ask(env, 2*time.Hour, contract.DrillUpdate, new(error))
	start(env, input)
	in := handedOver(t, w, env)
	require.True(t, in.Carry.Drilling)
	require.Equal(t, 1, in.Carry.Tries)

	env = newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Len(t, st.Drills, 1)
		require.Equal(t, "passed", st.Drills[0].Outcome)
		require.Len(t, st.Drills[0].Legs, 2)
		require.Equal(t, target.ID, st.Serving.ID)
	}, time.Hour)
	ask(env, 2*time.Hour, contract.CompleteUpdate, new(error))
	env.ExecuteWorkflow(workflows.MigrateChunk, in)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, 3, w.attempts)
}

// TestWatchAndPageAreHandedOver: the watch for what is left of its time, and the flag
// until a person says resume.
func TestWatchAndPageAreHandedOver(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.watchOpen = true
	env := newEnv(t, w)
	in := input
	in.AfterSwitchFor = contract.Duration(10 * time.Hour)
	grows(env, 4*time.Hour)
	ask(env, 4*time.Hour+time.Minute, contract.PauseUpdate, new(error))
	ask(env, 4*time.Hour+2*time.Minute, contract.ResumeUpdate, new(error))
	start(env, in)
	run := handedOver(t, w, env)
	require.NotNil(t, run.Carry.Watch)

	w.watchOpen, w.watch = false, contract.AftermathResult{Worse: true, Why: "errors 5%"}
	ends := env.Now()
	env = newEnv(t, w)
	env.SetStartTime(ends)
	env.RegisterDelayedCallback(func() { require.Contains(t, status(t, env).Attention, "errors 5%") }, time.Minute)
	grows(env, time.Hour)
	ask(env, time.Hour+time.Minute, contract.RollbackUpdate, new(error))
	env.ExecuteWorkflow(workflows.MigrateChunk, run)
	run = handedOver(t, w, env)
	require.Len(t, w.watched, 2)
	require.InDelta(t, float64(6*time.Hour), float64(w.watched[1].For), float64(5*time.Minute))

	env = newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		require.Contains(t, status(t, env).Attention, "errors 5%")
		require.Equal(t, source.ID, status(t, env).Serving.ID, "the way back that was asked for is gone")
	}, time.Minute)
	ask(env, time.Hour, contract.ResumeUpdate, new(error))
	env.RegisterDelayedCallback(func() { require.Empty(t, status(t, env).Attention) }, 2*time.Hour)
	ask(env, 3*time.Hour, contract.AbortUpdate, new(error))
	env.ExecuteWorkflow(workflows.MigrateChunk, run)
	require.Equal(t, map[chunk.PlacementID]bool{target.ID: true}, w.dropped)
}

// TestFailureIsNotHandedOver: what the verification found is compared again before
// anything else, by the run that knows of it.
func TestFailureIsNotHandedOver(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.failAt, w.failCount, w.kind = "VerifyChanges", 1, failure.Mismatch
	env := newEnv(t, w)
	env.SetCurrentHistoryLength(0)
	env.RegisterDelayedCallback(func() { require.NotEmpty(t, status(t, env).Attention) }, time.Hour)
	grows(env, 90*time.Minute)
	ask(env, 2*time.Hour, contract.ResumeUpdate, new(error))
	start(env, input)
	in := handedOver(t, w, env)
	require.Equal(t, 2, w.calls["ValidateChunk"])

	env = newEnv(t, w)
	ask(env, time.Hour, contract.CompleteUpdate, new(error))
	env.ExecuteWorkflow(workflows.MigrateChunk, in)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, 2, w.calls["ValidateChunk"])
	require.Equal(t, 1, w.calls["ImportChunk"])
}

// TestRestartsAreCountedOverRuns: a few, then a person looks, whoever runs the move.
func TestRestartsAreCountedOverRuns(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	w.failAt, w.failCount, w.kind, w.differing = "ValidateChunk", 1, failure.Mismatch, 1
	w.codes = map[string]string{"ValidateChunk": "validation.mismatch"}
	env := newEnv(t, w)
	grows(env, 5*time.Minute)
	in := input
	in.OnMismatch = contract.RestartOnMismatch
	start(env, in)
	require.Equal(t, 1, handedOver(t, w, env).Carry.Restarts)
	require.Equal(t, 1, w.calls["RestartSlices"])
}

// TestRestartIsDoneBeforeARunHandsOver: the next run would start lanes beside a slice that
// is half there.
func TestRestartIsDoneBeforeARunHandsOver(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	w.failAt, w.failToo, w.failCount, w.kind, w.differing = "RestartSlices", "ValidateChunk", 1, failure.Mismatch, 1
	w.codes = map[string]string{"ValidateChunk": "validation.mismatch"}
	env := newEnv(t, w)
	grows(env, time.Hour)
	var resumed error
	ask(env, 2*time.Hour, contract.ResumeUpdate, &resumed)
	in := input
	in.OnMismatch = contract.RestartOnMismatch
	start(env, in)
	_, ok := errors.AsType[*workflow.ContinueAsNewError](env.GetWorkflowError())
	require.True(t, ok, "%v", env.GetWorkflowError())
	require.NoError(t, resumed)
	require.Equal(t, 2, w.calls["RestartSlices"])
}

// TestWhatIsHandedOverStaysSmall: a payload has a bound, a move's switches have none.
func TestWhatIsHandedOverStaysSmall(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	grows(env, time.Hour)
	ask(env, 2*time.Hour, contract.DrillUpdate, new(error))
	start(env, input)
	in := handedOver(t, w, env)
	for id := range chunk.AttemptID(500) {
		in.Carry.Status.Switches = append(in.Carry.Status.Switches, contract.SwitchResult{
			Attempt: 1000 + id, Reason: "the fence's deadline is over: it took long", Timeline: make([]contract.TimelineMark, 30),
		})
	}
	env = newEnv(t, w)
	env.SetCurrentHistoryLength(longHistory)
	env.ExecuteWorkflow(workflows.MigrateChunk, in)
	again, ok := errors.AsType[*workflow.ContinueAsNewError](env.GetWorkflowError())
	require.True(t, ok, "%v", env.GetWorkflowError())
	require.Less(t, len(again.Input.Payloads[0].Data), 200_000)
	var next contract.MigrateRun
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(again.Input, &next))
	require.EqualValues(t, 1499, next.Carry.Status.Switches[len(next.Carry.Status.Switches)-1].Attempt, "the newest are kept")
}

// lastWord sends a signal in the very workflow task in which a run hands over, before
// whoever listens has had a turn.
type lastWord struct {
	interceptor.WorkerInterceptorBase
	notice contract.RepairNotice
}

// InterceptWorkflow implements [interceptor.WorkerInterceptor].
func (l *lastWord) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &lastWordInbound{WorkflowInboundInterceptorBase: interceptor.WorkflowInboundInterceptorBase{Next: next}, notice: l.notice}
}

// lastWordInbound puts the sender between the workflow and its calls.
type lastWordInbound struct {
	interceptor.WorkflowInboundInterceptorBase
	notice contract.RepairNotice
}

// Init implements [interceptor.WorkflowInboundInterceptor].
func (l *lastWordInbound) Init(out interceptor.WorkflowOutboundInterceptor) error {
	return l.Next.Init(&lastWordOutbound{WorkflowOutboundInterceptorBase: interceptor.WorkflowOutboundInterceptorBase{Next: out}, notice: l.notice})
}

// lastWordOutbound sends.
type lastWordOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	notice contract.RepairNotice
}

// GetVersion is what a run asks when it has decided to hand over.
func (l *lastWordOutbound) GetVersion(ctx workflow.Context, change string, least, most workflow.Version) workflow.Version {
	if ch, ok := workflow.GetSignalChannel(ctx, contract.RepairSignal).(workflow.SendChannel); ok && change == "carry" {
		ch.SendAsync(l.notice)
	}
	return l.Next.GetVersion(ctx, change, least, most)
}

// TestLastRepairIsHandedOver: a remediation speaks once; what it says in the moment in
// which a run ends is known to the next one.
func TestLastRepairIsHandedOver(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.noRoom = true
	env := newEnv(t, w)
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{&workers.Failures{}, &lastWord{notice: contract.RepairNotice{Shard: "b", By: "remediate/b"}}},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	env.SetCurrentHistoryLength(longHistory)
	start(env, input)
	require.Equal(t, "b by remediate/b", handedOver(t, w, env).Carry.Status.UnderRepair)
}
