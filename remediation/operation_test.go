package remediation

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Edits of the set that the cases start from: ppssa, with h0 (the primary) and
// h1 of priority 2, h2 and h3 of priority 1, and h4 the arbiter.

// down stops members.
func down(hosts ...int) func(*Vertex) {
	return func(v *Vertex) {
		for _, h := range hosts {
			v.Members[h].State = Down
		}
	}
}

// idle takes h3's vote and priority.
func idle(v *Vertex) { v.Members[3].Votes, v.Members[3].Priority = 0, 0 }

// noPrimary lets the set be between elections.
func noPrimary(v *Vertex) { v.Members[0].Primary = false }

// spare gives a spare machine.
func spare(v *Vertex) { v.Spares = []Spare{{Host: "s0", Zone: "c", Instance: "m"}} }

// with makes several edits.
func with(edits ...func(*Vertex)) func(*Vertex) {
	return func(v *Vertex) {
		for _, e := range edits {
			e(v)
		}
	}
}

// voters adds n that vote.
func voters(n int) func(*Vertex) {
	return func(v *Vertex) {
		for i := range n {
			v.Members = append(v.Members, Member{Host: string(rune('p' + i)), Votes: 1})
		}
	}
}

// preconditionCases holds each operation with each refusal, and allowed.
var preconditionCases = map[string]struct {
	op   Operation
	edit func(*Vertex)
	want error
}{
	"give: to a voter":            {GiveVote{"h1"}, nil, HasVote},
	"give: not caught up":         {GiveVote{"h3"}, with(idle, func(v *Vertex) { v.Members[3].State = Lagging }), NotCaughtUp},
	"give: unknown":               {GiveVote{"h9"}, nil, NotAMember},
	"give: no primary":            {GiveVote{"h3"}, with(idle, noPrimary), NoPrimary},
	"give: stalled primary":       {GiveVote{"h3"}, with(idle, func(v *Vertex) { v.Members[0].State = Stalled }), NoPrimary},
	"give: eighth":                {GiveVote{"x"}, with(voters(2), func(v *Vertex) { v.Members = append(v.Members, Member{Host: "x"}) }), TooManyVoters},
	"give: no majority":           {GiveVote{"h3"}, with(idle, down(1, 2)), NoMajority},
	"give":                        {GiveVote{"h3"}, idle, nil},
	"take: has none":              {TakeVote{"h3"}, idle, HasNoVote},
	"take: priority":              {TakeVote{"h3"}, nil, HasPriority},
	"take: primary":               {TakeVote{"h0"}, nil, IsPrimary},
	"take: arbiter":               {TakeVote{"h4"}, nil, IsArbiter},
	"take: majority lost by it":   {TakeVote{"h3"}, with(down(1, 2), func(v *Vertex) { v.Members[3].Priority = 0 }), NoMajority},
	"take":                        {TakeVote{"h3"}, func(v *Vertex) { v.Members[3].Priority = 0 }, nil},
	"priority: same":              {SetPriority{"h1", 2}, nil, NothingToDo},
	"priority: primary to 0":      {SetPriority{"h0", 0}, nil, IsPrimary},
	"priority: arbiter":           {SetPriority{"h4", 1}, nil, IsArbiter},
	"priority: no vote":           {SetPriority{"h3", 1}, idle, HasNoVote},
	"priority: hidden":            {SetPriority{"h3", 1}, func(v *Vertex) { v.Members[3].Hidden, v.Members[3].Priority = true, 0 }, HiddenOrDelayed},
	"priority: stale":             {SetPriority{"h3", 3}, func(v *Vertex) { v.Members[3].State = Lagging }, NotCaughtUp},
	"priority: too large":         {SetPriority{"h3", 1001}, nil, PriorityTooLarge},
	"priority: no majority":       {SetPriority{"h3", 0}, down(1, 2, 3), NoMajority},
	"priority: down to 0":         {SetPriority{"h3", 0}, down(3), nil},
	"visibility: priority":        {SetVisibility{"h3", true, 0}, nil, HasPriority},
	"visibility: arbiter":         {SetVisibility{"h4", true, 0}, nil, IsArbiter},
	"visibility: same":            {SetVisibility{"h3", false, 0}, idle, NothingToDo},
	"visibility":                  {SetVisibility{"h3", true, time.Hour}, idle, nil},
	"step-down: not the primary":  {StepDown{"h1", "h0"}, nil, NoPrimary},
	"step-down: to itself":        {StepDown{"h0", "h0"}, nil, IsPrimary},
	"step-down: to the lower":     {StepDown{"h0", "h2"}, nil, WouldComeBack},
	"step-down: to the arbiter":   {StepDown{"h0", "h4"}, nil, NotElectable},
	"step-down: to a dead one":    {StepDown{"h0", "h1"}, down(1), NotElectable},
	"step-down: no majority":      {StepDown{"h0", "h1"}, down(2, 3, 4), NoMajority},
	"step-down":                   {StepDown{"h0", "h1"}, nil, nil},
	"election: none due":          {AwaitElection{}, nil, NoElectionIsDue},
	"election: none possible":     {AwaitElection{}, with(noPrimary, down(1, 2, 3)), NoElectionIsDue},
	"election":                    {AwaitElection{}, noPrimary, nil},
	"await: healthy":              {Await{"h1"}, nil, NotOnItsWay},
	"await: down":                 {Await{"h1"}, down(1), NotOnItsWay},
	"await: no copy left":         {Await{"h1"}, with(noPrimary, down(0, 2, 3), func(v *Vertex) { v.Members[1].State = Recovering }), NoSource},
	"rebuild: vote":               {Rebuild{Host: "h3"}, with(down(3), func(v *Vertex) { v.Members[3].Priority = 0 }), HasVote},
	"rebuild: priority":           {Rebuild{Host: "h3"}, down(3), HasPriority},
	"rebuild: primary":            {Rebuild{Host: "h0"}, nil, IsPrimary},
	"rebuild: arbiter":            {Rebuild{Host: "h4"}, nil, IsArbiter},
	"rebuild: healthy":            {Rebuild{Host: "h3"}, idle, NothingToDo},
	"rebuild: lost":               {Rebuild{Host: "h3"}, with(idle, func(v *Vertex) { v.Members[3].State = Lost }), MachineIsLost},
	"rebuild: majority elsewhere": {Rebuild{Host: "h3"}, with(idle, down(1, 2, 3)), NoMajority},
	"rebuild: stalled primary":    {Rebuild{Host: "h3"}, with(idle, down(1, 2, 3), func(v *Vertex) { v.Members[0].State = Stalled }), NoPrimary},
	"rebuild":                     {Rebuild{Host: "h3"}, with(idle, down(3)), nil},
	"replace: no spare":           {Replace{Host: "h3", By: "s0"}, idle, NotASpare},
	"replace: vote":               {Replace{Host: "h3", By: "s0"}, with(spare, func(v *Vertex) { v.Members[3].Priority = 0 }), HasVote},
	"replace":                     {Replace{Host: "h3", By: "s0"}, with(idle, spare), nil},
	"oplog: arbiter":              {ResizeOplog{"h4", 1000}, nil, IsArbiter},
	"oplog: down":                 {ResizeOplog{"h3", 1000}, down(3), DoesNotAnswer},
	"oplog: same":                 {ResizeOplog{"h3", 50_000}, nil, NothingToDo},
	"oplog":                       {ResizeOplog{"h3", 1000}, nil, nil},
	"add: no spare":               {Add{Host: "s0"}, nil, NotASpare},
	"add: no majority":            {Add{Host: "s0"}, with(spare, down(1, 2, 3)), NoMajority},
	"add: eighth vote":            {Add{Host: "s0", Arbiter: true}, with(spare, voters(2)), TooManyVoters},
	"add":                         {Add{Host: "s0"}, spare, nil},
	"add: fifty-first": {Add{Host: "s0"}, with(spare, func(v *Vertex) {
		for len(v.Members) < 50 {
			v.Members = append(v.Members, Member{Host: string(rune('A' + len(v.Members)))})
		}
	}), TooManyMembers},
	"remove: vote":              {Remove{"h3"}, func(v *Vertex) { v.Members[3].Priority = 0 }, HasVote},
	"remove: primary":           {Remove{"h0"}, nil, IsPrimary},
	"remove: unknown":           {Remove{"h9"}, nil, NotAMember},
	"remove: arbiter needed":    {Remove{"h4"}, down(1, 2), NoMajority},
	"remove: arbiter":           {Remove{"h4"}, nil, nil},
	"remove: dead arbiter":      {Remove{"h4"}, down(4), nil},
	"remove: member at leisure": {Remove{"h3"}, idle, nil},
}

func TestPreconditions(t *testing.T) {
	t.Parallel()

	for name, test := range preconditionCases {
		v := layout(t, "ppssa").Healthy(Hosts)
		if test.edit != nil {
			test.edit(&v)
		}
		err := test.op.Preconditions(v)
		if test.want == nil {
			require.NoError(t, err, name)
			before := v.clone()
			next := test.op.Next(v)
			require.Equal(t, before.Members, v.Members, "%s: Next leaves the vertex as it is", name)
			require.NotEqual(t, v, next, name)
			require.NotEmpty(t, test.op.String())
			continue
		}
		require.ErrorIs(t, err, test.want, name)
	}
}

// Operations keep their names for ever: histories and metrics have them.
func TestOperationNames(t *testing.T) {
	t.Parallel()

	var all []string
	for _, o := range operations {
		all = append(all, o.Name())
	}
	slices.Sort(all)
	require.Equal(t, []string{
		"add", "await", "await-election", "give-vote", "rebuild", "remove", "replace", "resize-oplog",
		"set-priority", "set-visibility", "step-down", "take-vote",
	}, all)
}

func TestOrdersRoundTrip(t *testing.T) {
	t.Parallel()

	for _, o := range []Operation{
		GiveVote{"a"}, TakeVote{"a"}, SetPriority{"a", 1.5}, SetVisibility{"a", true, time.Hour}, StepDown{"a", "b"}, AwaitElection{},
		Await{"a"}, Rebuild{"a", 990}, Replace{"a", "b", 990}, ResizeOplog{"a", 990}, Add{"a", true, time.Minute, false, 990}, Remove{"a"},
	} {
		order, err := NewOrder(o)
		require.NoError(t, err)
		got, err := order.Operation()
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
	_, err := Order{Name: "reformat"}.Operation()
	require.ErrorContains(t, err, "reformat")
	_, err = Order{Name: "rebuild", Values: []byte(`{"Host":1}`)}.Operation()
	require.ErrorContains(t, err, "decode rebuild")
}

func TestCosts(t *testing.T) {
	t.Parallel()

	require.Equal(t, 33, Rebuild{}.Cost(DefaultCosts)/GiveVote{}.Cost(DefaultCosts))
	require.Equal(t, 34, Add{}.Cost(DefaultCosts))
	require.Equal(t, 1, Add{Arbiter: true}.Cost(DefaultCosts))
}

// The executor compares what it sees with what was predicted; each attribute
// counts, and so do members that should not be.
func TestDifferences(t *testing.T) {
	t.Parallel()

	v := layout(t, "3-abc-[2 1 1]").Healthy(Hosts)
	require.Empty(t, Differences(v, v))
	for want, edit := range map[string]func(*Vertex){
		"h1: is missing":                          func(v *Vertex) { v.Members = slices.Delete(v.Members, 1, 2) },
		"x: is unexpected":                        func(v *Vertex) { v.Members = append(v.Members, Member{Host: "x"}) },
		"h1: zone is z instead of b":              func(v *Vertex) { v.Members[1].Zone = "z" },
		"h1: instance is z instead of m":          func(v *Vertex) { v.Members[1].Instance = "z" },
		"h1: state is stalled instead of healthy": func(v *Vertex) { v.Members[1].State = Stalled },
		"h1: votes is 0 instead of 1":             func(v *Vertex) { v.Members[1].Votes = 0 },
		"h1: priority is 0.5 instead of 1":        func(v *Vertex) { v.Members[1].Priority = 0.5 },
		"h1: hidden is true instead of false":     func(v *Vertex) { v.Members[1].Hidden = true },
		"h1: delay is 1s instead of 0s":           func(v *Vertex) { v.Members[1].Delay = time.Second },
		"h1: arbiter is true instead of false":    func(v *Vertex) { v.Members[1].Arbiter = true },
		"h1: oplog_mb is 1 instead of 50000":      func(v *Vertex) { v.Members[1].OplogMB = 1 },
		"h1: primary is true instead of false":    func(v *Vertex) { v.Members[1].Primary = true },
	} {
		seen := v.clone()
		edit(&seen)
		require.Equal(t, []string{want}, Differences(v, seen))
	}
	fresh := v.clone()
	fresh.Members[1].OplogMB = 0
	require.Empty(t, Differences(fresh, v), "what was left to the server is not compared")
}

func TestSource(t *testing.T) {
	t.Parallel()

	v := layout(t, "5-aabbc-[2 2 1 1 1]").Healthy(Hosts) // h0 is the primary
	require.Equal(t, "h1", v.Source("h9", "a"), "a secondary of the zone")
	require.Equal(t, "h3", v.Source("h2", "b"))
	v.Members[3].State = Lagging
	require.Equal(t, "h1", v.Source("h2", "b"), "a secondary elsewhere, not one that lags")
	v.Members[1].Delay, v.Members[4].State = time.Hour, Down
	require.Equal(t, "h0", v.Source("h2", "b"), "the primary, never a delayed one")
	v.Members[0].State = Stalled
	require.Empty(t, v.Source("h2", "b"))
}

// TestAssignment compares the pairing with all pairings.
func TestAssignment(t *testing.T) {
	t.Parallel()

	r := rand.New(rand.NewPCG(11, 1))
	var a assignment
	for range 2000 {
		n := 1 + r.IntN(6)
		cost := make([][]int, n)
		a.reset(n)
		for i := range n {
			cost[i] = make([]int, n)
			for j := range n {
				cost[i][j] = r.IntN(20)
				if r.IntN(6) == 0 {
					cost[i][j] = never
				}
				a.set(i, j, cost[i][j])
			}
		}
		require.Equal(t, cheapest(cost, 0, make([]bool, n)), a.solve(), "%v", cost)
	}
}

// cheapest tries all pairings of the rows from i on.
func cheapest(cost [][]int, i int, used []bool) int {
	if i == len(cost) {
		return 0
	}
	best := never
	for j := range cost {
		if !used[j] {
			used[j] = true
			best = min(best, cost[i][j]+cheapest(cost, i+1, used))
			used[j] = false
		}
	}
	return best
}

// Two sets have one key exactly when one is the other under other names.
func TestCanonicalKeys(t *testing.T) {
	t.Parallel()

	var c codec
	v := layout(t, "3+hidden+delayed").Healthy(Hosts)
	v.Spares = []Spare{{"s0", "a", "m"}, {"s1", "b", "m"}}
	key := c.key(v)
	for name, edit := range map[string]func(*Vertex){
		"state":    func(v *Vertex) { v.Members[1].State = Lagging },
		"votes":    func(v *Vertex) { v.Members[3].Votes = 1 },
		"priority": func(v *Vertex) { v.Members[1].Priority = 1.5 },
		"hidden":   func(v *Vertex) { v.Members[3].Hidden = false },
		"delay":    func(v *Vertex) { v.Members[4].Delay = time.Minute },
		"oplog":    func(v *Vertex) { v.Members[4].OplogMB = 1 },
		"instance": func(v *Vertex) { v.Members[4].Instance = "z" },
		"zone":     func(v *Vertex) { v.Members[4].Zone = "z" },
		"primary":  func(v *Vertex) { v.makePrimary(1) },
		"spare":    func(v *Vertex) { v.Spares = v.Spares[:1] },
		"place":    func(v *Vertex) { v.Spares = []Spare{{"s0", "a", "m"}, {"s1", "a", "m"}} },
		"member":   func(v *Vertex) { v.Members = v.Members[:4] },
	} {
		other := v.clone()
		edit(&other)
		require.NotEqual(t, key, c.key(other), name)
	}
	other := v.clone()
	slices.Reverse(other.Members)
	other.Spares = []Spare{{"y", "b", "m"}, {"x", "a", "m"}}
	for i := range other.Members {
		other.Members[i].Host += "'"
	}
	require.Equal(t, key, c.key(other))
}
