package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"drover/chunk"
)

// access is what a request does to a placement.
type access uint8

// The kinds of access.
const (
	reads access = iota
	writes
)

// The words of an acknowledgement.
const (
	ackClean   = "clean"
	ackRunning = "running"
	ackUnknown = "unknown"
)

// String gives the word that acknowledgements use.
func (a access) String() string {
	if a == writes {
		return "writes"
	}
	return "reads"
}

const (
	// noticeGrace is added to the deadline of an announced attempt.
	noticeGrace = 250 * time.Millisecond
	// leastNotice and mostNotice bound for how long an announcement is
	// believed. The deadline is by the clock of the metadata, which is not ours.
	leastNotice = time.Second
	mostNotice  = 10 * time.Second
	// doubt is for how long a request whose connection died may still run.
	doubt = 10 * time.Second
)

// gate counts this proxy's requests on one placement and knows the attempt that
// is announced for it. A request is counted and the announcement is looked at
// under one lock: none slips between.
type gate struct {
	placement chunk.PlacementID

	mu      sync.Mutex
	running [2]int
	doubts  [2]time.Time // until when the outcome of a lost request is open
	notice  chunk.Notice
	expires time.Time
	known   bool          // a notice is there
	changed chan struct{} // closed when a count falls to zero
	txns    map[*txn]struct{}
	eased   atomic.Pointer[easing] // nil: writes go as they come

	traffic trafficMeter
	mirror  atomic.Uint32 // of so many reads of 10,000 a copy is kept to be compared
}

// rank orders the states of one attempt, so that a late announcement does not
// undo a newer one.
func rank(s chunk.AttemptState) int {
	switch s {
	case chunk.Preparing:
		return 0
	case chunk.Fencing:
		return 1
	case chunk.Closing:
		return 2
	case chunk.Published, chunk.AttemptAborting:
		return 3
	case chunk.Open, chunk.AttemptAborted:
		return 4
	case chunk.AttemptDone:
		return 5
	default:
		return 0
	}
}

// apply takes an announcement and reports whether it was news.
func (g *gate) apply(n chunk.Notice, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.known && (n.Attempt < g.notice.Attempt || n.Attempt == g.notice.Attempt && rank(n.State) < rank(g.notice.State)) {
		return false
	}
	news := !g.known || n.Attempt != g.notice.Attempt || n.State != g.notice.State
	g.notice, g.known = n, true
	g.ease(n, now)
	g.expires = now.Add(min(max(time.UnixMilli(n.DeadlineUnixMS).Sub(now), leastNotice), mostNotice) + noticeGrace)
	return news
}

// holds reports whether requests must wait; g.mu is held. A placement that was
// switched away from stays shut: its requests wait for the chunk's new route.
func (g *gate) holds(a access) bool {
	if !g.known {
		return false
	}
	switch g.notice.State {
	case chunk.Published, chunk.Open, chunk.AttemptDone:
		if g.placement == g.notice.Source {
			return true
		}
	}
	if a == reads && g.placement == g.notice.Source {
		return g.notice.State.HoldsReads()
	}
	return g.notice.State.HoldsWrites()
}

// live reports whether an unexpired announcement makes requests wait, and until when
// it does.
func (g *gate) live(a access, now time.Time) (until time.Time, yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.expires, g.holds(a) && now.Before(g.expires)
}

// fencing reports whether the placement is being fenced by what was announced, and that
// has not expired. Writes are held then, and reads may be refused.
func (g *gate) fencing(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known && g.notice.State == chunk.Fencing && g.placement == g.notice.Source && now.Before(g.expires)
}

// open reports whether a request may be sent.
func (g *gate) open(a access) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.holds(a)
}

// lapse forgets an announcement that has expired while nobody can be asked how
// the attempt ended: the shard itself then decides. It reports whether it did.
func (g *gate) lapse(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	lapsed := g.known && now.After(g.expires)
	if lapsed {
		g.known = false
	}
	return lapsed
}

// enter counts a request in, unless it must wait.
func (g *gate) enter(a access) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holds(a) {
		return false
	}
	g.running[a]++
	return true
}

// enterAnyway counts a request in that is never held.
func (g *gate) enterAnyway(a access) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[a]++
}

// leave counts a request out. lost says that nobody knows whether it still runs.
func (g *gate) leave(a access, lost bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[a]--
	if lost {
		g.doubts[a] = time.Now().Add(doubt)
	}
	if g.running[a] == 0 && g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// word gives what can be said about the running requests, and a channel that is
// closed when that may have changed.
func (g *gate) word(a access, now time.Time) (string, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[a] > 0 {
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		return ackRunning, g.changed
	}
	if now.Before(g.doubts[a]) {
		return ackUnknown, nil
	}
	return ackClean, nil
}

// transactions gives those that are open on the placement.
func (g *gate) transactions() []*txn {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*txn, 0, len(g.txns))
	for t := range g.txns {
		out = append(out, t)
	}
	return out
}

// add registers an open transaction.
func (g *gate) add(t *txn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.txns == nil {
		g.txns = map[*txn]struct{}{}
	}
	g.txns[t] = struct{}{}
}

// remove forgets a transaction that has ended.
func (g *gate) remove(t *txn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.txns, t)
}

// gates is the gate of every placement that was ever heard of.
type gates struct {
	mu  sync.Mutex
	all map[chunk.PlacementID]*gate
}

// of gives the placement's gate.
func (s *gates) of(p chunk.PlacementID) *gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.all[p]
	if g == nil {
		g = &gate{placement: p}
		s.all[p] = g
	}
	return g
}
