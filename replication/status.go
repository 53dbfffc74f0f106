package replication

import (
	"sync"
	"time"
)

// Status is how one lane stands.
type Status struct {
	Partition int32
	Seq       int64  // of the newest record that is dealt with
	Offset    int64  // of that record
	Marker    string // key of the newest marker of the migration that was passed
	Applied   int64  // events, ever
	Parked    int64
	Lag       time.Duration // how far the target is behind the source
	Silent    time.Duration // since the log gave anything; heartbeats come each second
	Trouble   string        // why the target is being waited for; empty when it is not
	Running   bool
	Error     string // why it stopped
	Rates     Rates
}

// gauge collects what a lane's status shows.
type gauge struct {
	window window

	mu       sync.Mutex
	status   Status
	lag      time.Duration // of the newest batch
	heardAt  time.Time
	caughtUp bool // since it started: what is applied counts as latency from here on
}

// caughtUpWithin is how old the newest change of a batch may be for a lane to
// count as caught up. What a lane reads late because it started late is a backlog,
// and says nothing about how fast changes go through.
const caughtUpWithin = time.Second

func newGauge() *gauge { return &gauge{} }

// started notes where a lane begins.
func (g *gauge) started(c *Checkpoint) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status = Status{Partition: c.Partition, Seq: c.Seq, Offset: c.Offset, Marker: c.Marker, Applied: c.Applied, Running: true}
	g.heardAt, g.caughtUp = time.Now(), false
}

// stopped notes why a lane ended.
func (g *gauge) stopped(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status.Running = false
	if err != nil {
		g.status.Error = err.Error()
	}
}

// heard notes that the log gave a record.
func (g *gauge) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heardAt = time.Now()
}

// troubled notes why work on the target failed.
func (g *gauge) troubled(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.status.Trouble = err.Error()
}

// passed notes a batch that took effect.
func (g *gauge) passed(b *batch, docs int) {
	now := time.Now()
	g.mu.Lock()
	counts := g.caughtUp
	g.caughtUp = counts || now.Sub(b.wall) < caughtUpWithin
	g.mu.Unlock()
	if counts {
		for _, it := range b.items {
			g.window.observe(now, now.Sub(it.event.Wall))
		}
		if b.beats {
			g.window.observe(now, now.Sub(b.wall))
		}
	}
	if len(b.items) > 0 {
		g.window.add(now, len(b.items), docs)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !b.wall.IsZero() { // else only a position was saved, which is nobody's time
		g.lag = now.Sub(b.wall)
	}
	g.status.Seq, g.status.Offset, g.status.Trouble = b.pos.seq, b.pos.offset, ""
	g.status.Applied += int64(len(b.items))
	if b.marker != nil {
		g.status.Marker = b.marker.Key()
	}
}

// Status tells how the lane stands. It may be called from anywhere.
func (l *Lane) Status() Status {
	now := time.Now()
	g := l.gauge
	g.mu.Lock()
	s := g.status
	s.Lag, s.Silent = max(g.lag, 0), now.Sub(g.heardAt)
	g.mu.Unlock()
	if oldest, waits := l.queue.oldest(); waits {
		s.Lag = max(s.Lag, now.Sub(oldest))
	}
	s.Partition = l.lane.Partition
	s.Parked = l.parked.count.Load()
	s.Rates = rates(now, &g.window)
	return s
}
