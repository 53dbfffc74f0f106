package shard_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/failure"
	"drover/shard"
)

// What cannot be moved is refused before anything is made, and by name: B023 no
// index on _id, B067 capped beyond 2^31 bytes, B069 clustered with an expiry, B081
// an index under construction, B139 all of them in one answer.
func TestWhatCannotBeMovedIsRefused(t *testing.T) {
	t.Parallel()
	of := func(name string, options bson.D) shard.CollectionInfo {
		return shard.CollectionInfo{Name: name, Kind: "collection", Options: raw(t, options), HasIDIndex: true}
	}
	good := of("good", bson.D{{Key: "validator", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}}})
	require.NoError(t, shard.CheckMovable("app", []shard.CollectionInfo{good}))

	view := of("view", bson.D{{Key: "viewOn", Value: "good"}})
	view.Kind, view.HasIDIndex = "view", false
	series := of("series", bson.D{{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}, {Key: "expireAfterSeconds", Value: int64(60)}})
	series.Kind, series.HasIDIndex = "timeseries", false
	clustered := of("clustered", bson.D{{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}}, {Key: "expireAfterSeconds", Value: int64(3600)}})
	clustered.HasIDIndex = false
	old := of("old", bson.D{})
	old.HasIDIndex = false
	building := of("building", bson.D{})
	building.Building = []string{"a_1_i_text"}

	for code, info := range map[string]shard.CollectionInfo{
		"collection.view":        view,
		"collection.timeseries":  series,
		"collection.capped":      of("ring", bson.D{{Key: "capped", Value: true}, {Key: "size", Value: int64(1) << 31}, {Key: "max", Value: int32(2147483647)}}),
		"collection.clustered":   clustered,
		"collection.encrypted":   of("secret", bson.D{{Key: "encryptedFields", Value: bson.D{}}}),
		"collection.no_id_index": old,
		"collection.building":    building,
		"collection.functions":   of("system.js", bson.D{}),
	} {
		err := shard.CheckMovable("app", []shard.CollectionInfo{good, info})
		require.True(t, failure.HasCode(err, code), "%s: %v", code, err)
		require.ErrorContains(t, err, "app."+info.Name)
		require.NotContains(t, err.Error(), "app.good")
	}
	all := shard.CheckMovable("app", []shard.CollectionInfo{view, series, old})
	for _, name := range []string{"app.view", "app.series", "app.old"} {
		require.ErrorContains(t, all, name, "one answer names all")
	}
	require.True(t, failure.HasCode(shard.CheckMovable("app", []shard.CollectionInfo{of("c", bson.D{{Key: "capped", Value: true}})}), "collection.capped"))
	require.NoError(t, shard.CheckMovable("app", []shard.CollectionInfo{of("c", bson.D{{Key: "capped", Value: false}})}))
}

// TestDefinitionsNeedNoStatistics: a server that counts by looking at every document
// answers a question for statistics too late, over and over.
func TestDefinitionsNeedNoStatistics(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 1) // which knows no collStats
	list := func(items ...bson.D) bson.D {
		return bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "d.$cmd"}, {Key: "firstBatch", Value: items}}}}
	}
	index := func(name string) bson.D {
		return bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}
	}
	fake.with(func([]*fakeNode) {
		fake.replies = map[string]bson.D{
			"listCollections": list(bson.D{{Key: "name", Value: "large"}, {Key: "type", Value: "collection"}, {Key: "options", Value: bson.D{}}, {Key: "info", Value: bson.D{}}}),
			"listIndexes":     list(index("_id_"), bson.D{{Key: "spec", Value: index("late")}, {Key: "buildUUID", Value: "u"}}),
		}
	})
	builds, err := set.IndexBuilds(t.Context(), "d")
	require.NoError(t, err)
	require.Equal(t, []string{"large.late"}, builds)
	parked, err := set.ParkTTL(t.Context(), "d")
	require.NoError(t, err)
	require.Empty(t, parked)
	_, err = set.Inventory(t.Context(), "d")
	require.ErrorContains(t, err, "read statistics")
}
