package switchover

import (
	"context"
	"sync"
	"time"
)

// clock marks steps relative to the fence's begin.
type clock struct {
	mu    sync.Mutex
	began time.Time
	marks Timeline
}

// begin makes now the zero of the clock.
func (c *clock) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = time.Now()
}

// mark notes that a step has been taken.
func (c *clock) mark(step, note string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		c.began = time.Now()
	}
	c.marks = append(c.marks, Mark{Step: step, At: time.Since(c.began).Microseconds(), Note: note})
}

// timeline gives what was marked so far.
func (c *clock) timeline() Timeline {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(Timeline(nil), c.marks...)
}

// clockKey is where a context carries its clock.
type clockKey struct{}

// Timed gives a context in which every step of a switch is marked on one clock, and
// the way to read it: fence, publish and open together make one timeline.
func Timed(ctx context.Context) (context.Context, func() Timeline) {
	c := &clock{}
	return context.WithValue(ctx, clockKey{}, c), c.timeline
}

// clockOf gives the context's clock, or one of its own.
func clockOf(ctx context.Context) *clock {
	if c, ok := ctx.Value(clockKey{}).(*clock); ok {
		return c
	}
	return &clock{}
}
