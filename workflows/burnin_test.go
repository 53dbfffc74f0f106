package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// The publish came through, and everybody who could have said so failed for good. The
// next try must see who serves, and never switch, or drop, the wrong way round.
func TestOutcomeThatWasLostIsFoundAgain(t *testing.T) {
	t.Parallel()

	t.Run("resumed", func(t *testing.T) {
		t.Parallel()
		w := newWorld()
		w.failAt, w.failToo, w.failCount, w.answerLost = "SwitchRoute", "SettleAttempt", 1, true
		env := newEnv(t, w)
		env.RegisterDelayedCallback(func() { require.NotEmpty(t, status(t, env).Attention) }, time.Hour)
		ask(env, 2*time.Hour, contract.ResumeUpdate, new(error))
		env.RegisterDelayedCallback(func() {
			st := status(t, env)
			require.Equal(t, target.ID, st.Serving.ID)
			require.Equal(t, chunk.BurnIn, st.Phase)
			require.Len(t, st.Switches, 1)
		}, 3*time.Hour)
		ask(env, 4*time.Hour, contract.CompleteUpdate, new(error))
		start(env, input)

		require.NoError(t, env.GetWorkflowError())
		require.Equal(t, 1, w.attempts)
		require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
		last := w.lanes[len(w.lanes)-1]
		require.Equal(t, contract.DirectionInput{Ref: ref, Direction: 1, From: target, To: source}, last)
	})
	t.Run("aborted", func(t *testing.T) {
		t.Parallel()
		w := newWorld()
		w.failAt, w.failToo, w.failCount, w.answerLost = "SwitchRoute", "SettleAttempt", 1, true
		env := newEnv(t, w)
		ask(env, 2*time.Hour, contract.AbortUpdate, new(error))
		start(env, input)

		require.Error(t, env.GetWorkflowError())
		require.Empty(t, w.dropped, "what serves now was dropped")
	})
	t.Run("rolled back, and resumed", func(t *testing.T) {
		t.Parallel()
		w := newWorld()
		env := newEnv(t, w)
		env.RegisterDelayedCallback(func() { // the way back, which is the second switch
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failAt, w.failToo, w.failCount, w.answerLost = "SwitchRoute", "SettleAttempt", 2, true
		}, time.Hour)
		ask(env, 2*time.Hour, contract.RollbackUpdate, new(error))
		env.RegisterDelayedCallback(func() { require.NotEmpty(t, status(t, env).Attention) }, 3*time.Hour)
		ask(env, 4*time.Hour, contract.ResumeUpdate, new(error))
		env.RegisterDelayedCallback(func() {
			st := status(t, env)
			require.Equal(t, source.ID, st.Serving.ID, "who serves is known again")
			require.Contains(t, st.Updates, contract.ApproveUpdate)
			require.NotContains(t, st.Updates, contract.CompleteUpdate, "it would drop what serves")
		}, 5*time.Hour)
		ask(env, 6*time.Hour, contract.AbortUpdate, new(error))
		start(env, input)

		require.Equal(t, map[chunk.PlacementID]bool{target.ID: true}, w.dropped)
		last := w.lanes[len(w.lanes)-1]
		require.Equal(t, contract.DirectionInput{Ref: ref, Direction: 2, From: source, To: target}, last)
	})
	t.Run("not concluded", func(t *testing.T) {
		t.Parallel()
		w := newWorld()
		w.failAt, w.failCount = "ConcludeSwitch", 1
		env := newEnv(t, w)
		ask(env, 2*time.Hour, contract.ResumeUpdate, new(error))
		ask(env, 4*time.Hour, contract.CompleteUpdate, new(error))
		start(env, input)

		require.NoError(t, env.GetWorkflowError())
		require.Positive(t, w.calls["ReconcileSwitch"], "nobody concluded the attempt")
		require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
	})
}

// A rollback that goes back each time it is tried leaves everything that either way
// needs: after a person's word the chunk is brought back, forth again, and completed.
func TestRollbackThatFailsLeavesBothWays(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	set := func(at time.Duration, name string) {
		env.RegisterDelayedCallback(func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failAt = name
		}, at)
	}
	set(time.Hour, "SwitchRoute")
	ask(env, 2*time.Hour, contract.RollbackUpdate, new(error))
	set(4*time.Hour, "")
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Contains(t, st.Attention, "attempts went back")
		require.Equal(t, target.ID, st.Serving.ID)
		require.Empty(t, w.dropped)
		require.False(t, w.fenced, "somebody waits behind a fence")
	}, 5*time.Hour)
	ask(env, 6*time.Hour, contract.ResumeUpdate, new(error))
	ask(env, 7*time.Hour, contract.RollbackUpdate, new(error))
	env.RegisterDelayedCallback(func() { require.Equal(t, source.ID, status(t, env).Serving.ID) }, 8*time.Hour)
	ask(env, 9*time.Hour, contract.ApproveUpdate, new(error))
	env.RegisterDelayedCallback(func() { require.Equal(t, target.ID, status(t, env).Serving.ID) }, 10*time.Hour)
	ask(env, 11*time.Hour, contract.CompleteUpdate, new(error))
	start(env, input)

	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
}

func TestDrillGoesBackAndForth(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	var refused, early error
	ask(env, time.Second, contract.DrillUpdate, &early)
	w.gateNo = 5
	ask(env, time.Hour, contract.DrillUpdate, &refused)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Equal(t, target.ID, st.Serving.ID)
		require.Len(t, st.Drills, 1)
		d := st.Drills[0]
		require.Equal(t, "passed", d.Outcome)
		require.Equal(t, []contract.DrillLeg{
			{From: "b", To: "a", Attempt: 2, Attempts: 1, Documents: 10},
			{From: "a", To: "b", Attempt: 3, Attempts: 1, Documents: 10},
		}, d.Legs)
		require.Contains(t, st.Updates, contract.DrillUpdate)
	}, 2*time.Hour)
	ask(env, 3*time.Hour, contract.CompleteUpdate, new(error))
	start(env, input)

	require.ErrorContains(t, early, "only a move in burn-in")
	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, map[chunk.PlacementID]bool{source.ID: true}, w.dropped)
}

// A drill that finds a difference stops where it is and says so.
func TestDrillThatFindsADifferenceWaits(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		w.mu.Lock()
		w.failAt, w.kind = "ValidateChunk", failure.Mismatch
		w.mu.Unlock()
	}, time.Minute)
	ask(env, time.Hour, contract.DrillUpdate, new(error))
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.NotEmpty(t, st.Attention)
		require.Equal(t, source.ID, st.Serving.ID)
		require.Contains(t, st.Drills[0].Outcome, "stopped")
	}, 2*time.Hour)
	ask(env, 3*time.Hour, contract.ResumeUpdate, new(error))
	ask(env, 4*time.Hour, contract.ApproveUpdate, new(error))
	ask(env, 5*time.Hour, contract.CompleteUpdate, new(error))
	start(env, input)

	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}

// Burn-in lasts as long as the kind of move says; a drill does not prolong it.
func TestBurnInHasADefaultPerKind(t *testing.T) {
	t.Parallel()

	for kind, want := range map[string]time.Duration{
		"": 24 * time.Hour, contract.MoveKind: 24 * time.Hour, contract.UpgradeKind: 7 * 24 * time.Hour, contract.BinPackKind: time.Hour,
	} {
		w := newWorld()
		env := newEnv(t, w)
		began := env.Now()
		ask(env, 10*time.Minute, contract.DrillUpdate, new(error))
		start(env, contract.MigrateInput{Chunk: "d/0001", To: "b", Kind: kind})
		require.NoError(t, env.GetWorkflowError())
		require.Equal(t, 3, w.attempts)
		require.WithinDuration(t, began.Add(want), env.Now(), 5*time.Minute, "kind %q", kind)
	}
}
