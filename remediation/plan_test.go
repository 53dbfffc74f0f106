package remediation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// planner prepares for a layout with the default costs.
func planner(t testing.TB, l Layout) *Planner {
	t.Helper()

	p, err := NewPlanner(l, DefaultCosts, 0)
	require.NoError(t, err)
	return p
}

// layout gives the one of the given name.
func layout(t testing.TB, name string) Layout {
	t.Helper()

	all := Catalogue()
	i := slices.IndexFunc(all, func(l Layout) bool { return l.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return all[i]
}

// names lists a plan's operations.
func names(p *Plan) []string {
	var all []string
	for _, s := range p.Steps {
		all = append(all, s.Operation.Name()+" "+s.Operation.Subject())
	}
	return all
}

// requireLawful checks one step against a replica set's rules, without the
// planner's own preconditions.
func requireLawful(t require.TestingT, before Vertex, o Operation, after Vertex) {
	require.NoError(t, after.Validate(), "%s", o)

	changed := 0
	for _, m := range before.Members {
		i := after.index(m.Host)
		switch {
		case i < 0:
			changed += m.Votes
			require.False(t, m.Primary, "%s takes the primary out", o)
			require.True(t, m.Votes == 0 || m.Arbiter, "%s takes a voting copy out", o)
		default:
			changed += number(m.Votes != after.Members[i].Votes)
			if n := after.Members[i]; m.State != Healthy && n.State == Healthy && !m.State.comesBack() {
				require.Zero(t, m.Votes, "%s empties a node that votes", o)
				require.Zero(t, m.Priority, "%s empties a node that can be elected", o)
			}
		}
	}
	for _, m := range after.Members {
		if before.index(m.Host) < 0 {
			changed += m.Votes
		}
	}
	require.LessOrEqual(t, changed, 1, "%s changes more than one vote", o)

	switch o.(type) {
	case Await, ResizeOplog, AwaitElection:
		return
	case StepDown:
		require.True(t, before.HasMajority(), "%s without a majority", o)
	default:
		require.True(t, before.Writable(), "%s without a primary and a majority", o)
	}
	require.True(t, after.Writable(), "%s loses the majority or the primary", o)
	p := after.Members[after.primary()]
	require.True(t, p.Votes == 1 && p.Priority > 0)
	for _, m := range after.Members {
		require.False(t, m.electable() && m.Priority > p.Priority, "%s would take over after %s", m.Host, o)
	}
}

// requireSound checks a whole plan.
func requireSound(t require.TestingT, p *Planner, v Vertex, plan *Plan) {
	require.True(t, plan.Proven)
	require.NotEmpty(t, plan.Why)
	require.Equal(t, p.Health(v), plan.From)
	before, cost := v, 0
	for _, s := range plan.Steps {
		require.NoError(t, s.Operation.Preconditions(before), "%s\n%s", s.Operation, plan)
		after := s.Operation.Next(before)
		require.Equal(t, after, s.After)
		requireLawful(t, before, s.Operation, after)
		require.NotEmpty(t, s.Reason)
		require.Positive(t, s.Cost)
		cost += s.Cost
		before = after
	}
	require.Equal(t, cost, plan.Cost)
	require.Equal(t, p.Health(before), plan.To)
	require.GreaterOrEqual(t, plan.To.Compare(plan.From), 0)
	require.Equal(t, plan.To == p.goals.full(), plan.Full)
}

// TestEveryLayoutFromRandomDamage plans for every layout, with light damage and
// with heavy, with spare machines and without.
func TestEveryLayoutFromRandomDamage(t *testing.T) {
	t.Parallel()

	require.GreaterOrEqual(t, len(Catalogue()), 40)
	for n, l := range Catalogue() {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()

			require.NoError(t, l.Validate())
			p := planner(t, l)
			healthy, err := p.Plan(l.Healthy(Hosts))
			require.NoError(t, err)
			require.True(t, healthy.Full)
			require.Empty(t, healthy.Steps)

			r := rand.New(rand.NewPCG(1, uint64(n)))
			for i := range 20 {
				v := Damage(r, l, 1+i%6, r.IntN(4))
				plan, err := p.Plan(v)
				require.NoError(t, err)
				requireSound(t, p, v, plan)

				after, err := p.Plan(plan.End(v))
				require.NoError(t, err)
				require.Empty(t, after.Steps, "a plan's end needs no further plan")
				requireAdmissible(t, p, v, plan)
			}
		})
	}
}

// requireAdmissible checks that what the search holds for a lower bound is one:
// on the way of the best plan it never exceeds what is left.
func requireAdmissible(t require.TestingT, p *Planner, v Vertex, plan *Plan) {
	target, patterns := p.goals.attainable(v)
	require.GreaterOrEqual(t, target.Compare(plan.To), 0)
	b := newBounds(&p.goals, prices{costs: p.costs})
	before, left := v, plan.Cost
	for _, s := range plan.Steps {
		switch {
		case plan.Full:
			require.LessOrEqual(t, b.full(before), left, "before %s\n%s", s.Operation, plan)
		case target == plan.To:
			require.LessOrEqual(t, b.partial(before, patterns), left, "before %s\n%s", s.Operation, plan)
		}
		before, left = s.After, left-s.Cost
	}
}

// TestNamesAndOrderDecideNothing: the same damage under other names and in
// another order has the same plan.
func TestNamesAndOrderDecideNothing(t *testing.T) {
	t.Parallel()

	for n, l := range Catalogue() {
		p, r := planner(t, l), rand.New(rand.NewPCG(3, uint64(n)))
		for range 5 {
			v := Damage(r, l, 3, 2)
			plan, err := p.Plan(v)
			require.NoError(t, err)
			again, err := p.Plan(v)
			require.NoError(t, err)
			require.Equal(t, plan, again)

			other := v.clone()
			other.Spares = slices.Clone(v.Spares)
			r.Shuffle(len(other.Members), func(i, j int) { other.Members[i], other.Members[j] = other.Members[j], other.Members[i] })
			r.Shuffle(len(other.Spares), func(i, j int) { other.Spares[i], other.Spares[j] = other.Spares[j], other.Spares[i] })
			for i := range other.Members {
				other.Members[i].Host = fmt.Sprintf("n%d", i)
			}
			renamed, err := p.Plan(other)
			require.NoError(t, err)
			require.Equal(t, plan.To, renamed.To)
			require.Equal(t, plan.Cost, renamed.Cost)
			require.Len(t, renamed.Steps, len(plan.Steps))
			var c codec
			require.Equal(t, c.key(v), c.key(other))
		}
	}
}

// TestStepsThatDoNotTake: whatever share of the steps is without effect, and
// though members fail on the way, planning again from what is seen ends at the
// best that can be reached.
func TestStepsThatDoNotTake(t *testing.T) {
	t.Parallel()

	for n, l := range Catalogue() {
		p, r := planner(t, l), rand.New(rand.NewPCG(5, uint64(n)))
		for range 4 {
			v := Damage(r, l, 3, 2)
			first, err := p.Plan(v)
			require.NoError(t, err)
			fails := 0
			for rounds := 0; ; rounds++ {
				require.Less(t, rounds, 200, "plans do not come to an end")
				plan, err := p.Plan(v)
				require.NoError(t, err)
				if len(plan.Steps) == 0 {
					if fails == 0 {
						require.Equal(t, first.To, plan.To)
					}
					break
				}
				switch r.IntN(10) {
				case 0, 1, 2: // no effect
				case 3:
					broken := v.clone()
					harm(r, l, &broken)
					if fails < 3 && broken.Validate() == nil {
						v, fails = broken, fails+1
					}
				default:
					v = plan.Steps[0].Operation.Next(v)
				}
			}
		}
	}
}

// fleet gives n shards of all layouts, one in share of them damaged.
func fleet(n, share, faults int) ([]Layout, []Vertex) {
	r := rand.New(rand.NewPCG(9, uint64(share)))
	all := Catalogue()
	ls, vs := make([]Layout, n), make([]Vertex, n)
	for i := range n {
		ls[i] = all[i%len(all)]
		if i%share == 0 {
			vs[i] = Damage(r, ls[i], 1+r.IntN(faults), r.IntN(3))
		} else {
			vs[i] = ls[i].Healthy(Hosts)
		}
	}
	return ls, vs
}

// BenchmarkFleet plans for 2,000 shards: as a bad day leaves them, one in ten
// damaged, and every one damaged.
func BenchmarkFleet(b *testing.B) {
	for name, c := range map[string][2]int{"one-in-ten": {10, 3}, "all-of-one-fault": {1, 1}, "all-of-three-faults": {1, 3}} {
		b.Run(name, func(b *testing.B) {
			planners := map[string]*Planner{}
			for _, l := range Catalogue() {
				planners[l.Name] = planner(b, l)
			}
			ls, vs := fleet(2000, c[0], c[1])
			before, runs := cpu(b), 0
			for b.Loop() {
				runs++
				for i, v := range vs {
					if _, err := planners[ls[i].Name].Plan(v); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric((cpu(b)-before).Seconds()/float64(runs), "cpu-s/op") // what one core needs, however busy the machine is
		})
	}
}

// cpu is what the process has used of all cores so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()

	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
