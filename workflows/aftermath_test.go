package workflows_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"drover/contract"
)

// slower is a chunk that is worse off on its target.
var slower = contract.AftermathResult{Worse: true, Why: "p99 is 301.0 ms, it was 100.0 ms before"}

// TestWorseIsPaged: the target serves on, a person is asked, and resume takes the
// flag down.
func TestWorseIsPaged(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.watch = slower
	env := newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		st := status(t, env)
		require.Equal(t, target.ID, w.serving)
		require.Contains(t, st.Attention, "after attempt 1 on b: p99 is 301.0 ms")
		require.Contains(t, st.Updates, contract.ResumeUpdate)
		require.True(t, st.Watch.Worse)
	}, time.Hour)
	var refused error
	ask(env, 2*time.Hour, contract.ResumeUpdate, &refused)
	env.RegisterDelayedCallback(func() { require.Empty(t, status(t, env).Attention) }, 3*time.Hour)
	ask(env, 4*time.Hour, contract.CompleteUpdate, &refused)
	start(env, input)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
	require.Len(t, w.watched, 1)
	require.Equal(t, contract.Duration(5*time.Minute), w.watched[0].For)
	require.EqualValues(t, target.ID, w.watched[0].Serving.ID)
	require.EqualValues(t, 77, w.watched[0].Before.Requests, "as the gate measured it")
}

// TestWorseRollsBackByPolicy: the old placement serves again, a person is told why,
// and may switch forth.
func TestWorseRollsBackByPolicy(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.watch = slower
	env := newEnv(t, w)
	env.RegisterDelayedCallback(func() {
		require.Equal(t, source.ID, w.serving)
		require.Contains(t, status(t, env).Attention, "rolled back by policy")
		w.mu.Lock()
		w.watch = contract.AftermathResult{}
		w.mu.Unlock()
	}, time.Hour)
	var refused error
	ask(env, 2*time.Hour, contract.ApproveUpdate, &refused)
	ask(env, 3*time.Hour, contract.CompleteUpdate, &refused)
	in := input
	in.AfterSwitch, in.AfterSwitchFor = contract.AfterSwitchRollback, contract.Duration(time.Minute)
	start(env, in)

	require.NoError(t, refused)
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, target.ID, w.serving)
	require.Len(t, w.watched, 2, "the way back is not watched")
}

// TestWatchMayBeOff, and one that finds nothing changes nothing.
func TestWatchMayBeOff(t *testing.T) {
	t.Parallel()

	for _, policy := range []string{contract.AfterSwitchOff, contract.AfterSwitchRollback} {
		w := newWorld()
		if policy == contract.AfterSwitchOff {
			w.watch = slower
		}
		env := newEnv(t, w)
		env.RegisterDelayedCallback(func() { require.Empty(t, status(t, env).Attention) }, time.Hour)
		var refused error
		ask(env, 2*time.Hour, contract.CompleteUpdate, &refused)
		in := input
		in.AfterSwitch = policy
		start(env, in)

		require.NoError(t, refused)
		require.NoError(t, env.GetWorkflowError())
		require.Equal(t, target.ID, w.serving)
		require.Equal(t, policy == contract.AfterSwitchOff, len(w.watched) == 0)
	}
}

func TestBadAfterSwitchIsRefused(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		in   contract.MigrateInput
		want string
	}{
		{contract.MigrateInput{AfterSwitch: "pray"}, `afterSwitch is "pray"; want "page", "rollback" or "off"`},
		{contract.MigrateInput{AfterSwitchFor: contract.Duration(48 * time.Hour)}, "afterSwitchFor is 48h0m0s; want a positive duration of at most 24h"},
	} {
		env := newEnv(t, newWorld())
		c.in.Chunk, c.in.To = input.Chunk, input.To
		start(env, c.in)
		e, ok := errors.AsType[*temporal.ApplicationError](env.GetWorkflowError())
		require.True(t, ok)
		require.ErrorContains(t, e, c.want)
	}
}
