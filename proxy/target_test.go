package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// raw encodes a document.
func raw(t testing.TB, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(v)
	require.NoError(t, err)
	return b
}

// value encodes a value.
func value(t testing.TB, v any) bson.RawValue {
	t.Helper()
	return raw(t, bson.D{{Key: "v", Value: v}}).Lookup("v")
}

// element gives a field of a document.
func element(t testing.TB, doc bson.Raw, key string) wire.Element {
	t.Helper()
	e, _ := wire.Find(doc, key)
	return e
}

// spread makes a database of n chunks without routes. A range key space is split
// at numbers 0, 10, 20...
func spread(t testing.TB, space chunk.KeySpace, n int, collections ...*collection) *database {
	t.Helper()
	d := &database{name: "d", space: space, collections: map[string]*collection{}}
	ranges := space.Split(n)
	if space == chunk.Ranged {
		var at []chunk.Key
		for i := range n - 1 {
			k, err := space.Point(value(t, i*10))
			require.NoError(t, err)
			at = append(at, k)
		}
		var err error
		ranges, err = chunk.RangesAt(at)
		require.NoError(t, err)
	}
	for i, r := range ranges {
		d.entries = append(d.entries, newEntry(chunk.NewID("d", i), r))
	}
	for _, c := range collections {
		d.collections[c.name] = c
	}
	return d
}

// ids names chunks by their place.
func ids(d *database, entries []*entry) []int {
	var out []int
	for _, e := range entries {
		out = append(out, slices.Index(d.entries, e))
	}
	return out
}

func TestTargetRanges(t *testing.T) {
	t.Parallel()

	c := &collection{name: "c", shardKey: "k.a", simple: true}
	d := spread(t, chunk.Ranged, 5, c) // below 0, 0.., 10.., 20.., 30 and more
	all := []int{0, 1, 2, 3, 4}
	key := func(v any) bson.D { return bson.D{{Key: "k.a", Value: v}} }
	for _, tc := range []struct {
		name   string
		filter any
		want   []int
	}{
		{"equality", key(12), []int{2}},
		{"equal double", key(12.0), []int{2}},
		{"equal long", key(int64(12)), []int{2}},
		{"$eq", key(bson.D{{Key: "$eq", Value: 20}}), []int{3}},
		{"$in", key(bson.D{{Key: "$in", Value: bson.A{1, 2, 25}}}), []int{1, 3}},
		{"$in nothing", key(bson.D{{Key: "$in", Value: bson.A{}}}), all},
		{"$in regex", key(bson.D{{Key: "$in", Value: bson.A{1, bson.Regex{Pattern: "x"}}}}), all},
		{"range", key(bson.D{{Key: "$gte", Value: 5}, {Key: "$lt", Value: 15}}), []int{1, 2}},
		{"range to the bound", key(bson.D{{Key: "$gt", Value: 5}, {Key: "$lte", Value: 10}}), []int{1, 2}},
		{"open range", key(bson.D{{Key: "$gt", Value: 25}}), []int{3, 4}},
		{"not", key(bson.D{{Key: "$not", Value: bson.D{{Key: "$gt", Value: 25}}}}), all},
		{"$ne", key(bson.D{{Key: "$ne", Value: 1}}), all},
		{"regex", key(bson.Regex{Pattern: "^a"}), all},
		{"array", key(bson.A{1, 2}), all},
		{"null", key(nil), []int{0}},
		{"string", key("x"), []int{4}},
		{"other field", bson.D{{Key: "x", Value: 1}}, all},
		{"empty", bson.D{}, all},
		{"document around", bson.D{{Key: "k", Value: bson.D{{Key: "a", Value: 1}}}}, all},
		{"$and", bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: "x", Value: 1}}, key(1)}}}, []int{1}},
		{"$and of both", bson.D{{Key: "$and", Value: bson.A{key(bson.D{{Key: "$gt", Value: 0}}), key(1)}}}, []int{1}},
		{"$or", bson.D{{Key: "$or", Value: bson.A{key(1), key(31)}}}, []int{1, 4}},
		{"$or with a stranger", bson.D{{Key: "$or", Value: bson.A{key(1), bson.D{{Key: "x", Value: 1}}}}}, all},
		{"$nor", bson.D{{Key: "$nor", Value: bson.A{key(1)}}}, all},
		{"$and broken", bson.D{{Key: "$and", Value: 1}}, all},
		{"DBRef-like", key(bson.D{{Key: "$ref", Value: "x"}}), all},
	} {
		require.Equal(t, tc.want, ids(d, targetOf(d, c, raw(t, tc.filter), wire.Element{})), tc.name)
	}
	collated := element(t, raw(t, bson.D{{Key: "c", Value: bson.D{{Key: "locale", Value: "en"}}}}), "c")
	require.Equal(t, all, ids(d, targetOf(d, c, raw(t, key("x")), collated)), "a string under a collation may equal others")
	require.Equal(t, []int{2}, ids(d, targetOf(d, c, raw(t, key(12)), collated)))
	simple := element(t, raw(t, bson.D{{Key: "c", Value: bson.D{{Key: "locale", Value: "simple"}}}}), "c")
	require.Equal(t, []int{4}, ids(d, targetOf(d, c, raw(t, key("x")), simple)))
}

// Whatever a filter says, the chunk of a document that it matches is among its
// targets.
func TestTargetNeverMisses(t *testing.T) {
	t.Parallel()

	c := &collection{name: "c", shardKey: "k", simple: true}
	rnd := rand.New(rand.NewPCG(1, 2))
	values := []any{nil, 1, 2.5, int64(7), "a", "b", true, bson.NewObjectID(), bson.D{{Key: "x", Value: 1}}, bson.Undefined{}, 15, 25, 35}
	for _, space := range []chunk.KeySpace{chunk.Hashed, chunk.Ranged} {
		d := spread(t, space, 5, c)
		for range 2000 {
			v := values[rnd.IntN(len(values))]
			k, err := space.Point(value(t, v))
			require.NoError(t, err)
			other := bson.D{{Key: "k", Value: values[rnd.IntN(len(values))]}}
			own := bson.D{{Key: "k", Value: v}}
			for _, filter := range []any{
				own, bson.D{{Key: "k", Value: bson.D{{Key: "$in", Value: bson.A{other[0].Value, v}}}}},
				bson.D{{Key: "$or", Value: bson.A{other, own}}},
				bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: "z", Value: 1}}, own}}},
				bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: v}, {Key: "$lte", Value: v}}}},
			} {
				got := targetOf(d, c, raw(t, filter), wire.Element{})
				require.Contains(t, got, d.at(k), "%v", filter)
			}
		}
	}
}

func TestPlanUpdate(t *testing.T) {
	t.Parallel()

	c := &collection{name: "c", shardKey: "k", simple: true}
	byID := &collection{name: "byid", shardKey: "_id", simple: true}
	d := spread(t, chunk.Ranged, 5, c, byID)
	set := func(op, path string, v any) bson.D {
		return bson.D{{Key: op, Value: bson.D{{Key: path, Value: v}}}}
	}
	k1 := bson.D{{Key: "k", Value: 1}}
	x1 := bson.D{{Key: "x", Value: 1}}
	pattern := bson.D{{Key: "k", Value: bson.Regex{Pattern: "^a"}}}
	for _, tc := range []struct {
		name   string
		coll   *collection
		q, u   any
		upsert bool
		multi  bool
		code   code
		want   int // number of chunks
		turns  bool
	}{
		{name: "targeted", coll: c, q: k1, u: set("$inc", "n", 1), want: 1},
		{name: "a pattern of the key", coll: c, q: pattern, u: set("$inc", "n", 1), multi: true, want: 5},
		{name: "a pattern of the key, spelled out", coll: c, q: bson.D{{Key: "k", Value: bson.D{{Key: "$eq", Value: pattern[0].Value}}}}, u: set("$inc", "n", 1), multi: true, want: 5},
		{name: "an array", coll: c, q: bson.D{{Key: "k", Value: bson.A{1}}}, u: set("$inc", "n", 1), multi: true, want: 5},
		{name: "upsert with a pattern", coll: c, q: pattern, u: set("$inc", "n", 1), upsert: true, code: codeShardKeyNotFound},
		{name: "upsert with an array", coll: c, q: bson.D{{Key: "k", Value: bson.A{1}}}, u: set("$inc", "n", 1), upsert: true, code: codeShardKeyNotFound},
		{name: "replacement of a pattern", coll: c, q: pattern, u: bson.D{{Key: "k", Value: 12}}, want: 1},
		{name: "sets the key to the pattern it is looked for by", coll: c, q: pattern, u: set("$set", "k", pattern[0].Value), code: codeImmutableField},
		{name: "in turn", coll: c, q: x1, u: set("$inc", "n", 1), want: 5, turns: true},
		{name: "everywhere", coll: c, q: x1, u: set("$inc", "n", 1), multi: true, want: 5},
		{name: "sets the key", coll: c, q: k1, u: set("$set", "k", 2), code: codeImmutableField},
		{name: "sets the key to what it is", coll: c, q: k1, u: set("$set", "k", 1.0), want: 1},
		{name: "sets the key, unknown", coll: c, q: x1, u: set("$set", "k", 1), code: codeImmutableField},
		{name: "sets into the key", coll: c, q: k1, u: set("$set", "k.a", 1), code: codeImmutableField},
		{name: "sets beside the key", coll: c, q: k1, u: set("$set", "ka", 1), want: 1},
		{name: "unsets the key", coll: c, q: k1, u: set("$unset", "k", ""), code: codeImmutableField},
		{name: "renames the key", coll: c, q: k1, u: set("$rename", "k", "z"), code: codeImmutableField},
		{name: "renames to the key", coll: c, q: k1, u: set("$rename", "z", "k"), code: codeImmutableField},
		{name: "pipeline sets the key", coll: c, q: k1, u: bson.A{set("$set", "k", 1)}, code: codeImmutableField},
		{name: "pipeline sets another", coll: c, q: k1, u: bson.A{set("$set", "z", 1)}, want: 1},
		{name: "pipeline unsets the key", coll: c, q: k1, u: bson.A{bson.D{{Key: "$unset", Value: bson.A{"k"}}}}, code: codeImmutableField},
		{name: "pipeline replaces", coll: c, q: k1, u: bson.A{bson.D{{Key: "$replaceWith", Value: "$x"}}}, code: codeNotSupported},
		{name: "pipeline replaces by _id", coll: byID, q: x1, u: bson.A{bson.D{{Key: "$replaceWith", Value: "$x"}}}, want: 5, turns: true},
		{name: "replacement keeps the key", coll: c, q: k1, u: bson.D{{Key: "k", Value: 1}}, want: 1},
		{name: "replacement changes the key", coll: c, q: k1, u: bson.D{{Key: "k", Value: 2}}, code: codeImmutableField},
		{name: "replacement loses the key", coll: c, q: k1, u: x1, code: codeImmutableField},
		{name: "replacement names the key", coll: c, q: x1, u: bson.D{{Key: "k", Value: 12}}, want: 1},
		{name: "replacement with an array", coll: c, q: x1, u: bson.D{{Key: "k", Value: bson.A{1}}}, code: codeShardKeyNotFound},
		{name: "replacement by _id", coll: byID, q: bson.D{{Key: "_id", Value: 1}}, u: x1, want: 1},
		{name: "upsert with the key", coll: c, q: k1, u: set("$inc", "n", 1), upsert: true, want: 1},
		{name: "upsert with null", coll: c, q: bson.D{{Key: "k", Value: nil}}, u: set("$inc", "n", 1), upsert: true, want: 1},
		{name: "upsert without the key", coll: c, q: x1, u: set("$inc", "n", 1), upsert: true, code: codeShardKeyNotFound},
		{name: "upsert with $in", coll: c, q: bson.D{{Key: "k", Value: bson.D{{Key: "$in", Value: bson.A{1}}}}}, u: set("$inc", "n", 1), upsert: true, code: codeShardKeyNotFound},
		{name: "upsert that sets another key", coll: c, q: k1, u: set("$setOnInsert", "k", 7), upsert: true, code: codeImmutableField},
		{name: "upsert of a replacement", coll: c, q: x1, u: bson.D{{Key: "k", Value: 12}}, upsert: true, want: 1},
		{name: "upsert by _id without it", coll: byID, q: x1, u: set("$inc", "n", 1), upsert: true, code: codeShardKeyNotFound},
	} {
		s := planUpdate(d, tc.coll, raw(t, bson.D{{Key: "q", Value: tc.q}, {Key: "u", Value: tc.u}, {Key: "multi", Value: tc.multi}, {Key: "upsert", Value: tc.upsert}}))
		if tc.code != 0 {
			require.NotNil(t, s.err, tc.name)
			require.Equal(t, tc.code, s.err.code, "%s: %v", tc.name, s.err)
			continue
		}
		require.Nil(t, s.err, tc.name)
		require.Len(t, s.entries, tc.want, tc.name)
		require.Equal(t, tc.turns, s.turns, tc.name)
	}
}

// A replacement whose filter does not name the shard key goes by its own and
// must not change another document's.
func TestReplacementGuardsKey(t *testing.T) {
	t.Parallel()

	c := &collection{name: "c", shardKey: "k", simple: true}
	d := spread(t, chunk.Ranged, 5, c)
	s := planUpdate(d, c, raw(t, bson.D{{Key: "q", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "k", Value: 12}}}}))
	require.Nil(t, s.err)
	require.JSONEq(t, `{"$and":[{"x":1},{"k":{"$eq":12}}]}`, relaxed(t, s.doc.Lookup("q").Document()))
}

func TestPlanInsert(t *testing.T) {
	t.Parallel()

	c := &collection{name: "c", shardKey: "k", simple: true}
	byID := &collection{name: "byid", shardKey: "_id", simple: true}
	d := spread(t, chunk.Ranged, 5, c, byID)
	require.Equal(t, codeShardKeyNotFound, planInsert(d, c, raw(t, bson.D{{Key: "k", Value: bson.A{1}}})).err.code)
	require.Equal(t, []int{0}, ids(d, planInsert(d, c, raw(t, bson.D{})).entries))
	require.Equal(t, []int{2}, ids(d, planInsert(d, c, raw(t, bson.D{{Key: "k", Value: 10}})).entries))

	// A document that the shard would give an _id to must get it before it is placed.
	s := planInsert(d, byID, raw(t, bson.D{{Key: "x", Value: 1}}))
	require.Nil(t, s.err)
	id := s.doc.Lookup("_id")
	require.Equal(t, bson.TypeObjectID, id.Type)
	k, err := d.space.Point(id)
	require.NoError(t, err)
	require.Equal(t, d.at(k), s.entries[0])
}

func TestRelated(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"k", "k", true}, {"k.a", "k", true}, {"k", "k.a", true}, {"ka", "k", false}, {"k.b", "k.a", false},
		{"k.$[].x", "k.a", true}, {"", "k", false}, {"x.k", "k", false},
	} {
		require.Equal(t, tc.want, related(tc.a, tc.b), fmt.Sprint(tc))
	}
}
