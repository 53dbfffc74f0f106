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

// B061: a create that is repeated finds what it made the first time, and fails
// where something else is there.
func TestCreateThatIsRepeated(t *testing.T) {
	t.Parallel()

	doc := func(d bson.D) bson.Raw {
		raw, err := bson.Marshal(d)
		require.NoError(t, err)
		return raw
	}
	validator := bson.E{Key: "validator", Value: bson.D{{Key: "a", Value: 1}}}
	collation := func(more ...bson.E) bson.E {
		return bson.E{Key: "collation", Value: append(bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}, more...)}
	}
	whole := collation(bson.E{Key: "caseLevel", Value: false}, bson.E{Key: "version", Value: "57.1"})
	for name, tt := range map[string]struct {
		asked, is bson.D
		field     string
	}{
		"plain":                   {nil, nil, ""},
		"validator":               {bson.D{validator}, bson.D{validator}, ""},
		"a server's addition":     {bson.D{validator}, bson.D{validator, {Key: "validationLevel", Value: "strict"}}, ""},
		"collation filled in":     {bson.D{collation()}, bson.D{whole}, ""},
		"simple collation":        {bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}, nil, ""},
		"number of another type":  {bson.D{{Key: "x", Value: int32(5)}}, bson.D{{Key: "x", Value: 5.0}}, ""},
		"validator missing":       {bson.D{validator}, nil, "validator"},
		"validator not asked for": {nil, bson.D{validator}, "validator"},
		"another validator":       {bson.D{validator}, bson.D{{Key: "validator", Value: bson.D{{Key: "a", Value: 2}}}}, "validator"},
		"another collation":       {bson.D{collation()}, bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: 2}}}}, "collation"},
		"simple was asked for":    {bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}, bson.D{whole}, "collation"},
		"collation not asked for": {nil, bson.D{whole}, "collation"},
		"an option is missing":    {bson.D{{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}}}, nil, "changeStreamPreAndPostImages"},
	} {
		diff := shard.CompareCreated(doc(append(bson.D{{Key: "create", Value: "c"}}, tt.asked...)), shard.CollectionInfo{Name: "c", Options: doc(append(bson.D{}, tt.is...))})
		if tt.field == "" {
			require.Empty(t, diff, name)
			continue
		}
		require.Len(t, diff, 1, name)
		require.Equal(t, tt.field, diff[0].Field, name)
	}
}
