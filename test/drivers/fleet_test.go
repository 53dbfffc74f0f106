// Package drivers runs the same scripts of official drivers against one server
// and through a proxy over several chunks, and wants the same results.
package drivers_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/config"
	"drover/internal/testkit"
	"drover/metadata"
	"drover/shard"
	"drover/workers"
)

// database is the logical database of the scripts, and on the single server the
// one of that name.
const database = "shop"

// patience bounds every wait; it is no expectation.
const patience = 90 * time.Second

// fleet is a proxy over four chunks on two shards, and a server beside it.
type fleet struct {
	store  *metadata.Store
	proxy  string // URI through the proxy
	direct string // URI of the server beside it
	shards []string
}

// newFleet starts it all until the test ends.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	dsn := testkit.Postgres(t)
	f := newFleetOn(t, dsn)
	f.direct = testkit.Shard(t).AdminURI()
	f.proxy = "mongodb://" + runProxy(t, dsn) + "/"
	return f
}

// newFleetOn is newFleet without proxy and server beside it.
func newFleetOn(t *testing.T, dsn string) *fleet {
	t.Helper()
	ctx := t.Context()
	f := &fleet{}
	var err error
	f.store, err = metadata.Open(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(f.store.Close)
	require.NoError(t, f.store.Migrate(ctx))
	for _, name := range []string{"a", "b"} {
		sh, err := shard.Bootstrap(ctx, testkit.Shard(t).AdminURI(), name, "drivers", shard.BootstrapOptions{AllowOtherWriters: true})
		require.NoError(t, err)
		require.NoError(t, f.store.AddShard(ctx, sh))
		f.shards = append(f.shards, name)
	}
	var chunks []metadata.NewChunk
	for i, r := range chunk.Hashed.Split(4) {
		chunks = append(chunks, metadata.NewChunk{Range: r, Shard: f.shards[i%2]})
	}
	_, err = workers.CreateDatabase(ctx, f.store, "drivers", chunk.Database{Name: database, KeySpace: chunk.Hashed, Collections: []chunk.Collection{
		{Name: "orders", ShardKey: "merchant"}, {Name: "people", ShardKey: "_id"},
	}}, chunks)
	require.NoError(t, err)
	return f
}

// runProxy serves the fleet until the test ends and gives its address.
func runProxy(t *testing.T, dsn string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	cfg := &config.Config{PostgresDSN: dsn, Secret: "drivers", ProxyListen: address, ProxyName: "drivers", SwitchWait: 1500 * time.Millisecond}
	go func() {
		done <- workers.RunProxy(ctx, cfg, workers.ProxyOptions{
			Registry: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	require.Eventually(t, func() bool {
		nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = nc.Close()
		}
		return err == nil
	}, patience, 20*time.Millisecond)
	return address
}

// dial connects the Go driver.
func dial(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// prepare makes on the single server what the logical database has.
func (f *fleet) prepare(t *testing.T) {
	t.Helper()
	db := dial(t, f.direct).Database(database)
	require.NoError(t, db.Drop(t.Context()))
	for _, name := range []string{"orders", "people"} {
		require.NoError(t, db.CreateCollection(t.Context(), name))
	}
}
