package upstream

import (
	"time"

	"drover/internal/pause"
)

// grow begins to open a connection for each waiter for whom none is being opened yet,
// as far as there may be more; p.mu is held. What comes back meanwhile goes to the
// first in the queue all the same: nobody waits for the handshake of his own
// connection while others fall idle.
func (p *Pool) grow() {
	for p.opening < len(p.waiting) && p.total < p.cfg.MaxConns && p.life.Err() == nil {
		p.opening++
		p.total++
		p.growth.Go(p.open)
	}
}

// open finds the primary and logs in there, trying for as long as somebody waits.
func (p *Pool) open() {
	select {
	case p.dials <- struct{}{}:
		defer func() { <-p.dials }()
	case <-p.life.Done():
		return
	}
	for wait := 10 * time.Millisecond; p.wanted(); wait = min(2*wait, 250*time.Millisecond) {
		c, err := p.attempt(p.life)
		if p.opened(c, err) || pause.For(p.life, wait) != nil {
			return
		}
	}
}

// wanted reports whether a connection that is to be opened has somebody to wait for
// it, and else gives up the right to open it.
func (p *Pool) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		return true
	}
	p.opening--
	p.total--
	p.trouble = nil
	return false
}

// opened takes the outcome of a try over, and reports whether it was the last.
func (p *Pool) opened(c *Conn, err error) bool {
	p.mu.Lock()
	p.trouble = err
	if err != nil {
		p.mu.Unlock()
		return false
	}
	p.opening--
	if p.life.Err() != nil {
		_ = c.nc.Close()
		p.mu.Unlock()
		return true
	}
	c.pool = p
	p.all[c] = struct{}{}
	p.mu.Unlock()
	c.Release()
	return true
}

// Warm begins to open connections until there are n, as far as there may be so many:
// ahead of requests that will come all at once. One that can't be opened is left to
// who will want it.
func (p *Pool) Warm(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.total < min(n, p.cfg.MaxConns) && p.life.Err() == nil {
		p.opening++
		p.total++
		p.growth.Go(p.openAhead)
	}
}

// openAhead opens one connection that nobody waits for, in one try.
func (p *Pool) openAhead() {
	select {
	case p.dials <- struct{}{}:
		defer func() { <-p.dials }()
	case <-p.life.Done():
		return
	}
	if p.opened(p.attempt(p.life)) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening--
	p.total--
	p.grow()
}
