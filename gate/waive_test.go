package gate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
	"drover/gate"
)

// TestWaiverPassesWhatPeopleLimit: a check past a limit that somebody set may be
// waived; one that could not be measured, and one that keeps data safe, may not.
func TestWaiverPassesWhatPeopleLimit(t *testing.T) {
	t.Parallel()

	set := gate.Set{Shard: "b", Primary: "b1", Dated: true, Members: []gate.Member{{Host: "b1"}, {Host: "b2", Secondary: true, Lag: time.Hour}}}
	all := func() []contract.Check {
		return []contract.Check{
			gate.Lag(limits.Lag, time.Hour, "marker", nil),
			gate.Pace(limits.Latency, gate.Latency{Found: true, Count: 1, P99: time.Hour}, nil),
			gate.Election(limits.ElectionQuiet, set, nil),
			gate.Secondaries(limits.SecondaryLag, set, nil),
			gate.Open(contract.OpenWork{Cursors: 1, Oldest: contract.Duration(time.Hour)}, time.Second, nil),
			gate.Validation(gate.Findings{Mismatches: 1}, nil),
			gate.Leases([]string{"b is leased by repair/3"}, nil),
			gate.Answers([]string{"b3 of b does not answer"}, nil, nil),
			gate.IndexBuilds([]string{"b builds x.y"}, nil),
			gate.Writable(0, errDown),
			gate.Return(gate.WayBack{}, nil),
			gate.Beside([]string{"app"}, nil),
		}
	}
	waivers := map[string]string{}
	for _, c := range all() {
		require.False(t, c.OK, c.Name)
		waivers[c.Name] = "waived by anna"
	}
	var passed []string
	for _, c := range gate.Waive(all(), waivers) {
		require.Equal(t, c.OK, c.Waived != "", c.Name)
		require.Equal(t, c.OK, c.LimitSource != "protocol", c.Name)
		if c.OK {
			passed = append(passed, c.Name)
		}
	}
	require.Equal(t, gate.Waivable(), passed)

	unknown := gate.Waive([]contract.Check{gate.Lag(limits.Lag, 0, "marker", errDown)}, waivers)
	require.False(t, unknown[0].OK, "what is not known is not waived")
	notConverging := gate.Pace(limits.Latency, gate.Latency{Found: true, NotConverging: "more is written than applied"}, nil)
	require.False(t, gate.Waive([]contract.Check{notConverging}, waivers)[0].OK)
	good := gate.Waive([]contract.Check{gate.Lag(limits.Lag, 0, "marker", nil)}, waivers)
	require.Empty(t, good[0].Waived, "it needs no waiver")
}
