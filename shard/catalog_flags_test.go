package shard_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/shard"
)

// TestFalseFlagIsNoDifference: a definition may say unique: false, a server
// leaves it out.
func TestFalseFlagIsNoDifference(t *testing.T) {
	t.Parallel()

	spec := func(d bson.D) []shard.CollectionInfo {
		raw, err := bson.Marshal(append(bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a"}}, d...))
		require.NoError(t, err)
		return []shard.CollectionInfo{{Name: "c", Kind: "collection", Indexes: []bson.Raw{raw}}}
	}
	require.Empty(t, shard.CompareCatalog(spec(bson.D{{Key: "unique", Value: false}, {Key: "sparse", Value: false}}), spec(nil)))
	require.Len(t, shard.CompareCatalog(spec(bson.D{{Key: "unique", Value: true}}), spec(nil)), 1)
}
