package remediation

import (
	"fmt"
	"math/rand/v2"
)

// Hosts names a layout's members h0, h1 and so on.
func Hosts(i int) string { return fmt.Sprintf("h%d", i) }

// Damage makes n random faults in a healthy set of a layout and gives it some
// spares: for tests, figures and simulations. It leaves what a replica set may
// look like, nothing worse.
func Damage(r *rand.Rand, l Layout, n, spares int) Vertex {
	v := l.Healthy(Hosts)
	for range n {
		broken := v.clone()
		harm(r, l, &broken)
		if broken.Validate() == nil {
			v = broken
		}
	}
	zones := append(l.zones(), "z")
	for i := range spares {
		instance := "m"
		if r.IntN(4) == 0 {
			instance = "xs"
		}
		v.Spares = append(v.Spares, Spare{Host: fmt.Sprintf("s%d", i), Zone: zones[r.IntN(len(zones))], Instance: instance})
	}
	return v
}

// The kinds of faults: the first are of a member's state, the others of the
// configuration.
const (
	stateFaults = 4
	faultKinds  = 11
)

// harm makes one random fault, or none.
func harm(r *rand.Rand, l Layout, v *Vertex) {
	if kind := r.IntN(faultKinds); kind < stateFaults {
		failMember(r, v)
	} else {
		misconfigure(r, l, v, kind)
	}
}

// Misconfigure gives v with one random change of its configuration that nobody
// wanted, and the elections that it brings about: a lost vote, another
// priority, a member that is hidden, too small an oplog, a wrong zone, a member
// too few or too many. It tries until v differs.
func Misconfigure(r *rand.Rand, l Layout, v Vertex) Vertex {
	for range 100 {
		broken := v.clone()
		misconfigure(r, l, &broken, stateFaults+r.IntN(faultKinds-stateFaults))
		if broken.Validate() == nil && HealthOf(broken, l) != HealthOf(v, l) {
			return broken
		}
	}
	return v
}

// failMember gives a random member a random state.
func failMember(r *rand.Rand, v *Vertex) {
	m := &v.Members[r.IntN(len(v.Members))]
	m.State = State(r.IntN(int(Lost) + 1)) //nolint:gosec // below 7
	if m.Primary && m.State != Stalled {
		m.Primary = false
		v.settle()
	}
}

// misconfigure makes one fault of the configuration, or none.
func misconfigure(r *rand.Rand, l Layout, v *Vertex, kind int) {
	m := &v.Members[r.IntN(len(v.Members))]
	switch kind {
	case 4:
		if !m.Arbiter && !m.Primary {
			m.Votes, m.Priority = 0, 0
		}
	case 5:
		if !m.Arbiter && !m.Primary && !m.Hidden && m.Delay == 0 {
			m.Votes, m.Priority = 1, float64(r.IntN(4))
			v.settle()
		}
	case 6:
		if !m.Primary && !m.Arbiter {
			m.Hidden, m.Delay, m.Priority = !m.Hidden, 0, 0
		}
	case 7:
		if !m.Arbiter {
			m.OplogMB = 10_000
		}
	case 8:
		m.Zone = l.zones()[r.IntN(len(l.zones()))]
	case 9:
		if !m.Primary {
			*m = v.Members[len(v.Members)-1]
			v.Members = v.Members[:len(v.Members)-1]
		}
	default:
		zone := l.zones()[r.IntN(len(l.zones()))]
		v.Members = append(v.Members, Member{Host: fmt.Sprintf("x%d", r.IntN(1000)), Zone: zone, Instance: "m", State: State(r.IntN(7)), OplogMB: 50_000}) //nolint:gosec // below 7
	}
}
