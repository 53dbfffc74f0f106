package remediation

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryStateOfThree plans from every combination of states and votes of a set
// of three, with a spare machine and without: each plan is lawful, keeps every
// precondition, and ends where no further plan helps; of a sample brute force finds
// nothing better.
func TestEveryStateOfThree(t *testing.T) {
	t.Parallel()

	l := layout(t, "3-abc-[2 1 1]")
	p := planner(t, l)
	planned, compared := 0, 0
	for n := range 7 * 7 * 7 * 8 * 2 {
		v := l.Healthy(Hosts)
		for i, of := range []int{n % 7, n / 7 % 7, n / 49 % 7} {
			m := &v.Members[i]
			m.State, m.Primary = State(of), m.Primary && (State(of) == Healthy || State(of) == Stalled)
			if n/343>>i&1 == 1 && !m.Primary {
				m.Votes, m.Priority = 0, 0
			}
		}
		if n/343/8 == 1 {
			v.Spares = []Spare{{Host: "s0", Zone: "c", Instance: "m"}}
		}
		if v.primary() < 0 {
			v.settle()
		}
		if v.Validate() != nil {
			continue
		}
		planned++
		made := plan(t, p, v)
		after, err := p.Plan(made.End(v))
		require.NoError(t, err)
		require.Empty(t, after.Steps, "%+v\n%s", v, made)
		if n%97 != 0 {
			continue
		}
		if best, cost, ok := bruteBest(v, l, 5000); ok {
			compared++
			require.Equal(t, best, made.To, "%+v\n%s", v, made)
			if !made.Full {
				require.Equal(t, cost, made.Cost, "%+v\n%s", v, made)
			}
		}
	}
	require.Greater(t, planned, 3000)
	require.Greater(t, compared, 20)
}
