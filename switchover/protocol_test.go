package switchover_test

import (
	"fmt"
	"slices"

	"drover/chunk"
)

// The protocol as a small state machine, for TestEveryOrderOfSteps. Its actors and
// steps are those of the code: coordinator, watchdog, proxy, applier, and shards that
// fail over. A step of an actor is one call that the real one makes. Steps of all
// actors come in every order, so that a crash is an actor that is never chosen again,
// and a zombie one that is chosen late.

// Bounds of the model.
const (
	attempts    = 2 // and generation 0, with which a placement is born
	generations = attempts + 1
	logRoom     = 12
)

// The entries of a placement's log: writes of applications (1, 2), the same by the
// applier, and markers.
const (
	byLanes  = 8
	drainedM = 16 // + attempt, + 4 * round
	finalM   = 32
	openM    = 64
)

// stateOf orders the states of an attempt.
var stateOf = []chunk.AttemptState{
	"", chunk.Preparing, chunk.Fencing, chunk.Closing, chunk.Published, chunk.Open, chunk.AttemptDone, chunk.AttemptAborting, chunk.AttemptAborted,
}

// The states of an attempt, as small numbers.
const (
	sNone = iota
	sPreparing
	sFencing
	sClosing
	sPublished
	sOpen
	sDone
	sAborting
	sAborted
)

// The states of a role.
const (
	absent = iota
	exists
	held
)

// log is what was written to a placement, in order.
type placementLog struct {
	n uint8
	e [logRoom]uint8
}

// add appends; a marker that is there already is not written twice.
func (l *placementLog) add(e uint8) {
	if e >= drainedM && l.index(e) >= 0 {
		return
	}
	l.e[l.n] = e
	l.n++
}

// index finds an entry.
func (l *placementLog) index(e uint8) int { return slices.Index(l.e[:l.n], e) }

// count tells how often a write stands in the log, whoever brought it.
func (l *placementLog) count(w uint8) (n int) {
	for _, e := range l.e[:l.n] {
		if e == w || e == w+byLanes {
			n++
		}
	}
	return n
}

// role is one generation's grants of a placement.
type role struct{ w, r uint8 }

// actorPC is where a coordinator or watchdog stands: 0 idle or gone.
type actorPC struct {
	pc, attempt, saw, term, round uint8
	recordFirst                   bool     // of the two that open a target at once
	counted                       bool     // the second proxy was there when the proxies were counted
	closing                       [3]uint8 // steps of each of closingBranches that are done
}

// applier holds a batch of one event that it has read and not yet committed.
type applierPC struct{ holds, index, epoch uint8 }

// model is one state of everything. It is comparable: no pointers.
type model struct {
	row      [attempts + 1]uint8
	source   [attempts + 1]uint8 // placement that the attempt leaves
	serving  uint8
	unbroken bool // the metadata's server has not been exchanged

	roles  [2][generations]role
	cached [2]role // grants that were dropped and that a member still honours
	log    [2]placementLog
	fence  [2]uint8 // attempt in the fence document
	opened [2]uint8 // newest attempt in the open record
	term   uint8    // of shard a
	slip   uint8    // one command that a new primary lets pass by old privileges

	laneFrom, lanePos, laneDir, laneEpoch uint8
	closedBy, reopened                    uint8

	coordinator [attempts]actorPC
	watchdog    [2]actorPC
	proxy       [2]uint8 // 0 idle, 1+p under way to placement p, 3 done, 4 done without an answer
	where       [2]uint8 // placement of a write that is done
	acked       [2]bool
	died        bool // the first proxy, whatever it had under way; the second is its next run
	came        bool // the second proxy, where it is one that comes late
	applier     [2]applierPC
	late        bool // lanes brought a write to a placement that was published
}

// scope says how much may go wrong in one exploration.
type scope struct {
	name      string
	attempts  uint8
	writes    int
	watchdogs int
	appliers  int
	comeBack  bool // the second proxy is the first one's next run, under its name
	newcomer  bool // the second proxy comes at any time
	failover  bool
	straggle  bool // a failover may come behind the final marker too, and let a write pass that nobody expects
	forget    bool // the metadata is restored to before the publish
}

// without is the safeguard that a mutated model lacks; empty for the real one.
type without string

// explorer walks through all states.
type explorer struct {
	scope
	without without
	next    []model
	alone   []model // successors of a watchdog that nobody disturbs
	zombie  string  // I5: what somebody changed behind the end of what it worked for
}

func first(s scope) model {
	m := model{unbroken: true}
	m.roles[0][0] = role{held, held}
	return m
}

// target gives the placement that an attempt goes to.
func (m *model) target(a uint8) uint8 { return 1 - m.source[a] }

// emit notes a successor.
func (x *explorer) emit(m model) { x.next = append(x.next, m) }

// successors gives every state that one step of one actor leads to.
func (x *explorer) successors(m *model) []model {
	x.next = x.next[:0]
	for i := range x.attempts {
		x.act(m, "coordinator", i+1, func() { x.coordinate(*m, i) })
	}
	for i := range x.watchdogs {
		x.act(m, "watchdog", m.watchdog[i].attempt, func() { x.watch(*m, i) })
	}
	for i := range x.writes {
		x.write(*m, i)
	}
	if x.comeBack && !m.died {
		n := *m
		n.died = true
		x.emit(n)
	}
	for i := range x.appliers {
		from := len(x.next)
		x.apply(*m, i)
		if a := m.applier[i]; a.holds > 0 && a.epoch != m.laneEpoch && (x.next[from].log != m.log || x.next[from].lanePos != m.lanePos) {
			x.zombie = "I5: an applier whose lane was taken changed the target"
		}
	}
	x.supervise(*m)
	x.shard(*m)
	x.metadata(*m)
	return x.next
}

// act takes a step of an actor for an attempt. Once that has ended it is a zombie's, and
// may change nothing that anybody goes by.
func (x *explorer) act(m *model, who string, a uint8, step func()) {
	from := len(x.next)
	step()
	if a == 0 || m.row[a] != sDone && m.row[a] != sAborted {
		return
	}
	for i := range x.next[from:] {
		if x.next[from+i].stands() != m.stands() {
			x.zombie = fmt.Sprintf("I5: a %s changed something for attempt %d, which is %s", who, a, stateOf[m.row[a]])
		}
	}
}

// standing is what others go by. What a member still honours of grants that are gone is
// not in it: a late barrier ends that, and may.
type standing struct {
	row           [attempts + 1]uint8
	serving       uint8
	write, read   [2]bool
	fence, opened [2]uint8
}

// stands gives what others go by.
func (m *model) stands() standing {
	s := standing{row: m.row, serving: m.serving, fence: m.fence, opened: m.opened}
	for p := range uint8(2) {
		for _, r := range m.roles[p] {
			s.write[p], s.read[p] = s.write[p] || r.w == held, s.read[p] || r.r == held
		}
	}
	return s
}

// mayWrite reports whether a write to p passes the check on the shard.
func (m *model) mayWrite(p uint8) bool {
	return m.cached[p].w > 0 || slices.ContainsFunc(m.roles[p][:], func(r role) bool { return r.w == held })
}

func (m *model) mayRead(p uint8) bool {
	return m.cached[p].r > 0 || slices.ContainsFunc(m.roles[p][:], func(r role) bool { return r.r == held })
}

// write is a proxy with any route: check, then effect and answer; or the effect
// alone, when it died. One that comes back does so when its last run is dead, of which
// a shard may still carry out what it had sent.
func (x *explorer) write(m model, i int) {
	switch pc := m.proxy[i]; pc {
	case 0:
		if x.comeBack && m.died != (i == 1) {
			return
		}
		if x.newcomer && i == 1 && !m.came {
			m.came = true
			x.emit(m)
			return
		}
		for p := range uint8(2) {
			if m.mayWrite(p) {
				n := m
				n.proxy[i] = 1 + p
				x.emit(n)
			} else if p == 0 && m.slip > 0 {
				n := m
				n.proxy[i], n.slip = 1+p, 0
				x.emit(n)
			}
		}
	case 1, 2:
		m.log[pc-1].add(uint8(i + 1))
		m.where[i] = pc - 1
		m.proxy[i] = 4
		x.emit(m)
		if i == 0 && m.died {
			return
		}
		m.proxy[i], m.acked[i] = 3, true
		x.emit(m)
	}
}

// apply is a lane's owner: it reads one event, then commits it with its checkpoint in
// one transaction. Another may take the lane at any time.
func (x *explorer) apply(m model, i int) {
	a := &m.applier[i]
	if a.holds == 0 {
		if m.lanePos >= m.log[m.laneFrom].n || m.closedBy > 0 && x.without != "lane closing" {
			return
		}
		n := m
		n.applier[i] = applierPC{1, m.lanePos, m.laneEpoch}
		x.emit(n)
		return
	}
	mine := a.epoch == m.laneEpoch && a.index == m.lanePos
	if x.without == "conditional checkpoint" {
		mine = a.index < m.log[m.laneFrom].n
	}
	if mine {
		if e := m.log[m.laneFrom].e[a.index]; e < byLanes {
			m.log[1-m.laneFrom].add(e + byLanes)
			m.late = m.late || x.straggle && m.serving != m.laneFrom
		}
		m.lanePos = max(m.lanePos, a.index+1)
	}
	*a = applierPC{}
	x.emit(m)
}

// supervise is what the workflow does around attempts: it opens the lanes again after
// a way back and turns them round after a publish.
func (x *explorer) supervise(m model) {
	a := m.closedBy
	if a == 0 {
		return
	}
	state := m.row[a]
	switch {
	case state == sAborted:
		m.closedBy, m.reopened = 0, max(m.reopened, a)
		m.laneEpoch++
		x.emit(m)
	case state == sOpen || state == sDone:
		m.laneFrom, m.laneDir, m.closedBy = m.target(a), a, 0
		m.lanePos = uint8(m.log[m.laneFrom].index(openM+a) + 1) //nolint:gosec // small
		if x.without == "open marker as the start" {
			m.lanePos = m.log[m.laneFrom].n
		}
		m.laneEpoch++
		x.emit(m)
	}
}

// shard is a failover of the source's shard. The new primary may let one command pass
// by privileges of the past, until a barrier shows it otherwise; after the final
// marker that is a straggler, which one scope lets come.
func (x *explorer) shard(m model) {
	if !x.failover || m.term > 0 || !x.straggle && m.log[0].index(finalM+1) >= 0 {
		return
	}
	m.term, m.slip = 1, 1
	if x.without == "fence on the shard" { // kept in the primary's memory
		for g := range m.roles[0] {
			if g == 0 {
				m.roles[0][g] = role{held, held}
			}
		}
	}
	x.emit(m)
}

// metadata is an exchange of Postgres for one that has forgotten the publish. Every
// worker was stopped for it.
func (x *explorer) metadata(m model) {
	if !x.forget || !m.unbroken {
		return
	}
	m.coordinator, m.watchdog = [attempts]actorPC{{pc: gone}, {pc: gone}}, [2]actorPC{}
	m.unbroken = false
	x.emit(m)
	if m.row[1] == sPublished || m.row[1] == sOpen {
		m.row[1], m.serving = sClosing, m.source[1]
		x.emit(m)
	}
}

// violation checks the invariants in one state.
func (x *explorer) violation(m *model) string {
	if m.mayWrite(0) && m.mayWrite(1) {
		return "I1: two placements are open for writes"
	}
	for i, c := range m.coordinator { // the fence holds, whatever happens to the shard
		a := uint8(i + 1) //nolint:gosec // small
		if src := m.source[a]; c.pc > barrierWrites && c.pc < gone && (m.row[a] == sFencing || m.row[a] == sClosing) && m.mayWrite(src) {
			return fmt.Sprintf("I6: placement %d is fenced and open for writes", src)
		}
	}
	for w := range uint8(x.writes) { //nolint:gosec // small
		for p := range uint8(2) {
			n := m.log[p].count(w + 1)
			if n > 1 {
				return fmt.Sprintf("I3: write %d stands %d times on placement %d", w+1, n, p)
			}
			if m.acked[w] && n == 0 && m.mayRead(p) && !x.straggle {
				return fmt.Sprintf("I2: placement %d can be read and lacks write %d", p, w+1)
			}
		}
	}
	if m.late {
		return "I7: the lanes brought a write to a placement that was published: a straggler is kept and shown, not applied"
	}
	if x.straggle { // it is what the others would find
		return x.stuck(m)
	}
	for a := uint8(1); a <= attempts; a++ {
		if s := m.row[a]; s != sPublished && s != sOpen && s != sDone || m.log[m.source[a]].index(openM+attempts) >= 0 {
			continue
		}
		l := m.log[m.source[a]]
		for _, e := range l.e[max(0, l.index(finalM+a+4), l.index(finalM+a)):l.n] {
			if e < byLanes {
				return fmt.Sprintf("I7: write %d came to placement %d behind the final marker", e, m.source[a])
			}
		}
	}
	return x.stuck(m)
}

// stuck is I4: whatever the others do from now on, that is nothing, a watchdog alone
// ends every attempt, and somebody can write again.
func (x *explorer) stuck(m *model) string {
	if x.forget {
		return "" // a metadata that forgot waits for a person, by design
	}
	n := *m
	n.watchdog = [2]actorPC{}
	for range 30 {
		done := true
		for a := uint8(1); a <= attempts; a++ {
			if s := n.row[a]; s != sNone && s != sOpen && s != sDone && s != sAborted {
				done = false
			}
		}
		if done && n.watchdog[0].pc == 0 {
			if s := n.serving; !n.mayWrite(s) || !n.mayRead(s) {
				return "I4: every attempt has ended, and nobody can use the chunk"
			}
			return ""
		}
		next := x.next
		x.next = x.alone[:0]
		x.watch(n, 0)
		x.alone, x.next = x.next, next
		if len(x.alone) == 0 {
			break
		}
		n = x.alone[0]
	}
	return fmt.Sprintf("I4: the watchdog cannot end attempts in states %v", []chunk.AttemptState{stateOf[n.row[1]], stateOf[n.row[2]]})
}
