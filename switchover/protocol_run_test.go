package switchover_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Scopes are explored one by one: all at once would be too many states to see them all.
var (
	failover    = scope{name: "one attempt, a failover", attempts: 1, writes: 2, watchdogs: 1, appliers: 1, failover: true}
	twins       = scope{name: "one attempt, two watchdogs, two appliers", attempts: 1, writes: 1, watchdogs: 2, appliers: 2}
	twoAttempts = scope{name: "two attempts", attempts: 2, writes: 1, watchdogs: 1, appliers: 1}
	zombies     = scope{name: "two attempts, two watchdogs, no lanes", attempts: 2, watchdogs: 2}
	stragglers  = scope{name: "one attempt, a failover at any time", attempts: 1, writes: 1, watchdogs: 1, appliers: 1, failover: true, straggle: true}
	comeBack    = scope{name: "one attempt, a proxy that comes back", attempts: 1, writes: 2, watchdogs: 1, appliers: 1, comeBack: true}
	newcomer    = scope{name: "one attempt, a proxy that comes at any time", attempts: 1, writes: 2, watchdogs: 1, appliers: 1, newcomer: true}
	forgetful   = scope{name: "a metadata that forgets", attempts: 1, writes: 1, watchdogs: 2, appliers: 1, forget: true}
)

// safeguards are removed one at a time; the model must fail without each, in the
// scope that has what it guards against.
var safeguards = []struct {
	without without
	in      scope
}{
	{"drain", failover},
	{"write barrier", failover},
	{"catch-up", failover},
	{"read close", failover},
	{"read barrier", failover},
	{"final marker", failover},
	{"final marker behind the drain", failover},
	{"term check", failover},
	{"term check behind the final marker", failover},
	{"fence on the shard", failover},
	{"publish by compare-and-set", twins},
	{"way back by compare-and-set", twins},
	{"conditional checkpoint", twins},
	{"grants by generation", twins},
	{"lane closing", stragglers},
	{"fence document", zombies},
	{"open marker as the start", twoAttempts},
	{"a name for each run", comeBack},
	{"a run shown before its first request", comeBack},
	{"proxies counted behind the drop", newcomer},
	{"open record before the grant", forgetful},
	{"open record on the way back", forgetful},
}

// explore walks through every state of a scope, breadth first, until one violates an
// invariant. It gives the number of states and the steps to the violation.
func explore(s scope, w without) (states int, violation string) {
	x := explorer{scope: s, without: w}
	start := first(s)
	seen := map[model]struct{}{start: {}}
	front := []model{start}
	for len(front) > 0 {
		var next []model
		for i := range front {
			if v := x.violation(&front[i]); v != "" {
				return len(seen), v
			}
			all := x.successors(&front[i])
			if x.zombie != "" {
				return len(seen), x.zombie
			}
			for _, n := range all {
				n.normal()
				if _, ok := seen[n]; !ok {
					seen[n] = struct{}{}
					next = append(next, n)
				}
			}
		}
		front = next
	}
	return len(seen), ""
}

// normal puts actors that are alike into one order.
func (m *model) normal() {
	if a, b := m.watchdog[0], m.watchdog[1]; less(b, a) {
		m.watchdog[0], m.watchdog[1] = b, a
	}
	if a, b := m.applier[0], m.applier[1]; b.holds < a.holds || b.holds == a.holds && (b.index < a.index || b.index == a.index && b.epoch < a.epoch) {
		m.applier[0], m.applier[1] = b, a
	}
}

func less(a, b actorPC) bool {
	if a.pc != b.pc {
		return a.pc < b.pc
	}
	if a.attempt != b.attempt {
		return a.attempt < b.attempt
	}
	return a.saw < b.saw
}

func TestEveryOrderOfSteps(t *testing.T) {
	t.Parallel()

	total := 0
	for _, s := range []scope{failover, twins, twoAttempts, zombies, stragglers, comeBack, newcomer, forgetful} {
		n, v := explore(s, "")
		t.Logf("%s: %d states", s.name, n)
		require.Empty(t, v, s.name)
		total += n
	}
	t.Logf("%d states in all", total)
}

// A model that cannot fail proves nothing: without each safeguard it must.
func TestEverySafeguardIsNeeded(t *testing.T) {
	t.Parallel()

	for _, g := range safeguards {
		n, v := explore(g.in, g.without)
		require.NotEmpty(t, v, "without %s nothing fails in %d states of %s", g.without, n, g.in.name)
		t.Logf("without %s: %s (%s, %d states)", g.without, v, g.in.name, n)
	}
	t.Logf("%d safeguards removed, %d caught", len(safeguards), len(safeguards))
}
