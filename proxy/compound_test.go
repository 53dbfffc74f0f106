package proxy

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/proxy/wire"
)

// tenants makes a range key space of keys (t, d.day) that meets at (a), (b), (b, 10),
// (b, 20) and (c).
func tenants(t testing.TB, c *collection) *database {
	t.Helper()
	var at []chunk.Key
	for _, border := range []any{"a", "b", bson.A{"b", 10}, bson.A{"b", 20}, "c"} {
		k, err := chunk.Ranged.Border(value(t, border))
		require.NoError(t, err)
		at = append(at, k)
	}
	ranges, err := chunk.RangesAt(at)
	require.NoError(t, err)
	d := &database{name: "d", space: chunk.Ranged, collections: map[string]*collection{c.name: c}}
	for i, r := range ranges {
		d.entries = append(d.entries, newEntry(chunk.NewID("d", i), r))
	}
	return d
}

// compoundKey is the collection of these tests.
func compoundKey() *collection { return &collection{name: "c", shardKey: "t,d.day", simple: true} }

func TestCompoundTargets(t *testing.T) {
	t.Parallel()

	c := compoundKey()
	d := tenants(t, c) // 0 below a, 1 a, 2 b, 3 b from 10, 4 b from 20, 5 c and more
	all := []int{0, 1, 2, 3, 4, 5}
	and := func(tenant, day any) bson.D { return bson.D{{Key: "t", Value: tenant}, {Key: "d.day", Value: day}} }
	op := func(o string, v any) bson.D { return bson.D{{Key: o, Value: v}} }
	for _, tc := range []struct {
		name   string
		filter any
		want   []int
	}{
		{"both", and("b", 12), []int{3}},
		{"both, in the other order", bson.D{{Key: "d.day", Value: 25.0}, {Key: "t", Value: "b"}}, []int{4}},
		{"the first alone", bson.D{{Key: "t", Value: "b"}}, []int{2, 3, 4}},
		{"the first alone, one chunk", bson.D{{Key: "t", Value: "a"}}, []int{1}},
		{"the second alone", bson.D{{Key: "d.day", Value: 12}}, all},
		{"nothing", bson.D{}, all},
		{"a range of the second", and("b", op("$gte", 10)), []int{3, 4}},
		{"a bounded range of the second", and("b", bson.D{{Key: "$gt", Value: 3}, {Key: "$lt", Value: 9}}), []int{2}},
		{"a range of the first, its end included", bson.D{{Key: "t", Value: op("$lt", "b")}}, []int{0, 1, 2, 3, 4}},
		{"a range of the first and the second", and(op("$gte", "b"), 5), []int{2, 3, 4, 5}},
		{"lists", and(op("$in", bson.A{"a", "b"}), op("$in", bson.A{1, 25})), []int{1, 2, 4}},
		{"missing second", and("b", nil), []int{2}},
		{"missing first", bson.D{{Key: "t", Value: nil}}, []int{0}},
		{"$and", op("$and", bson.A{bson.D{{Key: "t", Value: "b"}}, bson.D{{Key: "d.day", Value: 12}}}), []int{3}},
		{"$or", op("$or", bson.A{and("a", 1), and("b", 12)}), []int{1, 3}},
		{"not understood", and("b", op("$not", op("$gt", 5))), []int{2, 3, 4}},
		{"regex first", bson.D{{Key: "t", Value: bson.Regex{Pattern: "^a"}}, {Key: "d.day", Value: 1}}, all},
	} {
		require.Equal(t, tc.want, ids(d, targetOf(d, c, raw(t, tc.filter), wire.Element{})), tc.name)
	}
	days, names := make(bson.A, 40), make(bson.A, 40)
	for i := range days {
		days[i], names[i] = i, fmt.Sprintf("b%d", i)
	}
	require.Equal(t, []int{4}, ids(d, targetOf(d, c, raw(t, and(op("$in", names), op("$in", days))), wire.Element{})), "too many combinations go by the first field")
}

// Whatever a filter says, the chunk of a document that it matches is among its
// targets, in both kinds of key space.
func TestCompoundNeverMisses(t *testing.T) {
	t.Parallel()

	rnd := rand.New(rand.NewPCG(3, 4))
	values := []any{nil, "a", "b", "b0", "c", 1, 10, 10.5, int64(20), true, bson.NewObjectID(), bson.Undefined{}, bson.D{{Key: "x", Value: 1}}}
	any1 := func() any { return values[rnd.IntN(len(values))] }
	hashed := spread(t, chunk.Hashed, 6, compoundKey())
	for _, d := range []*database{tenants(t, compoundKey()), hashed} {
		c := d.collections["c"]
		for range 3000 {
			x, y := any1(), any1()
			k, err := d.space.TuplePoint(value(t, x), value(t, y))
			require.NoError(t, err)
			own := bson.D{{Key: "t", Value: x}, {Key: "d.day", Value: y}}
			other := bson.D{{Key: "t", Value: any1()}, {Key: "d.day", Value: any1()}}
			for _, filter := range []any{
				own, bson.D{own[0]}, bson.D{own[1]},
				bson.D{own[0], {Key: "d.day", Value: bson.D{{Key: "$gte", Value: y}, {Key: "$lte", Value: y}}}},
				bson.D{{Key: "t", Value: bson.D{{Key: "$gte", Value: x}}}, own[1]},
				bson.D{{Key: "t", Value: bson.D{{Key: "$in", Value: bson.A{any1(), x}}}}, {Key: "d.day", Value: bson.D{{Key: "$in", Value: bson.A{y, any1()}}}}},
				bson.D{{Key: "$or", Value: bson.A{other, own}}},
				bson.D{{Key: "$and", Value: bson.A{bson.D{own[0]}, bson.D{{Key: "$or", Value: bson.A{bson.D{other[1]}, bson.D{own[1]}}}}}}},
			} {
				require.Contains(t, targetOf(d, c, raw(t, filter), wire.Element{}), d.at(k), "%v", filter)
			}
			// What is sent somewhere is stored where it is looked for.
			doc := raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: x}, {Key: "d", Value: bson.D{{Key: "day", Value: y}}}})
			s := planInsert(d, c, doc)
			require.Nil(t, s.err)
			require.Equal(t, []*entry{d.at(k)}, s.entries)
		}
	}
}

func TestCompoundUpdates(t *testing.T) {
	t.Parallel()

	c := compoundKey()
	d := tenants(t, c)
	full := bson.D{{Key: "t", Value: "b"}, {Key: "d.day", Value: 12}}
	first := bson.D{{Key: "t", Value: "b"}}
	set := func(d bson.D) bson.D { return bson.D{{Key: "$set", Value: d}} }
	day := func(v any) bson.E { return bson.E{Key: "d", Value: bson.D{{Key: "day", Value: v}}} }
	for _, tc := range []struct {
		name   string
		q, u   any
		upsert bool
		want   []int
		code   code
	}{
		{"an update by the whole key", full, set(bson.D{{Key: "x", Value: 1}}), false, []int{3}, 0},
		{"an update by the first field", first, set(bson.D{{Key: "x", Value: 1}}), false, []int{2, 3, 4}, 0},
		{"a change of the first field", full, set(bson.D{{Key: "t", Value: "c"}}), false, nil, codeImmutableField},
		{"a change of the second field", full, set(bson.D{{Key: "d.day", Value: 13}}), false, nil, codeImmutableField},
		{"a change above the second field", full, bson.D{{Key: "$unset", Value: bson.D{{Key: "d", Value: 1}}}}, false, nil, codeImmutableField},
		{"no change of the second field", full, set(bson.D{{Key: "d.day", Value: 12.0}}), false, []int{3}, 0},
		{"an upsert by the whole key", full, set(bson.D{{Key: "x", Value: 1}}), true, []int{3}, 0},
		{"an upsert by the first field", first, set(bson.D{{Key: "x", Value: 1}}), true, nil, codeShardKeyNotFound},
		{"a replacement that keeps the key", full, bson.D{{Key: "t", Value: "b"}, day(12)}, false, []int{3}, 0},
		{"a replacement that moves", full, bson.D{{Key: "t", Value: "b"}, day(25)}, false, nil, codeImmutableField},
		{"a replacement without the second field", full, bson.D{{Key: "t", Value: "b"}}, false, nil, codeImmutableField},
		{"a replacement that tells the second field", first, bson.D{{Key: "t", Value: "b"}, day(25)}, false, []int{4}, 0},
		{"a replacement that upserts by both", first, bson.D{{Key: "t", Value: "b"}, day(25)}, true, []int{4}, 0},
		{"a replacement by an array", first, bson.D{{Key: "t", Value: "b"}, {Key: "d", Value: bson.A{1}}}, false, nil, codeShardKeyNotFound},
		{"a pipeline that sets the key", full, bson.A{set(bson.D{{Key: "d", Value: 1}})}, false, nil, codeImmutableField},
	} {
		s := planUpdate(d, c, raw(t, bson.D{{Key: "q", Value: tc.q}, {Key: "u", Value: tc.u}, {Key: "upsert", Value: tc.upsert}}))
		if tc.code != 0 {
			require.NotNil(t, s.err, tc.name)
			require.Equal(t, tc.code, s.err.code, tc.name)
			continue
		}
		require.Nil(t, s.err, tc.name)
		require.Equal(t, tc.want, ids(d, s.entries), tc.name)
	}
	byID := &collection{name: "c", shardKey: "t,_id", simple: true}
	s := planInsert(d, byID, raw(t, bson.D{{Key: "t", Value: "b"}}))
	require.Nil(t, s.err)
	_, made := wire.Find(s.doc, "_id")
	require.True(t, made, "the document was placed by an _id that it does not have")
	s = planUpdate(d, byID, raw(t, bson.D{{Key: "q", Value: bson.D{{Key: "t", Value: "b"}, {Key: "_id", Value: 15}}}, {Key: "u", Value: bson.D{{Key: "t", Value: "b"}, {Key: "x", Value: 1}}}}))
	require.Nil(t, s.err)
	require.Equal(t, []int{3}, ids(d, s.entries), "a replacement keeps the _id that the filter names")
}

func TestUniqueIndexHoldsTheWholeKey(t *testing.T) {
	t.Parallel()

	index := func(key bson.D) wire.Element {
		return element(t, raw(t, bson.D{{Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: key}, {Key: "unique", Value: true}}}}}), "indexes")
	}
	c := compoundKey()
	require.NoError(t, checkIndexes(index(bson.D{{Key: "t", Value: 1}, {Key: "d.day", Value: 1}, {Key: "n", Value: 1}}), c))
	for _, key := range []bson.D{{{Key: "t", Value: 1}}, {{Key: "d.day", Value: 1}, {Key: "t", Value: 1}}, {{Key: "t", Value: 1}, {Key: "n", Value: 1}}} {
		r, ok := checkIndexes(index(key), c).(*refusal) //nolint:errorlint // it is one
		require.True(t, ok, "%v", key)
		require.Equal(t, codeCannotCreateIndex, r.code)
	}
	pattern := func(key any) wire.Element { return element(t, raw(t, bson.D{{Key: "key", Value: key}}), "key") }
	key, refused := keyPattern(pattern(bson.D{{Key: "t", Value: 1}, {Key: "d.day", Value: "hashed"}}))
	require.Nil(t, refused)
	require.Equal(t, "t,d.day", key)
	for _, bad := range []any{bson.D{}, bson.D{{Key: "a,b", Value: 1}}, bson.D{{Key: "a", Value: 1}, {Key: "a.b", Value: 1}}} {
		_, refused = keyPattern(pattern(bad))
		require.NotNil(t, refused, "%v", bad)
	}
}

// The driver sees one collection, whose documents lie by two fields in chunks on two
// shards.
func TestCompoundKeyWithTheDriver(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 3, chunk.Collection{Name: "days", ShardKey: "t,d.day"})
	db := f.databases[testDatabase]
	db.KeySpace = chunk.Ranged
	f.databases[testDatabase] = db
	low, err := chunk.Ranged.Border(value(t, bson.A{"b", 10}))
	require.NoError(t, err)
	high, err := chunk.Ranged.Border(value(t, "c"))
	require.NoError(t, err)
	ranges, err := chunk.RangesAt([]chunk.Key{low, high})
	require.NoError(t, err)
	for i, r := range ranges {
		id := chunk.NewID(testDatabase, i+1)
		route := f.routes[id]
		route.Chunk.Range = r
		f.routes[id] = route
	}
	ctx := t.Context()
	c := f.dial(f.start(Config{})).Database(testDatabase).Collection("days")
	var docs []any
	for _, tenant := range []string{"a", "b", "c"} {
		for day := range 20 {
			docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprintf("%s%02d", tenant, day)}, {Key: "t", Value: tenant}, {Key: "d", Value: bson.D{{Key: "day", Value: day}}}})
		}
	}
	_, err = c.InsertMany(ctx, docs)
	require.NoError(t, err)
	for i, want := range []int64{30, 10, 20} { // a and half of b, the rest of b, c
		p := f.routes[chunk.NewID(testDatabase, i+1)].Placement
		n, err := f.roots[p.Shard].Database(p.Database).Collection("days").CountDocuments(ctx, bson.D{})
		require.NoError(t, err)
		require.Equal(t, want, n, "chunk %d", i+1)
	}
	find := func(filter bson.D) (got []string) {
		cur, err := c.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "d.day", Value: -1}, {Key: "t", Value: 1}}).SetLimit(3))
		require.NoError(t, err)
		var found []struct {
			ID string `bson:"_id"`
		}
		require.NoError(t, cur.All(ctx, &found))
		for _, d := range found {
			got = append(got, d.ID)
		}
		return got
	}
	require.Equal(t, []string{"b19", "b18", "b17"}, find(bson.D{{Key: "t", Value: "b"}}))
	require.Equal(t, []string{"b11", "b10", "b09"}, find(bson.D{{Key: "t", Value: "b"}, {Key: "d.day", Value: bson.D{{Key: "$lt", Value: 12}}}}))
	require.Equal(t, []string{"a05", "b05", "c05"}, find(bson.D{{Key: "d.day", Value: 5}}))
	res, err := c.UpdateMany(ctx, bson.D{{Key: "t", Value: "b"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}})
	require.NoError(t, err)
	require.Equal(t, int64(20), res.ModifiedCount)
	res, err = c.UpdateOne(ctx, bson.D{{Key: "t", Value: "b"}, {Key: "d.day", Value: 99}}, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 2}}}}, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.Equal(t, int64(1), res.UpsertedCount)
	n, err := c.CountDocuments(ctx, bson.D{{Key: "t", Value: "b"}, {Key: "d.day", Value: bson.D{{Key: "$gte", Value: 19}}}})
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
	del, err := c.DeleteMany(ctx, bson.D{{Key: "t", Value: "b"}})
	require.NoError(t, err)
	require.Equal(t, int64(21), del.DeletedCount)
}
