package bulkimport

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Health is how a shard bears its load.
type Health struct {
	Answer      time.Duration // to a read of one document
	Dirty, Used float64       // shares of its cache
	Lag         time.Duration // of the secondary that is furthest behind
	Behind      string        // its host
}

// Bounds are what a shard's health may come to before an import gives way.
type Bounds struct {
	Slower float64       // times the calmest answer that was seen
	Answer time.Duration // below it no answer is slow
	Dirty  float64       // of the cache
	Used   float64       // of the cache
	Lag    time.Duration // of a secondary
}

// DefaultBounds lie below those at which a server makes its clients work for it:
// WiredTiger lets them evict from 20 % of dirty cache and 95 % of used cache on,
// and flow control begins when the majority is 10 s behind.
func DefaultBounds() Bounds {
	return Bounds{Slower: 1.5, Answer: 2 * time.Millisecond, Dirty: 0.15, Used: 0.95, Lag: 5 * time.Second}
}

// Throttle makes imports give way to whoever else uses a shard. One serves all
// imports of a process that work on the same shard. It rests after each piece of
// work for a multiple of the time that the piece took: so each rests less, the
// more there are of them, and together they never stop for good.
type Throttle struct {
	Name   string // of the shard
	Look   func(context.Context) (Health, error)
	Bounds Bounds

	mu     sync.Mutex
	looked time.Time
	calm   time.Duration // the fastest answer that was seen
	rest   float64       // times what the work took
	reason string        // why rest is not 0
}

// How a throttle moves: it looks this often, doubles its rest while something is
// wrong, and halves it when nothing is.
const (
	lookEvery   = 500 * time.Millisecond
	lookFor     = 5 * time.Second
	restFirst   = 0.5
	restMost    = 32.0
	longestRest = 5 * time.Second
)

// Pace is called after a piece of work that took so long, and returns when the
// next may begin. A nil throttle never rests.
func (t *Throttle) Pace(ctx context.Context, took time.Duration) error {
	if t == nil {
		return nil
	}
	pause := min(time.Duration(float64(took)*t.now(ctx)), longestRest)
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Reason says what the imports give way to, "" for nothing.
func (t *Throttle) Reason() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rest == 0 {
		return ""
	}
	return fmt.Sprintf("%s, %s: rests %.2g times as long as it works", t.Name, t.reason, t.rest)
}

// now gives the rest, after a look when the last one is too long ago. Those who
// come meanwhile go by the last one.
func (t *Throttle) now(ctx context.Context) float64 {
	t.mu.Lock()
	rest, due := t.rest, time.Since(t.looked) >= lookEvery
	if due {
		t.looked = time.Now()
	}
	t.mu.Unlock()
	if !due {
		return rest
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	h, err := t.Look(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked = time.Now()
	t.judge(h, err)
	return t.rest
}

// judge moves the rest by what was seen. A shard that cannot be asked is as bad as
// one that is slow: whoever loads it meets the error itself.
func (t *Throttle) judge(h Health, err error) {
	wrong := ""
	if err != nil {
		wrong = "its health cannot be read: " + err.Error()
	} else {
		if t.calm == 0 || h.Answer < t.calm {
			t.calm = h.Answer
		}
		wrong = t.Bounds.wrong(h, t.calm)
	}
	if wrong != "" {
		t.reason = wrong
		t.rest = min(max(restFirst, 2*t.rest), restMost)
		return
	}
	if t.rest /= 2; t.rest < restFirst {
		t.rest = 0
	}
}

// wrong says what is past its bound, "" when nothing is.
func (b Bounds) wrong(h Health, calm time.Duration) string {
	limit := max(b.Answer, time.Duration(b.Slower*float64(calm)))
	switch {
	case h.Lag > b.Lag:
		return fmt.Sprintf("secondary %s is %s behind, bound %s", h.Behind, h.Lag.Round(time.Millisecond), b.Lag)
	case h.Dirty > b.Dirty:
		return fmt.Sprintf("%.0f%% of the cache is dirty, bound %.0f%%", 100*h.Dirty, 100*b.Dirty)
	case h.Used > b.Used:
		return fmt.Sprintf("%.0f%% of the cache is used, bound %.0f%%", 100*h.Used, 100*b.Used)
	case h.Answer > limit:
		return fmt.Sprintf("a read takes %s, bound %s", h.Answer.Round(time.Microsecond), limit.Round(time.Microsecond))
	default:
		return ""
	}
}
