package metadata_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

// BenchmarkFenceWindow measures what the metadata costs a switch between fencing
// and open: the statements of the window, one after the other, on one chunk that
// goes back and forth, each time on connections that have only been rehearsed on.
func BenchmarkFenceWindow(b *testing.B) {
	ctx := b.Context()
	s, dsn := metadatatest.OpenDSN(b)
	for _, name := range []string{"a", "b"} {
		require.NoError(b, s.AddShard(ctx, chunk.Shard{Name: name, URI: "mongodb://" + name}))
	}
	db := chunk.Database{Name: "d", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
	_, err := s.CreateDatabase(ctx, db, []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "a"}})
	require.NoError(b, err)
	require.NoError(b, s.Activate(ctx, "d"))
	m, err := s.RegisterMigration(ctx, metadata.MigrationRequest{Chunk: "d/0001", Target: "b"})
	require.NoError(b, err)
	phases := []chunk.Phase{chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching}
	for i := range len(phases) - 1 {
		require.NoError(b, s.SetPhase(ctx, m.ID, phases[i], phases[i+1]))
	}
	require.NoError(b, s.SetPlacementState(ctx, m.Target.ID, chunk.Loading, chunk.Mirror))

	var advance, publish time.Duration
	step := func(s *metadata.Store, id chunk.AttemptID, from, to chunk.AttemptState) {
		began := time.Now()
		_, err := s.AdvanceAttempt(ctx, id, from, to, metadata.AdvanceOptions{})
		require.NoError(b, err)
		advance += time.Since(began)
	}
	n := 0
	for b.Loop() {
		n++
		a, err := s.BeginAttempt(ctx, m.ID, strconv.Itoa(n), time.Minute)
		require.NoError(b, err)
		r := metadata.PublishRequest{Attempt: a.ID, CatalogVersion: 1}
		for _, shard := range []string{"a", "b"} {
			l, err := s.AcquireLease(ctx, shard, "bench", metadata.SharedLease, time.Minute)
			require.NoError(b, err)
			r.Leases = append(r.Leases, l)
		}
		fresh, err := metadata.Open(ctx, dsn)
		require.NoError(b, err)
		require.NoError(b, fresh.Rehearse(ctx, r))
		step(fresh, a.ID, chunk.Preparing, chunk.Fencing)
		step(fresh, a.ID, chunk.Fencing, chunk.Closing)
		began := time.Now()
		_, err = fresh.Publish(ctx, r)
		require.NoError(b, err)
		publish += time.Since(began)
		step(fresh, a.ID, chunk.Published, chunk.Open)
		fresh.Close()
		_, err = s.AdvanceAttempt(ctx, a.ID, chunk.Open, chunk.AttemptDone, metadata.AdvanceOptions{})
		require.NoError(b, err)
	}
	b.ReportMetric(float64(advance.Microseconds())/float64(3*n), "us/advance")
	b.ReportMetric(float64(publish.Microseconds())/float64(n), "us/publish")
}
