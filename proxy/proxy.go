// Package proxy is the data plane: a router that any MongoDB driver takes for a
// mongos. It finds the chunks that a command concerns, forwards raw BSON to the
// shards that hold them, merges what comes back, and carries requests over a
// switch: they wait, and go to where the chunk then is.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.opentelemetry.io/otel/trace"

	"drover/chunk"
	"drover/proxy/admission"
	"drover/proxy/auth"
	"drover/proxy/socket"
	"drover/proxy/upstream"
)

// Config is one proxy.
type Config struct {
	ID        string // unique in the fleet
	Listen    string // address to listen on, "host:port"
	Advertise string // address that other parts are told; empty: where it listens
	Region    string // where it stands, shown to people; routing does not ask for it

	SwitchWait      time.Duration // how long a request waits for a switch; 0: 1.5 s
	LiveWait        time.Duration // the same while the attempt is known to be under way; 0: 10 s
	HoldPoll        time.Duration // how often the metadata is read while requests wait; 0: 50 ms
	MaxHeld         int           // requests that may wait for one chunk; 0: 5,000
	MetadataTimeout time.Duration // for one read of the metadata; 0: 2 s
	ShardWait       time.Duration // how long a request waits for a connection or a primary; 0: 5 s
	ShardConns      int           // connections to one shard; 0: 200
	MaxClients      int           // client connections; 0: 10,000
	CursorBytes     int64         // of documents that wait in cursors over several chunks; 0: 512 MB
	DrainWait       time.Duration // how long running requests may take at the end; 0: 10 s
	Linger          time.Duration // how long the proxy serves on at its end while it sends drivers away; see drain.go

	TLS      *tls.Config        // towards clients; nil: none
	ShardTLS func() *tls.Config // towards shards whose URI says tls=true, for one connection; nil: the system's authorities, no certificate

	// Deaf makes the proxy ignore every announcement and answer none. Everything
	// must still be right, by the shards' refusals alone.
	Deaf bool

	SlowAfter time.Duration // requests that take longer are logged; 0: 500 ms, negative: none

	Tracer     trace.Tracer          // nil: no spans
	Log        *slog.Logger          // nil: discard
	Registerer prometheus.Registerer // nil: metrics go nowhere
}

// withDefaults fills what is zero.
func (c Config) withDefaults() Config {
	setDefault(&c.SwitchWait, 1500*time.Millisecond)
	setDefault(&c.LiveWait, 10*time.Second)
	c.LiveWait = max(c.LiveWait, c.SwitchWait)
	setDefault(&c.HoldPoll, 50*time.Millisecond)
	setDefault(&c.MetadataTimeout, 2*time.Second)
	setDefault(&c.ShardWait, 5*time.Second)
	setDefault(&c.DrainWait, 10*time.Second)
	setDefault(&c.SlowAfter, 500*time.Millisecond)
	setDefault(&c.MaxHeld, 5000)
	setDefault(&c.ShardConns, 200)
	setDefault(&c.MaxClients, 10_000)
	setDefault(&c.CursorBytes, 512<<20)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// setDefault replaces a zero value.
func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Proxy is one running router.
type Proxy struct {
	cfg       Config
	run       string // tells this run from others under its name
	ports     Ports
	log       *slog.Logger
	metrics   *metrics
	commands  map[string]*command
	routing   *routing
	gates     *gates
	pools     *pools
	sessions  *sessions
	cursors   *cursors
	answers   answers
	book      *auth.Book // nil: clients need not log in
	tenants   *admission.Book
	shapes    *shapes
	envelopes *envelopes
	mirrored  chan mirroredRead
	queued    atomic.Int64 // requests that wait for their database's quota
	lastID    atomic.Int32 // of client connections and of our own messages
	hearing   atomic.Bool  // announcements arrive
	heard     atomic.Int64 // grows whenever announcements begin or end to arrive
	read      atomic.Int64 // what heard was when everything was read last

	background context.Context // ends when Run gives up; for what outlives one request
	workers    sync.WaitGroup
	answered   struct {
		sync.Mutex
		keys map[answerKey]struct{}
	}

	live    atomic.Pointer[Live]
	ready   chan struct{} // closed when it listens
	leaving atomic.Bool   // it ends, see drain.go
	mu      sync.Mutex
	addr    string
	clients map[*client]struct{}
	gone    chan struct{} // closed when the last client has left an ending proxy
}

// New makes a proxy; [Proxy.Run] starts it.
func New(cfg Config, ports Ports) *Proxy {
	cfg = cfg.withDefaults()
	p := &Proxy{
		cfg: cfg, ports: ports, log: cfg.Log, run: bson.NewObjectID().Hex(),
		gates:    &gates{all: map[chunk.PlacementID]*gate{}},
		pools:    &pools{shards: ports.Shards, appName: "drover-proxy/" + cfg.ID, max: cfg.ShardConns, tls: cfg.ShardTLS, byName: map[string]*upstream.Pool{}, keeps: map[string]bool{}},
		sessions: newSessions(),
		cursors:  newCursors(),
		tenants:  admission.NewBook(),
		shapes:   newShapes(), envelopes: newEnvelopes(),
		mirrored: make(chan mirroredRead, mirrorQueue),
		ready:    make(chan struct{}),
		clients:  map[*client]struct{}{},
	}
	if ports.Users != nil {
		p.book = auth.NewBook()
	}
	p.live.Store(&Live{SwitchWait: cfg.SwitchWait, SlowAfter: cfg.SlowAfter, Linger: cfg.Linger})
	p.answered.keys = map[answerKey]struct{}{}
	p.routing = &routing{ports: ports, gates: p.gates, pools: p.pools, entries: map[chunk.ID]*entry{}}
	p.routing.current.Store(&table{})
	p.metrics = newMetrics(cfg.Registerer, p)
	p.commands = commandTable(p.metrics)
	return p
}

// Holds gives for how long a request is held: sure, whatever the proxy knows of the
// switch, and known, while it knows that the attempt is under way.
func (p *Proxy) Holds() (sure, known time.Duration) {
	sure = p.live.Load().SwitchWait
	return sure, max(p.cfg.LiveWait, sure)
}

// Ready is closed when the proxy listens.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Addr is where the proxy is reached, empty before it listens.
func (p *Proxy) Addr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cfg.Advertise != "" {
		return p.cfg.Advertise
	}
	return p.addr
}

// Run serves until ctx ends, then sends drivers away within [Config.Linger] and lets
// running requests finish within [Config.DrainWait]. It returns when everything it started has stopped.
func (p *Proxy) Run(ctx context.Context) error {
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	p.background = background

	if err := p.firstLoad(ctx); err != nil {
		return err
	}
	p.readControl(ctx)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	p.mu.Lock()
	p.addr = listener.Addr().String()
	p.mu.Unlock()

	p.show(background) // before the first request: should this run die of it, it is missed
	p.workers.Go(func() { p.beat(background) })
	p.workers.Go(func() { p.sweep(background) })
	p.workers.Go(func() { p.followControl(background) })
	p.workers.Go(func() { p.reportCallers(background) })
	p.workers.Go(func() { p.followMirrors(background) })
	if !p.cfg.Deaf {
		p.workers.Go(func() { p.listen(background) })
	}
	var serving sync.WaitGroup
	accepted := make(chan error, 1)
	go func() { accepted <- p.accept(background, listener, &serving) }()
	close(p.ready)
	p.log.InfoContext(ctx, "proxy listens", "address", p.Addr(), "deaf", p.cfg.Deaf)

	select {
	case <-ctx.Done():
		p.sendAway(ctx)
	case err = <-accepted:
		accepted <- nil
	}
	p.leaving.Store(true)
	_ = listener.Close()
	<-accepted
	p.drain(&serving)
	p.leave(background)
	stop()
	p.pools.close()
	p.workers.Wait()
	return err
}

// firstLoad reads the routes before the first client comes.
func (p *Proxy) firstLoad(ctx context.Context) error {
	for {
		loadCtx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
		err := p.routing.load(loadCtx)
		cancel()
		if err == nil {
			return nil
		}
		p.log.WarnContext(ctx, "routes were not read", "error", err)
		select {
		case <-time.After(feedPause):
		case <-ctx.Done():
			return fmt.Errorf("first read of the routes: %w", err)
		}
	}
}

// accept serves clients until the listener closes.
func (p *Proxy) accept(ctx context.Context, listener net.Listener, serving *sync.WaitGroup) error {
	for {
		nc, err := listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			if errors.Is(err, context.Canceled) || ctx.Err() != nil {
				return nil
			}
			// Mostly too many open files: the clients that are there go on.
			p.log.WarnContext(ctx, "client was not accepted", "error", err)
			select {
			case <-time.After(feedPause):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		nc = socket.Wrap(nc)
		if p.cfg.TLS != nil {
			nc = tls.Server(nc, p.cfg.TLS)
		}
		c := newClient(p, nc)
		p.mu.Lock()
		full := len(p.clients) >= p.cfg.MaxClients
		if !full {
			p.clients[c] = struct{}{}
		}
		p.mu.Unlock()
		if full {
			p.metrics.refused("max_clients")
			_ = nc.Close()
			continue
		}
		serving.Go(func() { c.serve(ctx) })
	}
}

// leave says that the proxy ends.
func (p *Proxy) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()
	if err := p.ports.Presence.Leave(ctx, p.cfg.ID, p.run); err != nil {
		p.log.WarnContext(ctx, "leaving was not recorded", "error", err)
	}
}

// sweepPause is the time between two looks for what nobody uses any more.
const sweepPause = 10 * time.Second

// sweep ends what clients have left behind.
func (p *Proxy) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepPause)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			p.sessions.sweep(now)
			p.envelopes.sweep(now)
			for _, c := range p.cursors.idle(now) {
				p.closeCursor(ctx, c)
			}
			p.endIdleTransactions(ctx, now)
		case <-ctx.Done():
			return
		}
	}
}
