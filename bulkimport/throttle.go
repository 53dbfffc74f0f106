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
	Heard       Heard         // of what it does for applications
}

// Bounds are what a shard's health may come to before an import gives way.
type Bounds struct {
	Slower float64       // times the calmest answer that was seen
	Answer time.Duration // below it no answer is slow
	Dirty  float64       // of the cache
	Used   float64       // of the cache
	Lag    time.Duration // of a secondary
	Felt   float64       // times p99 of applications' requests without the import; 0: not looked at
}

// DefaultBounds lie below those at which a server makes its clients work for it:
// WiredTiger lets them evict from 20 % of dirty cache and 95 % of used cache on,
// and flow control begins when the majority is 10 s behind.
func DefaultBounds() Bounds {
	return Bounds{Slower: 1.5, Answer: 2 * time.Millisecond, Dirty: 0.15, Used: 0.95, Lag: 5 * time.Second, Felt: 1.2}
}

// Throttle makes imports give way to whoever else uses a shard. One serves all
// imports of a process that work on the same shard. It rests after each piece of
// work for a multiple of the time that the piece took, so that imports never stop
// for good. While applications send requests there, it also keeps the pieces small
// and few at once, see courtesy.
type Throttle struct {
	Name   string // of the shard
	Look   func(context.Context) (Health, error)
	Edge   func(bucket int) time.Duration // upper edges of the buckets of Health.Heard
	Bounds Bounds

	Metrics *Metrics // nil: none

	mu       sync.Mutex
	looked   time.Time
	calm     time.Duration // the fastest answer that was seen
	rest     float64       // times what the work took
	reason   string        // why rest is not 0
	courtesy courtesy
	busy     int           // pieces that are at work, or rest
	left     chan struct{} // closed when there is one less
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

// gently does a piece of work as the throttles allow, and returns when the next may
// begin. Those that are nil allow everything.
func gently(ctx context.Context, work func(context.Context) error, throttles ...*Throttle) error {
	most, err := enter(ctx, throttles)
	if err != nil {
		return err
	}
	defer leave(throttles)
	began := time.Now()
	if err := work(ctx); err != nil {
		return err
	}
	rest := min(time.Duration(float64(time.Since(began))*most), longestRest)
	if rest <= 0 {
		return nil
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enter waits until all throttles allow one more piece of work, and gives the rest after
// it. Who waits for one of them takes no place from those who work with another.
func enter(ctx context.Context, throttles []*Throttle) (rest float64, err error) {
	for {
		for _, t := range throttles {
			t.look(ctx)
		}
		rest, free, ok := begin(throttles)
		if ok {
			return rest, nil
		}
		select {
		case <-free:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// begin counts one more piece of work in if all throttles allow it, and gives the rest
// after it; else what to wait for.
func begin(throttles []*Throttle) (most float64, free <-chan struct{}, ok bool) {
	for n, t := range throttles {
		rest, free, ok := t.begin()
		if !ok {
			leave(throttles[:n])
			return 0, free, false
		}
		most = max(most, rest)
	}
	return most, nil, true
}

// begin is that of one.
func (t *Throttle) begin() (rest float64, free <-chan struct{}, ok bool) {
	if t == nil {
		return 0, nil, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.courtesy.stands() && now.Sub(t.courtesy.still) >= stillMost { // nobody looks
		t.courtesy.giveUp(now)
	}
	if t.courtesy.crowd && t.courtesy.stands() { // ends as somebody looks
		looks := make(chan struct{})
		time.AfterFunc(lookEvery, func() { close(looks) })
		return 0, looks, false
	}
	if t.courtesy.crowd && t.busy >= max(1, int(t.courtesy.level)) {
		if t.left == nil {
			t.left = make(chan struct{})
		}
		return 0, t.left, false
	}
	t.busy++
	if t.courtesy.crowd {
		rest = 1/t.courtesy.level - 1
	}
	return max(rest, t.rest), nil, true
}

// leave lets the next one in.
func leave(throttles []*Throttle) {
	for _, t := range throttles {
		t.leave()
	}
}

// leave is that of one.
func (t *Throttle) leave() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	if t.left != nil {
		close(t.left)
		t.left = nil
	}
}

// piece says how large a piece of work may be that goes by throttles, as a share of what
// others who wait meanwhile do not feel where there is room for them; 0: as large as one
// likes. The less of the time is allowed, the smaller it is: whoever meets one waits less.
func piece(throttles ...*Throttle) (share float64) {
	for _, t := range throttles {
		if one := t.piece(); one > 0 && (share == 0 || one < share) {
			share = one
		}
	}
	return share
}

// leastPiece is the smallest share that [piece] gives: below it, beginning and ending cost
// more than the work.
const leastPiece = 1.0 / 4

// piece is that of one.
func (t *Throttle) piece() float64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.courtesy.crowd {
		return 0
	}
	return min(1, max(leastPiece, 2*t.courtesy.level))
}

// Reason says what the imports give way to, "" for nothing.
func (t *Throttle) Reason() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rest > 0 {
		return fmt.Sprintf("%s, %s: rests %.2g times as long as it works", t.Name, t.reason, t.rest)
	}
	if why := t.courtesy.reason(); why != "" {
		return t.Name + ", " + why
	}
	return ""
}

// look sees how the shard is when the last look was too long ago. Those who come
// meanwhile go by the last one. One that its caller cut off says nothing of the shard.
func (t *Throttle) look(ctx context.Context) {
	if t == nil {
		return
	}
	t.mu.Lock()
	due := time.Since(t.looked) >= lookEvery
	if due {
		t.looked = time.Now()
	}
	t.mu.Unlock()
	if !due {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	h, err := t.Look(bounded)
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looked = time.Now()
	t.judge(h, err)
	t.Metrics.show(t.Name, &t.courtesy, t.rest)
}

// judge moves the rest by what was seen. A shard that cannot be asked is as bad as
// one that is slow: whoever loads it meets the error itself.
func (t *Throttle) judge(h Health, err error) {
	var wrong string
	if err != nil {
		wrong = "its health cannot be read: " + err.Error()
		t.courtesy.giveUp(t.looked)
	} else {
		if t.Bounds.Felt > 0 {
			t.courtesy.edge, t.courtesy.slower = t.Edge, t.Bounds.Felt
			t.courtesy.hear(t.looked, h.Heard)
		}
		if t.calm == 0 || h.Answer < t.calm {
			t.calm = h.Answer
		}
		if t.courtesy.calm > 0 && t.courtesy.crowd { // what applications feel says more than a few reads
			h.Answer = 0
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
