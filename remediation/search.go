package remediation

import (
	"container/heap"
	"slices"
	"time"
)

// node is a vertex that a search has found a way to.
type node struct {
	vertex Vertex
	op     Operation // the last one of the way
	parent int       // -1 for the start
	spent  int
	ahead  int // lower bound of what is still to spend
	done   bool
}

// ticket is a node's place in the queue.
type ticket struct{ node, total, spent, safety, order int }

// queue gives the cheapest total first, and among equals the node nearest to
// the goal, then the safest, so that of equally good plans the one is found
// that gives before it takes, then the one found first.
type queue []ticket

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	switch {
	case a.total != b.total:
		return a.total < b.total
	case a.spent != b.spent:
		return a.spent > b.spent
	case a.safety != b.safety:
		return a.safety > b.safety
	default:
		return a.order < b.order
	}
}

// Push implements [heap.Interface].
func (q *queue) Push(x any) { *q = append(*q, x.(ticket)) }

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// search looks for the cheapest way from one vertex to a goal. Without its
// lower bound it would be Dijkstra's algorithm, and breadth first search where
// every operation costs the same; the bound only spares it vertices that no
// cheapest way can pass.
type search struct {
	menu   *menu
	prices prices
	ahead  func(Vertex) int // lower bound of the price to the goal
	goal   func(v Vertex, ahead int) bool
	limit  int // vertices to look at

	codec codec
	nodes []node
	known map[string]int
	queue queue
	order int
}

// run gives the goal's node. It is -1 when there is none; then all that can be
// reached has been looked at, unless complete is false.
func (s *search) run(start Vertex) (found int, complete bool) {
	s.known = map[string]int{}
	s.offer(start, nil, -1, 0)
	for len(s.queue) > 0 {
		t := heap.Pop(&s.queue).(ticket)
		n := &s.nodes[t.node]
		if n.done || t.spent != n.spent {
			continue
		}
		n.done = true
		if s.goal(n.vertex, n.ahead) {
			return t.node, true
		}
		if len(s.nodes) >= s.limit {
			return -1, false
		}
		v, spent := n.vertex, n.spent
		s.menu.each(v, &s.codec, func(o Operation) {
			s.offer(o.Next(v), o, t.node, spent+s.prices.of(o))
		})
	}
	return -1, true
}

// offer notes a way to v, if it is the cheapest known.
func (s *search) offer(v Vertex, o Operation, parent, spent int) {
	key := s.codec.key(v)
	i, seen := s.known[key]
	switch {
	case !seen:
		i = len(s.nodes)
		s.known[key] = i
		s.nodes = append(s.nodes, node{vertex: v, ahead: s.ahead(v)})
	case spent >= s.nodes[i].spent:
		return
	}
	n := &s.nodes[i]
	// The names of hosts are those of the cheapest way, from its start on.
	n.vertex, n.op, n.parent, n.spent, n.done = v, o, parent, spent, false
	s.order++
	heap.Push(&s.queue, ticket{node: i, total: spent + n.ahead, spent: spent, safety: safety(v), order: s.order})
}

// safety orders vertices that are equally far on: by the votes that may still
// fail, then by the copies there are.
func safety(v Vertex) int {
	all, healthy := v.votes()
	copies := 0
	for i := range v.Members {
		copies += number(v.Members[i].holdsData())
	}
	return (healthy-majority(all))*maxMembers + copies
}

// way lists the operations that lead to a node.
func (s *search) way(i int) []Operation {
	var ops []Operation
	for ; s.nodes[i].parent >= 0; i = s.nodes[i].parent {
		ops = append(ops, s.nodes[i].op)
	}
	slices.Reverse(ops)
	return ops
}

// visibility is what SetVisibility and Add choose from.
type visibility struct {
	hidden bool
	delay  time.Duration
}

// menu lists the operations worth a thought under one layout: those that are
// allowed and whose values some slot wants.
type menu struct {
	slots        []Slot
	priorities   []float64
	oplogs       []int
	visibilities []visibility
	lateVoters   bool // some slot is delayed and votes
}

// newMenu collects a layout's values.
func newMenu(l Layout) *menu {
	m := &menu{slots: l.Slots, priorities: []float64{0}}
	for _, s := range l.Slots {
		if s.Arbiter {
			continue
		}
		m.lateVoters = m.lateVoters || s.Delay > 0 && s.Votes == 1
		m.priorities = appendNew(m.priorities, s.Priority)
		m.oplogs = appendNew(m.oplogs, s.OplogMB)
		m.visibilities = appendNew(m.visibilities, visibility{s.Hidden, s.Delay})
	}
	return m
}

// appendNew appends v unless it is there.
func appendNew[T comparable](to []T, v T) []T {
	if slices.Contains(to, v) {
		return to
	}
	return append(to, v)
}

// each tells every operation of the menu that is allowed in v. Of members and
// of spares that differ in nothing but their name it takes the first.
func (m *menu) each(v Vertex, c *codec, tell func(Operation)) {
	offer := func(o Operation) {
		if o.Preconditions(v) == nil {
			tell(o)
		}
	}
	var known [maxMembers]uint64
	kinds := known[:0]
	first := func(k uint64) bool {
		if slices.Contains(kinds, k) {
			return false
		}
		kinds = append(kinds, k)
		return true
	}
	p := v.primary()
	if v.election() >= 0 {
		tell(AwaitElection{})
	}
	for i := range v.Members {
		if first(c.member(&v.Members[i])) {
			m.configure(v, i, p, offer)
			m.build(v, i, c, offer)
		}
	}
	m.add(v, c, offer)
}

// configure offers the changes of member i's configuration.
func (m *menu) configure(v Vertex, i, primary int, offer func(Operation)) {
	x := &v.Members[i]
	if x.State.comesBack() {
		offer(Await{x.Host})
	}
	if x.Arbiter {
		return
	}
	switch {
	case x.Votes == 1:
		offer(TakeVote{x.Host})
	case x.Delay == 0 || m.lateVoters: // else each majority would wait for the delay
		offer(GiveVote{x.Host})
	}
	for _, p := range m.priorities {
		if p != x.Priority {
			offer(SetPriority{x.Host, p})
		}
	}
	if primary >= 0 && primary != i {
		office := &v.Members[primary]
		if office.Priority != x.Priority && !slices.Contains(m.priorities, office.Priority) {
			offer(SetPriority{x.Host, office.Priority})
		}
		if x.electable() {
			offer(StepDown{office.Host, x.Host})
		}
	}
	for _, w := range m.visibilities {
		if x.Hidden != w.hidden || x.Delay != w.delay {
			offer(SetVisibility{x.Host, w.hidden, w.delay})
		}
	}
	for _, mb := range m.oplogsAt(x.Zone, x.Instance) {
		if mb != 0 && mb != x.OplogMB {
			offer(ResizeOplog{x.Host, mb})
		}
	}
}

// build offers what makes or gives up member i's copy.
func (m *menu) build(v Vertex, i int, c *codec, offer func(Operation)) {
	x := &v.Members[i]
	if x.Priority > 0 || x.Votes > 0 && !x.Arbiter || x.Primary {
		return
	}
	offer(Remove{x.Host})
	if x.Arbiter {
		return
	}
	if x.State != Healthy {
		for _, mb := range m.oplogsAt(x.Zone, x.Instance) {
			offer(Rebuild{x.Host, mb})
		}
	}
	m.spares(v, c, func(s *Spare) {
		if !m.usable(s.Instance, false) {
			return
		}
		for _, mb := range m.oplogsAt(s.Zone, s.Instance) {
			offer(Replace{x.Host, s.Host, mb})
		}
	})
}

// add offers new members, as long as fewer are alive than wanted.
func (m *menu) add(v Vertex, c *codec, offer func(Operation)) {
	alive := 0
	for i := range v.Members {
		alive += number(v.Members[i].State != Lost)
	}
	if alive >= len(m.slots) {
		return
	}
	m.spares(v, c, func(s *Spare) {
		if m.usable(s.Instance, true) {
			offer(Add{Host: s.Host, Arbiter: true})
		}
		if !m.usable(s.Instance, false) {
			return
		}
		for _, mb := range m.oplogsAt(s.Zone, s.Instance) {
			for _, w := range m.visibilities {
				offer(Add{Host: s.Host, Hidden: w.hidden, Delay: w.delay, OplogMB: mb})
			}
		}
	})
}

// usable reports whether some slot wants such a machine, in whichever zone.
func (m *menu) usable(instance string, arbiter bool) bool { return usable(m.slots, instance, arbiter) }

// usable reports whether one of the slots wants a machine of a kind, in
// whichever zone: for an arbiter, or for data.
func usable(slots []Slot, instance string, arbiter bool) bool {
	for i := range slots {
		if s := &slots[i]; s.Arbiter == arbiter && (s.Instance == "" || s.Instance == instance) {
			return true
		}
	}
	return false
}

// spares tells one spare of each place.
func (m *menu) spares(v Vertex, c *codec, tell func(*Spare)) {
	var known [maxMembers]uint64
	places := known[:0]
	for i := range v.Spares {
		if k := c.spare(&v.Spares[i]); !slices.Contains(places, k) {
			places = append(places, k)
			tell(&v.Spares[i])
		}
	}
}

// oplogsAt lists the oplog sizes that slots want at a place; where none wants
// anything there, those of all slots.
func (m *menu) oplogsAt(zone, instance string) []int {
	var known [8]int
	sizes := known[:0]
	for i := range m.slots {
		if s := &m.slots[i]; !s.Arbiter && s.fits(zone, instance) {
			sizes = appendNew(sizes, s.OplogMB)
		}
	}
	if len(sizes) == 0 {
		return m.oplogs
	}
	return sizes
}
