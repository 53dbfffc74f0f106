package remediation

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// s is a slot that votes.
func slot(zone string, priority float64) Slot {
	return Slot{Zone: zone, Instance: "m", Votes: 1, Priority: priority, OplogMB: 50_000}
}

// silent is a slot without a vote.
func silent(zone string) Slot { return Slot{Zone: zone, Instance: "m", OplogMB: 50_000} }

// hidden makes a slot hidden, with the vote it has.
func hidden(s Slot, delay time.Duration) Slot {
	s.Hidden, s.Delay, s.Priority = true, delay, 0
	return s
}

// arbiter is an arbiter's slot.
func arbiter(zone string) Slot { return Slot{Zone: zone, Instance: "xs", Votes: 1, Arbiter: true} }

// layouts gives over 40 layouts: zones x voters x priorities x kinds of members.
func layouts() []Layout {
	var all []Layout
	add := func(name string, slots ...Slot) {
		for _, l := range all {
			if l.Name == name {
				panic("two layouts " + name)
			}
		}
		all = append(all, Layout{Name: name, Slots: slots})
	}
	for _, zones := range []string{"abc", "aab", "aaa"} {
		for name, p := range map[int][3]float64{0: {1, 1, 1}, 1: {2, 1, 1}, 2: {3, 2, 1}, 3: {2, 2, 1}, 4: {5, 5, 0}} {
			_ = name
			var s []Slot
			for i, z := range zones {
				s = append(s, slot(string(z), p[i]))
			}
			add(fmt.Sprintf("3-%s-%v", zones, p), s...)
		}
	}
	for _, zones := range []string{"aabbc", "abcde", "aaabb"} {
		for _, p := range [][5]float64{{1, 1, 1, 1, 1}, {2, 2, 1, 1, 1}, {5, 4, 3, 2, 1}, {3, 3, 2, 2, 0}} {
			var s []Slot
			for i, z := range zones {
				s = append(s, slot(string(z), p[i]))
			}
			add(fmt.Sprintf("5-%s-%v", zones, p), s...)
		}
	}
	for _, zones := range []string{"aaabbcc", "abcdefg"} {
		for _, p := range [][7]float64{{1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 1, 1, 1, 1}, {3, 3, 3, 2, 2, 1, 0}} {
			var s []Slot
			for i, z := range zones {
				s = append(s, slot(string(z), p[i]))
			}
			add(fmt.Sprintf("7-%s-%v", zones, p), s...)
		}
	}
	a, b, c := slot("a", 2), slot("b", 1), slot("c", 1)
	add("1", slot("a", 1))
	add("psa", a, b, arbiter("c"))
	add("psa-one-zone", slot("a", 1), slot("a", 1), arbiter("a"))
	add("ppssa", a, a, b, b, arbiter("c"))
	add("3+hidden", a, b, c, hidden(silent("a"), 0))
	add("3+hidden+delayed", a, b, c, hidden(silent("b"), 0), hidden(silent("c"), time.Hour))
	add("2+hidden-voter", a, b, hidden(c, 0))
	add("2+delayed-voter", a, b, hidden(c, time.Hour))
	add("3+2-readers", a, b, c, silent("a"), silent("b"))
	add("5+delayed", a, a, b, b, c, hidden(silent("c"), 24*time.Hour))
	add("4+arbiter+hidden", a, a, b, b, arbiter("c"), hidden(silent("c"), 0))
	add("any-machine", Slot{Zone: "a", Votes: 1, Priority: 2}, Slot{Zone: "b", Votes: 1, Priority: 1}, Slot{Zone: "c", Votes: 1, Priority: 1})
	add("mixed-oplogs", a, b, Slot{Zone: "c", Instance: "m", Votes: 1, Priority: 0, OplogMB: 200_000})
	return all
}

// hosts names a layout's members.
func hosts(i int) string { return fmt.Sprintf("h%d", i) }

// damage makes n random faults in a healthy set and gives it some spares. It
// may leave a set that no rule of a replica set forbids, nothing worse.
func damage(r *rand.Rand, l Layout, n, spares int) Vertex {
	v := l.Healthy(hosts)
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

// harm makes one fault.
func harm(r *rand.Rand, l Layout, v *Vertex) {
	m := &v.Members[r.IntN(len(v.Members))]
	switch r.IntN(11) {
	case 0, 1, 2, 3:
		m.State = State(r.IntN(7))
		if m.Primary && m.State != Stalled {
			m.Primary = false
			v.settle()
		}
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
		v.Members = append(v.Members, Member{Host: fmt.Sprintf("x%d", r.IntN(1000)), Zone: zone, Instance: "m", State: State(r.IntN(7)), OplogMB: 50_000})
	}
}
