package workflows_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask sends an update at a virtual time and keeps the refusal.
func ask(env *testsuite.TestWorkflowEnvironment, at time.Duration, name string, refused *error) {
	askWith(env, at, name, contract.UpdateInput{By: "test"}, refused)
}

// askWith is [ask] with more to say.
func askWith(env *testsuite.TestWorkflowEnvironment, at time.Duration, name string, in contract.UpdateInput, refused *error) {
	env.RegisterDelayedCallback(func() {
		env.UpdateWorkflow(name, fmt.Sprintf("%s-%s", name, at), &testsuite.TestUpdateCallback{
			OnAccept:   func() {},
			OnReject:   func(err error) { *refused = err },
			OnComplete: func(any, error) {},
		}, in)
	}, at)
}

func status(t *testing.T, env *testsuite.TestWorkflowEnvironment) contract.Status {
	t.Helper()
	v, err := env.QueryWorkflow(contract.StatusQuery)
	require.NoError(t, err)
	var st contract.Status
	require.NoError(t, v.Get(&st))
	return st
}

func TestMoveRunsToTheEnd(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 3
	env := newEnv(t, w)
	in := input
	in.Complete, in.BurnIn = contract.Automatic, contract.Duration(time.Hour)
	start(env, in)

	require.NoError(t, env.GetWorkflowError())
	var r contract.MigrateResult
	require.NoError(t, env.GetWorkflowResult(&r))
	require.Equal(t, chunk.Done, r.Phase)
	require.Equal(t, target.ID, r.Serving.ID)
	require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
	require.Equal(t, 1, w.maxRunning, "two directions ran at once")
	require.Len(t, w.lanes, 2)
	require.Equal(t, w.lanes, w.verified, "what lanes carry is verified, in both directions")
	require.Zero(t, w.verifying)
	require.Equal(t, contract.DirectionInput{Ref: ref, Direction: 0, From: source, To: target}, w.lanes[0])
	require.Equal(t, contract.DirectionInput{Ref: ref, Direction: 1, From: target, To: source}, w.lanes[1])
	require.Equal(t, []chunk.Phase{chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching, chunk.BurnIn, chunk.Completing, chunk.Done}, w.phases)
}

// TestLanesGoOnBehindASwitch: the metadata tells the states that placements have come to,
// of which the lanes of the new direction know nothing yet. That is no reason to stop and
// start them, nor what verifies them.
func TestLanesGoOnBehindASwitch(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.aged = true
	env := newEnv(t, w)
	ask(env, time.Minute, contract.CompleteUpdate, new(error))
	start(env, input)

	require.NoError(t, env.GetWorkflowError())
	require.Len(t, w.lanes, 2)
	require.Len(t, w.verified, 2)
}

// TestStepsFailClean fails each step before and after it takes effect; then an
// operator gives up. Whatever happens, no fence stays closed, the placement that
// serves is never dropped, and no lanes run on.
func TestStepsFailClean(t *testing.T) {
	t.Parallel()

	for _, name := range []string{
		"RegisterMigration", "AdmitMove", "ImportChunk", "ReplicateChanges", "ReplicateUntilInSync", "ValidateChunk", "VerifyChanges", "AuditChunk", "CheckGate", "PrepareSwitch",
		"SwitchRoute", "ConcludeSwitch", "ReconcileSwitch", "DropSource",
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/answerLost=%t", name, lost), func(t *testing.T) {
				t.Parallel()

				w := newWorld()
				w.failAt, w.answerLost = name, lost
				env := newEnv(t, w)
				var refused error
				ask(env, 2*time.Hour, contract.CompleteUpdate, &refused)
				ask(env, 10*time.Hour, contract.AbortUpdate, &refused)
				env.RegisterDelayedCallback(env.CancelWorkflow, 20*time.Hour)
				start(env, input)

				require.True(t, env.IsWorkflowCompleted())
				require.False(t, w.fenced, "a fence stays closed")
				require.Zero(t, w.running, "lanes run on")
				require.Zero(t, w.verifying, "the verification runs on")
				require.False(t, w.dropped[w.serving], "the placement that serves was dropped")
				if w.serving == source.ID && name != "RegisterMigration" {
					require.True(t, w.dropped[target.ID], "the unfinished target stays")
				}
			})
		}
	}
}

// TestDeadCoordinatorIsNoticedSoon: whoever does a step of a switch must show within
// seconds that it lives, and a window above all.
func TestDeadCoordinatorIsNoticedSoon(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.failAt, w.failCount = "SwitchRoute", 1
	env := newEnv(t, w)
	ask(env, time.Hour, contract.CompleteUpdate, new(error))
	start(env, input)

	require.NoError(t, env.GetWorkflowError())
	for _, name := range []string{"PrepareSwitch", "SwitchRoute", "SettleAttempt", "ConcludeSwitch", "ReconcileSwitch"} {
		require.Positive(t, w.calls[name], name)
		require.Positive(t, w.beats[name], name)
		require.LessOrEqual(t, w.beats[name], 3*time.Second, name)
	}
	require.Equal(t, 2*time.Second, w.beats["SwitchRoute"])
}

// TestCrowdHeartbeatsMoreRarely: the more moves are under way, the longer are the timeouts
// of what heartbeats for long, up to a most; those around the window stay as they are.
func TestCrowdHeartbeatsMoreRarely(t *testing.T) {
	t.Parallel()

	for moves, want := range map[int]time.Duration{0: 5 * time.Second, 20: 5 * time.Second, 100: 25 * time.Second, 10_000: time.Minute} {
		w := newWorld()
		w.moves = moves
		env := newEnv(t, w)
		ask(env, time.Hour, contract.CompleteUpdate, new(error))
		start(env, input)

		require.NoError(t, env.GetWorkflowError())
		for _, name := range []string{"ImportChunk", "ReplicateChanges", "ReplicateUntilInSync", "ValidateChunk", "VerifyChanges", "AuditChunk", "DropSource"} {
			require.Equal(t, want, w.beats[name], "%s among %d", name, moves)
		}
		require.Equal(t, 2*time.Second, w.beats["SwitchRoute"])
	}
}

// TestMoveQueuesForRoom: a move that finds no room on its target waits before its
// import, says why, and begins when there is room.
func TestMoveQueuesForRoom(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.noRoom = true
	env := newEnv(t, w)
	var refused error
	ask(env, 5*time.Hour, contract.CompleteUpdate, &refused)
	waits, imports := "", 0
	env.RegisterDelayedCallback(func() {
		waits, imports = status(t, env).WaitingFor, w.calls[contract.ImportChunk.Name]
		w.mu.Lock()
		defer w.mu.Unlock()
		w.end(env, contract.AdmitMove.Name, contract.Admission{Admitted: true})
	}, time.Minute)
	start(env, input)

	require.NoError(t, env.GetWorkflowError())
	require.Zero(t, imports, "it began before it was let")
	require.Equal(t, 1, w.calls[contract.ImportChunk.Name])
	require.Empty(t, status(t, env).WaitingFor)
	require.Contains(t, waits, "room on its target: b was seen to apply 10 changes/s; 3 moves bring it 8/s and this one 1/s, of which it must manage 2x")
}

func TestRollbackAndForth(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	var refused error
	ask(env, time.Hour, contract.RollbackUpdate, &refused)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Equal(t, source.ID, st.Serving.ID)
		require.Equal(t, []string{contract.ApproveUpdate, contract.PauseUpdate, contract.AbortUpdate}, st.Updates)
	}, 2*time.Hour)
	ask(env, 3*time.Hour, contract.ApproveUpdate, &refused)
	ask(env, 4*time.Hour, contract.CompleteUpdate, &refused)
	start(env, input)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
	require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
	require.Len(t, w.lanes, 4)
	for i, l := range w.lanes[1:] {
		require.Equal(t, chunk.AttemptID(i+1), l.Direction)
		require.Equal(t, w.lanes[i].To, l.From, "lanes turn round with each switch")
	}
}

func TestAbortAfterRollbackRemovesTheTarget(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	var refused error
	ask(env, time.Hour, contract.AbortUpdate, &refused) // the target serves: rollback first
	ask(env, 2*time.Hour, contract.RollbackUpdate, new(error))
	ask(env, 3*time.Hour, contract.AbortUpdate, new(error))
	start(env, input)

	require.ErrorContains(t, refused, "rollback first")
	e, ok := errors.AsType[*temporal.ApplicationError](env.GetWorkflowError())
	require.True(t, ok)
	require.Equal(t, "migration.aborted", e.Type())
	require.Equal(t, map[chunk.PlacementID]bool{target.ID: true}, w.dropped)
}

// TestFailureWaitsForAPersonAndGoesOn: what no retry mends is not thrown away.
func TestFailureWaitsForAPersonAndGoesOn(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"ImportChunk", "ReplicateChanges", "ValidateChunk", "VerifyChanges"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newWorld()
			w.failAt, w.failCount, w.kind = name, 1, failure.Mismatch
			env := newEnv(t, w)
			var refused error
			env.RegisterDelayedCallback(func() {
				st := status(t, env)
				require.NotEmpty(t, st.Attention)
				require.Contains(t, st.Updates, contract.ResumeUpdate)
			}, time.Hour)
			ask(env, 2*time.Hour, contract.ResumeUpdate, &refused)
			ask(env, 3*time.Hour, contract.CompleteUpdate, &refused)
			start(env, input)

			require.NoError(t, refused)
			require.NoError(t, env.GetWorkflowError())
			require.Equal(t, target.ID, w.serving)
		})
	}
}

func TestPauseStopsLanesAndResumes(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	env := newEnv(t, w)
	var refused error
	askWith(env, time.Minute, contract.PauseUpdate, contract.UpdateInput{By: "test", Reason: "new disks", All: true}, &refused)
	env.RegisterDelayedCallback(func() {
		require.Zero(t, w.running, "lanes run in a pause")
		st := status(t, env)
		require.True(t, st.Paused)
		require.Equal(t, "test: new disks", st.PausedBy)
		require.Contains(t, st.WaitingFor, st.PausedBy)
		require.True(t, w.paused, "lists and alarms read it from the metadata")
		require.True(t, st.PausedAll, "the end of the pause of all moves must find it")
		w.mu.Lock()
		w.gateNo = 0
		w.mu.Unlock()
	}, time.Hour)
	ask(env, 2*time.Hour, contract.ResumeUpdate, &refused)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Empty(t, st.PausedBy)
		require.False(t, w.paused)
		require.Equal(t, contract.Duration(contract.StepExpected(st.Phase, time.Hour, 24*time.Hour, false)), st.Expected)
		require.Subset(t, w.expected, []time.Duration{time.Hour + 2*time.Minute, 2 * time.Minute, 24 * time.Hour})
		require.False(t, st.PausedAll)
	}, 2*time.Hour+time.Minute)
	ask(env, 3*time.Hour, contract.CompleteUpdate, &refused)
	start(env, input)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}

func TestManualApproval(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	in := input
	in.Approval = contract.Manual
	env.RegisterDelayedCallback(func() {
		require.Equal(t, source.ID, w.serving)
		require.Contains(t, status(t, env).WaitingFor, "approve")
	}, time.Hour)
	var refused error
	ask(env, 2*time.Hour, contract.ApproveUpdate, &refused)
	ask(env, 3*time.Hour, contract.CompleteUpdate, &refused)
	start(env, in)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}

func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()

	for _, in := range []contract.MigrateInput{
		{To: "b"}, {Chunk: "d/0001"}, {Chunk: "d/0001", To: "b", Approval: "maybe"}, {Chunk: "d/0001", To: "b", BurnIn: -1}, {Chunk: "d/0001", To: "b", Kind: "leap"},
		{Chunk: "d/0001", To: "b", OnMismatch: "ignore"},
		{Chunk: "d/0001", To: "b", OnMismatch: contract.RestartOnMismatch, Reshape: &contract.Reshape{Parts: 2}},
		{Chunk: "d/0001", To: "b", Reshape: &contract.Reshape{Parts: 2, By: "luck"}}, {Chunk: "d/0001", To: "b", Reshape: &contract.Reshape{At: []string{"40"}, By: contract.ByHeat}},
	} {
		w := newWorld()
		env := newEnv(t, w)
		start(env, in)
		e, ok := errors.AsType[*temporal.ApplicationError](env.GetWorkflowError())
		require.True(t, ok)
		require.Equal(t, "migration.bad_input", e.Type())
		require.False(t, w.registered)
	}
}

func TestCancelRemovesTheTarget(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	env := newEnv(t, w)
	env.RegisterDelayedCallback(env.CancelWorkflow, time.Minute)
	start(env, input)

	require.True(t, temporal.IsCanceledError(env.GetWorkflowError()), "%v", env.GetWorkflowError())
	require.Equal(t, map[chunk.PlacementID]bool{target.ID: true}, w.dropped)
	require.Zero(t, w.running)
}
