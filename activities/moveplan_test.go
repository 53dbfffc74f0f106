package activities

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
)

// TestRetentionMustOutlastWhatNeedsIt: Kafka or the archive, whichever keeps longer.
func TestRetentionMustOutlastWhatNeedsIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kafka, archive time.Duration
		ok             bool
	}{
		"both":              {48 * time.Hour, 48 * time.Hour, true},
		"the archive":       {time.Hour, 48 * time.Hour, true},
		"kafka":             {48 * time.Hour, time.Hour, true},
		"archive for ever":  {time.Hour, 0, true},
		"kafka for ever":    {0, time.Hour, true},
		"neither":           {time.Hour, 2 * time.Hour, false},
		"just not any more": {time.Hour, 24*time.Hour - 1, false},
	} {
		text, err := outlasts("Kafka keeps it", tc.kafka, tc.archive, 24*time.Hour, "the burn-in")
		require.Equal(t, tc.ok, err == nil, name)
		if err != nil {
			require.True(t, failure.HasCode(err, "log.short_retention"), name)
			text = err.Error()
		}
		require.Contains(t, text, "needed for 24h0m0s by the burn-in", name)
	}
}

// TestPlanTellsRefusalsFromSilence: what cannot be asked is named as such and keeps
// nothing else from being asked.
func TestPlanTellsRefusalsFromSilence(t *testing.T) {
	t.Parallel()
	p := &movePlanner{}
	require.True(t, p.ask(t.Context(), "a", func(context.Context) (string, error) { return "fine", nil }))
	require.False(t, p.ask(t.Context(), "b", func(context.Context) (string, error) {
		return "", failure.New(failure.Invalid, "x.y", "no room").WithHint("make some")
	}))
	require.False(t, p.ask(t.Context(), "c", func(context.Context) (string, error) { return "", errors.New("connection refused") }))
	require.False(t, p.ask(t.Context(), "d", func(context.Context) (string, error) {
		return "", failure.New(failure.Transient, "shard.unreachable", "down").WithHint("start it")
	}))
	require.Equal(t, []contract.PlanCheck{
		{Name: "a", Verdict: contract.PlanGood, Value: "fine"},
		{Name: "b", Verdict: contract.PlanRefused, Value: "x.y: no room", Hint: "make some"},
		{Name: "c", Verdict: contract.PlanUnknown, Value: "connection refused", Hint: "it could not be asked; mend that, or the move may be refused"},
		{Name: "d", Verdict: contract.PlanUnknown, Value: "shard.unreachable: down", Hint: "start it"},
	}, p.plan.Checks)
}

// TestPlanOfTimes rests on what was measured, and says so where nothing was.
func TestPlanOfTimes(t *testing.T) {
	t.Parallel()
	plan := func(rates map[metadata.RateKind]metadata.Rate, writes float64) contract.MovePlan {
		p := &movePlanner{rates: rates}
		p.plan.To, p.plan.Writes, p.plan.Apply = "b", writes, rates[metadata.ApplyRate].PerSecond
		p.in.To = "b"
		p.plan.Collections = []contract.PlannedCollection{{Bytes: 100 << 20, Import: contract.Duration(4 * time.Second)}, {Bytes: 20 << 20, Import: contract.Duration(time.Second)}}
		p.times(t.Context())
		return p.plan
	}
	unknown := plan(nil, 10)
	require.Equal(t, contract.Duration(17*time.Second), unknown.Import)
	require.Contains(t, unknown.Basis, "no import to b was measured yet")
	require.Equal(t, contract.PlanLook, unknown.Checks[0].Verdict)

	measured := map[metadata.RateKind]metadata.Rate{metadata.LoadBytesRate: {PerSecond: 20 << 20}, metadata.ApplyRate: {PerSecond: 1010}}
	known := plan(measured, 10)
	require.Equal(t, contract.Duration(6*time.Second), known.Import)
	require.Contains(t, known.Basis, "imports to b reached 20.0 MiB/s")
	require.Equal(t, contract.Duration(100*time.Millisecond), known.CatchUp)
	require.Equal(t, contract.PlanRefused, plan(measured, 1010).Checks[0].Verdict, "as much is written as is applied")
}
