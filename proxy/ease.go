package proxy

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"drover/chunk"
)

// Behaviour: shortly before a fence the coordinator asks for fewer writes to the source,
// so that the lanes come close behind and the shards have time for the fence. What
// waits here waits instead of behind the fence. Reads, transactions and everything
// that was let in go on as they are.

// longestEase bounds what an announcement may ask for.
const longestEase = 2 * time.Second

// easing slows the writes to a placement down for a moment.
type easing struct {
	limiter *rate.Limiter
	until   time.Time
	over    chan struct{} // closed when the attempt goes on
	unshut  time.Duration // for so long it may go on behind the announcement of the fence
}

// ease begins to slow writes down where the announcement says so, and ends it with the
// next state; g.mu is held.
func (g *gate) ease(n chunk.Notice, now time.Time) {
	if n.State != chunk.Preparing {
		if old := g.eased.Swap(nil); old != nil {
			close(old.over)
		}
		return
	}
	if old := g.eased.Load(); n.Ease == nil || g.placement != n.Source || old != nil && now.Before(old.until) {
		return
	}
	perSecond := max(n.Ease.Share*g.traffic.writeRate(now), n.Ease.Least)
	if perSecond <= 0 {
		return
	}
	limit := min(time.Duration(n.Ease.ForMS)*time.Millisecond, longestEase)
	g.eased.Store(&easing{
		limiter: rate.NewLimiter(rate.Limit(perSecond), 1), until: now.Add(limit), over: make(chan struct{}), unshut: unshut,
	})
}

// turn says how long a write waits for its turn while the placement's writes are slowed
// down; over is closed when nobody has to wait for that any more. It is asked when there
// is room at the shard: who waits there has been let in by nobody yet.
func (d *delivery) turn(r *route) (wait time.Duration, over <-chan struct{}) {
	e := r.gate.eased.Load()
	if e == nil || d.eased || d.l.access != writes || d.q.txn != nil {
		return 0, nil
	}
	d.eased = true
	now := time.Now()
	left := e.until.Sub(now)
	if left <= 0 {
		return 0, nil
	}
	if !d.q.deadline.IsZero() {
		left = min(left, d.q.deadline.Sub(now))
	}
	return min(e.limiter.ReserveN(now, 1).DelayFrom(now), left), e.over
}

// await waits for the turn, as behind a fence: nobody's place is taken meanwhile.
func (d *delivery) await(ctx context.Context, wait time.Duration, over <-chan struct{}) error {
	d.p.metrics.eased.Inc()
	began := time.Now()
	defer func() { d.split.hold += time.Since(began) }()
	left, unwatch := d.q.client.watch()
	defer unwatch()
	d.q.client.legs.wait(wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-left:
		d.p.metrics.refused("client_left")
		return errClientLeft
	case <-ctx.Done():
		return refuse(codeExceededTimeLimit, "the proxy is shutting down")
	}
	if !d.q.deadline.IsZero() && !time.Now().Before(d.q.deadline) {
		return errTimeLimit()
	}
	return nil
}

// unshut is how long a proxy may go on with few writes behind the announcement of a
// fence: as long as the shard takes to drop its grants, see [chunk.Notice.Shut].
const unshut = 100 * time.Millisecond

// hearAttempt takes an announcement from the feed. That of a fence waits while writes are
// eased and the source still takes them: it is as if it had been heard later.
func (p *Proxy) hearAttempt(ctx context.Context, n chunk.Notice) {
	e := p.eased(n)
	if n.State != chunk.Fencing || n.Shut || e == nil {
		p.announce(n)
		return
	}
	p.workers.Go(func() {
		timer := time.NewTimer(e.unshut)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-e.over: // it was said in another way
		case <-ctx.Done():
		}
		p.announce(n)
	})
}

// eased gives the easing of an attempt's sources that lasts, if there is one: all of
// them are told the same at once.
func (p *Proxy) eased(n chunk.Notice) *easing {
	for _, id := range n.AllSources() {
		if e := p.gates.of(id).eased.Load(); e != nil && time.Now().Before(e.until) {
			return e
		}
	}
	return nil
}
