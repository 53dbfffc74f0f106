package remediation

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// rawKey tells vertices apart by everything, names included.
func rawKey(v Vertex) string {
	members, spares := slices.Clone(v.Members), slices.Clone(v.Spares)
	slices.SortFunc(members, func(a, b Member) int { return compareText(a.Host, b.Host) })
	slices.SortFunc(spares, func(a, b Spare) int { return compareText(a.Host, b.Host) })
	var b []byte
	for _, m := range members {
		b = append(b, m.Host...)
		b = append(b, m.Zone...)
		b = append(b, m.Instance...)
		for _, n := range []int{int(m.State), m.Votes, int(m.Priority * 8), number(m.Hidden), int(m.Delay), number(m.Arbiter), m.OplogMB, number(m.Primary)} {
			b = strconv.AppendInt(append(b, ' '), int64(n), 36)
		}
		b = append(b, '\n')
	}
	for _, s := range spares {
		b = append(b, s.Host...)
	}
	return string(b)
}

// compareText orders strings.
func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// everything lists all operations that are allowed in v, with every value that
// occurs in the layout or in the set: no choice is made, no member is left out
// because another is like it.
func everything(v Vertex, l Layout) []Operation {
	priorities, oplogs := []float64{0}, []int{0}
	looks := []visibility{{}}
	for _, s := range l.Slots {
		priorities, oplogs = appendNew(priorities, s.Priority), appendNew(oplogs, s.OplogMB)
		looks = appendNew(looks, visibility{s.Hidden, s.Delay})
	}
	for _, m := range v.Members {
		priorities, oplogs = appendNew(priorities, m.Priority), appendNew(oplogs, m.OplogMB)
	}
	ops := []Operation{AwaitElection{}}
	for _, m := range v.Members {
		ops = append(ops, Await{m.Host}, GiveVote{m.Host}, TakeVote{m.Host}, Remove{m.Host})
		for _, p := range priorities {
			ops = append(ops, SetPriority{m.Host, p})
		}
		for _, k := range looks {
			ops = append(ops, SetVisibility{m.Host, k.hidden, k.delay})
		}
		for _, to := range v.Members {
			ops = append(ops, StepDown{m.Host, to.Host})
		}
		for _, mb := range oplogs {
			ops = append(ops, ResizeOplog{m.Host, mb}, Rebuild{m.Host, mb})
			for _, s := range v.Spares {
				if usable(l.Slots, s.Instance, false) {
					ops = append(ops, Replace{m.Host, s.Host, mb})
				}
			}
		}
	}
	if alive(v) < len(l.Slots) {
		for _, s := range v.Spares {
			if usable(l.Slots, s.Instance, true) {
				ops = append(ops, Add{Host: s.Host, Arbiter: true})
			}
			if !usable(l.Slots, s.Instance, false) {
				continue
			}
			for _, k := range looks {
				for _, mb := range oplogs {
					ops = append(ops, Add{Host: s.Host, Hidden: k.hidden, Delay: k.delay, OplogMB: mb})
				}
			}
		}
	}
	late := slices.ContainsFunc(l.Slots, func(s Slot) bool { return s.Delay > 0 && s.Votes == 1 })
	return slices.DeleteFunc(ops, func(o Operation) bool {
		give, ok := o.(GiveVote)
		return o.Preconditions(v) != nil || ok && !late && v.Members[v.index(give.Host)].Delay > 0
	})
}

// bruteFewest is the number of operations to full health by plain breadth first
// search; -1 when it is out of reach, ok false when there is too much to look at.
func bruteFewest(v Vertex, l Layout, limit int) (n int, ok bool) {
	full := newGoals(l)
	level, seen := []Vertex{v}, map[string]bool{rawKey(v): true}
	for depth := 0; len(level) > 0; depth++ {
		var following []Vertex
		for _, v := range level {
			if HealthOf(v, l) == full.full() {
				return depth, true
			}
			for _, o := range everything(v, l) {
				next := o.Next(v)
				if k := rawKey(next); !seen[k] {
					seen[k] = true
					following = append(following, next)
				}
			}
		}
		if len(seen) > limit {
			return 0, false
		}
		level = following
	}
	return -1, true
}

// costed is a vertex with what it costs to get there.
type costed struct {
	v    Vertex
	cost int
}

// byCost is a queue of them.
type byCost []costed

func (q byCost) Len() int           { return len(q) }
func (q byCost) Less(i, j int) bool { return q[i].cost < q[j].cost }
func (q byCost) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byCost) Push(x any)        { *q = append(*q, x.(costed)) }
func (q *byCost) Pop() any {
	x := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return x
}

// bruteBest is the best health within reach and what it costs, by plain
// Dijkstra over everything that can be reached.
func bruteBest(v Vertex, l Layout, limit int) (best Health, cost int, ok bool) {
	best, cost = HealthOf(v, l), 0
	done := map[string]bool{}
	q := &byCost{{v, 0}}
	for q.Len() > 0 {
		c := heap.Pop(q).(costed)
		k := rawKey(c.v)
		if done[k] {
			continue
		}
		done[k] = true
		if len(done) > limit {
			return best, cost, false
		}
		if h := HealthOf(c.v, l); h.Compare(best) > 0 {
			best, cost = h, c.cost
		}
		for _, o := range everything(c.v, l) {
			heap.Push(q, costed{o.Next(c.v), c.cost + o.Cost(DefaultCosts)})
		}
	}
	return best, cost, true
}

// small lists layouts whose configurations can all be looked at, or nearly.
func small() []Layout {
	var some []Layout
	for _, l := range Catalogue() {
		if len(l.Slots) <= 3 || l.Name == "3+hidden" {
			some = append(some, l)
		}
	}
	return some
}

// TestPlansAreAsShortAsBruteForce: what is in the planner for speed (bounds,
// folding of members that are alike, a menu of operations) changes nothing.
func TestPlansAreAsShortAsBruteForce(t *testing.T) {
	t.Parallel()

	const limit = 10_000
	full, partial := 0, 0
	for n, l := range small() {
		t.Run(l.Name, func(t *testing.T) {
			p, err := NewPlanner(l, DefaultCosts, 0)
			require.NoError(t, err)
			r := rand.New(rand.NewPCG(7, uint64(n)))
			for i := range 8 {
				v := Damage(r, l, 1+i%4, r.IntN(3))
				plan, err := p.Plan(v)
				require.NoError(t, err)
				require.True(t, plan.Proven)
				if plan.Full {
					fewest, ok := bruteFewest(v, l, limit)
					if ok {
						full++
						require.Equal(t, fewest, len(plan.Steps), "%+v\n%s", v, plan)
					}
					continue
				}
				best, cost, ok := bruteBest(v, l, limit)
				if ok {
					partial++
					require.Equal(t, best, plan.To, "%+v\n%s", v, plan)
					require.Equal(t, cost, plan.Cost, "%+v\n%s", v, plan)
				}
			}
		})
	}
	require.Greater(t, full, 50, "plans compared")
	require.Greater(t, partial, 20, "plans compared")
}
