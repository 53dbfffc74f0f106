package drivers_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/internal/config"
	"drover/internal/testkit"
	"drover/metadata"
	"drover/proxy/auth"
	"drover/workers"
)

// cable leads to a server and can be cut.
type cable struct {
	listener net.Listener
	to       string
	wg       sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

// newCable lays a cable until the test ends.
func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cable{listener: l, to: to, conns: map[net.Conn]bool{}}
	c.wg.Go(c.accept)
	t.Cleanup(func() {
		_ = l.Close()
		c.set(true)
		c.wg.Wait()
	})
	return c
}

// accept carries connections.
func (c *cable) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		far, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", c.to)
		c.mu.Lock()
		if err != nil || c.cut {
			c.mu.Unlock()
			_ = near.Close()
			if far != nil {
				_ = far.Close()
			}
			continue
		}
		c.conns[near], c.conns[far] = true, true
		c.mu.Unlock()
		for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
			c.wg.Go(func() {
				_, _ = io.Copy(pair[0], pair[1])
				_ = pair[0].Close()
				c.mu.Lock()
				delete(c.conns, pair[0])
				c.mu.Unlock()
			})
		}
	}
}

// set cuts the cable, or mends it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for nc := range c.conns {
		if cut {
			_ = nc.Close()
		}
	}
}

// running is a proxy that a test starts again.
type running struct {
	registry *prometheus.Registry
	stop     func()
}

// run starts a proxy of the fleet at an address.
func run(t *testing.T, cfg *config.Config) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{registry: prometheus.NewRegistry()}
	done := make(chan error, 1)
	go func() {
		done <- workers.RunProxy(ctx, cfg, workers.ProxyOptions{
			Registry: r.registry, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		})
	}()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-done)
		})
	}
	t.Cleanup(r.stop)
	require.Eventually(t, func() bool {
		nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", cfg.ProxyListen)
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	}, patience, 20*time.Millisecond)
	return r
}

// stale reads the proxy's word about its routes.
func (r *running) stale(t *testing.T) float64 {
	t.Helper()
	all, err := r.registry.Gather()
	require.NoError(t, err)
	for _, f := range all {
		if f.GetName() == "drover_proxy_stale_metadata" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(t, "no such metric")
	return -1
}

// With Postgres out of reach everything goes on by the routes that a proxy has, also at
// one that starts then: users log in, documents are read and written on all chunks. It
// says that its routes are old, until it has read them.
func TestMetadataOutOfReach(t *testing.T) {
	ctx := t.Context()
	dsn := testkit.Postgres(t)
	f := newFleetOn(t, dsn)
	credentials, err := auth.Derive("a good password")
	require.NoError(t, err)
	require.NoError(t, f.store.PutProxyUser(ctx, metadata.ProxyUser{
		Name: "shop", Salt: credentials.Salt, Iterations: credentials.Iterations, StoredKey: credentials.StoredKey, ServerKey: credentials.ServerKey,
	}, false))
	require.NoError(t, f.store.GrantProxyUser(ctx, "shop", database, []string{"read", "write"}))
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	c := newCable(t, u.Host)
	u.Host = c.listener.Addr().String()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	cfg := &config.Config{
		PostgresDSN: u.String(), Secret: "drivers", ProxyListen: l.Addr().String(), ProxyName: "apart", SwitchWait: 1500 * time.Millisecond,
		ProxyAuth: true, StateDir: t.TempDir(),
	}
	first := run(t, cfg)
	require.Zero(t, first.stale(t))
	n := 0
	works := func(reached bool) {
		t.Helper()
		client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + cfg.ProxyListen).SetAuth(options.Credential{Username: "shop", Password: "a good password"}))
		require.NoError(t, err)
		defer func() { _ = client.Disconnect(context.Background()) }()
		orders := client.Database(database).Collection("orders")
		for range 20 { // of all merchants: on all chunks
			_, err := orders.InsertOne(ctx, order(n))
			require.NoError(t, err, "metadata reached: %v", reached)
			n++
		}
		found, err := orders.CountDocuments(ctx, bson.D{})
		require.NoError(t, err)
		require.EqualValues(t, n, found)
	}
	works(true)
	c.set(true)
	works(false)
	first.stop()
	second := run(t, cfg)
	require.InDelta(t, 1, second.stale(t), 0, "it says that its routes are those of its last run")
	works(false)
	c.set(false)
	require.Eventually(t, func() bool { return second.stale(t) == 0 }, patience, 50*time.Millisecond)
	works(true)
}
