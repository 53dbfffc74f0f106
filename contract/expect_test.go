package contract_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
)

// TestEveryStepHasAnExpectedTimeAndARemedy: a step without one would never be overdue.
func TestEveryStepHasAnExpectedTimeAndARemedy(t *testing.T) {
	t.Parallel()

	for _, p := range chunk.Phases() {
		require.Equal(t, !p.Final(), contract.StepExpected(p, time.Hour, time.Hour, false) > 0, p)
		require.Equal(t, !p.Final(), contract.StepRemedy(p) != "", p)
	}
	require.Greater(t, contract.StepExpected(chunk.Importing, 3*time.Hour, 0, false), 3*time.Hour)
	require.Greater(t, contract.StepExpected(chunk.Switching, 0, 0, true), contract.StepExpected(chunk.Switching, 0, 0, false))
}

func TestHealth(t *testing.T) {
	t.Parallel()

	for want, got := range map[string]string{
		contract.GoodHealth:      contract.MoveHealth("", false, 2*time.Minute, time.Minute),
		contract.OverdueHealth:   contract.MoveHealth("", false, 2*time.Minute+1, time.Minute),
		contract.PausedHealth:    contract.MoveHealth("", true, time.Hour, time.Minute),
		contract.AttentionHealth: contract.MoveHealth("it differs", true, time.Hour, time.Minute),
	} {
		require.Equal(t, want, got)
	}
	require.False(t, contract.Overdue(time.Hour, 0), "nothing is known")
}

// TestWhyNamesWhatHoldsAMove, the most telling first.
func TestWhyNamesWhatHoldsAMove(t *testing.T) {
	t.Parallel()

	require.Equal(t, "it differs", contract.Status{Attention: "it differs", WaitingFor: "an operator"}.Why(nil))
	require.Equal(t, "room", contract.Status{WaitingFor: "room"}.Why(&contract.Progress{Limit: "the target"}))
	require.Equal(t, "the target", contract.Status{}.Why(&contract.Progress{Limit: "the target", Pace: "catching up"}))
	require.Equal(t, "it is at work, 50 % done", contract.Status{}.Why(&contract.Progress{Bytes: 5, BytesTotal: 10}))
	require.Equal(t, "it is paused", contract.Status{Paused: true}.Why(nil))
	require.Contains(t, contract.Status{}.Why(nil), "no worker")
}

// TestPausedMoveIsResumed: what helps a phase does not help one that somebody paused.
func TestPausedMoveIsResumed(t *testing.T) {
	t.Parallel()

	s := contract.Status{Phase: chunk.Importing}
	require.Equal(t, contract.StepRemedy(chunk.Importing), s.Remedy())
	s.Paused = true
	require.Contains(t, s.Remedy(), "drover migrate resume")
}
