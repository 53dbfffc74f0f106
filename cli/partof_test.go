package cli

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/metadata/metadatatest"
	"drover/starter"
)

// A merge goes by the name of its first chunk: whoever asked for something of another one
// was advised to start a move of it.
func TestChunkOfAnotherOnesMoveIsToldWhose(t *testing.T) {
	t.Parallel()

	store, _ := metadatatest.OpenDSN(t)
	require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://a"}))
	db := chunk.Database{Name: "flights", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}}}
	var parts []metadata.NewChunk
	for _, r := range chunk.Hashed.Split(3) {
		parts = append(parts, metadata.NewChunk{Range: r, Shard: "a"})
	}
	routes, err := store.CreateDatabase(t.Context(), db, parts)
	require.NoError(t, err)
	require.NoError(t, store.Activate(t.Context(), db.Name))
	first, second, third := routes[0].Chunk, routes[1].Chunk, routes[2].Chunk
	_, err = store.RegisterReshape(t.Context(), metadata.ReshapeRequest{
		Chunks: []chunk.ID{first.ID, second.ID}, WorkflowID: starter.MigrateID(first.ID), RequestedBy: "test",
		Targets: []metadata.NewRange{{Range: chunk.Range{Lo: first.Range.Lo, Hi: second.Range.Hi}, Shard: "a"}},
	})
	require.NoError(t, err)

	unknown := failure.New(failure.Invalid, "migration.not_running", "no move is known")
	err = partOf(t.Context(), store, second.ID, "rollback", unknown)
	e, ok := errors.AsType[*failure.Error](err)
	require.True(t, ok)
	require.Equal(t, "migration.part_of", e.Code)
	require.ErrorContains(t, e, string(second.ID)+" is part of the move of "+string(first.ID)+", which is "+string(chunk.Registered))
	require.Equal(t, "drover migrate rollback "+string(first.ID), e.Hint)
	require.ErrorIs(t, partOf(t.Context(), store, third.ID, "rollback", unknown), unknown, "nobody moves it")
	require.ErrorIs(t, partOf(t.Context(), store, first.ID, "rollback", unknown), unknown, "it goes by its own name")
}
