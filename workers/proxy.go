package workers

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/internal/config"
	"drover/metadata"
	"drover/proxy"
	"drover/shard"
)

// RunProxy serves applications until ctx ends.
func RunProxy(ctx context.Context, cfg *config.Config, registry prometheus.Registerer, logger *slog.Logger) error {
	store, err := metadata.Open(ctx, cfg.PostgresDSN)
	if err != nil {
		return err
	}
	defer store.Close()
	name := cfg.ProxyName
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		name = host + "/" + cfg.ProxyListen
	}
	port := proxyPorts{store: store, secret: cfg.Secret}
	p := proxy.New(proxy.Config{
		ID: name, Listen: cfg.ProxyListen, SwitchWait: cfg.SwitchWait, Deaf: cfg.ProxyDeaf, Log: logger, Registerer: registry,
	}, proxy.Ports{Routes: port, Attempts: port, Feed: port, Acks: store, Presence: port, Shards: port})
	return p.Run(ctx)
}

// proxyPorts gives a proxy the metadata.
type proxyPorts struct {
	store  *metadata.Store
	secret string
}

var (
	_ proxy.Routes   = proxyPorts{}
	_ proxy.Attempts = proxyPorts{}
	_ proxy.Feed     = proxyPorts{}
	_ proxy.Presence = proxyPorts{}
	_ proxy.Shards   = proxyPorts{}
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
	n := chunk.Notice{
		Attempt: a.ID, Migration: a.Migration, State: a.State, Source: a.Source.ID, Target: a.Target.ID, Chunks: []chunk.ID{a.Chunk},
	}
	if !a.Deadline.IsZero() {
		n.DeadlineUnixMS = a.Deadline.UnixMilli()
	}
	return n, true, nil
}

// Beat implements [proxy.Presence].
func (p proxyPorts) Beat(ctx context.Context, id, address string, hold time.Duration) error {
	return p.store.SeeProxy(ctx, id, address, hold)
}

// Leave implements [proxy.Presence].
func (p proxyPorts) Leave(ctx context.Context, id string) error { return p.store.RemoveProxy(ctx, id) }

// Shard implements [proxy.Shards].
func (p proxyPorts) Shard(ctx context.Context, name string) (proxy.Shard, error) {
	s, err := p.store.Shard(ctx, name)
	return proxy.Shard{Shard: s, User: chunk.DataUser, Password: shard.Password(p.secret, name, chunk.DataUser)}, err
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
	f(proxy.Announcement{Route: &proxy.RouteChange{Database: n.Database, Chunk: n.Chunk, Token: n.Token}})
}

// Disconnected implements [metadata.Handler].
func (f feed) Disconnected(error) { f(proxy.Announcement{Lost: true}) }
