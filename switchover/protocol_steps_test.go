package switchover_test

// The steps of a coordinator, in its order. A step of [switchover.Switcher] that
// makes several calls is several steps here.
const (
	idle = iota
	createGrants
	writeFence
	identity
	advanceFencing
	dropWrites
	barrierWrites
	drain
	drainedMarker
	catchUpDrained
	advanceClosing
	dropReads
	barrierReads
	finalMarker
	catchUpFinal
	identityAgain
	closeLanes
	publish
	openMarker
	openRecord
	grantTarget
	advanceOpen
	conclude
	gone
)

// The steps of a watchdog on the way back.
const (
	giveUp = iota + gone + 1
	createGrantsBack
	liftFence
	grantSource
	advanceAborted
)

// coordinate is one step of the coordinator of attempt i+1.
func (x *explorer) coordinate(m model, i uint8) {
	c := &m.coordinator[i]
	a := i + 1
	done := false
	switch {
	case c.pc == idle:
		x.begin(m, i)
	case c.pc <= catchUpDrained:
		x.readsEarly(m, a)
		done = x.fenceStep(&m, c, a)
	case c.pc == advanceClosing:
		x.closeAtOnce(&m, i)
	case c.pc <= publish:
		done = x.closeStep(&m, c, a)
	case c.pc < gone:
		x.open(&m, c, a)
	}
	if done {
		c.pc++
		x.emit(m)
	}
}

// readsEarly takes the read grants away beside the end of the writes, as is done where
// the lanes are close; one attempt is enough to see it.
func (x *explorer) readsEarly(m model, a uint8) {
	c := &m.coordinator[a-1]
	if a == 1 && c.closing[1] == 0 && (c.pc == barrierWrites || c.pc == drain) {
		x.drop(&m, m.source[a], a, false)
		c.closing[1] = 1
		x.emit(m)
	}
}

// fenceStep is a step up to the moment when the target has everything that was
// written before the fence. It is not done where it waits, or was refused.
func (x *explorer) fenceStep(m *model, c *actorPC, a uint8) (done bool) {
	src := m.source[a]
	switch c.pc {
	case createGrants:
		x.create(m, src, a)
		x.create(m, m.target(a), a)
	case writeFence:
		if x.overtaken(m, src, a) || m.opened[src] >= a {
			return x.leave(m, c)
		}
		m.fence[src] = a
	case identity:
		c.term = m.term
	case advanceFencing:
		if c.round > 0 { // it is fencing
			return true
		}
		if m.row[a] != sPreparing {
			return x.leave(m, c)
		}
		m.row[a] = sFencing
		c.counted = m.came
	case dropWrites:
		x.drop(m, src, a, true)
	case barrierWrites:
		if x.without != "proxies counted behind the drop" {
			c.counted = m.came
		}
		if x.without != "write barrier" {
			m.cached[src].w, m.slip = 0, 0
		}
		if x.without == "final marker behind the drain" {
			m.log[src].add(finalM + a + 4*c.round)
		}
	case drain:
		return x.without == "drain" || x.clean(m, 0, src) && (x.newcomer && !c.counted || x.clean(m, 1, src))
	case drainedMarker:
		if a == 1 { // where the lanes are close the final marker is the only one; one attempt is enough to see it
			near := *m
			near.coordinator[0].pc = advanceClosing
			x.emit(near)
			if c.closing[1] > 0 {
				return false
			}
		}
		m.log[src].add(drainedM + a + 4*c.round)
	case catchUpDrained:
		if x.without == "term check behind the final marker" && x.again(m, c, a) {
			return false
		}
		return x.passed(m, a, drainedM+a+4*c.round)
	}
	return true
}

// clean reports whether the drain takes a proxy for one that has nothing under way to
// p: by its word, or, where it died, by watching p. The word of a next run is no word
// of the run before; and a run that sends has been shown, so that its word is awaited.
func (x *explorer) clean(m *model, i int, p uint8) bool {
	switch {
	case i == 0 && m.died && x.without == "a name for each run":
		return true
	case i == 1 && x.comeBack && x.without == "a run shown before its first request":
		return true
	}
	return m.proxy[i] != 1+p
}

// closingBranches are what is done at once when the lanes are close: the row, the end
// of the reads, and the seam behind the last write.
var closingBranches = [3][]uint8{{advanceClosing}, {dropReads, barrierReads}, {finalMarker, catchUpFinal}}

// closeAtOnce takes the next step of any branch. The row's refusal ends the others: it
// changes nothing, so a step of theirs that comes late is one that came before it.
func (x *explorer) closeAtOnce(m *model, i uint8) {
	for b, steps := range closingBranches {
		n := *m
		c := &n.coordinator[i]
		if int(c.closing[b]) == len(steps) || !x.closeBranch(&n, c, i+1, steps[c.closing[b]]) {
			continue
		}
		c.closing[b]++
		if c.closing == [3]uint8{1, 2, 2} {
			c.closing, c.pc = [3]uint8{}, identityAgain
		}
		x.emit(n)
	}
}

// closeBranch is one step of a branch.
func (x *explorer) closeBranch(m *model, c *actorPC, a, step uint8) (done bool) {
	src := m.source[a]
	switch step {
	case advanceClosing:
		if m.row[a] != sFencing && (m.row[a] != sClosing || c.round == 0) {
			return x.leave(m, c)
		}
		m.row[a] = sClosing
	case dropReads:
		x.drop(m, src, a, false)
	case barrierReads:
		if x.without != "read barrier" {
			m.cached[src].r, m.slip = 0, 0
		}
	case finalMarker:
		if x.without != "final marker" {
			m.log[src].add(finalM + a + 4*c.round)
		}
	case catchUpFinal:
		return x.without == "final marker" || x.passed(m, a, finalM+a+4*c.round)
	}
	return true
}

// again begins the window anew where the primary is another one than that which was
// fenced.
func (x *explorer) again(m *model, c *actorPC, a uint8) bool {
	if c.term == m.term {
		return false
	}
	*c = actorPC{pc: writeFence, attempt: a, round: 1}
	x.emit(*m)
	return true
}

// closeStep is a step behind the final marker, up to the publish.
func (x *explorer) closeStep(m *model, c *actorPC, a uint8) (done bool) {
	switch c.pc {
	case identityAgain:
		early := x.without == "term check behind the final marker"
		if !early && x.without != "term check" && x.again(m, c, a) {
			return false
		}
	case closeLanes:
		if m.reopened >= a {
			return x.leave(m, c)
		}
		m.closedBy = max(m.closedBy, a)
		if x.without != "lane closing" {
			m.laneEpoch++
		}
	case publish:
		if m.row[a] != sClosing && x.without != "publish by compare-and-set" {
			return x.leave(m, c)
		}
		m.row[a], m.serving = sPublished, m.target(a)
	}
	return true
}

// begin opens an attempt, one at a time, from the placement that serves to the other.
func (x *explorer) begin(m model, i uint8) {
	a := i + 1
	if a > 1 && m.row[a-1] != sDone && m.row[a-1] != sAborted {
		return
	}
	m.row[a], m.source[a] = sPreparing, m.serving
	m.coordinator[i] = actorPC{pc: createGrants, attempt: a}
	x.emit(m)
}

// leave ends an actor that was refused, or has done its work.
func (x *explorer) leave(m *model, c *actorPC) (done bool) {
	*c = actorPC{}
	if c != &m.watchdog[0] && c != &m.watchdog[1] {
		c.pc = gone // a coordinator makes one attempt
	}
	x.emit(*m)
	return false
}

// overtaken reports whether the fence document names a newer attempt.
func (x *explorer) overtaken(m *model, p, a uint8) bool {
	return m.fence[p] > a && x.without != "fence document"
}

// create makes an attempt's roles, unless a newer attempt has fenced the placement.
func (x *explorer) create(m *model, p, a uint8) {
	if x.overtaken(m, p, a) {
		return
	}
	r := &m.roles[p][a]
	r.w, r.r = max(r.w, exists), max(r.r, exists)
}

// drop takes the older generations' grants away. A member may honour them until a
// barrier.
func (x *explorer) drop(m *model, p, a uint8, writes bool) {
	if !writes && x.without == "read close" {
		return
	}
	for g := range m.roles[p] {
		older := g < int(a)
		if x.without == "grants by generation" {
			older = true
		}
		r := &m.roles[p][g]
		if !older {
			continue
		}
		if writes {
			if r.w == held {
				m.cached[p].w = 1
			}
			r.w = absent
		} else {
			if r.r == held {
				m.cached[p].r = 1
			}
			r.r = absent
		}
	}
}

// passed reports whether the lanes that feed attempt a's target are past a marker.
func (x *explorer) passed(m *model, a, marker uint8) bool {
	i := m.log[m.source[a]].index(marker)
	if x.without == "catch-up" {
		return true
	}
	return m.laneFrom == m.source[a] && i >= 0 && int(m.lanePos) > i
}

// open is OpenTarget, by coordinator or watchdog.
func (x *explorer) open(m *model, c *actorPC, a uint8) {
	dst := m.target(a)
	order := []uint8{openMarker, openRecord, grantTarget, advanceOpen}
	if x.without == "open record before the grant" {
		order = []uint8{openMarker, grantTarget, openRecord, advanceOpen}
	}
	if c.pc == openMarker && order[1] == openRecord && !c.recordFirst { // both at once: either may come first
		before := *m
		c.recordFirst = true
		x.open(m, c, a)
		*m = before
	}
	if c.recordFirst {
		order[0], order[1] = order[1], order[0]
	}
	step := c.pc
	if c.pc >= openMarker && c.pc <= advanceOpen {
		step = order[c.pc-openMarker]
	}
	switch step {
	case openMarker:
		m.log[dst].add(openM + a)
	case openRecord:
		if x.overtaken(m, dst, a) {
			x.leave(m, c)
			return
		}
		m.opened[dst] = max(m.opened[dst], a)
	case grantTarget:
		c.recordFirst = false
		if !x.grant(m, dst, a) {
			x.leave(m, c)
			return
		}
	case advanceOpen:
		if m.row[a] == sPublished {
			m.row[a] = sOpen
		}
	case conclude:
		if m.row[a] == sOpen {
			m.row[a] = sDone
		}
		x.leave(m, c)
		return
	default:
		return // gone
	}
	c.pc++
	x.emit(*m)
}

// grant gives the proxies an attempt's roles, if they exist.
func (x *explorer) grant(m *model, p, a uint8) bool {
	r := &m.roles[p][a]
	if x.without == "grants by generation" {
		*r = role{held, held} // one role for all, made again when it is missing
		return true
	}
	if r.w == absent || r.r == absent {
		return false
	}
	*r = role{held, held}
	return true
}

// watch is one step of a watchdog. A deadline may pass at any time.
func (x *explorer) watch(m model, i int) {
	w := &m.watchdog[i]
	a := w.attempt
	src := m.source[a]
	switch w.pc {
	case idle:
		for a := uint8(1); a <= x.attempts; a++ {
			n := m
			switch s := m.row[a]; s {
			case sPreparing, sFencing, sClosing, sAborting:
				n.watchdog[i] = actorPC{pc: giveUp, attempt: a, saw: s}
				x.emit(n)
			case sPublished:
				n.watchdog[i] = actorPC{pc: openMarker, attempt: a}
				x.emit(n)
			}
		}
		return
	case giveUp:
		if !m.unbroken && m.opened[m.target(a)] >= a && x.without != "open record on the way back" {
			x.leave(&m, w)
			return
		}
		if m.row[a] != w.saw && x.without != "way back by compare-and-set" {
			x.leave(&m, w)
			return
		}
		m.row[a] = sAborting
	case createGrantsBack:
		if w.saw != sFencing && w.saw != sClosing { // it was prepared
			x.create(&m, src, a)
		}
	case liftFence:
		if x.overtaken(&m, src, a) {
			x.leave(&m, w)
			return
		}
		m.fence[src], m.opened[src] = a, max(m.opened[src], a)
	case grantSource:
		if !x.grant(&m, src, a) {
			x.leave(&m, w)
			return
		}
	case advanceAborted:
		if m.row[a] == sAborting {
			m.row[a] = sAborted
		}
		x.leave(&m, w)
		return
	case conclude: // the coordinator's
		x.leave(&m, w)
		return
	default:
		x.open(&m, w, a)
		return
	}
	w.pc++
	x.emit(m)
}
