package remediation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// set gives the healthy members of a layout, changed by edit.
func set(t testing.TB, l Layout, edit func(v *Vertex)) (*Planner, Vertex) {
	t.Helper()

	v := l.Healthy(Hosts)
	edit(&v)
	require.NoError(t, v.Validate())
	return planner(t, l), v
}

// plan plans and checks the plan.
func plan(t testing.TB, p *Planner, v Vertex) *Plan {
	t.Helper()

	made, err := p.Plan(v)
	require.NoError(t, err)
	requireSound(t, p, v, made)
	return made
}

// A node that is emptied while it votes has forgotten what it acknowledged: what
// a majority had acknowledged may be on a minority then. The vote goes first
// and comes back last.
func TestNodeDownIsRebuiltWithoutItsVote(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "3-abc-[2 1 1]"), func(v *Vertex) { v.Members[1].State = Down })
	made := plan(t, p, v)
	require.True(t, made.Full)
	require.Equal(t, []string{"set-priority h1", "take-vote h1", "rebuild h1", "give-vote h1", "set-priority h1"}, names(made))
	require.Equal(t, 37, made.Cost)
	require.Equal(t, "not fewer than 5: so many changes stand between the shard and its layout, and no operation makes two of them", made.Why)
	require.Contains(t, made.String(), "the copy is made from h2", "a secondary rather than the primary")
}

// A stalled primary answers, so nobody else stands for election, and takes no
// change of the configuration: only handing over helps.
func TestStalledPrimaryHandsOverFirst(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "3-abc-[2 1 1]"), func(v *Vertex) { v.Members[0].State = Stalled })
	made := plan(t, p, v)
	require.True(t, made.Full)
	require.Equal(t, []string{"step-down h0", "set-priority h0", "take-vote h0", "rebuild h0", "give-vote h0", "set-priority h0"}, names(made))
	end := made.End(v)
	require.Equal(t, "h0", end.Members[end.primary()].Host, "the wanted primary is back in office")
}

// A healthy primary of the highest priority would come back after a step-down:
// another's priority is raised before.
func TestPriorityBeforeStepDown(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[3 2 1]")
	p, v := set(t, l, func(v *Vertex) {
		v.Members[0].Instance = "old"
		v.Spares = []Spare{{Host: "s0", Zone: "a", Instance: "m"}}
	})
	require.ErrorIs(t, StepDown{"h0", "h1"}.Preconditions(v), WouldComeBack)
	made := plan(t, p, v)
	require.True(t, made.Full)
	require.Equal(t, "set-priority", made.Steps[0].Operation.Name())
	requireOrder(t, made, "take-vote h0", "replace h0", "give-vote s0", "set-priority s0")
}

// requireOrder wants the given operations in the given order, others between.
func requireOrder(t testing.TB, p *Plan, want ...string) {
	t.Helper()

	for _, n := range names(p) {
		if len(want) > 0 && n == want[0] {
			want = want[1:]
		}
	}
	require.Empty(t, want, "%s", p)
}

// What comes back by itself is waited for and not rebuilt.
func TestRecoveringMemberIsAwaited(t *testing.T) {
	t.Parallel()

	for _, s := range []State{Lagging, Recovering, Rebuilding} {
		p, v := set(t, layout(t, "3-abc-[1 1 1]"), func(v *Vertex) { v.Members[2].State = s })
		require.Equal(t, []string{"await h2"}, names(plan(t, p, v)), "%s", s)
	}
}

// Seven voters lose two zones' worth of one zone: five of seven tolerate one
// more; without the dead votes five of five tolerate two.
func TestLostZoneGivesItsVotesUp(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "7-aaabbcc-[1 1 1 1 1 1 1]"), func(v *Vertex) {
		v.Members[5].State, v.Members[6].State = Lost, Lost
	})
	made := plan(t, p, v)
	require.False(t, made.Full)
	require.Equal(t, 1, made.From.Tolerance)
	require.Equal(t, 2, made.To.Tolerance)
	require.Len(t, made.Steps, 4)
	requireOrder(t, made, "set-priority h5", "take-vote h5")
	requireOrder(t, made, "set-priority h6", "take-vote h6")
	require.Contains(t, made.Why, "no machine there")
}

// A zone is gone for good but a machine elsewhere is free: it stands in.
func TestSpareOfAnotherZoneStandsIn(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[2 1 1]")
	p, v := set(t, l, func(v *Vertex) {
		v.Members[2].State = Lost
		v.Spares = []Spare{{Host: "s0", Zone: "d", Instance: "m"}}
	})
	made := plan(t, p, v)
	require.False(t, made.Full)
	require.Equal(t, Health{Writable: true, Tolerance: 1, ZoneSafe: true, Copies: 3, Met: 2}, made.To)
	requireOrder(t, made, "set-priority h2", "take-vote h2", "replace h2", "give-vote s0")

	back := made.End(v)
	back.Spares = append(back.Spares, Spare{Host: "s1", Zone: "c", Instance: "m"})
	home := plan(t, p, back)
	require.True(t, home.Full, "when the zone is back the layout is met again")
	requireOrder(t, home, "take-vote s0", "replace s0", "give-vote s1", "set-priority s1")
}

// An arbiter's machine is too small for data, and nobody makes it a copy.
func TestArbiterStaysAnArbiter(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "psa"), func(v *Vertex) { v.Members[1].State = Lost })
	made := plan(t, p, v)
	require.Empty(t, made.Steps, "%s", made)
	require.Equal(t, 0, made.To.Tolerance)
}

// With an arbiter, a dead secondary's rebuild keeps primary and arbiter as the
// majority all the time.
func TestPrimaryAndArbiterCarryARebuild(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "psa"), func(v *Vertex) { v.Members[1].State = Down })
	made := plan(t, p, v)
	require.True(t, made.Full)
	require.Contains(t, made.String(), "the copy is made from h0", "from the primary, where no secondary is healthy")
}

// Without a majority nothing can be confirmed: a plan that pushed on would
// need force, which may roll acknowledged writes back.
func TestNoMajorityNeedsAPerson(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "3-abc-[1 1 1]"), func(v *Vertex) {
		v.Members[0].Primary = false
		v.Members[1].State, v.Members[2].State = Down, Lost
		v.Spares = []Spare{{Host: "s0", Zone: "c", Instance: "m"}}
	})
	made := plan(t, p, v)
	require.Empty(t, made.Steps)
	require.False(t, made.Full)
	require.Contains(t, made.Why, "a person must decide")
}

// One of the two that are missing comes back by itself; that restores the
// majority, and the rest follows.
func TestMajorityThatComesBack(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "3-abc-[1 1 1]"), func(v *Vertex) {
		v.Members[0].Primary = false
		v.Members[1].State, v.Members[2].State = Recovering, Down
	})
	made := plan(t, p, v)
	require.True(t, made.Full)
	require.Equal(t, "await h1", names(made)[0])
	require.Len(t, made.Steps, 6)
}

// A set between two elections has no primary and needs none but time.
func TestElectionThatIsDue(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "3-abc-[2 1 1]"), func(v *Vertex) { v.Members[0].Primary = false })
	made := plan(t, p, v)
	require.True(t, made.Full)
	require.Equal(t, []string{"await-election "}, names(made))
}

// Among members of equal priority the winner is told by what they are and not
// by their names or places, or sets that are alike would have unlike futures.
func TestHeirAmongEquals(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[1 1 1]")
	v := l.Healthy(Hosts)
	require.Equal(t, "a", v.Members[v.primary()].Zone)
	v.Members[0].Primary = false
	slices.Reverse(v.Members)
	require.Equal(t, "a", v.Members[v.heir()].Zone)
	v.makePrimary(0)
	require.Equal(t, 0, v.heir(), "nobody takes over from an equal")
	v.Members[0].State = Down
	require.Equal(t, "a", v.Members[v.heir()].Zone)
}

// A member in the wrong place leaves only after its replacement is there, and
// gives before it takes: the shard never tolerates less than it must.
func TestVotesAreGivenBeforeTheyAreTaken(t *testing.T) {
	t.Parallel()

	p, v := set(t, layout(t, "5-abcde-[1 1 1 1 1]"), func(v *Vertex) {
		v.Members[4].Votes, v.Members[4].Priority = 0, 0
		v.Members = append(v.Members, Member{Host: "x", Zone: "a", Instance: "m", Votes: 1, Priority: 0, OplogMB: 50_000})
	})
	made := plan(t, p, v)
	require.Equal(t, []string{"give-vote h4", "set-priority h4", "take-vote x", "remove x"}, names(made))
}

// A delayed member may be wanted without a vote; losing a voter does not make
// it one, or each majority would wait for its delay.
func TestDelayedMemberIsNoStandIn(t *testing.T) {
	t.Parallel()

	l := layout(t, "3+hidden+delayed")
	p, v := set(t, l, func(v *Vertex) { v.Members[1].State = Lost })
	made := plan(t, p, v)
	require.False(t, made.Full)
	require.Equal(t, 1, made.To.Tolerance)
	for _, m := range made.End(v).Members {
		require.False(t, m.Delay > 0 && m.Votes > 0, "%s", made)
	}
}

// A search that is cut off says so, and what it gives is sound all the same.
func TestSearchThatIsCutOff(t *testing.T) {
	t.Parallel()

	l := layout(t, "7-aaabbcc-[3 3 3 2 2 1 0]")
	p, err := NewPlanner(l, DefaultCosts, 5)
	require.NoError(t, err)
	v := l.Healthy(Hosts)
	for i := range v.Members {
		v.Members[i].OplogMB = 1000
	}
	made, err := p.Plan(v)
	require.NoError(t, err)
	require.False(t, made.Proven)
	require.Contains(t, made.Why, "cut off")
	made.Proven = true
	requireSound(t, p, v, made)
}

// Two layouts differ in weights only by what an operator says.
func TestCostsDecideAmongEqualPlans(t *testing.T) {
	t.Parallel()

	l := Layout{Name: "any", Slots: []Slot{slot("a", 1), slot("b", 1), slot("c", 1), silent("c")}}
	v := l.Healthy(Hosts)
	v.Members[3].State = Recovering
	patient, err := NewPlanner(l, DefaultCosts, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"await h3"}, names(plan(t, patient, v)))

	costs := DefaultCosts
	costs.Await = 100
	hasty, err := NewPlanner(l, costs, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"rebuild h3"}, names(plan(t, hasty, v)))

	costs.Rebuild = 0
	_, err = NewPlanner(l, costs, 0)
	require.ErrorContains(t, err, "at least 1")
}

// Health is a total order: each field outweighs all that follow.
func TestHealthOrder(t *testing.T) {
	t.Parallel()

	rising := []Health{
		{Tolerance: -1},
		{Tolerance: -1, Copies: 3, Met: 3},
		{Writable: true, Strays: 5},
		{Writable: true, Strays: 1},
		{Writable: true},
		{Writable: true, Met: 1, Strays: 9},
		{Writable: true, Copies: 1},
		{Writable: true, ZoneSafe: true},
		{Writable: true, Tolerance: 1},
		{Writable: true, Tolerance: 1, ZoneSafe: true, Copies: 3, Met: 3},
	}
	for i := range rising {
		for j := range rising {
			c := rising[i].Compare(rising[j])
			require.Equal(t, i < j, c < 0, "%s and %s", rising[i], rising[j])
			require.Equal(t, i == j, c == 0)
		}
	}
	l := layout(t, "5-aabbc-[1 1 1 1 1]")
	require.Equal(t, Health{Writable: true, Tolerance: 2, ZoneSafe: true, Copies: 5, Met: 5}, HealthOf(l.Healthy(Hosts), l))
	l = layout(t, "5-aaabb-[1 1 1 1 1]")
	require.Equal(t, Health{Writable: true, Tolerance: 2, Copies: 5, Met: 5}, HealthOf(l.Healthy(Hosts), l))
}

func TestLayoutsThatCannotBe(t *testing.T) {
	t.Parallel()

	a, b, c := slot("a", 1), slot("b", 1), slot("c", 1)
	broken := func(change func(*Slot)) []Slot {
		s := []Slot{a, b, c}
		change(&s[1])
		return s
	}
	for name, test := range map[string]struct {
		slots []Slot
		want  string
	}{
		"eight voters":          {[]Slot{a, a, a, b, b, b, c, c}, "slots: 8 votes"},
		"nobody":                {nil, "slots: must be 1 to 50"},
		"nobody electable":      {[]Slot{hidden(a, 0), silent("b")}, "slots: nobody can be elected"},
		"arbiter with priority": {broken(func(s *Slot) { *s = arbiter("b"); s.Priority = 1 }), "slots[1].priority: must be 0 for an arbiter"},
		"arbiter without vote":  {broken(func(s *Slot) { *s = arbiter("b"); s.Votes = 0 }), "slots[1].votes: must be 1 for an arbiter"},
		"hidden arbiter":        {broken(func(s *Slot) { *s = arbiter("b"); s.Hidden = true }), "slots[1].arbiter"},
		"two arbiters":          {[]Slot{a, arbiter("b"), arbiter("c")}, "more than one arbiter"},
		"two votes":             {broken(func(s *Slot) { s.Votes = 2 }), "slots[1].votes: must be 0 or 1"},
		"priority, no vote":     {broken(func(s *Slot) { s.Votes = 0 }), "slots[1].priority: must be 0 without a vote"},
		"hidden with priority":  {broken(func(s *Slot) { s.Hidden = true }), "slots[1].priority: must be 0 for a hidden member"},
		"delayed, priority":     {broken(func(s *Slot) { s.Delay = time.Hour }), "slots[1].priority: must be 0 for a delayed member"},
		"negative delay":        {broken(func(s *Slot) { s.Delay = -1 }), "slots[1].delay"},
		"large priority":        {broken(func(s *Slot) { s.Priority = 1001 }), "slots[1].priority"},
		"no zone":               {broken(func(s *Slot) { s.Zone = "" }), "slots[1].zone"},
		"small oplog":           {broken(func(s *Slot) { s.OplogMB = 500 }), "slots[1].oplog_mb"},
	} {
		l := Layout{Name: "l", Slots: test.slots}
		require.ErrorContains(t, l.Validate(), test.want, name)
		_, err := NewPlanner(l, DefaultCosts, 0)
		require.ErrorContains(t, err, test.want, name)
	}
	require.ErrorContains(t, Layout{Slots: []Slot{a}}.Validate(), "name: must be given")

	both := Layout{Name: "l", Slots: []Slot{{Zone: "", Votes: 3, Priority: 2000}}}.Validate()
	require.Len(t, strings.Split(both.Error(), "\n"), 3, "all problems at once")
}

func TestTwoLayoutsForOneShard(t *testing.T) {
	t.Parallel()

	l, m := layout(t, "psa"), layout(t, "1")
	byShard, err := Index([]Wanted{{"s1", l}, {"s2", l}})
	require.NoError(t, err)
	require.Len(t, byShard, 2)
	_, err = Index([]Wanted{{"s1", l}, {"s1", m}})
	require.ErrorContains(t, err, "shard s1: two layouts, psa and 1")
	_, err = Index([]Wanted{{"s1", Layout{Name: "none"}}})
	require.ErrorContains(t, err, "shard s1: layout none")
}

// Views that cannot be are read again and never acted upon.
func TestVerticesThatCannotBe(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[2 1 1]")
	p := planner(t, l)
	for want, edit := range map[string]func(*Vertex){
		"0 members":                       func(v *Vertex) { v.Members = nil },
		"empty or used twice":             func(v *Vertex) { v.Members[1].Host = "h0" },
		"2 primaries at once":             func(v *Vertex) { v.Members[1].Primary = true },
		"primary but down":                func(v *Vertex) { v.Members[0].State = Down },
		"primary but not electable":       func(v *Vertex) { v.Members[0].Priority = 0 },
		"h1: votes: must be 0 or 1":       func(v *Vertex) { v.Members[1].Votes = 2 },
		"h2: priority: must be 0 without": func(v *Vertex) { v.Members[2].Votes = 0 },
		`spare "h0"`:                      func(v *Vertex) { v.Spares = []Spare{{Host: "h0"}} },
		"8 votes": func(v *Vertex) {
			for _, h := range []string{"a", "b", "c", "d", "e"} {
				v.Members = append(v.Members, Member{Host: h, Votes: 1})
			}
		},
	} {
		v := l.Healthy(Hosts)
		edit(&v)
		_, err := p.Plan(v)
		require.ErrorContains(t, err, want)
	}
}
