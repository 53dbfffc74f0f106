package remediation

import "slices"

// maxChoices bounds the choices that attainable tries; no real layout comes near.
const maxChoices = 1 << 14

// machine is where a member is or can be.
type machine struct {
	zone, instance string
	data           bool // may hold data; else it may only vote
	votes          bool // may hold a member at all
}

// class is slots that are alike.
type class struct {
	slot  Slot
	count int
}

// group is machines that are left over in one zone.
type group struct {
	zone  string
	data  bool
	count int
}

// role is what a healthy member is in a pattern: a slot that is met, or a member
// that stands in.
type role struct {
	slot  *Slot  // nil for one that stands in
	zone  string // empty: any
	votes int
	data  bool
}

// pattern is a set of healthy members, and what may be beside them without
// making health any worse.
type pattern struct {
	roles     []role
	beside    int // further members
	deadVotes int // of them, those that may vote though they are not healthy
}

// attainable is the best health that the machines at hand allow, were every
// operation allowed at any time: no way from v leads to a better one; with
// every pattern that has it, unless it is full health. It tries every choice of
// slots to meet, and with each what the machines left over could stand in for.
func (g *goals) attainable(v Vertex) (Health, []pattern) {
	machines := g.machines(v)
	classes, choices := g.classes()
	chosen := make([]int, len(classes))
	for i, c := range classes {
		chosen[i] = c.count
	}
	if _, ok := place(machines, classes, chosen); ok || choices > maxChoices {
		return g.full(), nil
	}
	s := standIns{goals: g, classes: classes, limit: max(len(v.Members), len(g.layout.Slots)), best: Health{Tolerance: -1}}
	for range choices {
		if left, ok := place(machines, classes, chosen); ok {
			s.try(left, chosen)
		}
		for i := range chosen { // the next choice, as an odometer counts down
			if chosen[i]--; chosen[i] >= 0 {
				break
			}
			chosen[i] = classes[i].count
		}
	}
	return s.best, s.patterns
}

// classes groups the layout's slots, and tells how many choices among them
// there are.
func (g *goals) classes() (classes []class, choices int) {
	for _, s := range g.layout.Slots {
		i := slices.IndexFunc(classes, func(c class) bool { return c.slot == s })
		if i < 0 {
			i = len(classes)
			classes = append(classes, class{slot: s})
		}
		classes[i].count++
	}
	slices.SortStableFunc(classes, func(a, b class) int { // those that take any kind of machine choose last
		return number(a.slot.Instance == "") - number(b.slot.Instance == "")
	})
	choices = 1
	for _, c := range classes {
		choices = min(choices*(c.count+1), maxChoices+1)
	}
	return classes, choices
}

// machines lists all machines that are not lost.
func (g *goals) machines(v Vertex) []machine {
	var all []machine
	add := func(zone, instance string) {
		data := usable(g.layout.Slots, instance, false)
		all = append(all, machine{zone: zone, instance: instance, data: data, votes: data || usable(g.layout.Slots, instance, true)})
	}
	for i := range v.Members {
		if m := &v.Members[i]; m.State != Lost {
			add(m.Zone, m.Instance)
			all[len(all)-1].votes = true
			all[len(all)-1].data = all[len(all)-1].data || !m.Arbiter
		}
	}
	for _, s := range v.Spares {
		add(s.Zone, s.Instance)
	}
	slices.SortStableFunc(all, func(a, b machine) int { return number(a.data) - number(b.data) }) // an arbiter takes the least that will do
	return all
}

// place puts machines to the chosen number of slots of each class, and groups
// those left over.
func place(machines []machine, classes []class, chosen []int) (left []group, ok bool) {
	free := slices.Clone(machines)
	for i, c := range classes {
		for range chosen[i] {
			at := slices.IndexFunc(free, func(m machine) bool { return c.slot.fits(m.zone, m.instance) })
			if at < 0 {
				return nil, false
			}
			free = slices.Delete(free, at, at+1)
		}
	}
	for _, m := range free {
		if !m.votes {
			continue
		}
		i := slices.IndexFunc(left, func(g group) bool { return g.zone == m.zone && g.data == m.data })
		if i < 0 {
			i = len(left)
			left = append(left, group{zone: m.zone, data: m.data})
		}
		left[i].count++
	}
	return left, true
}

// standIns tries what machines left over can do beside the slots that are met:
// some vote, some only hold a copy, up to a limit of members.
type standIns struct {
	goals   *goals
	classes []class
	limit   int

	chosen []int
	left   []group
	voters []int // of each group
	met    int
	voter  bool // someone can be elected

	best     Health
	patterns []pattern
}

// try tries all beside the chosen slots.
func (s *standIns) try(left []group, chosen []int) {
	var t tally
	s.left, s.chosen, s.voters, s.met, s.voter = left, chosen, make([]int, len(left)), 0, false
	for i, c := range s.classes {
		for range chosen[i] {
			t.add(&Member{Zone: c.slot.Zone, Votes: c.slot.Votes, Arbiter: c.slot.Arbiter})
		}
		s.met += chosen[i]
		s.voter = s.voter || chosen[i] > 0 && c.slot.Priority > 0
	}
	s.vote(0, 0, 0, t)
}

// vote chooses the voters of group i and of those after it; used machines of
// earlier groups vote, and silent ones that hold data do not.
func (s *standIns) vote(i, used, silent int, t tally) {
	if i == len(s.left) {
		s.judge(used, silent, t)
		return
	}
	g, voter := s.left[i], s.voter
	for n := 0; n <= g.count && s.met+used+n <= s.limit; n++ {
		more, quiet := t, silent
		if n > 0 {
			more.vote(g.zone, n)
		}
		if g.data {
			more.copies += n
			quiet += g.count - n
			s.voter = voter || n > 0
		}
		if more.healthy > maxVoters && n > 0 {
			break
		}
		s.voters[i] = n
		s.vote(i+1, used+n, quiet, more)
	}
	s.voters[i], s.voter = 0, voter
}

// judge takes the health of one choice, with any number of silent copies.
func (s *standIns) judge(used, silent int, t tally) {
	if !s.voter {
		return
	}
	copies, last := t.copies, Health{Tolerance: -2}
	for n := 0; n <= silent && s.met+used+n <= s.limit; n++ {
		t.copies = copies + n
		h := s.health(&t, 0, s.met+used+n)
		c := h.Compare(s.best)
		if h == last || c < 0 {
			continue
		}
		if c > 0 {
			s.best, s.patterns = h, nil
		}
		last = h
		s.patterns = append(s.patterns, s.pattern(&t, n, s.met+used+n))
	}
}

// health is the health of a choice that has dead votes and members beside.
func (s *standIns) health(t *tally, dead, members int) Health {
	t.votes = t.healthy + dead
	h := s.goals.health(t)
	h.Writable, h.Met = h.Tolerance >= 0, s.met
	h.Strays = max(0, members-len(s.goals.layout.Slots))
	return h
}

// pattern writes the choice down.
func (s *standIns) pattern(t *tally, silent, members int) pattern {
	var p pattern
	for i := range s.classes {
		for range s.chosen[i] {
			p.roles = append(p.roles, role{slot: &s.classes[i].slot})
		}
	}
	for i, g := range s.left {
		for range s.voters[i] {
			p.roles = append(p.roles, role{zone: g.zone, votes: 1, data: g.data})
		}
	}
	for range silent {
		p.roles = append(p.roles, role{data: true})
	}
	p.beside = max(0, len(s.goals.layout.Slots)-members)
	for p.deadVotes < p.beside && s.health(t, p.deadVotes+1, members) == s.best {
		p.deadVotes++
	}
	return p
}
