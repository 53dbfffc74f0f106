package remediation

import (
	"cmp"
	"fmt"
)

// Health says how well a shard is, measured against its layout. Its fields are
// in the order of their weight: the first that differs decides. None counts
// beyond what the layout itself has, so that health never grows by building
// more than is wanted.
type Health struct {
	Writable  bool // a healthy primary has a healthy majority
	Tolerance int  // voters that may still fail, before the majority is gone; -1 when it is
	ZoneSafe  bool // the majority survives the loss of any one zone
	Copies    int  // healthy members that hold data
	Met       int  // wanted members that are exactly so
	Strays    int  // members beyond the number wanted; fewer is better
}

// Compare is negative when h is worse than o.
func (h Health) Compare(o Health) int {
	return cmp.Or(
		cmp.Compare(number(h.Writable), number(o.Writable)),
		cmp.Compare(h.Tolerance, o.Tolerance),
		cmp.Compare(number(h.ZoneSafe), number(o.ZoneSafe)),
		cmp.Compare(h.Copies, o.Copies),
		cmp.Compare(h.Met, o.Met),
		cmp.Compare(o.Strays, h.Strays),
	)
}

// number makes a condition comparable.
func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// String shows the health as plans print it.
func (h Health) String() string {
	return fmt.Sprintf("writable=%t tolerance=%d zone-safe=%t copies=%d met=%d strays=%d", h.Writable, h.Tolerance, h.ZoneSafe, h.Copies, h.Met, h.Strays)
}

// goals is what a layout asks of health.
type goals struct {
	layout    Layout
	tolerance int
	zoneSafe  bool
	copies    int
}

// newGoals measures the layout itself.
func newGoals(l Layout) goals {
	g := goals{layout: l, tolerance: maxVoters, zoneSafe: true, copies: len(l.Slots)}
	h := g.measure(l.Healthy(func(i int) string { return fmt.Sprint(i) }))
	g.tolerance, g.zoneSafe, g.copies = h.Tolerance, h.ZoneSafe, h.Copies
	return g
}

// full is the health of the layout itself.
func (g *goals) full() Health {
	return Health{Writable: true, Tolerance: g.tolerance, ZoneSafe: g.zoneSafe, Copies: g.copies, Met: len(g.layout.Slots)}
}

// HealthOf measures v against a layout.
func HealthOf(v Vertex, l Layout) Health {
	g := newGoals(l)
	return g.measure(v)
}

// measure gives the health of v.
func (g *goals) measure(v Vertex) Health {
	var t tally
	for i := range v.Members {
		t.add(&v.Members[i])
	}
	h := g.health(&t)
	h.Writable = v.Writable()
	h.Met = g.met(v)
	h.Strays = max(0, len(v.Members)-len(g.layout.Slots))
	return h
}

// tally counts what health looks at.
type tally struct {
	votes, healthy, copies int
	zones                  [16]struct {
		name  string
		votes int // of healthy members
	}
	used int
}

// add counts m.
func (t *tally) add(m *Member) {
	t.votes += m.Votes
	if m.State != Healthy {
		return
	}
	if !m.Arbiter {
		t.copies++
	}
	t.vote(m.Zone, m.Votes)
}

// vote counts n votes of healthy members in a zone. Zones beyond the sixteenth
// count as one.
func (t *tally) vote(zone string, n int) {
	t.healthy += n
	i := 0
	for i < t.used && t.zones[i].name != zone {
		i++
	}
	if i == len(t.zones) {
		i--
	} else if i == t.used {
		t.used++
		t.zones[i].name = zone
	}
	t.zones[i].votes += n
}

// health gives tolerance, zone safety and copies, as far as the layout goes.
func (g *goals) health(t *tally) Health {
	h := Health{Tolerance: -1, Copies: min(t.copies, g.copies)}
	need := majority(t.votes)
	if t.healthy < need {
		return h
	}
	h.Tolerance = min(t.healthy-need, g.tolerance)
	h.ZoneSafe = g.zoneSafe
	for _, z := range t.zones[:t.used] {
		if t.healthy-z.votes < need {
			h.ZoneSafe = false
		}
	}
	return h
}

// met counts the slots that can be met at once, each by a member of its own.
func (g *goals) met(v Vertex) int {
	owner := make([]int, len(g.layout.Slots)) // member that meets the slot, counted from 1
	n := 0
	for i := range v.Members {
		var tried [maxMembers]bool
		if g.assign(v, i, owner, &tried) {
			n++
		}
	}
	return n
}

// assign finds a slot for member i, moving other members to other slots.
func (g *goals) assign(v Vertex, i int, owner []int, tried *[maxMembers]bool) bool {
	for s := range g.layout.Slots {
		if tried[s] || !g.layout.Slots[s].met(&v.Members[i]) {
			continue
		}
		tried[s] = true
		if owner[s] == 0 || g.assign(v, owner[s]-1, owner, tried) {
			owner[s] = i + 1
			return true
		}
	}
	return false
}
