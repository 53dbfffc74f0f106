package gate_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound makes a limit from a variable.
func bound(name string, d time.Duration) gate.Bound {
	return gate.Bound{Name: name, Value: d, Source: "DROVER_" + strings.ToUpper(name)}
}

var errDown = errors.New("it is down")

// set is a replica set of three that has been calm for an hour.
func set(change func(*gate.Set)) gate.Set {
	s := gate.Set{Shard: "b", Primary: "b1", Term: 7, Stable: time.Hour, Dated: true, Members: []gate.Member{
		{Host: "b1"}, {Host: "b2", Secondary: true, Lag: time.Second}, {Host: "b3", Secondary: true},
	}}
	change(&s)
	return s
}

// TestEachCheckSaysValueLimitAndSource looks at every check on both sides of its
// limit: what it says, as text and as a number, and whose limit it is.
func TestEachCheckSaysValueLimitAndSource(t *testing.T) {
	t.Parallel()
	lag, pace := bound("gate-lag", 200*time.Millisecond), bound("gate-latency", 300*time.Millisecond)
	quiet, behind := bound("gate-election-quiet", 5*time.Minute), bound("gate-secondary-lag", 2*time.Second)
	same := func(*gate.Set) {}
	for name, c := range map[string]struct {
		check    contract.Check
		ok       bool
		value    string
		measured float64
		source   string
	}{
		"lag at the limit": {gate.Lag(lag, 200*time.Millisecond, "marker", nil), true, "200ms", 200, lag.Source},
		"lag above":        {gate.Lag(lag, 201*time.Millisecond, "marker", nil), false, "201ms", 201, lag.Source},
		"lag unknown":      {gate.Lag(lag, 0, "marker", errDown), false, "it is down", 0, lag.Source},

		"latency at the limit":   {gate.Pace(pace, gate.Latency{Found: true, Count: 9, P99: 300 * time.Millisecond}, nil), true, "p99 300ms of 9 changes", 300, pace.Source},
		"latency above":          {gate.Pace(pace, gate.Latency{Found: true, Count: 9, P99: 400 * time.Millisecond}, nil), false, "p99 400ms of 9 changes", 400, pace.Source},
		"not converging":         {gate.Pace(pace, gate.Latency{Found: true, Count: 9, P99: time.Millisecond, NotConverging: "not converging: 5000 records behind"}, nil), false, "not converging: 5000 records behind", 0, pace.Source},
		"latency of nothing":     {gate.Pace(pace, gate.Latency{Found: true}, nil), false, "not caught up", 0, pace.Source},
		"latency of others":      {gate.Pace(pace, gate.Latency{Count: 9}, nil), false, "said nothing", 0, pace.Source},
		"latency of long ago":    {gate.Pace(pace, gate.Latency{Found: true, Count: 9, Age: 6 * time.Second}, nil), false, "said nothing for 6s", 0, pace.Source},
		"latency cannot be read": {gate.Pace(pace, gate.Latency{Found: true, Count: 9}, errDown), false, "it is down", 0, pace.Source},

		"validated":   {gate.Validation(gate.Findings{}, nil), true, "0 mismatches", 0, "protocol"},
		"mismatch":    {gate.Validation(gate.Findings{Mismatches: 2}, nil), false, "2 mismatches", 2, "protocol"},
		"quarantined": {gate.Validation(gate.Findings{Quarantined: 1}, nil), false, "1 quarantined", 1, "protocol"},
		"straggler":   {gate.Validation(gate.Findings{Stragglers: 1}, nil), false, "1 stragglers", 1, "protocol"},
		"unverified":  {gate.Validation(gate.Findings{Unverified: "3 pending"}, nil), false, "3 pending", 1, "protocol"},
		"unread":      {gate.Validation(gate.Findings{}, errDown), false, "it is down", 0, "protocol"},

		"calm":           {gate.Election(quiet, set(same), nil), true, "b1 is primary for 1h0m0s, term 7", 3_600_000, quiet.Source},
		"elected":        {gate.Election(quiet, set(func(s *gate.Set) { s.Stable = time.Minute }), nil), false, "b1 is primary for 1m0s", 60_000, quiet.Source},
		"undated":        {gate.Election(quiet, set(func(s *gate.Set) { s.Dated = false }), nil), false, "does not say", 0, quiet.Source},
		"alone":          {gate.Election(quiet, set(func(s *gate.Set) { s.Members, s.Dated = s.Members[:1], false }), nil), true, "not applicable: one member", 0, quiet.Source},
		"no primary":     {gate.Election(quiet, gate.Set{}, errDown), false, "it is down", 0, quiet.Source},
		"near":           {gate.Secondaries(behind, set(same), nil), true, "b2 is 1s behind", 1000, behind.Source},
		"behind":         {gate.Secondaries(behind, set(func(s *gate.Set) { s.Members[2].Lag = 3 * time.Second }), nil), false, "b3 is 3s behind", 3000, behind.Source},
		"delayed":        {gate.Secondaries(behind, set(func(s *gate.Set) { s.Members[2].Lag, s.Members[2].Delayed = time.Hour, true }), nil), true, "b2 is 1s", 1000, behind.Source},
		"no secondary":   {gate.Secondaries(behind, set(func(s *gate.Set) { s.Members[1].Secondary, s.Members[2].Secondary = false, false }), nil), false, "no secondary", 0, behind.Source},
		"only a primary": {gate.Secondaries(behind, set(func(s *gate.Set) { s.Members = s.Members[:1] }), nil), true, "not applicable: one member", 0, behind.Source},

		"no lease": {gate.Leases(nil, nil), true, "clean", 0, "protocol"},
		"leased":   {gate.Leases([]string{"b is leased by repair/3"}, nil), false, "b is leased by repair/3", 1, "protocol"},
		"answers":  {gate.Answers(nil, nil, nil), true, "clean", 0, "protocol"},
		"owed":     {gate.Answers(nil, []string{"b3 of b (down)"}, nil), true, "owed: b3 of b (down)", 0, "protocol"},
		"silent":   {gate.Answers([]string{"b3 of b does not answer"}, nil, nil), false, "b3 of b does not answer", 1, "protocol"},
		"tried":    {gate.Trials("a: tried, b: tried", nil), true, "a: tried, b: tried", 0, "protocol"},
		"untried":  {gate.Trials("a: tried", errDown), false, "it is down", 0, "protocol"},
		"no trial": {gate.Trials("", nil), true, "not applicable: nothing is tried", 0, "protocol"},
		"builds":   {gate.IndexBuilds([]string{"b builds x.y"}, nil), false, "b builds x.y", 1, "protocol"},
		"written":  {gate.Writable(3*time.Millisecond, nil), true, "written in 3ms", 3, "protocol"},
		"readonly": {gate.Writable(0, errDown), false, "it is down", 0, "protocol"},

		"way back":     {gate.Return(wayBack(func(*gate.WayBack) {}), nil), true, "capture of b saved 1s ago", 0, "protocol"},
		"not captured": {gate.Return(wayBack(func(w *gate.WayBack) { w.Captured = false }), nil), false, "b was never captured", 1, "protocol"},
		"capture died": {gate.Return(wayBack(func(w *gate.WayBack) { w.Silence = time.Minute }), nil), false, "has saved nothing for 1m0s", 1, "protocol"},
		"partitions":   {gate.Return(wayBack(func(w *gate.WayBack) { w.Partitions = false }), nil), false, "partitions", 1, "protocol"},
		"dropping":     {gate.Return(wayBack(func(w *gate.WayBack) { w.OldState = "dropping" }), nil), false, "the old placement is dropping", 1, "protocol"},
		"old is sick":  {gate.Return(wayBack(func(w *gate.WayBack) { w.OldHealthy = false }), nil), false, "has no primary", 1, "protocol"},
		"unknown back": {gate.Return(wayBack(func(*gate.WayBack) {}), errDown), false, "it is down", 0, "protocol"},

		"open, shown":      {gate.Open(contract.OpenWork{Transactions: 1, Oldest: contract.Duration(time.Minute)}, 0, nil), true, "1 transactions, 0 cursors, the oldest 1m0s", 60_000, "policy"},
		"open, waited for": {gate.Open(contract.OpenWork{Cursors: 1, Oldest: contract.Duration(time.Minute)}, time.Second, nil), false, "1 cursors", 60_000, "policy"},
		"open but young":   {gate.Open(contract.OpenWork{Cursors: 1, Oldest: contract.Duration(time.Second)}, time.Second, nil), true, "1 cursors", 1000, "policy"},
		"unlisted, shown":  {gate.Open(contract.OpenWork{}, 0, errDown), true, "it is down", 0, "policy"},
		"unlisted, waited": {gate.Open(contract.OpenWork{}, time.Second, errDown), false, "it is down", 0, "policy"},
	} {
		require.Equal(t, c.ok, c.check.OK, name)
		require.Contains(t, c.check.Value, c.value, name)
		require.InDelta(t, c.measured, c.check.Measured, 0.001, name)
		require.Equal(t, c.source, c.check.LimitSource, name)
		require.NotEmpty(t, c.check.Limit, name)
		require.NotEmpty(t, c.check.Source, name)
		require.NotEmpty(t, c.check.Hint, name)
	}
}

// wayBack is a way back that is possible.
func wayBack(change func(*gate.WayBack)) gate.WayBack {
	w := gate.WayBack{Shard: "b", Captured: true, Silence: time.Second, Partitions: true, OldState: "live", OldHealthy: true}
	change(&w)
	return w
}

var limits = gate.Limits{
	Lag: bound("gate-lag", 200*time.Millisecond), Latency: bound("gate-latency", 300*time.Millisecond),
	ElectionQuiet: bound("gate-election-quiet", 5*time.Minute), SecondaryLag: bound("gate-secondary-lag", 2*time.Second),
	FenceDeadline: gate.Bound{Name: "fence-deadline", Value: time.Second, Source: "default"},
}

// TestRefusalSaysWhatWouldMakeItPass: one check refuses, and the report names it
// with value, limit, whose limit it is and the way out.
func TestRefusalSaysWhatWouldMakeItPass(t *testing.T) {
	t.Parallel()
	good := gate.Writable(time.Millisecond, nil)
	r := gate.Report(time.Now(), limits, nil, good, gate.Lag(limits.Lag, time.Second, "marker", nil))
	require.False(t, r.Go)
	require.Equal(t, "(1) lag is 1s, limit at most 200ms (DROVER_GATE-LAG): replication goes on and catches up by itself; "+
		"a target that cannot keep up needs fewer moves at once or less load, or a higher --gate-lag", r.Refusals())
	require.Contains(t, r.Limits, contract.Limit{Name: "fence-deadline", Value: "1s", Source: "default"})

	r = gate.Report(time.Now(), limits, nil, good)
	require.True(t, r.Go)
	require.Empty(t, r.Refusals())
}

// TestMetricsShowTheNewestReport and forget it: a chunk that has gone through is
// not shown for ever.
func TestMetricsShowTheNewestReport(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := gate.NewMetrics(registry)
	m.Note("d/0001", gate.Report(time.Now(), limits, nil, gate.Lag(limits.Lag, time.Second, "marker", nil)))
	want := `
# HELP drover_gate_check_limit What the check allows, in the unit of its value.
# TYPE drover_gate_check_limit gauge
drover_gate_check_limit{check="lag",chunk_id="d/0001"} 200
# HELP drover_gate_check_ok Whether a check of the gate passed when it was last looked at.
# TYPE drover_gate_check_ok gauge
drover_gate_check_ok{check="lag",chunk_id="d/0001"} 0
# HELP drover_gate_check_value What the check measured, milliseconds or a number.
# TYPE drover_gate_check_value gauge
drover_gate_check_value{check="lag",chunk_id="d/0001"} 1000
# HELP drover_gate_refusals_total Reports of the gate in which a check did not pass.
# TYPE drover_gate_refusals_total counter
drover_gate_refusals_total{check="lag"} 1
`
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)))

	m.Note("d/0002", gate.Report(time.Now().Add(-2*time.Minute), limits, nil, gate.Lag(limits.Lag, 0, "marker", nil)))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)), "an old report is not shown")
}

// TestPlanNamesWhatASwitchWouldTouch: the words of a dry run are the names that
// the protocol would use.
func TestPlanNamesWhatASwitchWouldTouch(t *testing.T) {
	t.Parallel()
	old := chunk.Placement{ID: 1, Chunk: "d/0001", Shard: "a", Database: "d_0001_p1"}
	f := gate.Facts{
		Lead: 7, Direction: 3, Last: 5, Busy: 2, Catalog: 9, Token: 11, Grace: 150 * time.Millisecond, Proxies: []string{"p1"},
		Legs:    []gate.Leg{{Migration: 7, From: old, To: chunk.Placement{ID: 2, Chunk: "d/0001", Shard: "b", Database: "d_0001_p2"}}},
		Sources: []gate.Source{{Placement: old, Members: []string{"a1", "a2"}, Primary: "a1", Term: 4}},
	}
	text := planText(t, f)
	for _, want := range []string{
		"leases of a, b", "roles w_p1_a6 and r_p1_a6 on a", "w_p2_a6", "deadline 1s after fencing (fence-deadline, default)", "members a1, a2", "term 4",
		"1 live proxies: p1, each has to say that it is clean", "does not list", "drained/m7/a6/p1/r1", "direction 3", "final/m7/a6/p1/r1", "2 busy documents",
		"d/0001: placement 1 on a becomes placement 2 on b", "token above 11", "catalog version 9", "open/m7/a6/p2/r1", "role a_p2_m7_d3 goes",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "150ms", "where the server lists nothing there is no grace")
	f.Sources[0].Can = chunk.Capabilities{ListsOperations: true, InvalidatesUserCache: true}
	text = planText(t, f)
	for _, want := range []string{"invalidateUserCache on each", "by the server's own list of operations and transactions", "1 live proxies: p1, waited for 150ms"} {
		require.Contains(t, text, want)
	}
}

// planText is a plan as one text.
func planText(t *testing.T, f gate.Facts) string {
	t.Helper()
	steps := gate.Plan(f, limits)
	require.Len(t, steps, 8)
	var text strings.Builder
	for _, s := range steps {
		text.WriteString(s.Step + " on " + s.On + ": " + strings.Join(s.Values, "; ") + "\n")
	}
	return text.String()
}

// TestPlanNamesEveryPlacement of a split or merge: all of them switch at once.
func TestPlanNamesEveryPlacement(t *testing.T) {
	t.Parallel()
	p := func(id chunk.PlacementID, of chunk.ID, shard string) chunk.Placement {
		return chunk.Placement{ID: id, Chunk: of, Shard: shard, Database: "d" + string(of) + "_p" + fmt.Sprint(id)}
	}
	one, two, left, right := p(1, "d/0001", "a"), p(2, "d/0002", "b"), p(3, "d/0003", "c"), p(4, "d/0004", "a")
	text := planText(t, gate.Facts{
		Lead: 7, Direction: 3, Last: 5,
		Legs: []gate.Leg{{Migration: 7, From: one, To: left}, {Migration: 8, From: one, To: right}, {Migration: 9, From: two, To: right}},
		Sources: []gate.Source{
			{Placement: one, Members: []string{"a1"}, Primary: "a1", Can: chunk.Capabilities{ListsOperations: true}},
			{Placement: two, Members: []string{"b1"}, Primary: "b1"},
		},
	})
	for _, want := range []string{
		"leases of a, b, c", "w_p1_a6", "w_p2_a6", "w_p3_a6", "w_p4_a6", "fence on a, b:", "members a1", "members b1", "roles r_p2_a* older than 6",
		"each has to say that it is clean", "by the server's own list", "drained/m7/a6/p2/r1", "final/m7/a6/p1/r1", "final/m7/a6/p2/r1", "catch up on a, c:",
		"d/0002: placement 2 on b is left", "d/0004: placement 4 on a serves", "open/m7/a6/p3/r1", "open/m7/a6/p4/r1",
		"role a_p3_m7_d3 goes", "role a_p4_m8_d3 goes", "role a_p4_m9_d3 goes",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 1, strings.Count(text, "open/m7/a6/p4/r1"), "each placement once")
}

// TestLegsAreJudgedTogether: a split or merge switches at once, so the worst of each
// check decides, and what is open is counted on every source.
func TestLegsAreJudgedTogether(t *testing.T) {
	t.Parallel()
	calm := func(d time.Duration) contract.Check {
		return gate.Election(limits.ElectionQuiet, set(func(s *gate.Set) { s.Stable = d }), nil)
	}
	alone := gate.Election(limits.ElectionQuiet, set(func(s *gate.Set) { s.Members = s.Members[:1] }), nil)
	leg := func(lag, quiet time.Duration, open *contract.OpenWork, more ...contract.Check) contract.GateReport {
		r := gate.Report(time.Now(), limits, open, append(more, gate.Lag(limits.Lag, lag, "marker", nil), calm(quiet))...)
		r.Before = &contract.Traffic{Proxies: 2, Requests: 10, Errors: 1, P50MS: 1, P99MS: float64(lag.Milliseconds())}
		return r
	}
	items := func(ages ...time.Duration) *contract.OpenWork {
		w := &contract.OpenWork{Way: "listed", Cursors: len(ages)}
		for _, age := range ages {
			w.Oldest = max(w.Oldest, contract.Duration(age))
			w.Items = append(w.Items, contract.OpenItem{Kind: "cursor", Age: contract.Duration(age)})
		}
		return w
	}
	r := gate.Together([]contract.GateReport{
		leg(time.Millisecond, time.Hour, items(time.Second, time.Millisecond)),
		leg(3*time.Millisecond, 10*time.Minute, nil, gate.Beside(nil, nil)),
		leg(2*time.Millisecond, 2*time.Hour, items(time.Minute)),
	})
	require.True(t, r.Go)
	require.Len(t, r.Checks, 3, "one that only some legs have counts too")
	byName := func(r contract.GateReport, name string) contract.Check {
		n := slices.IndexFunc(r.Checks, func(c contract.Check) bool { return c.Name == name })
		require.GreaterOrEqual(t, n, 0)
		return r.Checks[n]
	}
	require.InDelta(t, 3, byName(r, "lag").Measured, 0.001, "the longest lag")
	require.InDelta(t, 600_000, byName(r, "election").Measured, 0.001, "the youngest primary")
	require.Equal(t, 3, r.Open.Cursors)
	require.EqualValues(t, time.Minute, r.Open.Items[0].Age, "the oldest first")
	require.Equal(t, contract.Traffic{Proxies: 2, Requests: 30, Errors: 3, P50MS: 1, P99MS: 3}, *r.Before)

	r = gate.Together([]contract.GateReport{leg(time.Millisecond, time.Hour, nil), leg(time.Second, time.Hour, nil), leg(time.Millisecond, time.Hour, nil)})
	require.False(t, r.Go)
	require.Contains(t, r.Refusals(), "(1) lag is 1s")

	both := func(checks ...contract.Check) contract.Check {
		var all []contract.GateReport
		for _, c := range checks {
			all = append(all, gate.Report(time.Now(), limits, nil, c))
		}
		return gate.Together(all).Checks[0]
	}
	require.Empty(t, both(alone, calm(time.Hour)).Skipped, "what was measured says more than what does not apply")
	waived := calm(time.Minute)
	waived.OK, waived.Waived = true, "by ann"
	require.Equal(t, "by ann", both(waived, calm(time.Hour)).Waived)
	require.False(t, both(calm(time.Minute), waived).OK)
}
