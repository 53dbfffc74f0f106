package shard_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/testkit"
	"drover/shard"
)

// BenchmarkFence measures what a fence costs on the shard: the drop of the write
// grant and the barrier, beside other placements' grants.
func BenchmarkFence(b *testing.B) {
	server := testkit.Shard(b)
	ctx := context.Background()
	sh, err := shard.Bootstrap(ctx, server.AdminURI(), "s1", secret, shard.BootstrapOptions{})
	require.NoError(b, err)
	clients := shard.NewClients(secret, shard.Options{})
	defer func() { require.NoError(b, clients.Close(ctx)) }()
	set, err := clients.Set(sh)
	require.NoError(b, err)
	place := func(id chunk.PlacementID) chunk.Placement {
		c := chunk.NewID("flights", int(id))
		return chunk.Placement{ID: id, Chunk: c, Shard: "s1", Database: chunk.PhysicalName(c, id)}
	}
	for id := range chunk.PlacementID(50) {
		p := place(id + 1)
		require.NoError(b, set.CreateGrants(ctx, p, 0))
		require.NoError(b, set.GrantToData(ctx, p, 0))
	}
	f, err := set.OpenFencer(ctx)
	require.NoError(b, err)
	defer func() { require.NoError(b, f.Close(ctx)) }()
	p := place(1)
	attempt := chunk.AttemptID(0)
	var list, drop, barrier, back time.Duration
	for b.Loop() {
		attempt++
		begin := time.Now()
		_, err := set.HeldGrants(ctx, p.ID)
		require.NoError(b, err)
		start := time.Now()
		list += start.Sub(begin)
		cut, err := set.DropWriteGrants(ctx, p.ID, attempt)
		require.NoError(b, err)
		dropped := time.Now()
		_, err = f.Barrier(ctx, p, shard.Writes, cut)
		require.NoError(b, err)
		shown := time.Now()
		require.NoError(b, set.CreateGrants(ctx, p, attempt))
		created := time.Now()
		require.NoError(b, set.GrantToData(ctx, p, attempt))
		drop, barrier, back = drop+dropped.Sub(start), barrier+shown.Sub(dropped), back+time.Since(created)
	}
	n := float64(b.N)
	b.ReportMetric(float64(list.Microseconds())/n, "us/held")
	b.ReportMetric(float64(drop.Microseconds())/n, "us/drop")
	b.ReportMetric(float64(barrier.Microseconds())/n, "us/barrier")
	b.ReportMetric(float64(back.Microseconds())/n, "us/grant")
}
