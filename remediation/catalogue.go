package remediation

import (
	"fmt"
	"time"
)

// slot is a slot that votes.
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

// Catalogue gives 46 layouts that fleets use: zones x voters x priorities x kinds
// of members. Tests and simulations run over all of them.
func Catalogue() []Layout {
	var all []Layout
	add := func(name string, slots ...Slot) {
		all = append(all, Layout{Name: name, Slots: slots})
	}
	for _, zones := range []string{"abc", "aab", "aaa"} {
		for _, p := range [][3]float64{{1, 1, 1}, {2, 1, 1}, {3, 2, 1}, {2, 2, 1}, {5, 5, 0}} {
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
