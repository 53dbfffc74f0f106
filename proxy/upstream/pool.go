// Package upstream keeps connections to the primary of one shard, over the raw
// wire protocol: requests and replies stay the bytes that they are.
package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/xdg-go/scram"

	"drover/proxy/admission"
)

// The causes of a wait that ended.
var (
	errDialTimeout = errors.New("dial timeout")
	errClosed      = errors.New("pool is closed")
	errNoPrimary   = errors.New("no member says that it is the primary")
)

// Config is one shard as a pool reaches it.
type Config struct {
	Name        string // the shard's, for errors
	URI         string // mongodb:// without credentials
	User        string // in database admin; empty: no authentication
	Password    string
	AppName     string
	MaxConns    int           // 0: 200
	DialTimeout time.Duration // for one connection with its handshake; 0: 3 s
	MaxIdle     time.Duration // an idle connection is closed after it; 0: 10 min
	Gate        admission.GateConfig
	TLS         func() *tls.Config // of one connection, for a URI that says tls=true; nil: the system's authorities
}

// Pool is the connections to one shard's primary.
type Pool struct {
	cfg    Config
	seeds  address
	scram  *scram.Client
	gate   *admission.Gate
	dials  chan struct{}   // paces handshakes
	life   context.Context //nolint:containedctx // the pool's own: it ends with Close
	end    context.CancelCauseFunc
	growth sync.WaitGroup // connections that are being opened
	versions

	discovery sync.Mutex // held by the one that looks for the primary

	mu         sync.Mutex
	idle       []*Conn // the most recently used last
	all        map[*Conn]struct{}
	total      int // open or being opened
	opening    int // of these
	waiting    []chan *Conn
	trouble    error  // of the newest try to open one, nil if it went well
	primary    string // empty: not known
	generation uint64 // a connection of an older one is not used again
}

// New makes a pool; it connects when it is first used.
func New(cfg Config) (*Pool, error) {
	seeds, err := parseAddress(cfg.URI)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", cfg.Name, err)
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 200
	}
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 3 * time.Second
	}
	if cfg.MaxIdle == 0 {
		cfg.MaxIdle = 10 * time.Minute
	}
	switch {
	case !seeds.tls:
		cfg.TLS = nil
	case cfg.TLS == nil:
		cfg.TLS = func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12} }
	}
	if cfg.Gate.Most == 0 {
		cfg.Gate.Most = cfg.MaxConns
	}
	p := &Pool{
		gate: admission.NewGate(cfg.Gate),
		cfg:  cfg, seeds: seeds, dials: make(chan struct{}, 4),
		all: map[*Conn]struct{}{},
	}
	p.life, p.end = context.WithCancelCause(context.Background())
	if cfg.User != "" {
		if p.scram, err = scram.SHA256.NewClient(cfg.User, cfg.Password, ""); err != nil {
			return nil, fmt.Errorf("shard %s: %w", cfg.Name, err)
		}
	}
	return p, nil
}

// Gate is the room that the shard has for requests.
func (p *Pool) Gate() *admission.Gate { return p.gate }

// Name is the shard's.
func (p *Pool) Name() string { return p.cfg.Name }

// Open is the number of open connections.
func (p *Pool) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// WireVersions gives what the primary last named; zeros before the first
// connection.
func (p *Pool) WireVersions() (least, most int32) {
	return p.minWire.Load(), p.maxWire.Load()
}

// Close ends every connection, also those in use.
func (p *Pool) Close() {
	p.mu.Lock()
	p.end(errClosed)
	for c := range p.all {
		_ = c.nc.Close()
	}
	clear(p.all)
	p.idle = nil
	p.mu.Unlock()
	p.growth.Wait()
}

// Get gives a connection to the primary and waits for one, or for a primary, as
// long as ctx allows: for the first that comes back or that is opened, whoever it
// was opened for. Its error means that nothing was sent.
func (p *Pool) Get(ctx context.Context) (*Conn, error) {
	for {
		c, wait := p.take()
		if c == nil {
			select {
			case c = <-wait:
			case <-ctx.Done():
				return nil, &BrokenError{Shard: p.cfg.Name, err: p.leave(wait, context.Cause(ctx))}
			case <-p.life.Done():
				return nil, &BrokenError{Shard: p.cfg.Name, err: errClosed}
			}
		}
		if c.alive() {
			return c, nil
		}
		c.broken = true
		c.Release()
	}
}

// take gives an idle connection, or a place in the queue.
func (p *Pool) take() (*Conn, chan *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		return c, nil
	}
	wait := make(chan *Conn, 1)
	p.waiting = append(p.waiting, wait)
	p.grow()
	return nil, wait
}

// leave gives up a place in the queue, and what came in the meantime. It says why
// nothing came, where that is known.
func (p *Pool) leave(wait chan *Conn, cause error) error {
	p.mu.Lock()
	p.waiting = slices.DeleteFunc(p.waiting, func(w chan *Conn) bool { return w == wait })
	trouble, opening := p.trouble, p.opening > 0
	p.mu.Unlock()
	select {
	case c := <-wait:
		c.Release()
	default:
	}
	switch {
	case trouble != nil:
		return fmt.Errorf("%w: %w", trouble, cause)
	case opening:
		return fmt.Errorf("no connection was opened in time: %w", cause)
	}
	return fmt.Errorf("every connection is in use: %w", cause)
}

// next hands c to the first in the queue; p.mu is held.
func (p *Pool) next(c *Conn) bool {
	if len(p.waiting) == 0 {
		return false
	}
	p.waiting[0] <- c
	p.waiting = p.waiting[1:]
	return true
}

// Release gives the connection back; a broken one is closed.
func (c *Conn) Release() {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.broken || c.generation != p.generation {
		p.drop(c)
		return
	}
	c.reader.Shed()
	if cap(c.Out) > keptScratch {
		c.Out = nil
	}
	c.idleSince = time.Now()
	if p.next(c) {
		return
	}
	if _, open := p.all[c]; open {
		p.idle = append(p.idle, c)
	}
	// The least recently used one stands first.
	for len(p.idle) > 1 && time.Since(p.idle[0].idleSince) > p.cfg.MaxIdle {
		p.drop(p.idle[0])
		p.idle = p.idle[1:]
	}
}

// drop closes c and lets another be opened for a waiter; p.mu is held.
func (p *Pool) drop(c *Conn) {
	_ = c.nc.Close()
	delete(p.all, c)
	p.total--
	p.grow()
}

// attempt is one try of open.
func (p *Pool) attempt(ctx context.Context) (*Conn, error) {
	host, generation, err := p.findPrimary(ctx)
	if err != nil {
		return nil, err
	}
	c, err := dial(ctx, &p.cfg, host)
	if err != nil {
		p.forget(host)
		return nil, err
	}
	if !c.hello.Primary {
		_ = c.nc.Close()
		p.forget(host)
		return nil, fmt.Errorf("%s: %w", host, errNoPrimary)
	}
	if p.scram != nil {
		loginCtx, cancel := context.WithTimeoutCause(ctx, p.cfg.DialTimeout, errDialTimeout)
		defer cancel()
		if err := c.authenticate(loginCtx, p.scram); err != nil {
			_ = c.nc.Close()
			return nil, fmt.Errorf("log in at %s: %w", host, err)
		}
	}
	c.generation = generation
	p.minWire.Store(c.hello.MinWireVersion)
	p.maxWire.Store(c.hello.MaxWireVersion)
	return c, nil
}

// TryGet gives an idle connection, or nil when Get would have to wait.
func (p *Pool) TryGet() *Conn {
	p.mu.Lock()
	n := len(p.idle)
	if n == 0 {
		p.mu.Unlock()
		return nil
	}
	c := p.idle[n-1]
	p.idle[n-1] = nil
	p.idle = p.idle[:n-1]
	p.mu.Unlock()
	if c.alive() {
		return c
	}
	c.broken = true
	c.Release()
	return nil
}
