package shardsim

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Stage is a moment in a command's life.
type Stage int

// The stages.
const (
	Arrived Stage = iota // nothing has been looked at
	Checked              // the privileges were there; the operation shows in $currentOp
	Done                 // it has taken effect; nobody has the answer
)

// Call is a command as a fault sees it.
type Call struct {
	Host    string // the member
	User    string // empty before the login
	DB      string
	Command string
	Body    bson.Raw
}

// Fault is what goes wrong with commands that match, at a stage. Of Drop, Code and
// Hold the first that is set counts; Do runs before it.
type Fault struct {
	Stage Stage
	Match func(c Call) bool
	Times int    // 0: every time
	Do    func() // with no lock held: may call the set
	Drop  bool   // the connection is closed
	Code  int    // the command fails with it
	Hold  bool   // the command waits until it is released or killed

	set      *Set
	hits     int
	released bool
	removed  bool
}

// Command matches one command on one host; an empty host is every one.
func Command(name, host string) func(Call) bool {
	return func(c Call) bool { return c.Command == name && (host == "" || c.Host == host) }
}

// Inject makes a fault count from now on.
func (s *Set) Inject(f Fault) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.set = s
	s.faults = append(s.faults, &f)
	return &f
}

// Hits is how often a fault has struck.
func (f *Fault) Hits() int {
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	return f.hits
}

// Await waits until a fault has struck n times.
func (f *Fault) Await(ctx context.Context, n int) error {
	for {
		f.set.mu.Lock()
		hits, changed := f.hits, f.set.changed
		f.set.mu.Unlock()
		if hits >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("fault struck %d times, not %d: %w", hits, n, context.Cause(ctx))
		}
	}
}

// Release lets what is held go on, and what comes later pass.
func (f *Fault) Release() {
	f.set.mu.Lock()
	defer f.set.mu.Unlock()
	f.released, f.removed = true, true
	f.set.broadcast()
}

// strike applies the faults of a stage. It gives the reply of a command that is to
// fail, and whether the connection is to end.
func (s *Set) strike(stage Stage, call Call, op *operation) (reply bson.D, drop bool) {
	for _, f := range s.faults {
		if f.removed || f.Stage != stage || f.Times > 0 && f.hits >= f.Times || f.Match != nil && !f.Match(call) {
			continue
		}
		f.hits++
		s.broadcast()
		if f.Do != nil {
			s.mu.Unlock()
			f.Do()
			s.mu.Lock()
		}
		switch {
		case f.Drop:
			return nil, true
		case f.Code != 0:
			return failed(f.Code, "injected"), false
		case f.Hold:
			s.hold(f, op)
		}
	}
	return nil, false
}

// hold lets a command wait until it is released or killed. Time does not pass by it.
func (s *Set) hold(f *Fault, op *operation) {
	for !f.released && (op == nil || op.killed == 0) {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.done:
			s.mu.Lock()
			return
		}
		s.mu.Lock()
	}
}

// with runs fn on a machine and then lets a moment pass that takes no time.
func (s *Set) with(host string, fn func(n *node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(s.node(host))
	s.step(0)
}

// Kill ends a member's process. Its data stay.
func (s *Set) Kill(host string) { s.with(host, (*node).kill) }

// kill is Kill with the lock held.
func (n *node) kill() {
	n.up, n.txns, n.ops = false, map[string]*transaction{}, map[int32]*operation{}
	n.hangUp()
}

// Start starts a member's process again, as a new one. A machine that is gone stays so.
func (s *Set) Start(host string) { s.with(host, (*node).start) }

// start is Start with the lock held.
func (n *node) start() {
	if n.up || n.gone {
		return
	}
	n.up, n.process, n.counter = true, bson.NewObjectID(), 1
	n.work, n.started = Work{Cores: n.work.Cores}, n.set.now
	n.caches, n.heard = map[string][]privilege{}, map[string]time.Time{}
	n.stalled, n.mute = false, false
	n.leader, n.quorum = n.set.now, n.set.now
	if n.role == primary {
		n.role = secondary
	}
}

// Lose takes a member's machine away for good.
func (s *Set) Lose(host string) {
	s.with(host, func(n *node) {
		n.kill()
		n.gone = true
	})
}

// Gone reports whether a machine is no more.
func (s *Set) Gone(host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node(host).gone
}

// Wipe stops a node, empties it and starts it: it knows nothing, and copies
// everything once a member tells it of the set. oplogMB is the size of its new
// oplog, 0 for what it had.
func (s *Set) Wipe(host string, oplogMB int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node(host)
	if n.gone {
		return fmt.Errorf("machine %s is gone", host)
	}
	n.kill()
	n.empty()
	n.up = true
	if oplogMB > 0 {
		n.oplogMB = oplogMB
	}
	s.step(0)
	return nil
}

// Stall keeps a member from applying anything, and as primary from writing, while
// it answers and is heard of.
func (s *Set) Stall(host string) { s.with(host, func(n *node) { n.stalled = true }) }

// Mute keeps a member from hearing the others, so that it repeats an old report.
func (s *Set) Mute(host string) { s.with(host, func(n *node) { n.mute = true }) }

// Lag puts a secondary so far behind. It catches up at twice the speed of time.
func (s *Set) Lag(host string, d time.Duration) {
	s.with(host, func(n *node) {
		n.lag = d
		for len(n.log) > 1 && n.last().wall.Add(d).After(s.now) {
			n.rollBack(len(n.log) - 1)
		}
	})
}

// Recover keeps a member in state RECOVERING for so long.
func (s *Set) Recover(host string, d time.Duration) {
	s.with(host, func(n *node) {
		n.become(recovering)
		n.until = s.now.Add(d)
	})
}

// Silence lets a member take connections of clients and never answer; the other
// members hear it.
func (s *Set) Silence(host string, silent bool) { s.with(host, func(n *node) { n.silent = silent }) }

// Partition keeps two members from hearing each other, or lets them again.
func (s *Set) Partition(a, b string, apart bool) {
	s.with(a, func(*node) { s.cut[[2]string{min(a, b), max(a, b)}] = apart })
}

// StaleCaches lets a member keep the privileges it has cached until it is told to
// empty its cache: roles that are dropped do not do it.
func (s *Set) StaleCaches(host string) { s.with(host, func(n *node) { n.sticky = true }) }

// Emptied is how often a member was told to empty its cache of users.
func (s *Set) Emptied(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node(host).emptied
}

// SetOplog changes the size of a member's oplog behind everybody's back.
func (s *Set) SetOplog(host string, mb int) { s.with(host, func(n *node) { n.oplogMB = mb }) }

// StepUp lets a member win an election at once, if it can.
func (s *Set) StepUp(host string) bool {
	var won bool
	s.with(host, func(n *node) { won = n.mayStand() && s.elect(n) })
	return won
}

// HasMajority reports whether members that live and are in a state to confirm
// writes have a majority of the votes of the newest configuration.
func (s *Set) HasMajority() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var newest *config
	for _, n := range s.nodes {
		if n.config != nil && n.config.newer(newest) {
			newest = n.config
		}
	}
	votes := 0
	for _, m := range newest.members {
		if n := s.find(m.host); n != nil && n.up && !n.stalled && (n.role == primary || n.role == secondary || n.role == arbiter) {
			votes += m.counts()
		}
	}
	return votes >= newest.majority()
}

// Put writes a document on the primary, and reports whether a majority has it.
func (s *Set) Put(ns string, doc any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.head()
	if p == nil || p.stalled {
		return false
	}
	return p.committed(p.write([]change{put(ns, mustMarshal(doc))}))
}

// Documents gives what a member has of a collection.
func (s *Set) Documents(host, ns string) []bson.Raw {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node(host).data.list(ns)
}
