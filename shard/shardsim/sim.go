// Package shardsim simulates a MongoDB replica set that speaks the wire protocol on
// loopback: one listener for each member. It shows what a shard server of one
// member cannot: elections, secondaries, reconfiguration, $currentOp, stale
// privilege caches, records of retryable writes, and faults at any moment.
//
// Behaviour:
//   - one replicated log for each member, pulled from whoever is ahead; what was
//     not replicated is rolled back after an election; w:majority and majority
//     reads by the commit point; a wiped member forgets what it acknowledged;
//   - elections with terms, votes and catch-up; priority takeover; a primary
//     without a majority steps down; step-down hands the office over; replSetFreeze;
//   - replSetReconfig with mongod's rules: one voting change, the present
//     configuration committed, the quorum check, (version, term), newlyAdded; force
//     is refused;
//   - SCRAM-SHA-256, users and roles as replicated documents, privilege caches of
//     each member, which a test may make stale;
//   - inserts, updates and deletes, retryable and in transactions; config.transactions;
//   - operations and idle transactions in $currentOp; killOp, killSessions;
//   - time is the simulator's own: it passes by [Set.Advance], or, with
//     [Options.Auto], whenever a command waits for something.
//
// Not supported: change streams, cursors beyond the first batch, indexes other than
// _id, aggregation beyond $match and a count, lock conflicts, sharding.
package shardsim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Times of a set, in its own time.
const (
	electionTimeout = 10 * time.Second
	tick            = time.Second
	noopEvery       = 10 * time.Second
	patience        = time.Hour // of a command that names no limit, in automatic time
)

// Options of a set.
type Options struct {
	Name     string        // of the set; "rs"
	Members  []Member      // nil: three, alike
	Spares   int           // machines that are no members
	SyncTime time.Duration // of an initial sync; 30 s
	Auto     bool          // time passes while commands wait
}

// Member is one member as a set is started with it.
type Member struct {
	Votes    int
	Priority float64
	Hidden   bool
	Delay    time.Duration
	Arbiter  bool
	OplogMB  int
}

// Set is a simulated replica set.
type Set struct {
	opts   Options
	done   chan struct{}
	closed sync.Once
	wg     sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	now     time.Time
	inc     uint32 // orders what happens in one second
	nodes   []*node
	cut     map[[2]string]bool // pairs that do not hear each other
	faults  []*Fault
	opids   int32
	connids int64
}

// role is what a member does.
type role int

// The roles of a node, with mongod's numbers.
const (
	starting   role = 0
	primary    role = 1
	secondary  role = 2
	recovering role = 3
	syncing    role = 5
	arbiter    role = 7
	removed    role = 10
)

// String names the role as replSetGetStatus does.
func (r role) String() string {
	return map[role]string{
		starting: "STARTUP", primary: "PRIMARY", secondary: "SECONDARY", recovering: "RECOVERING", syncing: "STARTUP2", arbiter: "ARBITER", removed: "REMOVED",
	}[r]
}

// node is one member, or a machine that may become one. The set's lock guards it.
type node struct {
	set      *Set
	host     string
	listener net.Listener
	conns    map[*conn]bool

	up      bool
	silent  bool // takes connections of clients and never answers
	gone    bool // the machine is no more
	stalled bool // applies nothing; as primary writes nothing
	mute    bool // hears nobody, repeats an old report
	lag     time.Duration
	role    role
	until   time.Time // recovering or syncing until then
	oplogMB int

	process  bson.ObjectID
	counter  int64
	config   *config
	term     int64
	voted    int64 // the last term it voted in
	log      []*entry
	data     *documents
	heard    map[string]time.Time // others, by host
	leader   time.Time            // when it last knew of a primary
	quorum   time.Time            // when it last heard a majority, as primary
	elected  time.Time
	frozen   time.Time // does not stand until then
	takeover time.Time // since when it might take over

	caches  map[string][]privilege
	sticky  bool // the cache keeps what it has until it is emptied by command
	ops     map[int32]*operation
	txns    map[string]*transaction
	emptied int // times the cache was emptied by command

	work    Work
	started time.Time
}

// New starts a set with its first member of the highest priority as primary, and a
// user root, password root. Close ends it.
func New(o Options) (*Set, error) {
	if o.Name == "" {
		o.Name = "rs"
	}
	if o.SyncTime == 0 {
		o.SyncTime = 30 * time.Second
	}
	if o.Members == nil {
		o.Members = slices.Repeat([]Member{{Votes: 1, Priority: 1}}, 3)
	}
	s := &Set{opts: o, done: make(chan struct{}), changed: make(chan struct{}), now: time.UnixMilli(1_800_000_000_000).UTC(), cut: map[[2]string]bool{}}
	for range len(o.Members) + o.Spares {
		if err := s.listen(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := &config{name: o.Name, version: 1, term: 1}
	for i, m := range o.Members {
		n := s.nodes[i]
		if m.OplogMB > 0 {
			n.oplogMB = m.OplogMB
		}
		cfg.members = append(cfg.members, member{id: i, host: n.host, votes: m.Votes, priority: m.Priority, hidden: m.Hidden, delay: m.Delay, arbiter: m.Arbiter})
	}
	for i, m := range o.Members {
		n := s.nodes[i]
		n.up, n.config, n.term, n.role = true, cfg, 1, secondary
		if m.Arbiter {
			n.role = arbiter
		}
		n.leader = s.now.Add(-electionTimeout)
	}
	s.heartbeat()
	first := s.nodes[0]
	for i, m := range o.Members {
		if m.Priority > o.Members[slices.Index(s.nodes, first)].Priority {
			first = s.nodes[i]
		}
	}
	s.elect(first)
	first.write(rootUser())
	s.step(0)
	return s, nil
}

// listen makes one machine.
func (s *Set) listen() error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for a member: %w", err)
	}
	n := &node{set: s, host: l.Addr().String(), listener: l, conns: map[*conn]bool{}, oplogMB: 1000}
	n.empty()
	s.nodes = append(s.nodes, n)
	s.wg.Go(n.serve)
	return nil
}

// empty makes a node as one that was never started.
func (n *node) empty() {
	n.process, n.counter = bson.NewObjectID(), 1
	n.role, n.config, n.term, n.voted, n.log = starting, nil, 0, 0, nil
	n.data = newDocuments()
	n.heard, n.caches = map[string]time.Time{}, map[string][]privilege{}
	n.ops, n.txns = map[int32]*operation{}, map[string]*transaction{}
	n.stalled, n.mute, n.sticky, n.lag = false, false, false, 0
	n.frozen, n.takeover, n.elected = time.Time{}, time.Time{}, time.Time{}
}

// Close ends all connections and listeners and returns when everything has stopped.
func (s *Set) Close() error {
	var errs []error
	s.closed.Do(func() {
		close(s.done)
		s.mu.Lock()
		for _, n := range s.nodes {
			errs = append(errs, n.listener.Close())
			n.hangUp()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return errors.Join(errs...)
}

// URI is the set's address without credentials.
func (s *Set) URI() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var hosts []string
	for _, n := range s.nodes[:len(s.opts.Members)] {
		hosts = append(hosts, n.host)
	}
	return "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=" + s.opts.Name
}

// Hosts lists the machines: the members the set was started with, then the spares.
func (s *Set) Hosts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var hosts []string
	for _, n := range s.nodes {
		hosts = append(hosts, n.host)
	}
	return hosts
}

// Primary gives the primary of the newest term, empty when there is none.
func (s *Set) Primary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.head(); n != nil {
		return n.host
	}
	return ""
}

// head gives the primary of the newest term.
func (s *Set) head() *node {
	var best *node
	for _, n := range s.nodes {
		if n.up && n.role == primary && (best == nil || n.term > best.term) {
			best = n
		}
	}
	return best
}

// node gives a machine. A host that does not exist is a mistake in the test.
func (s *Set) node(host string) *node {
	for _, n := range s.nodes {
		if n.host == host {
			return n
		}
	}
	panic("shardsim: no machine " + host)
}

// broadcast wakes what waits for a change.
func (s *Set) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits, with the lock held, until cond holds or the set's time has reached
// the limit; zero is no limit. It reports whether cond held.
func (s *Set) await(limit time.Duration, cond func() bool) bool {
	deadline := s.now.Add(limit)
	given := s.now.Add(patience)
	for !cond() {
		if limit > 0 && !s.now.Before(deadline) {
			return false
		}
		if s.opts.Auto && s.now.Before(given) {
			s.step(tick)
			continue
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.done:
			s.mu.Lock()
			return false
		}
		s.mu.Lock()
	}
	return true
}
