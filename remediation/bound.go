package remediation

import "math"

// never is the price of what cannot be done. Sums of it do not overflow.
const never = math.MaxInt64 / 1024

// fewest is added to each operation's weight where the number of operations
// counts first and the weight only among equals.
const fewest = 1 << 20

// prices is what operations cost in one search.
type prices struct {
	costs Costs
	each  int // added to every operation: fewest, or nothing
}

// of is the price of an operation.
func (p *prices) of(o Operation) int { return p.each + o.Cost(p.costs) }

// reconfigure is the price of n changes of the configuration.
func (p *prices) reconfigure(n int) int { return n * (p.each + p.costs.Reconfigure) }

// lay is the price of taking a member's priority and vote.
func (p *prices) lay(m *Member) int {
	return p.reconfigure(number(m.Priority > 0) + m.Votes)
}

// raise is the price of giving a fresh member its slot's vote and priority.
func (p *prices) raise(s *Slot) int {
	return p.reconfigure(s.Votes + number(s.Priority > 0))
}

// convert is the least price of making m what s wants: stay while m keeps some
// priority all the time, lowered otherwise.
func (p *prices) convert(m *Member, s *Slot) (stay, lowered int) {
	stay, lowered = never, never
	if s.Arbiter != m.Arbiter {
		return stay, lowered
	}
	fits := s.fits(m.Zone, m.Instance)
	if m.Arbiter {
		switch {
		case fits && m.State.comesBack():
			stay = p.each + p.costs.Await
		case fits && m.State == Healthy:
			stay = 0
		}
		return stay, lowered
	}
	visibility := p.reconfigure(number(s.Hidden != m.Hidden || s.Delay != m.Delay))
	if fits && (m.State == Healthy || m.State.comesBack()) {
		price := visibility + p.votes(m, s)
		if m.State != Healthy {
			price += p.each + p.costs.Await
		}
		if !s.rightOplog(m) {
			price += p.each + p.costs.ResizeOplog
		}
		if m.Priority > 0 && s.Priority > 0 {
			stay = price
		} else {
			lowered = price
		}
	}
	return stay, min(lowered, p.lay(m)+p.build(m, fits)+visibility+p.raise(s))
}

// build is the least price of a fresh copy in m's place; here says that its
// own machine will do.
func (p *prices) build(m *Member, here bool) int {
	if here && m.State != Healthy && m.State != Lost {
		return p.each + p.costs.Rebuild
	}
	return p.each + p.costs.Rebuild + p.costs.Provision
}

// standIn is the least price of making m a healthy member with or without a
// vote, in a zone or, when that is empty, anywhere.
func (p *prices) standIn(m *Member, zone string, votes int, data bool) (stay, lowered int) {
	stay, lowered = never, never
	here := zone == "" || m.Zone == zone
	if m.Arbiter {
		if !data && here && (m.State == Healthy || m.State.comesBack()) {
			stay = number(m.State != Healthy) * (p.each + p.costs.Await)
		}
		return stay, lowered
	}
	if here && (m.State == Healthy || m.State.comesBack()) {
		price := number(m.State != Healthy) * (p.each + p.costs.Await)
		switch {
		case votes == 0:
			lowered = price + p.lay(m)
		case m.Priority > 0:
			stay = price
		default:
			lowered = price + p.reconfigure(1-m.Votes)
		}
	}
	return stay, min(lowered, p.lay(m)+p.build(m, here)+p.reconfigure(votes))
}

// votes is the price of the changes of vote and priority from m to s.
func (p *prices) votes(m *Member, s *Slot) int {
	switch {
	case m.Votes == s.Votes:
		return p.reconfigure(number(m.Priority != s.Priority))
	case s.Votes == 1:
		return p.raise(s)
	default:
		return p.lay(m)
	}
}

// remove is the price of taking m out of the set.
func (p *prices) remove(m *Member) int {
	if m.Arbiter {
		return p.each + p.costs.Release
	}
	return p.lay(m) + p.each + p.costs.Release
}

// add is the price of building what s wants on a spare machine.
func (p *prices) add(s *Slot) int {
	if s.Arbiter {
		return p.each + p.costs.Provision
	}
	return p.each + p.costs.Rebuild + p.costs.Provision + p.raise(s)
}

// handOver is the least price of moving the primary's office away from m for
// nothing but that. It is 0 where a change that is needed anyway, another
// member's priority, may move it.
func (b *bounds) handOver(v Vertex, m *Member) int {
	highest := b.highest
	for i := range v.Members {
		if !v.Members[i].Primary {
			highest = max(highest, v.Members[i].Priority)
		}
	}
	if highest > m.Priority {
		return 0
	}
	return b.prices.each + min(b.prices.costs.StepDown, b.prices.costs.Reconfigure)
}

// bounds computes lower bounds of the price from a vertex to a goal. A bound is
// what the differences cost when no operation stands in another's way, with
// members and slots paired as cheaply as can be.
type bounds struct {
	goals   *goals
	prices  prices
	highest float64 // priority in the layout
	solver  assignment
}

// newBounds prepares for one layout and one way of counting.
func newBounds(g *goals, p prices) *bounds {
	b := &bounds{goals: g, prices: p}
	for _, s := range g.layout.Slots {
		b.highest = max(b.highest, s.Priority)
	}
	return b
}

// pair is the least price of making m what s wants, by itself or by another
// member in its place.
func (b *bounds) pair(m *Member, s *Slot, handOver int) int {
	stay, lowered := b.prices.convert(m, s)
	return min(stay, min(lowered, b.prices.remove(m)+b.prices.add(s))+handOver)
}

// full bounds the price to full health from below. It is 0 only for members
// that are all as wanted.
func (b *bounds) full(v Vertex) int {
	slots := b.goals.layout.Slots
	n := max(len(v.Members), len(slots))
	b.solver.reset(n)
	for i := range n {
		if i >= len(v.Members) {
			for j := range slots {
				b.solver.set(i, j, b.prices.add(&slots[j]))
			}
			continue
		}
		m, handOver := &v.Members[i], 0
		if m.Primary {
			handOver = b.handOver(v, m)
		}
		for j := range n {
			if j < len(slots) {
				b.solver.set(i, j, b.pair(m, &slots[j], handOver))
			} else {
				b.solver.set(i, j, b.prices.remove(m)+handOver)
			}
		}
	}
	return b.solver.solve()
}

// partial bounds the price to the best health that can be had from below: that
// of the cheapest pattern.
func (b *bounds) partial(v Vertex, patterns []pattern) int {
	least := never
	for i := range patterns {
		least = min(least, b.pattern(v, &patterns[i]))
	}
	return least
}

// pattern bounds the price of bringing the members into one pattern. Rows are
// members and spares; columns are the pattern's members, the places of those
// that may stay beside, and the way out.
func (b *bounds) pattern(v Vertex, p *pattern) int {
	members := len(v.Members)
	rows := max(members+min(len(v.Spares), len(p.roles)), len(p.roles))
	n := rows + p.beside
	b.solver.reset(n)
	for i := range n {
		switch {
		case i < members:
			b.memberRow(v, i, n, p)
		case i < rows && i < members+len(v.Spares):
			for j := range p.roles {
				b.solver.set(i, j, b.fill(&p.roles[j]))
			}
		default:
			for j := range p.roles {
				b.solver.set(i, j, never)
			}
		}
	}
	return b.solver.solve()
}

// memberRow prices everything that member i can become.
func (b *bounds) memberRow(v Vertex, i, n int, p *pattern) {
	m, handOver := &v.Members[i], 0
	if m.Primary {
		handOver = b.handOver(v, m)
	}
	for j := range p.roles {
		r := &p.roles[j]
		var stay, lowered int
		if r.slot != nil {
			stay, lowered = b.prices.convert(m, r.slot)
		} else {
			stay, lowered = b.prices.standIn(m, r.zone, r.votes, r.data)
		}
		fresh := b.prices.remove(m) + b.fill(r)
		b.solver.set(i, j, min(stay, min(lowered, fresh)+handOver))
	}
	beside := len(p.roles) + p.beside
	for j := len(p.roles); j < n; j++ {
		switch {
		case j < len(p.roles)+p.deadVotes && m.State != Healthy:
		case j < beside && m.Arbiter:
			b.solver.set(i, j, never)
		case j < beside:
			b.solver.set(i, j, b.prices.lay(m)+handOver)
		default:
			b.solver.set(i, j, b.prices.remove(m)+handOver)
		}
	}
}

// fill is the price of playing a role on a spare machine.
func (b *bounds) fill(r *role) int {
	switch {
	case r.slot != nil:
		return b.prices.add(r.slot)
	case r.data:
		return b.prices.each + b.prices.costs.Rebuild + b.prices.costs.Provision + b.prices.reconfigure(r.votes)
	default:
		return b.prices.each + b.prices.costs.Provision
	}
}
