package chunk

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// document marshals d.
func document(t require.TestingT, d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	require.NoError(t, err)
	return b
}

// A router extracted the key {"a.b": 1} from a field literally called "a.b",
// and left a missing field out instead of reading null: documents were looked
// for on one shard and stored on another.
func TestLookupPath(t *testing.T) {
	t.Parallel()

	null := bson.RawValue{Type: bson.TypeNull}
	for name, c := range map[string]struct {
		doc  bson.D
		path string
		want any
		err  error
	}{
		"top":              {bson.D{{Key: "_id", Value: "x"}}, "_id", "x", nil},
		"nested":           {bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "b", Value: int32(5)}}}}, "a.b", int32(5), nil},
		"literal dots":     {bson.D{{Key: "_id", Value: 2}, {Key: "a.b", Value: int32(5)}}, "a.b", nil, nil},
		"literal and real": {bson.D{{Key: "a.b", Value: int32(5)}, {Key: "a", Value: bson.D{{Key: "b", Value: int32(6)}}}}, "a.b", int32(6), nil},
		"missing":          {bson.D{{Key: "_id", Value: 3}}, "a.b", nil, nil},
		"missing below":    {bson.D{{Key: "a", Value: bson.D{}}}, "a.b", nil, nil},
		"null on the way":  {bson.D{{Key: "a", Value: nil}}, "a.b", nil, nil},
		"scalar on way":    {bson.D{{Key: "a", Value: "b"}}, "a.b", nil, nil},
		"null at the end":  {bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: nil}}}}, "a.b", nil, nil},
		"document at end":  {bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: bson.D{{Key: "c", Value: true}}}}}}, "a.b", bson.D{{Key: "c", Value: true}}, nil},
		"array on the way": {bson.D{{Key: "_id", Value: 4}, {Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 5}}}}}, "a.b", nil, ErrArrayKey},
		"array at the end": {bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{}}}}}, "a.b", nil, ErrArrayKey},
		"array by index":   {bson.D{{Key: "a", Value: bson.A{1}}}, "a.0", nil, ErrArrayKey},
		"numeric name":     {bson.D{{Key: "a", Value: bson.D{{Key: "0", Value: "x"}}}}, "a.0", "x", nil},
		"first of two":     {bson.D{{Key: "a", Value: "one"}, {Key: "a", Value: "two"}}, "a", "one", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v, err := LookupPath(document(t, c.doc), c.path)
			require.ErrorIs(t, err, c.err)
			switch {
			case c.err != nil:
			case c.want == nil:
				require.True(t, null.Equal(v), "%v", v)
			default:
				require.True(t, rawValue(t, c.want).Equal(v), "%v", v)
			}
		})
	}
}

func TestLookupPathPassesEveryType(t *testing.T) {
	t.Parallel()

	for _, class := range ordered {
		doc := document(t, bson.D{{Key: "x", Value: class[0]}, {Key: "key", Value: "found"}})
		v, err := LookupPath(doc, "key")
		require.NoError(t, err)
		require.Equal(t, "found", v.StringValue(), "after %v", class[0])
	}
}

func TestMalformedInput(t *testing.T) {
	t.Parallel()

	deep := []byte{5, 0, 0, 0, 0}
	for range 300 {
		deep = slices.Concat([]byte{byte(len(deep) + 8), byte((len(deep) + 8) >> 8), 0, 0, 3, 'a', 0}, deep, []byte{0})
	}
	for name, v := range map[string]bson.RawValue{
		"no value":           {},
		"unknown type":       {Type: 0x20},
		"short int":          {Type: bson.TypeInt32, Value: []byte{1, 2, 3}},
		"long int":           {Type: bson.TypeInt32, Value: []byte{1, 2, 3, 4, 5}},
		"short double":       {Type: bson.TypeDouble, Value: make([]byte, 7)},
		"short decimal":      {Type: bson.TypeDecimal128, Value: make([]byte, 15)},
		"null with bytes":    {Type: bson.TypeNull, Value: []byte{0}},
		"string no end":      {Type: bson.TypeString, Value: []byte{1, 0, 0, 0, 'a'}},
		"string negative":    {Type: bson.TypeString, Value: []byte{0xff, 0xff, 0xff, 0xff, 0}},
		"boolean 2":          {Type: bson.TypeBoolean, Value: []byte{2}},
		"document no end":    {Type: bson.TypeEmbeddedDocument, Value: []byte{5, 0, 0, 0, 1}},
		"document short":     {Type: bson.TypeEmbeddedDocument, Value: []byte{6, 0, 0, 0, 0}},
		"name without end":   {Type: bson.TypeEmbeddedDocument, Value: []byte{7, 0, 0, 0, 10, 'a', 0}},
		"element cut":        {Type: bson.TypeArray, Value: []byte{9, 0, 0, 0, 16, '0', 0, 1, 0}},
		"binary cut":         {Type: bson.TypeBinary, Value: []byte{2, 0, 0, 0, 0, 1}},
		"regex one part":     {Type: bson.TypeRegex, Value: []byte{'a', 0}},
		"pointer no id":      {Type: bson.TypeDBPointer, Value: []byte{1, 0, 0, 0, 0}},
		"scope with more":    {Type: bson.TypeCodeWithScope, Value: []byte{15, 0, 0, 0, 1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0}},
		"nested without end": {Type: bson.TypeEmbeddedDocument, Value: deep},
	} {
		_, err := EncodeValue(v)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	_, err := LookupPath(nil, "a")
	require.ErrorIs(t, err, ErrMalformed)
	_, err = LookupPath(bson.Raw{8, 0, 0, 0, 16, 'b', 0, 0}, "a")
	require.ErrorIs(t, err, ErrMalformed)
}

// One _id of four numeric types is one document to the server; it was four keys
// to a router that hashed bytes.
func TestEqualValuesHaveOnePoint(t *testing.T) {
	t.Parallel()

	for _, s := range []KeySpace{Hashed, Ranged} {
		seen := map[Key]any{}
		for _, class := range ordered {
			if _, array := class[0].(bson.A); array {
				_, err := s.Point(rawValue(t, class[0]))
				require.ErrorIs(t, err, ErrArrayKey)
				continue
			}
			p, err := s.Point(rawValue(t, class[0]))
			require.NoError(t, err)
			require.NotContains(t, seen, p)
			seen[p] = class[0]
			for _, v := range class {
				q, err := s.Point(rawValue(t, v))
				require.NoError(t, err)
				require.Equal(t, p, q, "%v and %v", class[0], v)
			}
		}
	}
	_, err := KeySpace("other").Point(rawValue(t, 1))
	require.Error(t, err)
}

func TestDocumentPoint(t *testing.T) {
	t.Parallel()

	missing, err := Hashed.DocumentPoint(document(t, bson.D{{Key: "_id", Value: 1}}), "a.b")
	require.NoError(t, err)
	null, err := Hashed.Point(bson.RawValue{Type: bson.TypeNull})
	require.NoError(t, err)
	require.Equal(t, null, missing, "a missing field hashes as null")

	_, err = Ranged.DocumentPoint(document(t, bson.D{{Key: "a", Value: bson.A{1}}}), "a")
	require.ErrorIs(t, err, ErrArrayKey)
}

// requirePartition wants ranges that meet, from one end of the key space to the other.
func requirePartition(t require.TestingT, ranges []Range) {
	require.NotEmpty(t, ranges)
	require.Equal(t, KeyMin, ranges[0].Lo)
	require.Equal(t, KeyMax, ranges[len(ranges)-1].Hi)
	for i, r := range ranges {
		require.Less(t, r.Lo, r.Hi)
		if i > 0 {
			require.Equal(t, ranges[i-1].Hi, r.Lo)
		}
	}
}

// owners counts the ranges that hold k.
func owners(ranges []Range, k Key) int {
	n := 0
	for _, r := range ranges {
		if r.Contains(k) {
			n++
		}
	}
	return n
}

func TestSplitPartitionsTheKeySpace(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		ranges := Hashed.Split(rapid.IntRange(1, 300).Draw(t, "n"))
		requirePartition(t, ranges)
		for range 20 {
			k := hashKey(rapid.Uint64().Draw(t, "hash"))
			require.Equal(t, 1, owners(ranges, k))
		}
		require.Equal(t, 1, owners(ranges, hashKey(0)))
		require.Equal(t, 1, owners(ranges, hashKey(math.MaxUint64)))
	})
	require.Nil(t, Hashed.Split(0))
	require.Nil(t, Ranged.Split(4))
	require.Equal(t, []Range{{KeyMin, hashKey(1 << 62)}, {hashKey(1 << 62), hashKey(1 << 63)}, {hashKey(1 << 63), hashKey(3 << 62)}, {hashKey(3 << 62), KeyMax}}, Hashed.Split(4))
}

func TestSplitIsEven(t *testing.T) {
	t.Parallel()

	const values, parts = 20000, 8
	ranges := Hashed.Split(parts)
	counts := make([]int, parts)
	for i := range values {
		p, err := Hashed.Point(rawValue(t, fmt.Sprintf("merchant-%d", i)))
		require.NoError(t, err)
		counts[slices.IndexFunc(ranges, func(r Range) bool { return r.Contains(p) })]++
	}
	for _, n := range counts {
		require.InDelta(t, values/parts, n, values/parts*0.1)
	}
}

func TestRangesAtPartitionTheKeySpace(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		var points []Key
		for _, v := range rapid.SliceOfN(genValue(1), 0, 12).Draw(t, "points") {
			points = append(points, encode(t, v))
		}
		slices.Sort(points)
		points = slices.Compact(points)
		ranges, err := RangesAt(points)
		require.NoError(t, err)
		require.Len(t, ranges, len(points)+1)
		requirePartition(t, ranges)
		for _, p := range points {
			require.Equal(t, 1, owners(ranges, p))
		}
		require.Equal(t, 1, owners(ranges, encode(t, genValue(2).Draw(t, "value"))))
	})
}

func TestRangesAtRefuses(t *testing.T) {
	t.Parallel()

	for name, points := range map[string][]Key{
		"start":     {KeyMin},
		"end":       {KeyMax},
		"twice":     {"a", "a"},
		"backwards": {"b", "a"},
	} {
		_, err := RangesAt(points)
		require.Error(t, err, name)
	}
}

func TestRange(t *testing.T) {
	t.Parallel()

	all := Range{KeyMin, KeyMax}
	require.True(t, all.Contains(KeyMin))
	require.False(t, all.Contains(KeyMax))
	r := Range{"b", "d"}
	require.True(t, r.Contains("b"))
	require.True(t, r.Contains("czz"))
	require.False(t, r.Contains("d"))
	require.False(t, r.Contains("a"))

	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Map(rapid.StringMatching(`[abc]{0,2}`), func(s string) Key { return Key(s) })
		a := Range{key.Draw(t, "a.lo"), key.Draw(t, "a.hi")}
		b := Range{key.Draw(t, "b.lo"), key.Draw(t, "b.hi")}
		common := false
		for _, k := range []Key{a.Lo, b.Lo} { // two ranges meet first where one of them starts
			common = common || a.Contains(k) && b.Contains(k)
		}
		require.Equal(t, common, a.Overlaps(b))
		require.Equal(t, common, b.Overlaps(a))
	})
}
