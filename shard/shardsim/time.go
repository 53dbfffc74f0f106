package shardsim

import (
	"cmp"
	"slices"
	"time"
)

// Now is the set's time.
func (s *Set) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Advance lets time pass, with all that happens in it.
func (s *Set) Advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(d)
}

// advance is Advance with the lock held.
func (s *Set) advance(d time.Duration) {
	for ; d > 0; d -= tick {
		s.step(min(d, tick))
	}
}

// step lets a moment pass. With 0 only that happens which takes no time:
// heartbeats and replication among those who are not held up.
func (s *Set) step(d time.Duration) {
	s.now = s.now.Add(d)
	s.heartbeat()
	for _, n := range s.nodes {
		n.lag = max(0, n.lag-2*d) // it catches up
		n.arrive()
	}
	s.replicate()
	if d > 0 {
		s.loseOffice()
		s.holdElections()
		s.takeOver()
		s.replicate()
		s.welcome()
		if p := s.head(); p != nil && !p.stalled && s.now.Sub(p.optimeDate()) >= noopEvery {
			p.write(nil)
		}
	}
	s.broadcast()
}

// find gives the machine of a host, nil when there is none.
func (s *Set) find(host string) *node {
	for _, n := range s.nodes {
		if n.host == host {
			return n
		}
	}
	return nil
}

// hears reports whether two nodes hear each other.
func (s *Set) hears(a, b *node) bool {
	if a == b {
		return a.up
	}
	x, y := min(a.host, b.host), max(a.host, b.host)
	return a.up && b.up && !s.cut[[2]string{x, y}]
}

// heartbeat lets members hear of each other: that they live, which configuration
// is the newest, which term, and whether there is a primary.
func (s *Set) heartbeat() {
	for range 2 { // what one hears it tells
		for _, from := range s.nodes {
			if from.config == nil || !from.up {
				continue
			}
			for _, m := range from.config.members {
				if to := s.find(m.host); to != nil && to != from && s.hears(from, to) {
					from.tell(to)
				}
			}
		}
	}
	for _, n := range s.nodes {
		if n.up && n.role == primary && s.voices(n) >= n.config.majority() {
			n.quorum = s.now
		}
	}
}

// tell is one heartbeat and its answer.
func (n *node) tell(to *node) {
	s := n.set
	if to.config == nil || n.config.newer(to.config) {
		to.adopt(n.config)
	}
	if to.config != nil && to.config.newer(n.config) {
		n.adopt(to.config)
	}
	for _, x := range [2][2]*node{{n, to}, {to, n}} {
		me, other := x[0], x[1]
		if me.mute {
			continue
		}
		me.heard[other.host] = s.now
		if other.term > me.term {
			me.term = other.term
			if me.role == primary {
				me.resign()
			}
		}
		if other.role == primary && other.term >= me.term {
			me.leader = s.now
		}
	}
}

// adopt installs a configuration that was heard of.
func (n *node) adopt(c *config) {
	n.config = c
	n.counter++
	m := c.member(n.host)
	switch {
	case m == nil:
		if n.role == primary {
			n.resign()
		}
		n.role = removed
	case n.role == starting || n.role == removed:
		if m.arbiter {
			n.role = arbiter
			return
		}
		n.role, n.until = secondary, time.Time{}
		if len(n.log) == 0 {
			n.role, n.until = syncing, n.set.now.Add(n.set.opts.SyncTime)
		}
		n.leader = n.set.now
	}
}

// arrive ends what takes its time: recovery, and an initial sync, which needs
// somebody to copy from.
func (n *node) arrive() {
	if !n.up || n.set.now.Before(n.until) || n.stalled {
		return
	}
	switch n.role {
	case recovering:
		n.become(secondary)
	case syncing:
		if from := n.source(); from != nil {
			n.log = slices.Clone(from.log)
			n.data = build(n.log)
			n.become(secondary)
		}
	default:
	}
}

// become changes the role, which clients are told.
func (n *node) become(r role) {
	n.role = r
	n.counter++
}

// source gives whom a node replicates from: the primary, or who is ahead.
func (n *node) source() *node {
	var best *node
	for _, m := range n.config.members {
		o := n.set.find(m.host)
		if o == nil || o == n || !n.set.hears(n, o) || o.role != primary && o.role != secondary || !n.behind(o) {
			continue
		}
		if o.role == primary && (best == nil || best.role != primary || o.term > best.term) || best == nil || best.role != primary && best.behind(o) {
			best = o
		}
	}
	return best
}

// replicate lets every member take what it may.
func (s *Set) replicate() {
	for range 2 { // along a chain
		for _, n := range s.nodes {
			if !n.up || n.stalled || n.config == nil || n.role != secondary && n.role != recovering {
				continue
			}
			if from := n.source(); from != nil {
				n.pull(from)
			}
		}
	}
}

// voices counts the votes that a node hears, its own included.
func (s *Set) voices(n *node) int {
	votes := 0
	for _, m := range n.config.members {
		if o := s.find(m.host); o != nil && s.hears(n, o) && o.role != starting && o.role != removed {
			votes += m.counts()
		}
	}
	return votes
}

// loseOffice ends primaries that hear no majority.
func (s *Set) loseOffice() {
	for _, n := range s.nodes {
		if n.up && n.role == primary && s.now.Sub(n.quorum) >= electionTimeout {
			n.resign()
		}
	}
}

// resign ends a primary's office: its transactions and its users' operations end.
func (n *node) resign() {
	n.become(secondary)
	n.leader, n.txns = n.set.now, map[string]*transaction{}
	for _, o := range n.ops {
		o.kill(codeStateChange)
	}
}

// mayStand reports whether a node may be elected now.
func (n *node) mayStand() bool {
	if !n.up || n.config == nil || n.role != secondary || n.stalled || n.mute || n.lag > 0 || n.set.now.Before(n.frozen) {
		return false
	}
	m := n.config.member(n.host)
	return m != nil && m.counts() == 1 && m.priority > 0
}

// holdElections lets those stand who know of no primary.
func (s *Set) holdElections() {
	var standing []*node
	for _, n := range s.nodes {
		if n.mayStand() && s.now.Sub(n.leader) >= electionTimeout {
			standing = append(standing, n)
		}
	}
	slices.SortStableFunc(standing, func(a, b *node) int {
		return cmp.Or(compareOptimes(b, a), cmp.Compare(b.config.member(b.host).priority, a.config.member(a.host).priority))
	})
	for _, n := range standing {
		if s.now.Sub(n.leader) >= electionTimeout && s.elect(n) {
			s.heartbeat()
		}
	}
}

// compareOptimes orders nodes by what they have.
func compareOptimes(a, b *node) int {
	switch {
	case a.behind(b):
		return -1
	case b.behind(a):
		return 1
	default:
		return 0
	}
}

// elect lets a node stand. Nobody votes for one that has less, nor twice in a term.
func (s *Set) elect(n *node) bool {
	term := n.term + 1
	var voters []*node
	votes := 0
	for _, m := range n.config.members {
		o := s.find(m.host)
		if o == nil || !s.hears(n, o) || m.counts() == 0 || o.role == starting || o.role == removed {
			continue
		}
		if o.term >= term || o.voted >= term || o != n && o.role != arbiter && n.behind(o) {
			continue
		}
		voters = append(voters, o)
		votes++
	}
	if votes < n.config.majority() {
		return false
	}
	for _, o := range voters {
		o.term, o.voted = term, term
		if o.role == primary && o != n {
			o.resign()
		}
	}
	if from := n.source(); from != nil {
		n.pull(from) // catch-up
	}
	n.become(primary)
	n.elected, n.quorum, n.takeover = s.now, s.now, time.Time{}
	n.config = n.config.inTerm(term)
	n.append(n.newTerm())
	return true
}

// newTerm is the entry with which a term begins.
func (n *node) newTerm() *entry {
	n.set.inc++
	return &entry{at: stamp(n.set.now, n.set.inc), term: n.term, wall: n.set.now}
}

// takeOver lets a member of higher priority stand that is caught up, the highest first.
func (s *Set) takeOver() {
	p := s.head()
	if p == nil {
		return
	}
	mine := p.config.member(p.host)
	for _, n := range s.nodes {
		if n == p || !n.mayStand() || !s.hears(n, p) || mine == nil {
			n.takeover = time.Time{}
			continue
		}
		m := n.config.member(n.host)
		if m.priority <= mine.priority || p.optimeDate().Sub(n.optimeDate()) > 2*time.Second {
			n.takeover = time.Time{}
			continue
		}
		if n.takeover.IsZero() {
			n.takeover = s.now
		}
		rank := 1
		for _, o := range n.config.members {
			rank += number(o.priority > m.priority)
		}
		if s.now.Sub(n.takeover) >= time.Duration(rank)*electionTimeout {
			n.pull(p)
			if s.elect(n) {
				s.heartbeat()
				return
			}
		}
	}
}

// welcome lets a new member vote whose initial sync has ended: the primary writes
// that configuration by itself.
func (s *Set) welcome() {
	p := s.head()
	if p == nil {
		return
	}
	for i, m := range p.config.members {
		if o := s.find(m.host); m.newlyAdded && o != nil && s.hears(p, o) && o.role == secondary {
			next := p.config.next()
			next.members[i].newlyAdded = false
			p.adopt(next)
			s.heartbeat()
			return
		}
	}
}

// number makes a condition countable.
func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
