package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

// TestWhatIsAskedOfAnotherMoveIsRefused: the workflow id is the chunk's, so that what was meant for
// a move that has ended reaches the one that has begun since.
func TestWhatIsAskedOfAnotherMoveIsRefused(t *testing.T) {
	t.Parallel()

	w := newWorld()
	env := newEnv(t, w)
	var other, own error
	askWith(env, time.Hour, contract.RollbackUpdate, contract.UpdateInput{By: "test", Migration: ref.Migration - 1}, &other)
	env.RegisterDelayedCallback(func() { require.Equal(t, target.ID, status(t, env).Serving.ID) }, 2*time.Hour)
	askWith(env, 3*time.Hour, contract.RollbackUpdate, contract.UpdateInput{By: "test", Migration: ref.Migration}, &own)
	env.RegisterDelayedCallback(func() { require.Equal(t, source.ID, status(t, env).Serving.ID) }, 4*time.Hour)
	ask(env, 5*time.Hour, contract.AbortUpdate, new(error))
	start(env, input)

	require.ErrorContains(t, other, "move 6 is over, and move 7 has begun")
	require.NoError(t, own)
}

// TestVerbThatDoesNotFitIsToldWhatDoes: a refusal names the phase and what is possible in it.
func TestVerbThatDoesNotFitIsToldWhatDoes(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.gateNo = 1 << 30
	env := newEnv(t, w)
	var early, later error
	ask(env, time.Hour, contract.CompleteUpdate, &early)
	env.RegisterDelayedCallback(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.gateNo = 0
	}, 2*time.Hour)
	ask(env, 3*time.Hour, contract.AbortUpdate, &later)
	ask(env, 4*time.Hour, contract.CompleteUpdate, new(error))
	start(env, input)

	require.NoError(t, env.GetWorkflowError())
	require.ErrorContains(t, early, "this one is in switching; possible now: pause, abort")
	require.ErrorContains(t, later, "the target serves; rollback first, then abort; possible now: pause, rollback, complete, drill")
}

// TestMoveThatIsNotRegisteredIsNotTakenForAnother: which one it is shows then.
func TestMoveThatIsNotRegisteredIsNotTakenForAnother(t *testing.T) {
	t.Parallel()

	w := newWorld()
	w.failAt, w.failCount = contract.RegisterMigration.Name, 1
	env := newEnv(t, w)
	var early error
	askWith(env, 0, contract.AbortUpdate, contract.UpdateInput{By: "test", Migration: ref.Migration}, &early)
	start(env, input)

	require.ErrorContains(t, early, "it is being registered")
}
