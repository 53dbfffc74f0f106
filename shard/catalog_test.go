package shard_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/shard"
)

// spec is an index specification named "i" with one key and more fields.
func spec(t *testing.T, direction any, more ...bson.E) bson.Raw {
	t.Helper()
	return raw(t, append(bson.D{key("a", direction), {Key: "name", Value: "i"}}, more...))
}

// TestCompareIndexSpecifications: B071 and B073, whole specifications count, but
// not v, ns, background and the numeric type of a direction.
func TestCompareIndexSpecifications(t *testing.T) {
	t.Parallel()
	filter := func(v any) bson.E {
		return bson.E{Key: "partialFilterExpression", Value: bson.D{{Key: "x", Value: v}}}
	}
	expire := func(n int32) bson.E { return bson.E{Key: "expireAfterSeconds", Value: n} }
	for name, tc := range map[string]struct {
		source, target bson.Raw
		field          string // that differs, "" for none
	}{
		"double and int direction": {spec(t, 1.0), spec(t, int32(1)), ""},
		"long and int direction":   {spec(t, int64(-1)), spec(t, int32(-1)), ""},
		"other direction":          {spec(t, 1), spec(t, -1), "key"},
		"kind of index":            {spec(t, "2dsphere"), spec(t, 1), "key"},
		"version and namespace":    {spec(t, 1, bson.E{Key: "v", Value: 1}, bson.E{Key: "ns", Value: "a.b"}, bson.E{Key: "background", Value: true}), spec(t, 1, bson.E{Key: "v", Value: 2}), ""},
		"filter lost":              {spec(t, 1, filter(1)), spec(t, 1), "partialFilterExpression"},
		"filter differs":           {spec(t, 1, filter(1)), spec(t, 1, filter(2)), "partialFilterExpression"},
		"expiry lost":              {spec(t, 1, expire(3600)), spec(t, 1), "expireAfterSeconds"},
		"expiry differs":           {spec(t, 1, expire(3600)), spec(t, 1, expire(60)), "expireAfterSeconds"},
		"expiry parked":            {spec(t, 1, expire(3600)), spec(t, 1, expire(shard.ParkedTTL)), ""},
		"expiry as double":         {spec(t, 1, expire(3600)), spec(t, 1, bson.E{Key: "expireAfterSeconds", Value: 3600.0}), ""},
		"unique lost":              {spec(t, 1, bson.E{Key: "unique", Value: true}), spec(t, 1), "unique"},
		"unknown option":           {spec(t, 1), spec(t, 1, bson.E{Key: "future", Value: 1}), "future"},
		"options in another order": {spec(t, 1, bson.E{Key: "unique", Value: true}, bson.E{Key: "sparse", Value: true}), spec(t, 1, bson.E{Key: "sparse", Value: true}, bson.E{Key: "unique", Value: true}), ""},
		"collation differs": {
			spec(t, 1, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}}}),
			spec(t, 1, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}}), "collation",
		},
	} {
		diff := shard.CompareCatalog(
			[]shard.CollectionInfo{{Name: "c", Indexes: []bson.Raw{tc.source}}},
			[]shard.CollectionInfo{{Name: "c", Indexes: []bson.Raw{tc.target}}})
		if tc.field == "" {
			require.Empty(t, diff, name)
			continue
		}
		require.Len(t, diff, 1, name)
		require.Equal(t, tc.field, diff[0].Field, name)
	}
}

// TestCompareKeyOrder: B077, the order of a key's fields is its meaning.
func TestCompareKeyOrder(t *testing.T) {
	t.Parallel()
	of := func(k bson.D) []shard.CollectionInfo {
		return []shard.CollectionInfo{{Name: "c", Indexes: []bson.Raw{raw(t, bson.D{{Key: "key", Value: k}, {Key: "name", Value: "i"}})}}}
	}
	a := of(bson.D{{Key: "z", Value: 1}, {Key: "y", Value: 1}})
	require.Len(t, shard.CompareCatalog(a, of(bson.D{{Key: "y", Value: 1}, {Key: "z", Value: 1}})), 1)
	require.Empty(t, shard.CompareCatalog(a, of(bson.D{{Key: "z", Value: 1.0}, {Key: "y", Value: 1}})))
	require.Len(t, shard.CompareCatalog(a, of(bson.D{{Key: "z", Value: -0.001}, {Key: "y", Value: 1}})), 1)
}

// TestCompareBuilds: B081, an index under construction is no equal of a finished one.
func TestCompareBuilds(t *testing.T) {
	t.Parallel()
	i := spec(t, 1)
	diff := shard.CompareCatalog([]shard.CollectionInfo{{Name: "c", Building: []string{"i"}}}, []shard.CollectionInfo{{Name: "c", Indexes: []bson.Raw{i}}})
	require.Len(t, diff, 2, "only on the target, and being built: %v", diff)
}

func TestCompareCollections(t *testing.T) {
	t.Parallel()
	with := func(options bson.D) []shard.CollectionInfo {
		return []shard.CollectionInfo{{Name: "c", Options: raw(t, options)}}
	}
	validator := bson.D{{Key: "validator", Value: bson.D{{Key: "a", Value: 1}}}}
	require.Empty(t, shard.CompareCatalog(with(validator), with(validator)))
	require.Empty(t, shard.CompareCatalog([]shard.CollectionInfo{{Name: "c"}}, with(bson.D{})), "no options is empty options")
	require.Len(t, shard.CompareCatalog(with(validator), with(bson.D{})), 1)
	require.Len(t, shard.CompareCatalog(with(bson.D{}), with(validator)), 1)
	require.Len(t, shard.CompareCatalog(with(bson.D{}), nil), 1)
	require.Len(t, shard.CompareCatalog(nil, with(bson.D{})), 1)
}

func TestUniqueIndexesBeginWithTheShardKey(t *testing.T) {
	t.Parallel()
	unique := bson.E{Key: "unique", Value: true}
	check := func(shardKey string, indexes ...bson.Raw) error {
		return shard.CheckUnique("app", []chunk.Collection{{Name: "c", ShardKey: shardKey, Indexes: indexes}})
	}
	require.NoError(t, check("a", spec(t, 1, unique)))
	require.NoError(t, check("b", spec(t, 1)))
	err := check("b", spec(t, 1, unique))
	require.True(t, failure.HasCode(err, "collection.unique_not_prefixed"), "%v", err)
	require.ErrorContains(t, err, "app.c")
}

// TestDefinitionsAreToldApart: a difference says on which side it is.
func TestDefinitionsAreToldApart(t *testing.T) {
	t.Parallel()
	have := []shard.CollectionInfo{{Name: "c", Indexes: []bson.Raw{spec(t, 1, bson.E{Key: "hidden", Value: true})}}}
	catalog := []chunk.Collection{{Name: "c", Indexes: []bson.Raw{spec(t, 1)}}}
	require.Equal(t, "c index i hidden: true on the shard, absent in the catalog", shard.CompareDefined(catalog, have)[0].String())
	require.Equal(t, "c index i hidden: absent on the source, true on the target", shard.CompareCatalog(shard.Definition(catalog), have)[0].String())
}

// TestOwnExpiry: what Drover parks and restores, and nothing that somebody else makes of
// an expiry, whichever way the index is named.
func TestOwnExpiry(t *testing.T) {
	t.Parallel()
	expire := func(v any) bson.E { return bson.E{Key: "expireAfterSeconds", Value: v} }
	name, pattern := bson.E{Key: "name", Value: "i"}, bson.E{Key: "keyPattern", Value: bson.D{{Key: "a", Value: 1.0}}}
	catalog := []chunk.Collection{{Name: "c", Indexes: []bson.Raw{spec(t, 1, expire(3600))}}, {Name: "d", Indexes: []bson.Raw{spec(t, 1)}}}
	for what, tc := range map[string]struct {
		collection string
		index      bson.D
		own        bool
	}{
		"parked":              {"c", bson.D{name, expire(shard.ParkedTTL)}, true},
		"restored":            {"c", bson.D{name, expire(int64(3600))}, true},
		"restored by pattern": {"c", bson.D{pattern, expire(3600.0)}, true},
		"another":             {"c", bson.D{name, expire(60)}, false},
		"another by pattern":  {"c", bson.D{pattern, expire(60)}, false},
		"another index":       {"c", bson.D{{Key: "name", Value: "j"}, expire(3600)}, false},
		"none had one":        {"d", bson.D{name, expire(3600)}, false},
		"unknown collection":  {"e", bson.D{name, expire(3600)}, false},
		"no expiry":           {"c", bson.D{name}, false},
	} {
		require.Equal(t, tc.own, shard.OwnExpiry(catalog, tc.collection, raw(t, tc.index)), what)
	}
}
