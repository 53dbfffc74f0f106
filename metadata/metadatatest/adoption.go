package metadatatest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// adoptionCases is what databases that were there before Drover must keep.
var adoptionCases = map[string]func(*testing.T, *fleet){
	"AdoptedPlacementKeepsItsName": func(t *testing.T, f *fleet) {
		r := f.adopt(t, "shop", "legacy")
		require.Equal(t, "legacy", r.Placement.Database)
		require.Equal(t, "legacy", r.Placement.OwnName())
		got, err := f.Adopted(t.Context(), "shop")
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.Error(t, f.exec(t, `update placements set database = 'other' where id = $1`, int64(r.Placement.ID)))
		_, err = f.CreateDatabase(t.Context(), one("twice"), whole("a", "legacy"))
		requireFailure(t, err, failure.Invalid, "adoption.taken")
		_, err = f.Adopted(t.Context(), "flights")
		requireFailure(t, err, failure.Invalid, "adoption.not_adopted")

		m, err := f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: "shop/0001", Target: "b", WorkflowID: "w"})
		require.NoError(t, err)
		require.Equal(t, chunk.PhysicalName("shop/0001", m.Target.ID), m.Target.Database, "a copy is Drover's")
		_, err = f.WithdrawDatabase(t.Context(), "shop")
		requireFailure(t, err, failure.Invalid, "adoption.move_open")
	},

	"AdoptionIsTakenBack": func(t *testing.T, f *fleet) {
		r := f.adopt(t, "shop", "legacy")
		got, err := f.WithdrawDatabase(t.Context(), "shop")
		require.NoError(t, err)
		require.Equal(t, r, got)
		routes, err := f.Routes(t.Context(), "shop")
		require.NoError(t, err)
		require.Empty(t, routes, "proxies still see it")
		_, err = f.WithdrawDatabase(t.Context(), "shop")
		require.NoError(t, err, "asking again is no error")
		require.NoError(t, f.ForgetDatabase(t.Context(), "shop"))
		again := f.adopt(t, "shop", "legacy")
		require.Greater(t, again.Placement.ID, r.Placement.ID, "a placement id is used once")
	},
}

// one is a database of one collection.
func one(name string) chunk.Database {
	return chunk.Database{Name: name, KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
}

// whole is the one chunk of an adopted database.
func whole(shard, own string) []metadata.NewChunk {
	return []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: shard, Own: own}}
}

// adopt adopts a database of shard a.
func (f *fleet) adopt(t *testing.T, name, own string) chunk.Route {
	t.Helper()
	routes, err := f.CreateDatabase(t.Context(), one(name), whole("a", own))
	require.NoError(t, err)
	require.NoError(t, f.Activate(t.Context(), name))
	return routes[0]
}

// removalCases is how shards go.
var removalCases = map[string]func(*testing.T, *fleet){
	"ShardInUseIsKept": func(t *testing.T, f *fleet) {
		err := f.BeginRemoval(t.Context(), "a")
		requireFailure(t, err, failure.Invalid, "shard.in_use")
		require.ErrorContains(t, err, "chunk flights/0001")
		requireFailure(t, f.BeginRemoval(t.Context(), "x"), failure.Invalid, "shard.unknown")
		l, err := f.AcquireLease(t.Context(), "c", "operator/anna", metadata.ExclusiveLease, time.Minute)
		require.NoError(t, err)
		require.ErrorContains(t, f.BeginRemoval(t.Context(), "c"), "a lease of operator/anna")
		require.NoError(t, f.ReleaseLease(t.Context(), l))
		requireFailure(t, f.RemoveShard(t.Context(), "c"), failure.Invalid, "shard.not_removing")
	},

	"RemovedShardLeavesItsHistory": func(t *testing.T, f *fleet) {
		m := f.register(t)
		f.walk(t, m.ID, chunk.Registered, chunk.Aborting)
		require.NoError(t, f.DropPlacement(t.Context(), m.Target.ID))
		require.ErrorContains(t, f.BeginRemoval(t.Context(), "c"), "dropping")
		require.NoError(t, f.PlacementGone(t.Context(), m.Target.ID))
		f.walk(t, m.ID, chunk.Aborting, chunk.Aborted)

		require.NoError(t, f.BeginRemoval(t.Context(), "c"))
		_, err := f.CreateDatabase(t.Context(), one("late"), []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "c"}})
		requireFailure(t, err, failure.Invalid, "shard.removing")
		require.NoError(t, f.AddShard(t.Context(), chunk.Shard{Name: "c", URI: "mongodb://c"}))
		requireFailure(t, f.RemoveShard(t.Context(), "c"), failure.Invalid, "shard.not_removing")
		require.NoError(t, f.BeginRemoval(t.Context(), "c"))
		require.NoError(t, f.exec(t, `insert into shard_rates (shard, kind, per_second) values ('c', 'apply', 1)`))
		rows, err := f.RowsOf(t.Context(), "c")
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"shards": 1, "shard_rates": 1}, rows)
		require.NoError(t, f.RemoveShard(t.Context(), "c"))
		rows, err = f.RowsOf(t.Context(), "c")
		require.NoError(t, err)
		require.Empty(t, rows, "what is listed is what goes")
		require.NoError(t, f.RemoveShard(t.Context(), "c"), "asking again is no error")
		_, err = f.Shard(t.Context(), "c")
		requireFailure(t, err, failure.Invalid, "shard.unknown")
		_, err = f.CreateDatabase(t.Context(), one("late"), []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "c"}})
		requireFailure(t, err, failure.Invalid, "shard.unknown")
		was, err := f.Migration(t.Context(), m.ID)
		require.NoError(t, err)
		require.Equal(t, "c", was.Target.Shard)
	},
}
