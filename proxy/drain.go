package proxy

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Behaviour at the end: for [Config.Linger] the proxy serves on, and only lets those
// wait for a second who say hello again on a connection. Drivers do that at intervals
// (10 s by default) on connections of their own, to see how near a server is: one that
// is 200 ms further away than another is not chosen any more, while what runs, cursors
// and transactions end where they are. Answering that the proxy goes down, as a mongos
// does, would make drivers clear their pools, and fail requests that were just about
// to take a connection and may not be repeated. Then the proxy takes nobody new, closes
// idle connections, and lets the others finish what they do. Readiness is lost at once.
//
// Not supported: going away unseen by clients that know one proxy only, that ask less
// often than the proxy lingers, or whose localThresholdMS is above 200 ms.

// Live is the settings that may change while the proxy runs.
type Live struct {
	SwitchWait time.Duration // see [Config]
	SlowAfter  time.Duration
	Linger     time.Duration
}

// Reload takes settings over; requests that wait already see them too.
func (p *Proxy) Reload(l Live) { p.live.Store(&l) }

// Settings gives the ones that are in force.
func (p *Proxy) Settings() Live { return *p.live.Load() }

// Why a proxy is not ready.
var (
	errStarting = errors.New("the proxy does not listen yet")
	errLeaving  = errors.New("the proxy is going down")
)

// Serving says why no new client should be sent here, nil when it may. It does not
// ask whether the metadata or every shard can be reached: a proxy serves on without.
func (p *Proxy) Serving() error {
	select {
	case <-p.ready:
	default:
		return errStarting
	}
	if p.leaving.Load() {
		return errLeaving
	}
	return nil
}

// helloPause is how long a hello waits at an ending proxy. A driver counts a fifth of
// it at once, against the 15 ms by which servers may differ; and waits for far longer.
const helloPause = time.Second

// slowDown lets a hello wait while the proxy goes down. The first one of a connection
// does not: a request may wait for that.
func (p *Proxy) slowDown(ctx context.Context, c *client) {
	if c.hellos++; c.hellos == 1 || !p.leaving.Load() || c.retired.Load() {
		return
	}
	timer := time.NewTimer(helloPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sendAway serves on until all clients have left, at most [Live.Linger].
func (p *Proxy) sendAway(ctx context.Context) {
	linger := p.live.Load().Linger
	p.mu.Lock()
	p.leaving.Store(true)
	gone := make(chan struct{})
	p.gone = gone
	n := len(p.clients)
	p.mu.Unlock()
	if linger <= 0 || n == 0 {
		return
	}
	p.log.InfoContext(ctx, "proxy goes down: drivers are sent away", "clients", n, "linger", linger)
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	}
}

// forget takes a client off the list whose connection has ended.
func (p *Proxy) forget(c *client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.clients, c)
	if len(p.clients) == 0 && p.gone != nil {
		close(p.gone)
		p.gone = nil
	}
}

// drain lets clients finish what they are doing and then ends them.
func (p *Proxy) drain(serving *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		serving.Wait()
		close(done)
	}()
	p.mu.Lock()
	for c := range p.clients {
		c.retire()
	}
	p.mu.Unlock()
	select {
	case <-done:
		return
	case <-time.After(p.cfg.DrainWait):
	}
	p.mu.Lock()
	for c := range p.clients {
		_ = c.nc.Close()
	}
	p.mu.Unlock()
	p.pools.close()
	<-done
}
