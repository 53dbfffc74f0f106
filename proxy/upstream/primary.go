package upstream

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// NotPrimary says that the member behind c refused a command because it is not
// the primary, or is about to stop: everything connected to it is given up and
// the next Get looks for the primary again.
func (p *Pool) NotPrimary(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.broken = true
	if c.generation != p.generation {
		return
	}
	p.generation++
	p.primary = ""
	for _, idle := range p.idle {
		p.drop(idle)
	}
	p.idle = nil
}

// forget drops host as the known primary.
func (p *Pool) forget(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primary == host {
		p.primary = ""
	}
}

// findPrimary gives the primary's address and the generation of connections to it.
func (p *Pool) findPrimary(ctx context.Context) (string, uint64, error) {
	if host, generation := p.known(); host != "" {
		return host, generation, nil
	}
	p.discovery.Lock()
	defer p.discovery.Unlock()
	if host, generation := p.known(); host != "" {
		return host, generation, nil
	}
	host := p.seeds.hosts[0]
	if !p.seeds.direct {
		var err error
		if host, err = p.discover(ctx); err != nil {
			return "", 0, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.primary = host
	return host, p.generation, nil
}

// known gives the primary if one is known.
func (p *Pool) known() (string, uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.primary, p.generation
}

// candidate is a member that answered.
type candidate struct {
	host  string
	hello helloReply
	err   error
}

// discover asks every member that it hears of. Of two that claim to be the
// primary, the one of the later election is.
func (p *Pool) discover(ctx context.Context) (string, error) {
	asked := map[string]bool{}
	hosts := slices.Clone(p.seeds.hosts)
	var best *candidate
	var lastErr error
	for len(hosts) > 0 {
		var next []string
		for _, c := range p.ask(ctx, hosts) {
			asked[c.host] = true
			if c.err != nil {
				lastErr = c.err
				continue
			}
			if c.hello.Primary && (best == nil || later(&c.hello, &best.hello)) {
				best = &c
			}
			for _, host := range c.hello.Hosts {
				if !asked[host] && !slices.Contains(hosts, host) && !slices.Contains(next, host) {
					next = append(next, host)
				}
			}
		}
		hosts = next
	}
	if best != nil {
		return best.host, nil
	}
	if lastErr != nil {
		return "", fmt.Errorf("%w: %w", errNoPrimary, lastErr)
	}
	return "", errNoPrimary
}

// later reports whether a was elected after b.
func later(a, b *helloReply) bool {
	if c := bytes.Compare(a.ElectionID[:], b.ElectionID[:]); c != 0 {
		return c > 0
	}
	return a.SetVersion > b.SetVersion
}

// ask says hello to hosts, all at once.
func (p *Pool) ask(ctx context.Context, hosts []string) []candidate {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Second, errDialTimeout)
	defer cancel()

	out := make([]candidate, len(hosts))
	var wg sync.WaitGroup
	for i, host := range hosts {
		wg.Go(func() {
			out[i].host = host
			c, err := dial(ctx, &p.cfg, host)
			if err != nil {
				out[i].err = err
				return
			}
			out[i].hello = c.hello
			_ = c.nc.Close()
		})
	}
	wg.Wait()
	return out
}
