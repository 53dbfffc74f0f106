package workers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"drover/chunk"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/proxy"
	"drover/proxy/auth"
	"drover/shard"
)

// ProxyOptions is what a proxy's process gives it.
type ProxyOptions struct {
	Registry prometheus.Registerer
	Logger   *slog.Logger
	Tracer   trace.Tracer       // nil: no spans
	Started  func(*proxy.Proxy) // gets the proxy before it listens; may be nil
	// Settings takes over the content of what is kept for the whole fleet, whenever it
	// changes for this proxy; "" where there is nothing. An error leaves it at what it
	// had. May be nil.
	Settings func(ctx context.Context, content string) error
}

// RunProxy serves applications until ctx ends.
func RunProxy(ctx context.Context, cfg *config.Config, o ProxyOptions) error {
	registry, logger := o.Registry, o.Logger
	store, err := metadata.OpenLazily(ctx, cfg.PostgresDSN)
	if err != nil {
		return err
	}
	defer store.Close()
	pc, err := proxyConfig(cfg)
	if err := errors.Join(err, checkName(ctx, store, pc)); err != nil {
		return err
	}
	pc.Log, pc.Registerer, pc.Tracer = logger, registry, o.Tracer
	clients := shard.NewClients(cfg.Secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	port := proxyPorts{store: store, secret: cfg.Secret, self: &self{}}
	ports := proxy.Ports{
		Routes: port, Attempts: port, Feed: port, Acks: store, Presence: port, Traffics: port, Shards: port,
		Catalog:  &catalog{store: store, clients: clients},
		Policies: port, Callers: port, Mirrors: store, Places: store,
	}
	var users auth.Directory = port
	if cfg.StateDir != "" {
		k := newKeeper(port, cfg.StateDir, pc.ID, port.dataUser, logger)
		registry.MustRegister(k.stale)
		ports.Routes, ports.Shards, ports.Policies, users = k, k, k, k
	}
	if cfg.ProxyAuth {
		ports.Users = users
	} else {
		logger.WarnContext(ctx, "Applications need not log in: anybody who reaches this proxy may read and write")
	}
	p := proxy.New(pc, ports)
	if o.Started != nil {
		o.Started(p)
	}
	follow, stop := context.WithCancel(ctx)
	var g sync.WaitGroup
	if o.Settings != nil {
		g.Go(func() { followSettings(follow, store, pc.ID, port.self, o) })
	}
	err = p.Run(ctx)
	stop()
	g.Wait()
	return err
}

// ProxyFaults is what is wrong with a proxy's certificates and name. It is for one that
// does not start anyway: files that are missing are among its settings' faults.
func ProxyFaults(ctx context.Context, cfg *config.Config) error {
	pc, err := proxyConfig(cfg)
	err = withoutMissing(err)
	if cfg.PostgresDSN == "" {
		return err
	}
	store, openErr := metadata.OpenLazily(ctx, cfg.PostgresDSN)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	defer store.Close()
	return errors.Join(err, checkName(ctx, store, pc))
}

// withoutMissing is err without the files that do not exist.
func withoutMissing(err error) error {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		var left []error
		for _, e := range several.Unwrap() {
			left = append(left, withoutMissing(e))
		}
		return errors.Join(left...)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// liveProxies is the part of the metadata that tells which proxies there are.
type liveProxies interface {
	LiveProxies(ctx context.Context) ([]metadata.Proxy, error)
}

// checkName refuses a name under which another proxy lives: each would be taken
// for the other. With the metadata down nobody can be asked.
func checkName(ctx context.Context, store liveProxies, pc proxy.Config) error {
	ctx, cancel := context.WithTimeout(ctx, nameCheckTimeout)
	defer cancel()
	all, err := store.LiveProxies(ctx)
	if err != nil {
		return nil //nolint:nilerr // the proxy itself says that the metadata is down
	}
	return nameTaken(all, pc.ID, cmp.Or(pc.Advertise, pc.Listen))
}

// nameCheckTimeout bounds the look at the other proxies.
const nameCheckTimeout = 3 * time.Second

// nameTaken looks for another proxy of the same name. One at the same address is
// this proxy's last run.
func nameTaken(all []metadata.Proxy, id, address string) error {
	for _, p := range all {
		if p.ID == id && p.Address != address {
			return failure.New(failure.Invalid, "proxy.name_taken", "a proxy named %s lives at %s", id, p.Address).
				WithHint("give each proxy a --name of its own, or wait %s when that one has died", metadata.ProxyLife)
		}
	}
	return nil
}

// reachedAt is the address that others are told of a proxy that listens on every address
// of its machine, empty where the one that it listens on says it all: two machines'
// proxies of one name and port must not look the same.
func reachedAt(host, listen string) string {
	on, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(on); err != nil || port == "0" || on != "" && (ip == nil || !ip.IsUnspecified()) {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// Policies implements [proxy.Policies]: those of the databases, with what people have
// raised for a while.
func (p proxyPorts) Policies(ctx context.Context) (map[string][]byte, error) {
	all, err := p.store.Policies(ctx)
	if err != nil {
		return nil, err
	}
	raised, err := p.store.RaisedQuotas(ctx)
	if err != nil {
		return nil, err
	}
	return raiseQuotas(all, raised), nil
}

// dataUser gives the credentials of the data plane on a shard.
func (p proxyPorts) dataUser(name string) (user, password string) {
	return chunk.DataUser, shard.Password(p.secret, name, chunk.DataUser)
}

// proxyConfig gives a proxy its settings, and all that is wrong with them.
func proxyConfig(cfg *config.Config) (proxy.Config, error) {
	out := proxy.Config{ID: cfg.ProxyName, Listen: cfg.ProxyListen, Region: cfg.ProxyRegion, SwitchWait: cfg.SwitchWait, SlowAfter: cfg.SlowRequest, Linger: cfg.Linger, Deaf: cfg.ProxyDeaf}
	var problems []error
	host, err := os.Hostname()
	problems = append(problems, err)
	out.ID = cmp.Or(out.ID, host+"/"+cfg.ProxyListen)
	out.Advertise = reachedAt(host, cfg.ProxyListen)
	if cfg.TLSCert != "" {
		out.TLS, err = proxy.ClientTLS(&proxy.KeyPair{Cert: cfg.TLSCert, Key: cfg.TLSKey}, cfg.TLSClientCA)
		problems = append(problems, err)
	}
	var own *proxy.KeyPair
	if cfg.ShardTLSCert != "" {
		own = &proxy.KeyPair{Cert: cfg.ShardTLSCert, Key: cfg.ShardTLSKey}
	}
	out.ShardTLS, err = proxy.ShardTLS(own, cfg.ShardTLSCA)
	problems = append(problems, err)
	return out, errors.Join(problems...)
}

// proxyPorts gives a proxy the metadata.
type proxyPorts struct {
	store  *metadata.Store
	secret string
	self   *self
}

var (
	_ proxy.Routes   = proxyPorts{}
	_ proxy.Attempts = proxyPorts{}
	_ proxy.Feed     = proxyPorts{}
	_ proxy.Presence = proxyPorts{}
	_ proxy.Shards   = proxyPorts{}
	_ auth.Directory = proxyPorts{}
	_ proxy.Callers  = proxyPorts{}
)

// Snapshot implements [proxy.Routes].
func (p proxyPorts) Snapshot(ctx context.Context) (proxy.Snapshot, error) {
	dbs, err := p.store.Databases(ctx)
	if err != nil {
		return proxy.Snapshot{}, err
	}
	routes, err := p.store.Routes(ctx, "")
	if err != nil {
		return proxy.Snapshot{}, err
	}
	past, err := p.former(ctx, "")
	return proxy.Snapshot{Databases: dbs, Routes: routes, Former: past}, err
}

// former gives the routes that have ended lately, of one chunk or of all.
func (p proxyPorts) former(ctx context.Context, id chunk.ID) ([]proxy.Former, error) {
	all, err := p.store.FormerRoutes(ctx, id, proxy.FormerLife)
	out := make([]proxy.Former, len(all))
	for i, f := range all {
		out[i] = proxy.Former{Route: f.Route, Left: time.Now().Add(-f.Ago)}
	}
	return out, err
}

// Route implements [proxy.Routes].
func (p proxyPorts) Route(ctx context.Context, id chunk.ID) (chunk.Route, []proxy.Former, error) {
	r, err := p.store.Route(ctx, id)
	if err != nil {
		return chunk.Route{}, nil, err
	}
	// Read after the route: what ended before it is there.
	past, err := p.former(ctx, id)
	return r, past, err
}

// LatestAttempt implements [proxy.Attempts].
func (p proxyPorts) LatestAttempt(ctx context.Context, id chunk.ID) (chunk.Notice, bool, error) {
	a, err := p.store.LatestAttempt(ctx, id)
	if err != nil || a.ID == 0 {
		return chunk.Notice{}, false, err
	}
	return a.Notice(), true, nil
}

// Beat implements [proxy.Presence].
func (p proxyPorts) Beat(ctx context.Context, l proxy.Life) error {
	health, err := json.Marshal(p.self.health.Load())
	if err != nil {
		return err
	}
	return p.store.SeeProxy(ctx, metadata.Proxy{
		ID: l.ID, Run: l.Run, Address: l.Address, Hold: l.Hold, Hears: l.Hears, Settings: p.self.settings.Load(), Health: health,
	})
}

// Report implements [proxy.Traffics].
func (p proxyPorts) Report(ctx context.Context, id string, all []proxy.Traffic, shards []proxy.Answers) error {
	p.self.health.Store(healthOf(all))
	b, err := json.Marshal(append([]proxy.Traffic{}, all...)) // an empty list is no null
	if err != nil {
		return err
	}
	if err := p.store.SetTraffic(ctx, id, b); err != nil {
		return err
	}
	if b, err = json.Marshal(shards); err != nil {
		return err
	}
	return p.store.SetAnswers(ctx, id, b)
}

// Leave implements [proxy.Presence].
func (p proxyPorts) Leave(ctx context.Context, id, run string) error {
	return p.store.RemoveProxy(ctx, id, run)
}

// Shard implements [proxy.Shards].
func (p proxyPorts) Shard(ctx context.Context, name string) (proxy.Shard, error) {
	s, err := p.store.Shard(ctx, name)
	return proxy.Shard{Shard: s, User: chunk.DataUser, Password: shard.Password(p.secret, name, chunk.DataUser)}, err
}

// Users implements [auth.Directory].
func (p proxyPorts) Users(ctx context.Context) ([]auth.User, error) {
	all, err := p.store.ProxyUsers(ctx)
	out := make([]auth.User, 0, len(all))
	for _, u := range all {
		user := auth.User{Name: u.Name, Credentials: auth.Credentials{
			Salt: u.Salt, Iterations: u.Iterations, StoredKey: u.StoredKey, ServerKey: u.ServerKey,
		}}
		for database, actions := range u.Grants {
			g := auth.Grant{Database: database}
			for _, a := range actions {
				g.Actions = append(g.Actions, auth.Action(a))
			}
			user.Grants = append(user.Grants, g)
		}
		out = append(out, user)
	}
	return out, err
}

// PutEnvelopes implements [proxy.Callers].
func (p proxyPorts) PutEnvelopes(ctx context.Context, name string, all []proxy.Envelope) error {
	out := make([]metadata.ProxyClient, 0, len(all))
	for _, e := range all {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		out = append(out, metadata.ProxyClient{User: e.User, App: e.App, Envelope: text})
	}
	return p.store.PutProxyClients(ctx, name, out)
}

// Listen implements [proxy.Feed].
func (p proxyPorts) Listen(ctx context.Context, deliver func(proxy.Announcement)) error {
	return p.store.Listen(ctx, feed(deliver))
}

// feed hands announcements on.
type feed func(proxy.Announcement)

var _ metadata.Handler = feed(nil)

// Resync implements [metadata.Handler].
func (f feed) Resync(context.Context) error { f(proxy.Announcement{Resync: true}); return nil }

// AttemptChanged implements [metadata.Handler].
func (f feed) AttemptChanged(_ context.Context, n chunk.Notice) { f(proxy.Announcement{Notice: &n}) }

// RouteChanged implements [metadata.Handler].
func (f feed) RouteChanged(_ context.Context, n metadata.RouteNotice) {
	c := &proxy.RouteChange{Database: n.Database, Chunk: n.Chunk, Token: n.Token}
	if n.Placement != 0 {
		c.Placement = &chunk.Placement{ID: n.Placement, Chunk: n.Chunk, Shard: n.Shard, Database: n.Physical, State: chunk.Live}
	}
	f(proxy.Announcement{Route: c})
}

// Disconnected implements [metadata.Handler].
func (f feed) Disconnected(error) { f(proxy.Announcement{Lost: true}) }
