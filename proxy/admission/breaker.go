package admission

import "time"

// verdict is what a breaker says to a request.
type verdict uint8

// The verdicts.
const (
	passes verdict = iota
	refuses
	probes
)

// breaker opens when the shard cannot be reached. Then one request at a time may
// try; once some were answered, traffic returns in steps, critical databases
// first. All its methods are called under the gate's lock.
type breaker struct {
	failures int       // in a row
	open     bool      // nothing passes but probes
	probing  bool      // one is under way
	next     time.Time // when the next probe may go
	closed   time.Time // when it closed last; zero: never
}

// shares is how much of the limit each class has in each step after closing.
var shares = [][3]float64{
	{0.25, 0, 0},
	{0.5, 0.25, 0},
	{1, 0.5, 0.25},
	{1, 1, 0.5},
}

// admits gives the verdict on a request.
func (b *breaker) admits(g *Gate, now time.Time) verdict {
	switch {
	case !b.open:
		return passes
	case b.probing || now.Before(b.next):
		return refuses
	default:
		b.probing, b.next = true, now.Add(g.cfg.Cool)
		return probes
	}
}

// failed notes that the shard could not be reached.
func (b *breaker) failed(now time.Time, trip int) {
	b.probing = false
	if b.failures++; b.failures >= trip && !b.open {
		b.open, b.next = true, now
	}
}

// answered notes that the shard has answered.
func (b *breaker) answered(now time.Time) {
	b.failures, b.probing = 0, false
	if b.open {
		b.open, b.closed = false, now
	}
}

// share is the part of the limit that a class has now.
func (b *breaker) share(class int, now time.Time, step time.Duration) float64 {
	if b.open {
		return 0
	}
	if i := b.step(now, step); i >= 0 {
		return shares[i][class]
	}
	return 1
}

// step is the step of the return, negative when there is none.
func (b *breaker) step(now time.Time, step time.Duration) int {
	if b.closed.IsZero() {
		return -1
	}
	i := int(now.Sub(b.closed) / step)
	if i >= len(shares) {
		b.closed = time.Time{}
		return -1
	}
	return i
}

// word says how the breaker stands.
func (b *breaker) word(now time.Time, step time.Duration) string {
	switch {
	case b.open:
		return "open"
	case b.step(now, step) >= 0:
		return "returning"
	default:
		return "closed"
	}
}
