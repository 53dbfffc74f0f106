package proxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// A large batch of which everything fails, as when an import is run again, cost time in the
// square of its size, and a reply of any size. Every error is told once and in order; the
// last ones of very many without their text.
func TestVeryManyErrors(t *testing.T) {
	t.Parallel()

	const statements = 10_000
	text := strings.Repeat("x", 1000)
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		errs := bson.A{}
		for i := range s.list(t, "documents") {
			errs = append(errs, bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: int32(11000)}, {Key: "errmsg", Value: text}})
		}
		return bson.D{{Key: "n", Value: 0}, {Key: "writeErrors", Value: errs}}
	})
	docs := bson.A{}
	for i := range statements {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "origin", Value: i}})
	}
	got := dialRaw(t, f.start(Config{})).run(bson.D{
		{Key: "insert", Value: "legs"}, {Key: "ordered", Value: false}, {Key: "documents", Value: docs}, {Key: "$db", Value: testDatabase},
	})
	require.Less(t, len(got), wire.MaxDocument)
	errs, _ := wire.Find(got, "writeErrors")
	n, told := 0, 0
	for w := wire.Walk(errs.Document()); w.Next(); n++ {
		require.Equal(t, int64(n), numberAt(w.Document(), "index"))
		require.Equal(t, int64(11000), numberAt(w.Document(), "code"))
		msg, _ := wire.Find(w.Document(), "errmsg")
		if len(msg.Text()) > 0 {
			told++
		}
	}
	require.Equal(t, statements, n)
	require.Greater(t, told, statements/2)
	require.Less(t, told, statements)
}

// A statement that several chunks refuse has failed once.
func TestStatementThatFailsOnSeveralChunks(t *testing.T) {
	t.Parallel()

	for name, reply := range map[string]bson.D{
		"the statement": {{Key: "n", Value: 0}, {Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 9}}}}},
		"the command":   {{Key: "ok", Value: 0}, {Key: "code", Value: 9}, {Key: "errmsg", Value: "no"}},
	} {
		f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
			if update := s.list(t, "updates")[0]; update.Lookup("q").Document().Lookup("origin").Type == 0 {
				return reply
			}
			return bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}}
		})
		set := bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}
		got := dialRaw(t, f.start(Config{})).run(bson.D{
			{Key: "update", Value: "legs"}, {Key: "$db", Value: testDatabase}, {Key: "ordered", Value: true}, {Key: "updates", Value: bson.A{
				bson.D{{Key: "q", Value: bson.D{{Key: "origin", Value: "x"}}}, {Key: "u", Value: set}},
				bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: set}, {Key: "multi", Value: true}},
			}},
		})
		require.Equal(t, int64(1), numberAt(got, "n"), "%s: %v", name, got)
		errs, err := got.Lookup("writeErrors").Array().Values()
		require.NoError(t, err)
		require.Len(t, errs, 1, "%s: %v", name, got)
		require.Equal(t, int64(1), numberAt(errs[0].Document(), "index"))
	}
}

// An update without the shard key ended at the first chunk that it asked when another
// statement of its unordered batch had failed: its document stayed as it was.
func TestTurnsGoOnBesideErrors(t *testing.T) {
	t.Parallel()

	asked := 0
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		update := s.list(t, "updates")[0]
		if update.Lookup("q").Document().Lookup("origin").Type != 0 {
			return bson.D{{Key: "n", Value: 0}, {Key: "writeErrors", Value: bson.A{bson.D{{Key: "index", Value: 0}, {Key: "code", Value: 9}}}}}
		}
		if asked++; asked == 1 {
			return bson.D{{Key: "n", Value: 0}, {Key: "nModified", Value: 0}} // the document is on the other chunk
		}
		return bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}}
	})
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}
	got := dialRaw(t, f.start(Config{})).run(bson.D{
		{Key: "update", Value: "legs"}, {Key: "$db", Value: testDatabase}, {Key: "ordered", Value: false}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "n", Value: 5}}}, {Key: "u", Value: set}},
			bson.D{{Key: "q", Value: bson.D{{Key: "origin", Value: "x"}}}, {Key: "u", Value: set}},
		}},
	})
	require.Equal(t, int64(1), numberAt(got, "n"), "%v", got)
	require.Equal(t, 2, asked)
}

// What a target touches is found by its points and ranges, and is what lies there.
func TestTargetedChunks(t *testing.T) {
	t.Parallel()

	d := &database{name: testDatabase, space: chunk.Ranged}
	for i, r := range []chunk.Range{{Lo: chunk.KeyMin, Hi: "\x10"}, {Lo: "\x10", Hi: "\x20"}, {Lo: "\x20", Hi: "\x30"}, {Lo: "\x30", Hi: chunk.KeyMax}} {
		d.entries = append(d.entries, newEntry(chunk.NewID(testDatabase, i+1), r))
	}
	for name, tc := range map[string]struct {
		target target
		want   []int
	}{
		"points":         {target{points: []chunk.Key{"\x25", "\x05", "\x2f"}}, []int{0, 2}},
		"a border":       {target{points: []chunk.Key{"\x20", "\x1f"}}, []int{1, 2}},
		"a range":        {target{ranges: []chunk.Range{{Lo: "\x15", Hi: "\x20"}}}, []int{1, 2}},
		"both":           {target{points: []chunk.Key{"\x31"}, ranges: []chunk.Range{{Lo: chunk.KeyMin, Hi: "\x01"}}}, []int{0, 3}},
		"nothing is all": {target{}, []int{0, 1, 2, 3}},
		"everywhere":     {everywhere, []int{0, 1, 2, 3}},
	} {
		var want []*entry
		for _, i := range tc.want {
			want = append(want, d.entries[i])
		}
		require.Equal(t, want, d.targeted(tc.target), name)
	}
}
