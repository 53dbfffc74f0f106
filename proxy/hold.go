package proxy

import (
	"context"
	"sync"
	"time"

	"drover/chunk"
)

// room is where requests for one chunk wait. While somebody is in it, the
// chunk's attempt and route are read again every [Config.HoldPoll].
type room struct {
	mu      sync.Mutex
	waiting int
	polls   int64
	wanted  int64         // somebody waits for this poll
	shown   *route        // by the last poll
	live    bool          // the last poll saw an attempt under way
	changed chan struct{} // closed and replaced at each news
	stop    context.CancelFunc
}

// news wakes everybody in the room.
func (r *room) news() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broadcast()
}

// broadcast is news while r.mu is held.
func (r *room) broadcast() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// look gives the room's state and a channel that is closed when it changes. A poll
// that shows nothing new wakes nobody but those who want one.
func (r *room) look(wants int64) (polls int64, live bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = max(r.wanted, wants)
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.polls, r.live, r.changed
}

// pollTimeout bounds one poll: those who wait have little time, and the shards
// may know what the metadata does not say.
const pollTimeout = 500 * time.Millisecond

// hold is one request's time in a room. The zero value has not begun.
type hold struct {
	since   time.Time
	refused *route // the route by which the shard refused it, nil: announced
	polls   int64  // of the room at the refusal
	left    <-chan struct{}
	release func()
}

// wait returns when it is worth to send the request again, and an error when it
// has waited for too long or nobody wants it any more.
func (p *Proxy) wait(ctx context.Context, q *request, e *entry, a access, h *hold) error {
	if h.since.IsZero() {
		if err := p.enterRoom(q, e, h); err != nil {
			return err
		}
	}
	for {
		var wants int64
		if h.refused != nil {
			wants = h.polls + 1
		}
		polls, live, changed := e.room.look(wants)
		if e.ended.Load() {
			return errEnded(e.id)
		}
		r, now := e.route.Load(), time.Now()
		// The grants by which it was refused come back in another state only.
		anew := h.refused == nil || h.refused.Token != r.Token || polls > h.polls && !r.gate.fencing(now)
		if r.gate.open(a) && anew {
			return nil
		}
		limit := h.since.Add(p.live.Load().SwitchWait)
		until, announced := r.gate.live(a, now)
		if live || announced {
			limit = h.since.Add(max(p.cfg.LiveWait, p.live.Load().SwitchWait))
		}
		own := !q.deadline.IsZero() && q.deadline.Before(limit)
		if own {
			limit = q.deadline
		}
		if !now.Before(limit) {
			p.metrics.refused("switch_wait")
			if own {
				return refuse(codeMaxTimeMSExpired, "operation exceeded time limit while chunk %s was being switched", e.id)
			}
			return refuse(codeExceededTimeLimit, "chunk %s is being switched: waited %v for it", e.id, now.Sub(h.since).Round(time.Millisecond))
		}
		if announced && !live && until.Before(limit) {
			limit = until // then it is another one
		}
		timer := time.NewTimer(max(limit.Sub(now), time.Millisecond))
		select {
		case <-changed:
		case <-timer.C:
		case <-h.left:
			timer.Stop()
			p.metrics.refused("client_left")
			return errClientLeft
		case <-ctx.Done():
			timer.Stop()
			return refuse(codeExceededTimeLimit, "the proxy is shutting down")
		}
		timer.Stop()
	}
}

// enterRoom begins the wait: from here the request owns nothing but its place.
func (p *Proxy) enterRoom(q *request, e *entry, h *hold) error {
	e.room.mu.Lock()
	if e.room.waiting >= p.cfg.MaxHeld {
		e.room.mu.Unlock()
		p.metrics.refused("hold_full")
		return refuse(codeExceededTimeLimit, "chunk %s is being switched and %d requests wait for it already", e.id, p.cfg.MaxHeld)
	}
	e.room.waiting++
	if e.room.waiting == 1 {
		pollCtx, cancel := context.WithCancel(p.background)
		e.room.stop = cancel
		p.workers.Go(func() { p.poll(pollCtx, e) })
	}
	e.room.mu.Unlock()

	h.since = time.Now()
	var unwatch func()
	h.left, unwatch = q.client.watch()
	p.metrics.held.Inc()
	p.metrics.heldTotal.Inc()
	h.release = func() {
		unwatch()
		p.metrics.held.Dec()
		p.metrics.holdSeconds.Observe(time.Since(h.since).Seconds())
		e.room.mu.Lock()
		defer e.room.mu.Unlock()
		if e.room.waiting--; e.room.waiting == 0 {
			e.room.stop()
		}
	}
	return nil
}

// end leaves the room if the request was ever in it.
func (h *hold) end() {
	if h.release != nil {
		h.release()
	}
	*h = hold{}
}

// poll reads the chunk's attempt and route while requests wait for it.
func (p *Proxy) poll(ctx context.Context, e *entry) {
	ticker := time.NewTicker(p.cfg.HoldPoll)
	defer ticker.Stop()
	for {
		p.pollOnce(ctx, e)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// pollOnce takes over what the metadata says about e now. When it cannot be
// read, announcements that have expired are forgotten, the forwarding address is
// followed if there is one, and the shards decide.
func (p *Proxy) pollOnce(ctx context.Context, e *entry) (read bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, min(p.cfg.MetadataTimeout, pollTimeout), errMetadataTimeout)
	defer cancel()

	lapsed := false
	n, found, err := p.ports.Attempts.LatestAttempt(ctx, e.id)
	if err == nil {
		err = p.routing.refresh(ctx, e)
	}
	live := false
	if err == nil && found {
		live = n.State.HoldsWrites()
		p.announce(n)
	}
	if err != nil {
		lapsed = e.route.Load().gate.lapse(time.Now())
		p.forwarded(p.background, e)
	}
	e.room.mu.Lock()
	defer e.room.mu.Unlock()
	r := e.route.Load()
	news := lapsed || e.room.live != live || e.room.shown != r
	e.room.live, e.room.shown = live, r
	e.room.polls++
	if news || e.room.polls <= e.room.wanted {
		e.room.broadcast()
	}
	return err == nil
}

// announce takes an announcement, from wherever it came, to the gates and to
// those who wait, and answers it.
func (p *Proxy) announce(n chunk.Notice) {
	now := time.Now()
	var sources []*gate
	news := false
	// The sources first: they must be shut before a target opens. Each gate is told
	// of its own placement.
	for _, id := range n.AllSources() {
		g, own := p.gates.of(id), n
		own.Source = id
		news = g.apply(own, now) || news
		sources = append(sources, g)
	}
	for _, id := range n.AllTargets() {
		p.gates.of(id).apply(n, now)
	}
	if !news {
		return
	}
	for _, id := range n.Chunks {
		if e := p.routing.entry(id); e != nil {
			e.room.news()
		}
	}
	if n.State == chunk.Preparing && p.ports.Places != nil {
		p.workers.Go(func() { p.warm(p.background, n) })
	}
	p.answer(n, sources)
}
