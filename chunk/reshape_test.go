package chunk_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// borders are values of every type that can be a shard key's, in pairs and at
// the ends of their types.
func borders(t *testing.T) []bson.RawValue {
	t.Helper()
	decimal := func(s string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(s)
		require.NoError(t, err)
		return d
	}
	values := bson.A{
		bson.MinKey{}, bson.Undefined{}, nil,
		math.NaN(), decimal("NaN"), math.Inf(-1), decimal("-Infinity"), int64(math.MinInt64), int32(math.MinInt32), -1.5, decimal("-1.5"), int32(-1),
		math.Copysign(0, -1), int32(0), decimal("0E+3"), int32(1), 1.0, int64(1), decimal("1.00"), 1.5, int64(1) << 53, int64(1)<<53 + 1, float64(1 << 53),
		int64(math.MaxInt64), math.MaxFloat64, math.Inf(1), decimal("Infinity"),
		"", "\x00", "a", "a\x00b", "b", "é", "\U0010ffff", bson.Symbol("a"), bson.Symbol("z"),
		bson.D{}, bson.D{{Key: "", Value: nil}}, bson.D{{Key: "a", Value: int32(1)}}, bson.D{{Key: "a", Value: 1.0}, {Key: "b", Value: "x"}}, bson.D{{Key: "b", Value: bson.A{1, 2}}},
		bson.Binary{}, bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.Binary{Data: []byte{0xff}}, bson.Binary{Subtype: 0x80, Data: []byte{0, 1, 2}},
		bson.ObjectID{}, bson.NewObjectID(), false, true,
		bson.DateTime(math.MinInt64), bson.DateTime(-1), bson.NewDateTimeFromTime(time.Unix(0, 0)), bson.DateTime(math.MaxInt64),
		bson.Timestamp{}, bson.Timestamp{I: 1}, bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32},
		bson.DBPointer{DB: "a.b"}, bson.JavaScript(""), bson.JavaScript("f()"), bson.CodeWithScope{Code: "f()", Scope: bson.D{}}, bson.MaxKey{},
	}
	var out []bson.RawValue
	for _, v := range values {
		raw, err := bson.Marshal(bson.D{{Key: "v", Value: v}})
		require.NoError(t, err)
		out = append(out, bson.Raw(raw).Lookup("v"))
	}
	return out
}

// TestFilterIsExactAtBorders cuts each key space at every value in turn. Each
// document must lie in exactly one part, the value itself to the right of the
// cut, and all that MongoDB takes for equal on the same side.
func TestFilterIsExactAtBorders(t *testing.T) {
	t.Parallel()

	values := borders(t)
	docs := []bson.Raw{}
	for _, v := range values {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: 1}, {Key: "k", Value: bson.D{{Key: "in", Value: v}}}})
		require.NoError(t, err)
		docs = append(docs, raw)
	}
	missing, err := bson.Marshal(bson.D{{Key: "_id", Value: 2}})
	require.NoError(t, err)
	docs = append(docs, missing)
	for _, space := range []chunk.KeySpace{chunk.Hashed, chunk.Ranged} {
		for _, cut := range values {
			at, err := space.Point(cut)
			require.NoError(t, err)
			if at == chunk.KeyMin || at >= chunk.KeyMax {
				continue
			}
			parts, err := chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}.SplitAt(at)
			require.NoError(t, err)
			keys := map[string]string{"c": "k.in"}
			left := chunk.Keep{Space: space, ShardKeys: keys, Ranges: parts[:1]}
			right := chunk.Keep{Space: space, ShardKeys: keys, Ranges: parts[1:]}
			others := chunk.Keep{Space: space, ShardKeys: keys, Ranges: parts[:1], Not: true}
			for i, doc := range docs {
				inLeft, err := left.Has("c", doc)
				require.NoError(t, err)
				inRight, err := right.Has("c", doc)
				require.NoError(t, err)
				require.NotEqual(t, inLeft, inRight, "%s: document %d at the cut %v", space, i, cut)
				notLeft, err := others.Has("c", doc)
				require.NoError(t, err)
				require.Equal(t, inRight, notLeft)
				if i < len(values) {
					point, err := space.Point(values[i])
					require.NoError(t, err)
					require.Equal(t, point >= at, inRight)
				} else { // missing is null
					null, err := space.Point(bson.RawValue{Type: bson.TypeNull})
					require.NoError(t, err)
					require.Equal(t, null >= at, inRight)
				}
			}
			inCut, err := right.Has("c", docs[0])
			require.NoError(t, err)
			first, err := space.Point(values[0])
			require.NoError(t, err)
			require.Equal(t, first >= at, inCut)
		}
	}
}

func TestFilterRefusesWhatNobodyCanPlace(t *testing.T) {
	t.Parallel()

	keep := chunk.Keep{Space: chunk.Ranged, ShardKeys: map[string]string{"c": "k"}, Ranges: []chunk.Range{{Hi: chunk.KeyMax}}}
	doc, err := bson.Marshal(bson.D{{Key: "k", Value: bson.A{1}}})
	require.NoError(t, err)
	_, err = keep.Has("c", doc)
	require.ErrorIs(t, err, chunk.ErrArrayKey)
	_, err = keep.Has("other", doc)
	require.ErrorContains(t, err, "no shard key")
	for path, touches := range map[string]bool{"a": true, "a.b": true, "a.b.c": true, "a.bc": false, "ab": false, "a.c": false, "b": false} {
		k := chunk.Keep{ShardKeys: map[string]string{"c": "a.b"}}
		require.Equal(t, touches, k.Touches("c", path), path)
	}
	require.True(t, keep.Touches("other", "x"), "nobody knows")
}

// TestReshapeCoversEachPointOnce cuts one range twice at random: the pairs hold
// each point of it in exactly one.
func TestReshapeCoversEachPointOnce(t *testing.T) {
	t.Parallel()

	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		whole := chunk.Range{Lo: "b", Hi: "y"}
		cut := func() []chunk.Range {
			var points []chunk.Key
			for k := byte('c'); k < 'y'; k++ {
				if r.IntN(4) == 0 {
					points = append(points, chunk.Key([]byte{k}))
				}
			}
			ranges, err := whole.SplitAt(points...)
			require.NoError(t, err)
			r.Shuffle(len(ranges), func(i, j int) { ranges[i], ranges[j] = ranges[j], ranges[i] })
			return ranges
		}
		old, fresh := cut(), cut()
		pairs, err := chunk.Reshape(old, fresh)
		require.NoError(t, err)
		for k := byte('a'); k <= 'z'; k++ {
			for _, key := range []chunk.Key{chunk.Key([]byte{k}), chunk.Key([]byte{k, 0}), chunk.Key([]byte{k, 'm'})} {
				n := 0
				for _, p := range pairs {
					if p.Range.Contains(key) {
						n++
						require.True(t, old[p.Source].Contains(key) && fresh[p.Target].Contains(key))
					}
				}
				want := 0
				if whole.Contains(key) {
					want = 1
				}
				require.Equal(t, want, n, "seed %d, key %q", seed, key)
			}
		}
	}
}

func TestReshapeRefuses(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		old, fresh []chunk.Range
		err        error
	}{
		"gap in the sources": {[]chunk.Range{{"a", "b"}, {"c", "d"}}, []chunk.Range{{"a", "d"}}, chunk.ErrNotContiguous},
		"targets overlap":    {[]chunk.Range{{"a", "d"}}, []chunk.Range{{"a", "c"}, {"b", "d"}}, chunk.ErrNotContiguous},
		"an empty target":    {[]chunk.Range{{"a", "d"}}, []chunk.Range{{"a", "d"}, {"d", "d"}}, chunk.ErrNotContiguous},
		"too little":         {[]chunk.Range{{"a", "d"}}, []chunk.Range{{"a", "c"}}, chunk.ErrNotCovered},
		"too much":           {[]chunk.Range{{"a", "d"}}, []chunk.Range{{"a", "e"}}, chunk.ErrNotCovered},
		"no targets":         {[]chunk.Range{{"a", "d"}}, nil, chunk.ErrNotContiguous},
	} {
		_, err := chunk.Reshape(c.old, c.fresh)
		require.ErrorIs(t, err, c.err, name)
	}
	for _, points := range [][]chunk.Key{{"a"}, {"d"}, {"e"}, {"c", "b"}, {"b", "b"}} {
		_, err := chunk.Range{Lo: "a", Hi: "d"}.SplitAt(points...)
		require.ErrorIs(t, err, chunk.ErrNotDivisible, "%q", points)
	}
}

func TestSplitEvenly(t *testing.T) {
	t.Parallel()

	whole := chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}
	for _, n := range []int{2, 3, 7, 64} {
		got, err := chunk.Hashed.SplitEvenly(whole, n)
		require.NoError(t, err)
		require.Equal(t, chunk.Hashed.Split(n), got, "the same cut as at creation")
	}
	eighth := chunk.Hashed.Split(8)[5]
	halves, err := chunk.Hashed.SplitEvenly(eighth, 2)
	require.NoError(t, err)
	require.Equal(t, chunk.Hashed.Split(16)[10:12], halves)
	_, err = chunk.Ranged.SplitEvenly(whole, 2)
	require.ErrorIs(t, err, chunk.ErrNotDivisible)
	_, err = chunk.Hashed.SplitEvenly(halves[0], 1)
	require.ErrorIs(t, err, chunk.ErrNotDivisible)
	one := halves[0]
	one.Hi = one.Lo[:8] + chunk.Key([]byte{one.Lo[8] + 1})
	_, err = chunk.Hashed.SplitEvenly(one, 2)
	require.ErrorIs(t, err, chunk.ErrNotDivisible, "a single hash cannot be cut")
}

func TestSplitBySize(t *testing.T) {
	t.Parallel()

	r := chunk.Range{Lo: "a", Hi: "z"}
	var sample []chunk.Weighed
	for i := range 1000 {
		w := chunk.Weighed{At: chunk.Key(fmt.Sprintf("m%04d", i)), Bytes: 1}
		if i >= 900 { // the last tenth weighs as much as all before it
			w.Bytes = 9
		}
		sample = append(sample, w)
	}
	sample = append(sample, chunk.Weighed{At: "zz", Bytes: 1 << 40}) // not in the range
	halves, err := r.SplitBySize(sample, 2)
	require.NoError(t, err)
	require.Equal(t, []chunk.Range{{"a", "m0900"}, {"m0900", "z"}}, halves)
	quarters, err := r.SplitBySize(sample, 4)
	require.NoError(t, err)
	require.Equal(t, []chunk.Range{{"a", "m0450"}, {"m0450", "m0900"}, {"m0900", "m0950"}, {"m0950", "z"}}, quarters)

	same := []chunk.Weighed{{"m", 5}, {"m", 5}, {"m", 5}}
	_, err = r.SplitBySize(same, 2)
	require.ErrorIs(t, err, chunk.ErrNotDivisible, "equal keys are never divided")
	_, err = r.SplitBySize(nil, 2)
	require.ErrorIs(t, err, chunk.ErrNotDivisible)
}
