package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
)

// lines joins rows as a person reads them.
func lines(rows [][]string) string {
	var b strings.Builder
	for _, r := range rows {
		b.WriteString(strings.Join(r, " | ") + "\n")
	}
	return b.String()
}

// TestGateIsShownWithItsWayOut: each check with value, limit and source; what
// refuses says what would make it pass.
func TestGateIsShownWithItsWayOut(t *testing.T) {
	t.Parallel()
	got := lines(gateRows(contract.GateReport{
		Checks: []contract.Check{
			{Number: 1, Name: "lag", OK: true, Value: "3ms", Limit: "at most 200ms", LimitSource: "default", Source: "a marker"},
			{Number: 4, Name: "election", OK: true, Skipped: "one member", Value: "not applicable: one member", Limit: "none for 5m0s", LimitSource: "flag", Source: "b"},
			{Number: 9, Name: "callers", OK: true, Value: "shortest 400ms (u/shop)", Limit: "shown only; a fence lasts at most 1s", LimitSource: "default", Source: "the proxies"},
			{Number: 5, Name: "members", Value: "b3 does not answer", Limit: "all", LimitSource: "protocol", Source: "each", Hint: "bring it back"},
		},
		Limits: []contract.Limit{{Name: "fence-deadline", Value: "1s", Source: "DROVER_FENCE_DEADLINE"}},
		Open:   &contract.OpenWork{Items: []contract.OpenItem{{Kind: "cursor", Age: contract.Duration(3 * time.Second), Where: "h/7"}}},
	}))
	for _, want := range []string{
		"(1) lag | ok | 3ms | at most 200ms | default | a marker", "(4) election | - | not applicable: one member", "(5) members | REFUSES | b3 does not answer",
		"(9) callers | ok | shortest 400ms (u/shop) | shown only; a fence lasts at most 1s",
		"fence-deadline |  |  | 1s | DROVER_FENCE_DEADLINE", "open cursor |  | 3s |  |  | h/7", "to pass members | bring it back",
	} {
		require.Contains(t, got, want)
	}
}

// TestTimelineTellsEachStepsShare: by the row, and by the coordinator's clock.
func TestTimelineTellsEachStepsShare(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	steps := []contract.TimelineMark{{Step: "fencing", AtUS: 2000}, {Step: "proxies_clean", AtUS: 67_500, Note: "silent [p2: silent]"}, {Step: "open", AtUS: 70_000}}
	got := lines(timelineRows([]timelineJSON{{
		Attempt: 6, From: "a", To: "b", State: chunk.AttemptDone,
		States: []metadata.Moment{{State: chunk.Fencing, At: at}, {State: chunk.Open, At: at.Add(71 * time.Millisecond)}}, Steps: steps,
	}}))
	for _, want := range []string{
		"attempt 6 | a to b | done", "  open | 00:00:00.071 | +71.0 ms", "    fencing | 2.0 ms | +2.0 ms", "    proxies_clean | 67.5 ms | +65.5 ms | silent [p2: silent]",
	} {
		require.Contains(t, got, want)
	}
	require.Equal(t, "proxies_clean 65.5 ms, open 2.5 ms, fencing 2.0 ms", slowest(append(steps, contract.TimelineMark{Step: "row:fencing", AtUS: 900_000})))
	require.Equal(t, "published, window 70.0 ms (longest: proxies_clean 65.5 ms, open 2.5 ms, fencing 2.0 ms)",
		switchText(contract.SwitchResult{Published: true, WindowMS: 70, Timeline: steps}))
}
