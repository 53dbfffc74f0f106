package admission

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Errors of [Gate.Enter].
var (
	ErrQueueFull = errors.New("too many requests wait for the shard")
	ErrBreaker   = errors.New("the shard does not answer")
)

// GateConfig is how a shard is protected. Zero values get defaults.
type GateConfig struct {
	Least, Most int           // bounds of the concurrency limit of reads, and of that of writes; both together have no more than Most; 0: 4 and 200
	Queue       int           // requests that may wait; 0: 5,000
	Trip        int           // failures in a row that open the breaker; 0: 10
	Cool        time.Duration // between two probes of an open breaker; 0: 1 s
	Step        time.Duration // of the return of traffic; 0: 1 s
}

// withDefaults fills what is zero.
func (c GateConfig) withDefaults() GateConfig {
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	set(&c.Least, 4)
	set(&c.Most, 200)
	set(&c.Queue, 5000)
	set(&c.Trip, 10)
	if c.Cool == 0 {
		c.Cool = time.Second
	}
	if c.Step == 0 {
		c.Step = time.Second
	}
	c.Least = min(c.Least, c.Most)
	return c
}

// Kind is what a request does on the shard.
type Kind uint8

// The kinds. Each has a limit of its own: what slows writes down, such as the syncs
// of a disk, must not be looked for in reads.
const (
	Reads Kind = iota
	Writes
	kinds
)

// Gate lets as many requests to one shard as it answers well: each kind's limit is
// found by its [knee]. Who finds no room waits, critical databases first and the
// databases of a class by turns. A breaker refuses at once while the shard does not
// answer; when it does again, traffic returns in steps.
type Gate struct {
	cfg   GateConfig
	now   func() time.Time
	began time.Time

	mu      sync.Mutex
	sides   [kinds]side
	waiting int
	ticking bool // the gate will be looked at by the clock
	breaker breaker
}

// side is the part of a gate for one kind.
type side struct {
	knee    knee
	running int
	ages    ages
	lines   [3]line // by class
	waiting int
}

// NewGate makes a gate.
func NewGate(cfg GateConfig) *Gate {
	cfg = cfg.withDefaults()
	g := &Gate{cfg: cfg, now: time.Now}
	g.began = g.now()
	for i := range g.sides {
		g.sides[i].knee = newKnee(cfg.Least, cfg.Most)
	}
	return g
}

// Pass is the right of one request to run; [Gate.Leave] gives it back.
type Pass struct {
	kind   Kind
	beside int   // of its kind that ran and had come lately, itself too
	slot   int64 // of its age
}

// line is the queue of one class: databases take turns.
type line struct {
	turns  []string // databases with somebody waiting, the next one first
	queues map[string][]*waiter
}

// waiter is one request that waits.
type waiter struct {
	ready chan struct{}
	pass  Pass // once ready is closed
}

// add puts w at the end of its database's queue.
func (l *line) add(database string, w *waiter) {
	if l.queues == nil {
		l.queues = map[string][]*waiter{}
	}
	if len(l.queues[database]) == 0 {
		l.turns = append(l.turns, database)
	}
	l.queues[database] = append(l.queues[database], w)
}

// next takes the first one of the database whose turn it is.
func (l *line) next() *waiter {
	if len(l.turns) == 0 {
		return nil
	}
	database := l.turns[0]
	q := l.queues[database]
	w := q[0]
	l.turns = l.turns[1:]
	if len(q) == 1 {
		delete(l.queues, database)
	} else {
		l.queues[database] = q[1:]
		l.turns = append(l.turns, database)
	}
	return w
}

// remove takes out a waiter that gives up, and reports whether it was there.
func (l *line) remove(database string, w *waiter) bool {
	q := l.queues[database]
	for i := range q {
		if q[i] != w {
			continue
		}
		if len(q) > 1 {
			l.queues[database] = append(q[:i:i], q[i+1:]...)
			return true
		}
		delete(l.queues, database)
		for j, name := range l.turns {
			if name == database {
				l.turns = append(l.turns[:j:j], l.turns[j+1:]...)
				break
			}
		}
		return true
	}
	return false
}

// Enter counts a request of a database in; [Gate.Leave] must follow. It waits as
// long as ctx allows.
func (g *Gate) Enter(ctx context.Context, database string, p Priority, kind Kind) (Pass, error) {
	class := p.rank()
	g.mu.Lock()
	now := g.now()
	side := &g.sides[kind]
	switch g.breaker.admits(g, now) {
	case refuses:
		g.mu.Unlock()
		return Pass{}, ErrBreaker
	case probes:
		pass := g.let(kind, now)
		g.mu.Unlock()
		return pass, nil
	case passes:
	}
	if side.waiting == 0 && g.room(kind, class, now) {
		pass := g.let(kind, now)
		g.mu.Unlock()
		return pass, nil
	}
	if g.waiting >= g.cfg.Queue {
		g.mu.Unlock()
		return Pass{}, ErrQueueFull
	}
	w := &waiter{ready: make(chan struct{})}
	side.lines[class].add(database, w)
	side.waiting++
	g.waiting++
	g.admit(kind, now)
	g.tick()
	g.mu.Unlock()
	select {
	case <-w.ready:
		return w.pass, nil
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		if side.lines[class].remove(database, w) {
			side.waiting--
			g.waiting--
			return Pass{}, context.Cause(ctx)
		}
		return w.pass, nil // it was let in at the same time
	}
}

// Try is [Gate.Enter] for a request that finds room at once.
func (g *Gate) Try(p Priority, kind Kind) (Pass, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if g.breaker.open || g.sides[kind].waiting > 0 || !g.room(kind, p.rank(), now) {
		return Pass{}, false
	}
	return g.let(kind, now), true
}

// let counts one in; g.mu is held.
func (g *Gate) let(kind Kind, now time.Time) Pass {
	s := &g.sides[kind]
	s.running++
	slot := s.ages.enter(now.Sub(g.began))
	return Pass{kind: kind, beside: s.ages.total, slot: slot}
}

// tick looks at the gate by the clock for as long as somebody waits: while traffic
// returns in steps, or all that run are slow, nobody may leave for a while. g.mu is
// held.
func (g *Gate) tick() {
	if g.ticking || g.waiting == 0 {
		return
	}
	g.ticking = true
	time.AfterFunc(tick, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ticking = false
		now := g.now()
		for kind := range kinds {
			g.sides[kind].knee.look(now)
			g.admit(kind, now)
		}
		g.tick()
	})
}

// room reports whether one more of a kind and a class may run; g.mu is held. The
// other kind always has room for the least of its limit, so that what is slow in one
// stops no other.
func (g *Gate) room(kind Kind, class int, now time.Time) bool {
	s := &g.sides[kind]
	if g.sides[Reads].running+g.sides[Writes].running >= g.cfg.Most || s.running > 0 && s.running >= g.cfg.Most-g.cfg.Least {
		return false
	}
	limit := s.knee.room()
	if g.breaker.open || !g.breaker.closed.IsZero() {
		limit *= g.breaker.share(class, now, g.cfg.Step)
	}
	return float64(s.ages.young(now.Sub(g.began))) < limit
}

// admit lets in whoever has room now; g.mu is held.
func (g *Gate) admit(kind Kind, now time.Time) {
	s := &g.sides[kind]
	for class := range s.lines {
		for s.waiting > 0 && g.room(kind, class, now) {
			w := s.lines[class].next()
			if w == nil {
				break
			}
			s.waiting--
			g.waiting--
			w.pass = g.let(kind, now)
			close(w.ready)
		}
	}
}

// Expect says that requests come that were held elsewhere, all at once. They have waited
// for long enough: no probe makes them wait one for another.
func (g *Gate) Expect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	for kind := range kinds {
		g.sides[kind].knee.hush(now)
		g.admit(kind, now)
	}
}

// Outcome is how a request to the shard ended.
type Outcome uint8

// The outcomes.
const (
	Answered    Outcome = iota // the shard answered, whatever it said
	Declined                   // it answered without looking at the work: a fence
	Unreachable                // no connection could be had
	Unknown                    // nothing was learned: the request was not sent, or its connection died
)

// Leave counts a request out that took so long on the shard.
func (g *Gate) Leave(p Pass, o Outcome, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	s := &g.sides[p.kind]
	s.running--
	s.ages.leave(now.Sub(g.began), p.slot)
	calm := p.beside == 1 && s.ages.total == 0
	switch o {
	case Answered:
		g.breaker.answered(now)
		s.knee.add(now, sample{took: took, beside: p.beside, calm: calm, crowded: s.waiting > 0})
	case Declined:
		g.breaker.answered(now)
	case Unreachable:
		g.breaker.failed(now, g.cfg.Trip)
	case Unknown:
		g.breaker.probing = false
	}
	if g.waiting > 0 {
		g.admit(p.kind, now)
		g.admit(1-p.kind, now) // both share what Most allows
	}
}

// State is what a gate shows.
type State struct {
	Reads, Writes Crowd
	Breaker       string    // "closed", "open" or "returning"
	Expecting     time.Time // until then requests that were held come: no probe begins
}

// Crowd is one kind's requests.
type Crowd struct{ Limit, Running, Waiting int }

// State tells how the gate stands.
func (g *Gate) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	crowd := func(s *side) Crowd { return Crowd{int(s.knee.limit), s.running, s.waiting} }
	now := g.now()
	return State{
		Reads: crowd(&g.sides[Reads]), Writes: crowd(&g.sides[Writes]), Breaker: g.breaker.word(now, g.cfg.Step),
		Expecting: g.sides[Reads].knee.hushed,
	}
}
