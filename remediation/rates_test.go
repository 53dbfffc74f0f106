package remediation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRatesHoldTheRest: the worst health first, one of a domain, so many at once, a
// weight within an hour, and nothing that has only just become unhealthy.
func TestRatesHoldTheRest(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	candidate := func(shard, domain string, tolerance int, ago time.Duration, cost int) Candidate {
		return Candidate{Shard: shard, Domain: domain, Health: Health{Writable: true, Tolerance: tolerance}, Since: now.Add(-ago), Cost: cost}
	}
	names := func(all []Candidate) (n []string) {
		for _, c := range all {
			n = append(n, c.Shard)
		}
		return n
	}
	r := Rates{AtOnce: 3, PerHour: 100, Settle: 5 * time.Minute}
	all := []Candidate{
		candidate("a", "1", 1, time.Hour, 10), candidate("b", "1", 0, time.Hour, 37), candidate("c", "2", 1, 2*time.Hour, 37),
		candidate("d", "3", 1, time.Minute, 1), candidate("e", "4", 1, time.Hour, 37), candidate("f", "5", 1, time.Hour, 1),
	}
	admitted, held := r.Admit(now, all, nil)
	require.Equal(t, []string{"b", "c", "f"}, names(admitted))
	require.Equal(t, []Held{{"a", HeldDomain}, {"e", HeldPerHour}, {"d", HeldSettle}}, held)

	running := []Started{{Shard: "b", Domain: "1", At: now.Add(-2 * time.Hour), Cost: 37}, {Shard: "x", Domain: "2", At: now.Add(-time.Minute), Cost: 90, Ended: true}}
	admitted, held = r.Admit(now, all, running)
	require.Equal(t, []string{"f"}, names(admitted), "90 of the hour are used up")
	require.Contains(t, held, Held{"b", HeldRunning})
	require.Contains(t, held, Held{"a", HeldDomain})

	admitted, _ = Rates{AtOnce: 1, PerHour: 1}.Admit(now, all[1:2], nil)
	require.Equal(t, []string{"b"}, names(admitted), "a plan that is dearer than an hour's budget starts in an unused hour")
	undeclared := []Candidate{candidate("a", "", 1, time.Hour, 1), candidate("b", "", 1, time.Hour, 1)}
	admitted, _ = r.Admit(now, undeclared, nil)
	require.Len(t, admitted, 1, "shards that name no domain share one")
	require.Error(t, Rates{PerHour: 1}.Validate())
	require.NoError(t, DefaultRates.Validate())
}

// TestCourse: plans that grow, and plans without end.
func TestCourse(t *testing.T) {
	t.Parallel()

	var c Course
	require.Equal(t, Execute, c.Planned(3, 39, true))
	c.Performed(1)
	require.Equal(t, Execute, c.Planned(2, 38, true), "what was left, planned again, has not grown")
	require.Zero(t, c.Grown)
	for range maxGrown - 1 {
		require.Equal(t, Execute, c.Planned(2, c.Left+1, true))
	}
	require.Equal(t, PlansGrow, c.Planned(2, c.Left+1, true))
	require.Equal(t, Finished, c.Planned(0, 0, true))
	require.Equal(t, Best, c.Planned(0, 0, false))

	c = Course{}
	for range maxPlans {
		require.Equal(t, Execute, c.Planned(1, 1, true))
	}
	require.Equal(t, TooManyPlans, c.Planned(1, 1, true))
}

// TestMachinesMeetTheLayout: slots find their machines even where the first choice
// would leave one out; what is missing is named.
func TestMachinesMeetTheLayout(t *testing.T) {
	t.Parallel()

	l := Layout{Name: "l", Slots: []Slot{{Zone: "a", Votes: 1, Priority: 1}, {Zone: "a", Instance: "big", Votes: 1, Priority: 1}, {Zone: "b", Votes: 1, Priority: 1}}}
	machines := []Machine{{Host: "1", Zone: "a", Instance: "big"}, {Host: "2", Zone: "a", Instance: "small"}, {Host: "3", Zone: "b"}}
	require.NoError(t, l.MetBy(machines))
	require.ErrorContains(t, l.MetBy(machines[:2]), "slots[2].zone: no machine")
	machines[0].Gone = true
	require.ErrorContains(t, l.MetBy(machines), "slots[1].zone: no machine of kind \"big\" in zone \"a\"")
}
