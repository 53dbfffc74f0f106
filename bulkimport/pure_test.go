package bulkimport

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// raw encodes a document that cannot fail to encode.
func raw(d bson.D) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// index makes a specification.
func index(name string, keys ...any) bson.Raw {
	var d bson.D
	for n := 0; n < len(keys); n += 2 {
		d = append(d, bson.E{Key: keys[n].(string), Value: keys[n+1]})
	}
	return raw(bson.D{{Key: "key", Value: d}, {Key: "name", Value: name}})
}

func TestChooseOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		indexes []bson.Raw
		sizes   map[string]Bytes
		want    string
		little  bool
	}{
		"none":              {nil, nil, "_id", false},
		"only odd kinds":    {[]bson.Raw{index("1", "a", "hashed"), index("2", "$**", 1), index("3", "t", "text"), index("4", "p", "2dsphere")}, nil, "_id", false},
		"one":               {[]bson.Raw{index("1", "a", 1, "b", -1)}, nil, "a, b desc, _id", false},
		"most common":       {[]bson.Raw{index("1", "z", 1), index("2", "a", 1, "b", 1), index("3", "a", 1, "c", 1)}, nil, "a, b, _id", false},
		"shared prefix":     {[]bson.Raw{index("1", "a", 1, "b", 1, "c", 1), index("2", "a", 1, "d", 1), index("3", "a", 1, "d", 1, "e", -1)}, nil, "a, d, e desc, _id", false},
		"tie: first":        {[]bson.Raw{index("1", "z", 1), index("2", "a", 1)}, nil, "z, _id", false},
		"independent":       {[]bson.Raw{index("1", "z", 1), index("2", "a", 1), index("3", "b", 1)}, nil, "z, _id", true},
		"direction differs": {[]bson.Raw{index("1", "a", -1), index("2", "a", 1)}, nil, "a desc, _id", false},
		"turned round":      {[]bson.Raw{index("1", "a", -1, "b", 1), index("2", "a", 1, "b", 1), index("3", "a", 1, "b", -1)}, nil, "a desc, b, _id", false},
		"odd kind behind":   {[]bson.Raw{index("1", "a", 1, "p", "2dsphere")}, nil, "a, _id", false},
		"on _id":            {[]bson.Raw{index("1", "_id", 1, "a", 1)}, nil, "_id", false},
		"legacy directions": {[]bson.Raw{index("1", "a", -0.5, "b", true)}, nil, "a desc, _id", false},
		"by size":           {[]bson.Raw{index("1", "z", 1), index("2", "a", 1), index("3", "a", 1, "b", 1)}, map[string]Bytes{"1": 9, "2": 4, "3": 4, IDIndex: 5}, "z, _id", true},
		"_id is heaviest":   {[]bson.Raw{index("1", "z", 1), index("2", "a", 1)}, map[string]Bytes{"1": 9, "2": 9, IDIndex: 10}, "_id", true},
		"_id ties":          {[]bson.Raw{index("1", "z", 1)}, map[string]Bytes{"1": 9, IDIndex: 9}, "z, _id", false},
		"one size unknown":  {[]bson.Raw{index("1", "z", 1), index("2", "a", 1)}, map[string]Bytes{"1": 9, IDIndex: 99}, "z, _id", false},
	} {
		got := ChooseOrder(tc.indexes, tc.sizes)
		require.Equal(t, tc.want, got.String(), name)
		require.Contains(t, got.Why, "by "+tc.want, name)
		require.Equal(t, tc.little, strings.Contains(got.Why, "little gain"), "%s: %s", name, got.Why)
		require.Equal(t, tc.little, got.Share < LittleGain, name)
	}
	require.Equal(t, "by a, _id: 2 of 3 indexes begin with a, 60% of 10.0 MiB of indexes",
		ChooseOrder([]bson.Raw{index("1", "z", 1), index("2", "a", 1), index("3", "a", 1)}, map[string]Bytes{"1": MiB, "2": 2 * MiB, "3": 4 * MiB, IDIndex: 3 * MiB}).Why)
}

func TestParseOrder(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a": "a, _id", "_id": "_id", "a.b , c desc": "a.b, c desc, _id", "a asc,_id": "a, _id",
	} {
		got, err := ParseOrder(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got.String(), text)
		require.Equal(t, "by "+want+": as asked", got.Why)
	}
	for _, text := range []string{"", "a,", "a up", "a desc b", "a, a", "_id, a", "_id desc", "$x"} {
		_, err := ParseOrder(text)
		require.True(t, failure.HasCode(err, "import.bad_sort"), "%q: %v", text, err)
	}
}

func TestOrderKeySortsAsTheIndexDoes(t *testing.T) {
	t.Parallel()
	o := Order{Fields: []OrderField{{Path: "a.b"}, {Path: "c", Descending: true}}}
	docs := []bson.Raw{
		raw(bson.D{{Key: "_id", Value: 9}, {Key: "a", Value: bson.D{{Key: "b", Value: bson.A{}}}}}),
		raw(bson.D{{Key: "_id", Value: 1}, {Key: "c", Value: 5}}),
		raw(bson.D{{Key: "_id", Value: 2}, {Key: "c", Value: 5.0}}),
		raw(bson.D{{Key: "_id", Value: 0}, {Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 1}}}}}),
		raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "b", Value: bson.A{3, 1}}}}, {Key: "c", Value: "zz"}}),
		raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "b", Value: int64(3)}}}, {Key: "c", Value: "z"}}),
		raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "b", Value: 4}}}}),
	}
	keys := make([]chunk.Key, len(docs))
	for n, d := range docs {
		var err error
		keys[n], err = o.Key(d)
		require.NoError(t, err)
		require.True(t, chunk.KeyMin < keys[n] && keys[n] < chunk.KeyMax)
	}
	require.True(t, slices.IsSorted(keys), "%x", keys)
}

// storedRuns makes runs of random documents, as many as slices.
func storedRuns(t *rapid.T, order Order) ([]stored, map[string][]byte, []bson.Raw) {
	var runs []stored
	var all []bson.Raw
	objects := map[string][]byte{}
	next := 0
	for number := range rapid.IntRange(1, 5).Draw(t, "slices") {
		s := Slice{Migration: 1, Collection: "c/d", Number: number}
		var read snapshot
		for range rapid.IntRange(0, 40).Draw(t, "documents") {
			size := rapid.SampledFrom([]int{1, 100, 20_000, 200_000}).Draw(t, "size")
			doc := raw(bson.D{{Key: "_id", Value: next}, {Key: "a", Value: rapid.IntRange(0, 9).Draw(t, "a")}, {Key: "pad", Value: make([]byte, size)}})
			read.docs = append(read.docs, doc)
			all = append(all, doc)
			next++
		}
		r, err := buildRun(s, order, read)
		require.NoError(t, err)
		s.Object = r.object
		objects[r.object.Key] = r.content
		runs = append(runs, stored{s, r.manifest})
	}
	return runs, objects, all
}

// Whatever the runs, the stretches divide the order, and the frames that are
// fetched for a stretch hold every document of it.
func TestStretchesPartitionTheOrder(t *testing.T) {
	t.Parallel()
	order := Order{Fields: []OrderField{{Path: "a"}}}
	decoder, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer decoder.Close()
	rapid.Check(t, func(t *rapid.T) {
		runs, objects, all := storedRuns(t, order)
		parts := stretches(runs)
		at := chunk.KeyMin
		var got int
		for _, part := range parts {
			require.Equal(t, at, part.within.Lo)
			require.Less(t, part.within.Lo, part.within.Hi)
			at = part.within.Hi
			for _, r := range runs {
				for _, f := range r.manifest.framesWithin(part.within) {
					entries, err := f.open(decoder, r.slice.Object.Key, order, objects[r.slice.Object.Key][f.Offset:f.Offset+f.Length])
					require.NoError(t, err)
					require.Equal(t, string(f.First), string(entries[0].key))
					for _, e := range entries {
						if part.within.Contains(e.key) {
							got++
						}
					}
				}
			}
		}
		require.Equal(t, chunk.KeyMax, at)
		require.Equal(t, len(all), got, "every document is in one stretch")
	})
}

// An object is a plain zstd stream of BSON whatever is in the documents: a
// string that is no UTF-8, a field twice.
func TestObjectHoldsTheBytes(t *testing.T) {
	t.Parallel()
	odd := bson.Raw("\x00\x00\x00\x00\x10_id\x00\x07\x00\x00\x00\x02s\x00\x03\x00\x00\x00\x41\xff\x00\x10d\x00\x01\x00\x00\x00\x10d\x00\x02\x00\x00\x00\x00")
	odd[0] = byte(len(odd))
	docs := []bson.Raw{odd, raw(bson.D{{Key: "_id", Value: 8}, {Key: "op", Value: "d"}, {Key: "$v", Value: 2}})}
	r, err := buildRun(Slice{Migration: 3, Collection: "a/b c", Number: 4}, Order{}, snapshot{docs: docs})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(r.object.Key, "snapshots/m3/a%2Fb%20c/000004-"), r.object.Key)
	decoder, err := zstd.NewReader(bytes.NewReader(r.content))
	require.NoError(t, err)
	defer decoder.Close()
	var plain bytes.Buffer
	_, err = plain.ReadFrom(decoder)
	require.NoError(t, err)
	require.Equal(t, append(slices.Clone([]byte(docs[0])), docs[1]...), plain.Bytes())

	whole, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer whole.Close()
	f := r.manifest.Frames[0]
	for n := range r.content {
		broken := slices.Clone(r.content)
		broken[n] ^= 4
		entries, err := f.open(whole, "k", Order{}, broken)
		if err == nil { // a bit of the frame's header that means nothing
			require.Equal(t, []byte(odd), []byte(entries[0].doc))
			continue
		}
		require.True(t, failure.HasCode(err, "import.object_damaged"), "%v", err)
	}
}

func TestWindowsRefuseGaps(t *testing.T) {
	t.Parallel()
	at := func(v any) bson.Raw { return raw(bson.D{{Key: "_id", Value: v}}) }
	s := func(lo, hi bson.Raw) Slice {
		return Slice{Collection: "c", Lo: lo, Hi: hi, State: Stored, Object: Object{From: bson.Timestamp{T: 1}, To: bson.Timestamp{T: 2}}}
	}
	for name, tc := range map[string]struct {
		slices []Slice
		ok     bool
	}{
		"whole":       {[]Slice{s(at("x"), nil), s(nil, at(5)), s(at(5), at("x"))}, true},
		"gap":         {[]Slice{s(nil, at(5)), s(at(6), nil)}, false},
		"overlap":     {[]Slice{s(nil, at(6)), s(at(5), nil)}, false},
		"open bottom": {[]Slice{s(at(5), nil)}, false},
		"open top":    {[]Slice{s(nil, at(5))}, false},
		"twice":       {[]Slice{s(nil, nil), s(nil, nil)}, false},
		"planned":     {[]Slice{{Collection: "c"}}, false},
	} {
		_, err := NewWindows(tc.slices)
		require.Equal(t, tc.ok, err == nil, "%s: %v", name, err)
	}
}

// Collections of old servers may lack the index that all is cut along.
func TestCollectionWithoutIDIndexIsRefused(t *testing.T) {
	t.Parallel()
	other, own := raw(bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}}), raw(bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, requireIDIndex("d.c", []bson.Raw{other, own}))
	for _, keys := range [][]bson.Raw{nil, {other}} {
		err := requireIDIndex("d.c", keys)
		require.True(t, failure.HasCode(err, "import.no_id_index"), "%v", err)
		require.ErrorContains(t, err, "d.c")
	}
}

func TestBatchBounds(t *testing.T) {
	t.Parallel()
	var b batch
	require.True(t, b.takes(make(bson.Raw, 16<<20)), "one document always fits")
	b.add(make(bson.Raw, 16<<20))
	require.False(t, b.takes(make(bson.Raw, 10)))
	b.reset()
	for n := range batchDocuments {
		require.True(t, b.takes(make(bson.Raw, 10)), n)
		b.add(make(bson.Raw, 10))
	}
	require.False(t, b.takes(make(bson.Raw, 10)))
}

func TestPlannedSize(t *testing.T) {
	t.Parallel()
	l := Limits{}.withDefaults()
	for want, of := range map[Documents]size{
		15_000: {documents: 100, bytes: 100 * 200},
		6:      {documents: 10, bytes: 20 * MiB},
		1:      {documents: 3, bytes: 3 * 16 * MiB},
	} {
		require.Equal(t, want, l.perSlice(of), fmt.Sprint(of))
	}
	require.Equal(t, Documents(15_000), l.perSlice(size{}), "nothing is known")
}

// A server may quote a whole batch in its error; nothing of it may get into logs
// and histories, and yet the code decides.
func TestErrorsQuoteNoDocuments(t *testing.T) {
	t.Parallel()
	secret := "insert: { name: 'Alice' }"
	for _, err := range []error{
		mongo.CommandError{Code: 13, Name: "Unauthorized", Message: "not authorized to execute " + secret},
		mongo.BulkWriteException{WriteErrors: []mongo.BulkWriteError{{WriteError: mongo.WriteError{Code: 121, Message: secret}}}},
		mongo.BulkWriteException{WriteConcernError: &mongo.WriteConcernError{Code: 64, Message: secret}},
	} {
		wrapped := refused(fmt.Errorf("insert: %w", brief(err)))
		require.NotContains(t, wrapped.Error(), "Alice")
		require.ErrorAs(t, wrapped, new(briefError))
		require.NotEmpty(t, mongocode.Codes(wrapped))
	}
	require.True(t, failure.HasCode(refused(brief(mongo.CommandError{Code: 13})), "import.refused"))
	require.Equal(t, "plain", brief(errors.New("plain")).Error())
}

func TestSameButTimestamps(t *testing.T) {
	t.Parallel()
	doc := raw(bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: bson.Timestamp{}}, {Key: "s", Value: bson.D{{Key: "t", Value: bson.Timestamp{}}}}})
	replaced := raw(bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: bson.Timestamp{T: 9}}, {Key: "s", Value: bson.D{{Key: "t", Value: bson.Timestamp{}}}}})
	deeper := raw(bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: bson.Timestamp{}}, {Key: "s", Value: bson.D{{Key: "t", Value: bson.Timestamp{T: 9}}}}})
	require.True(t, sameButTimestamps(doc, doc))
	require.True(t, sameButTimestamps(replaced, doc))
	require.False(t, sameButTimestamps(doc, replaced))
	require.False(t, sameButTimestamps(deeper, doc))
}
