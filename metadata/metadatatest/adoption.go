package metadatatest

import (
	"testing"

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
