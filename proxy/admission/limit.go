package admission

import (
	"context"
	"errors"
	"math"
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
	Least, Most int           // bounds of the concurrency limit; 0: 16 and 200
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
	set(&c.Least, 16)
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

// Gate lets as many requests to one shard as it answers well. The limit follows
// the shard's latency (a gradient: the longer answers take against their own
// past, the fewer run at once). Who finds no room waits, critical databases
// first and the databases of a class by turns. A breaker refuses at once while
// the shard does not answer; when it does again, traffic returns in steps.
type Gate struct {
	cfg GateConfig
	now func() time.Time

	mu      sync.Mutex
	limit   float64
	running int
	lines   [3]line // by class
	waiting int
	breaker breaker
	window  window
}

// NewGate makes a gate that begins wide open.
func NewGate(cfg GateConfig) *Gate {
	cfg = cfg.withDefaults()
	return &Gate{cfg: cfg, now: time.Now, limit: float64(cfg.Most)}
}

// line is the queue of one class: databases take turns.
type line struct {
	turns  []string // databases with somebody waiting, the next one first
	queues map[string][]*waiter
}

// waiter is one request that waits.
type waiter struct{ ready chan struct{} }

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
func (g *Gate) Enter(ctx context.Context, database string, p Priority) error {
	class := p.rank()
	g.mu.Lock()
	switch g.breaker.admits(g, g.now()) {
	case refuses:
		g.mu.Unlock()
		return ErrBreaker
	case probes:
		g.running++
		g.mu.Unlock()
		return nil
	}
	if g.waiting == 0 && g.room(class) {
		g.running++
		g.mu.Unlock()
		return nil
	}
	if g.waiting >= g.cfg.Queue {
		g.mu.Unlock()
		return ErrQueueFull
	}
	w := &waiter{ready: make(chan struct{})}
	g.lines[class].add(database, w)
	g.waiting++
	g.admit()
	g.mu.Unlock()
	return g.wait(ctx, database, class, w)
}

// Try is [Gate.Enter] for a request that finds room at once.
func (g *Gate) Try(p Priority) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.breaker.open || g.waiting > 0 || !g.room(p.rank()) {
		return false
	}
	g.running++
	return true
}

// wait waits for a turn. While traffic returns in steps nobody may leave for a
// while, so that the gate is also looked at by the clock.
func (g *Gate) wait(ctx context.Context, database string, class int, w *waiter) error {
	ticker := time.NewTicker(g.cfg.Step)
	defer ticker.Stop()
	for {
		select {
		case <-w.ready:
			return nil
		case <-ticker.C:
			g.mu.Lock()
			g.admit()
			g.mu.Unlock()
		case <-ctx.Done():
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.lines[class].remove(database, w) {
				g.waiting--
				return context.Cause(ctx)
			}
			return nil // it was let in at the same time
		}
	}
}

// room reports whether one more of a class may run; g.mu is held.
func (g *Gate) room(class int) bool {
	limit := g.limit
	if g.breaker.open || !g.breaker.closed.IsZero() {
		limit *= g.breaker.share(class, g.now(), g.cfg.Step)
	}
	return float64(g.running) < limit
}

// admit lets in whoever has room now; g.mu is held.
func (g *Gate) admit() {
	for class := range g.lines {
		for g.room(class) {
			w := g.lines[class].next()
			if w == nil {
				break
			}
			g.waiting--
			g.running++
			close(w.ready)
		}
	}
}

// Outcome is how a request to the shard ended.
type Outcome uint8

// The outcomes.
const (
	Answered    Outcome = iota // the shard answered, whatever it said
	Unreachable                // no connection could be had
	Unknown                    // nothing was learned: the request was not sent, or its connection died
)

// Leave counts a request out that took so long on the shard.
func (g *Gate) Leave(o Outcome, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	running := g.running
	g.running--
	switch o {
	case Answered:
		g.breaker.answered(now)
		if limit, full := g.window.add(now, took, running, g.limit); full {
			g.limit = min(max(limit, float64(g.cfg.Least)), float64(g.cfg.Most))
		}
	case Unreachable:
		g.breaker.failed(now, g.cfg.Trip)
	case Unknown:
		g.breaker.probing = false
	}
	if g.waiting > 0 {
		g.admit()
	}
}

// State is what a gate shows.
type State struct {
	Limit, Running, Waiting int
	Breaker                 string // "closed", "open" or "returning"
}

// State tells how the gate stands.
func (g *Gate) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return State{int(g.limit), g.running, g.waiting, g.breaker.word(g.now(), g.cfg.Step)}
}

// window collects latencies until they say something.
type window struct {
	since  time.Time
	n      int
	sum    time.Duration
	most   int           // running at once
	past   time.Duration // the long-term average
	primed bool
}

const (
	windowLength  = 100 * time.Millisecond
	windowSamples = 50
	// tolerance is how much longer than before answers may take.
	tolerance = 2.0
	// smoothing is the share of a new limit.
	smoothing = 0.2
	// memory is the share of a window in the long-term average.
	memory = 0.02
)

// add takes a sample. When the window is full it gives the limit that follows.
func (w *window) add(now time.Time, took time.Duration, running int, limit float64) (float64, bool) {
	if w.n == 0 {
		w.since = now
	}
	w.n++
	w.sum += took
	w.most = max(w.most, running)
	if w.n < windowSamples || now.Sub(w.since) < windowLength {
		return 0, false
	}
	short, most := w.sum/time.Duration(w.n), w.most
	w.n, w.sum, w.most = 0, 0, 0
	if !w.primed {
		w.past, w.primed = short, true
	}
	w.past += time.Duration(memory * float64(short-w.past))
	if short < w.past/2 {
		w.past = short * 2 // a long bad time must not make it blind
	}
	gradient := min(1, max(0.5, tolerance*float64(w.past)/float64(max(short, 1))))
	if gradient == 1 && float64(most) < limit/2 {
		return 0, false // too little traffic to learn that more would do
	}
	return (1-smoothing)*limit + smoothing*(limit*gradient+math.Sqrt(limit)), true
}
