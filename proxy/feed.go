package proxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"drover/chunk"
)

// errMetadataTimeout is the cause of a metadata call that took too long.
var errMetadataTimeout = errors.New("metadata timeout")

const (
	// feedPause is the time between two tries to listen.
	feedPause = 250 * time.Millisecond
	// beatPause is the time between two signs of life.
	beatPause = time.Second
	// saysRunning is how long a proxy waits for its requests before it says
	// that some are running.
	saysRunning = 20 * time.Millisecond
	// answerLimit ends the attempt to answer an announcement.
	answerLimit = 30 * time.Second
)

// listen follows the feed for as long as the proxy runs.
func (p *Proxy) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.ports.Feed.Listen(ctx, func(a Announcement) { p.hear(ctx, a) })
		p.heard.Add(1)
		p.hearing.Store(false)
		if ctx.Err() != nil {
			return
		}
		p.log.WarnContext(ctx, "feed of announcements broke", "error", err)
		select {
		case <-time.After(feedPause):
		case <-ctx.Done():
		}
	}
}

// hear acts on one announcement.
func (p *Proxy) hear(ctx context.Context, a Announcement) {
	switch {
	case a.Notice != nil:
		p.hearAttempt(ctx, *a.Notice)
	case a.Route != nil:
		if !p.takeRoute(ctx, *a.Route) {
			p.workers.Go(func() { p.follow(ctx, *a.Route) })
		}
	case a.Lost:
		p.heard.Add(1)
		p.hearing.Store(false)
	case a.Resync:
		p.heard.Add(1)
		p.hearing.Store(true)
		p.workers.Go(func() { p.resync(ctx) })
	}
}

// takeRoute takes a route from its announcement alone, and reports whether it could.
// That needs every route since the last full reading to have been announced, in
// its order: a retry must not run again where a route that was missed once led.
func (p *Proxy) takeRoute(ctx context.Context, c RouteChange) bool {
	e := p.routing.entry(c.Chunk)
	if e == nil || c.Placement == nil || p.read.Load() != p.heard.Load() || !p.pools.has(c.Placement.Shard) {
		return false
	}
	// The range of a chunk never changes.
	r := chunk.Route{Chunk: e.route.Load().Chunk, Placement: *c.Placement, Token: c.Token}
	if p.routing.set(ctx, e, r) != nil {
		return false
	}
	e.room.news()
	return true
}

// follow reads a route that has changed.
func (p *Proxy) follow(ctx context.Context, c RouteChange) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()

	e := p.routing.entry(c.Chunk)
	if e == nil {
		if err := p.routing.load(ctx); err != nil {
			p.log.WarnContext(ctx, "routes were not read", "error", err)
		}
		return
	}
	if r := e.route.Load(); r.Token >= c.Token {
		return
	}
	if err := p.routing.refresh(ctx, e); err != nil {
		p.log.WarnContext(ctx, "route was not read", "chunk_id", c.Chunk, "error", err)
		return
	}
	e.room.news()
}

// resync reads what may have been missed: routes, and how the announced
// attempts stand.
func (p *Proxy) resync(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()

	began := p.heard.Load()
	if err := p.routing.load(ctx); err != nil {
		p.log.WarnContext(ctx, "routes were not read", "error", err)
		return
	}
	p.read.Store(began)
	for _, e := range p.routing.all() {
		n, found, err := p.ports.Attempts.LatestAttempt(ctx, e.id)
		if err != nil {
			p.log.WarnContext(ctx, "attempt was not read", "chunk_id", e.id, "error", err)
			return
		}
		if found {
			p.announce(n)
		}
		e.room.news()
	}
}

// beat tells the fleet that the proxy lives.
func (p *Proxy) beat(ctx context.Context) {
	ticker := time.NewTicker(beatPause)
	defer ticker.Stop()
	for {
		p.show(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// show tells it once, with what went where since the last time.
func (p *Proxy) show(ctx context.Context) {
	beatCtx, cancel := context.WithTimeoutCause(ctx, beatPause, errMetadataTimeout)
	defer cancel()
	if err := p.ports.Presence.Beat(beatCtx, p.life()); err != nil && ctx.Err() == nil {
		p.log.WarnContext(ctx, "sign of life was not recorded", "error", err)
	}
	p.report(beatCtx)
}

// life is what the proxy says of itself now.
func (p *Proxy) life() Life {
	return Life{ID: p.cfg.ID, Run: p.run, Address: p.Addr(), Hold: p.live.Load().SwitchWait, Hears: !p.cfg.Deaf && p.hearing.Load()}
}

// answerKey is what a proxy answers once.
type answerKey struct {
	attempt chunk.AttemptID
	access  access
}

// answer does what an announced state asks for: end the transactions on the
// source, and say when no request of this proxy runs there any more.
func (p *Proxy) answer(n chunk.Notice, sources []*gate) {
	if moved := n.State == chunk.Published || n.State == chunk.Open || n.State == chunk.AttemptDone; moved {
		for _, id := range n.Chunks {
			if e := p.routing.entry(id); e != nil && slices.Contains(n.AllSources(), e.route.Load().Placement.ID) {
				p.workers.Go(func() { p.follow(p.background, RouteChange{Chunk: id, Token: e.route.Load().Token + 1}) })
			}
		}
		return
	}
	switch n.State {
	case chunk.Fencing:
		p.promise(n, sources, writes)
	case chunk.Closing:
		p.promise(n, sources, writes)
		p.promise(n, sources, reads)
	}
}

// promise starts the answer for one kind of access, once.
func (p *Proxy) promise(n chunk.Notice, sources []*gate, a access) {
	key := answerKey{n.Attempt, a}
	p.answered.Lock()
	defer p.answered.Unlock()
	if _, done := p.answered.keys[key]; done {
		return
	}
	if len(p.answered.keys) > 1000 {
		clear(p.answered.keys)
	}
	p.answered.keys[key] = struct{}{}
	p.workers.Go(func() {
		ctx, cancel := context.WithTimeoutCause(p.background, answerLimit, errMetadataTimeout)
		defer cancel()
		p.settle(ctx, n, sources, a)
	})
}

// settle waits until nothing of this proxy runs on any source and says so. A
// deaf proxy is silent, but it too ends its transactions once it knows.
func (p *Proxy) settle(ctx context.Context, n chunk.Notice, sources []*gate, a access) {
	all := ackClean
	// Said whatever the wait is for: the abort of a transaction takes its time too.
	slow := time.AfterFunc(saysRunning, func() { p.ack(ctx, n, a, ackRunning) })
	defer slow.Stop()
	for _, source := range sources { // shut, all of them: one that is quiet stays so
		word, ok := p.quiet(ctx, source, a)
		if !ok {
			return
		}
		if word == ackUnknown {
			all = ackUnknown
		}
	}
	p.ack(ctx, n, a, all)
}

// quiet waits until nothing of this proxy runs on one source; ok is false when it
// gave up.
func (p *Proxy) quiet(ctx context.Context, source *gate, a access) (word string, ok bool) {
	if a == writes {
		p.endTransactions(ctx, source)
	}
	for {
		word, changed := source.word(a, time.Now())
		// A first statement that was under way at the fence has left one behind.
		if word != ackRunning && a == writes && p.endTransactions(ctx, source) {
			continue
		}
		if word != ackRunning {
			return word, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", false
		}
	}
}

// ack sends one word.
func (p *Proxy) ack(ctx context.Context, n chunk.Notice, a access, word string) {
	if p.cfg.Deaf {
		return
	}
	err := p.ports.Acks.Ack(ctx, chunk.Ack{Proxy: p.cfg.ID, Run: p.run, Attempt: n.Attempt, Kind: a.String(), State: word})
	if err != nil && ctx.Err() == nil {
		p.log.WarnContext(ctx, "acknowledgement was not sent", "attempt", n.Attempt, "kind", a.String(), "error", err)
	}
}
