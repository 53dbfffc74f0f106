package workflows_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
	"drover/internal/failure"
)

// at sets the environment's clock to a time of day.
func at(hour, minute int) time.Time { return time.Date(2026, 3, 1, hour, minute, 0, 0, time.UTC) }

// TestRefusalIsShownAndTriedAgain: the move waits and says for what; it is asked
// again with growing patience, so that a night of refusals is no long history.
func TestRefusalIsShownAndTriedAgain(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 20
	env := newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Contains(t, st.WaitingFor, "(1) lag is 1s, limit 200ms")
		require.Contains(t, st.WaitingFor, "wait", "what would make it pass")
		require.False(t, st.Gate.Go)
		require.Equal(t, source.ID, w.serving)
		require.Equal(t, 1, w.running, "replication goes on")
	}, 5*time.Second)
	var refused error
	ask(env, time.Hour, contract.CompleteUpdate, &refused)
	in := input
	in.WaitForOpen = contract.Duration(3 * time.Second)
	start(env, in)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
	require.Len(t, w.gateAsked, 21)
	require.Equal(t, []contract.Duration{0, contract.Duration(time.Second), contract.Duration(2 * time.Second)},
		[]contract.Duration{w.gateAsked[0].Patience, w.gateAsked[1].Patience, w.gateAsked[2].Patience})
	require.Equal(t, contract.Duration(5*time.Minute), w.gateAsked[20].Patience)
	require.Equal(t, in.WaitForOpen, w.gateAsked[0].WaitForOpen)
}

// TestWindowHoldsTheSwitch until it opens; outside of it the gate is not asked.
func TestWindowHoldsTheSwitch(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	env.SetStartTime(at(20, 0))
	env.RegisterDelayedCallback(func() {
		require.Contains(t, status(t, env).WaitingFor, "the window 22:00-04:00 UTC, which opens at 2026-03-01T22:00:00Z")
		require.Contains(t, status(t, env).Updates, contract.ApproveUpdate)
		require.Empty(t, w.gateAsked)
		require.Equal(t, source.ID, w.serving)
	}, 119*time.Minute)
	env.RegisterDelayedCallback(func() { require.Equal(t, target.ID, w.serving) }, 121*time.Minute)
	var refused error
	ask(env, 3*time.Hour, contract.CompleteUpdate, &refused)
	in := input
	in.Window = "22:00-04:00"
	start(env, in)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}

// TestWindowThatClosesStopsTheGate: a gate that refuses until the window is over
// is not asked again before the next one.
func TestWindowThatClosesStopsTheGate(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	env := newEnv(t, w)
	env.SetStartTime(at(3, 59))
	env.RegisterDelayedCallback(func() {
		for _, in := range w.gateAsked {
			require.LessOrEqual(t, time.Duration(in.Patience), time.Minute, "patience ends with the window")
		}
		require.Contains(t, status(t, env).WaitingFor, "opens at 2026-03-01T22:00:00Z")
		w.mu.Lock()
		w.gateNo = 0
		w.mu.Unlock()
	}, 2*time.Hour)
	env.RegisterDelayedCallback(func() { require.Equal(t, source.ID, w.serving) }, 18*time.Hour)
	var refused error
	ask(env, 20*time.Hour, contract.CompleteUpdate, &refused)
	in := input
	in.Window = "22:00-04:00"
	start(env, in)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}

// TestApprovalSwitchesOutsideTheWindow, and a rollback asks for neither: an
// operator wants it now.
func TestApprovalSwitchesOutsideTheWindow(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	env.SetStartTime(at(12, 0))
	var refused error
	ask(env, time.Hour, contract.ApproveUpdate, &refused)
	env.RegisterDelayedCallback(func() { require.Equal(t, target.ID, w.serving) }, 2*time.Hour)
	ask(env, 3*time.Hour, contract.RollbackUpdate, &refused)
	env.RegisterDelayedCallback(func() { require.Equal(t, source.ID, w.serving) }, 4*time.Hour)
	ask(env, 5*time.Hour, contract.ApproveUpdate, &refused)
	ask(env, 6*time.Hour, contract.CompleteUpdate, &refused)
	in := input
	in.Window = "22:00-04:00"
	start(env, in)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}

// TestBadPoliciesAreRefused: the field, the value and what would be right.
func TestBadPoliciesAreRefused(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		in   contract.MigrateInput
		want string
	}{
		{contract.MigrateInput{Window: "22-4"}, `window "22-4" is no window; want two times of day in UTC, as "22:00-04:00"`},
		{contract.MigrateInput{OnDDL: "ignore"}, `onDDL is "ignore"; want "stop" or "follow"`},
		{contract.MigrateInput{WaitForOpen: -1}, "waitForOpen is -1ns; want a positive duration"},
	} {
		w := newWorld()
		env := newEnv(t, w)
		c.in.Chunk, c.in.To = input.Chunk, input.To
		start(env, c.in)
		e, ok := errors.AsType[*temporal.ApplicationError](env.GetWorkflowError())
		require.True(t, ok)
		require.Equal(t, "migration.bad_input", e.Type())
		require.ErrorContains(t, e, c.want)
		require.False(t, w.registered)
	}
}

// TestGateThatCannotBeAskedIsRetried: an answer that does not come is no "no".
func TestGateThatCannotBeAskedIsRetried(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.failAt, w.failCount, w.kind = contract.CheckGate.Name, 3, failure.Transient
	env := newEnv(t, w)
	var refused error
	ask(env, time.Hour, contract.CompleteUpdate, &refused)
	start(env, input)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
}
