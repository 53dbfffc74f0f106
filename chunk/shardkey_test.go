package chunk

import (
	"bytes"
	"cmp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestCheckShardKey(t *testing.T) {
	t.Parallel()

	for _, ok := range []string{"_id", "a.b", "tenant,day", "a.b,a.c", "ab,a", "tenant,_id"} {
		require.NoError(t, CheckShardKey(ok), ok)
	}
	for _, bad := range []string{
		"", ",", "a,", ",a", "a, b", "a,a", "a,a.b", "a.b,a", "a..b", ".a", "$a", "a.$x", "a\x00", strings.Repeat("a,", 32) + "b",
	} {
		require.ErrorIs(t, CheckShardKey(bad), ErrShardKey, bad)
	}
	require.Equal(t, []string{"a.b"}, KeyFields("a.b"))
	require.Equal(t, []string{"tenant", "d.day"}, KeyFields("tenant,d.day"))
}

// Points of a compound key in a range key space are ordered as MongoDB orders the
// values field by field, and those with the same first values lie between the ends
// of their prefix and nowhere else.
func TestCompoundOrder(t *testing.T) {
	t.Parallel()

	// Classes ascend; the values of one are equal.
	class := rapid.IntRange(0, len(ordered)-1)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (classes [3]int, values []bson.RawValue) {
			for i := range classes {
				classes[i] = class.Draw(t, label)
				all := ordered[classes[i]]
				v := rawValue(t, all[rapid.IntRange(0, len(all)-1).Draw(t, label)])
				if v.Type == bson.TypeArray {
					classes[i], v = 0, rawValue(t, ordered[0][0])
				}
				values = append(values, v)
			}
			return classes, values
		}
		ac, a := draw("a")
		bc, b := draw("b")
		want := 0
		for i := range ac {
			if want = cmp.Compare(ac[i], bc[i]); want != 0 {
				break
			}
		}
		x, err := Ranged.TuplePoint(a...)
		require.NoError(t, err)
		y, err := Ranged.TuplePoint(b...)
		require.NoError(t, err)
		require.Equal(t, want, bytes.Compare([]byte(x), []byte(y)))

		prefix, err := Ranged.TuplePoint(a[0], a[1])
		require.NoError(t, err)
		require.True(t, PrefixRange(prefix).Contains(x))
		require.Equal(t, ac[0] == bc[0] && ac[1] == bc[1], PrefixRange(prefix).Contains(y))
		require.True(t, KeyMin < x && x < KeyMax)

		hx, err := Hashed.TuplePoint(a...)
		require.NoError(t, err)
		hy, err := Hashed.TuplePoint(b...)
		require.NoError(t, err)
		require.Equal(t, want == 0, hx == hy)
		require.Equal(t, hx, Hashed.Joined(x))
	})
}

func TestCompoundDocumentPoint(t *testing.T) {
	t.Parallel()

	doc := document(t, bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: "x"}, {Key: "d", Value: bson.D{{Key: "day", Value: 7}}}})
	for _, s := range []KeySpace{Hashed, Ranged} {
		want, err := s.TuplePoint(rawValue(t, "x"), rawValue(t, int64(7)))
		require.NoError(t, err)
		got, err := s.DocumentPoint(doc, "t,d.day")
		require.NoError(t, err)
		require.Equal(t, want, got)
		other, err := s.DocumentPoint(doc, "d.day,t")
		require.NoError(t, err)
		require.NotEqual(t, want, other)
		missing, err := s.DocumentPoint(doc, "t,gone")
		require.NoError(t, err)
		null, err := s.TuplePoint(rawValue(t, "x"), bson.RawValue{Type: bson.TypeNull})
		require.NoError(t, err)
		require.Equal(t, null, missing)
		_, err = s.DocumentPoint(document(t, bson.D{{Key: "t", Value: "x"}, {Key: "d", Value: bson.A{1}}}), "t,d.day")
		require.ErrorIs(t, err, ErrArrayKey)
	}
	// A border may name the first fields only: what has these values lies behind it.
	border, err := Ranged.Border(rawValue(t, bson.A{"x"}))
	require.NoError(t, err)
	whole, err := Ranged.DocumentPoint(doc, "t,d.day")
	require.NoError(t, err)
	alone, err := Ranged.Border(rawValue(t, "x"))
	require.NoError(t, err)
	require.Equal(t, alone, border)
	require.Less(t, border, whole)
	_, err = Ranged.Border(rawValue(t, bson.A{}))
	require.ErrorIs(t, err, ErrShardKey)
}

func TestTouchesCompoundKey(t *testing.T) {
	t.Parallel()

	k := Keep{ShardKeys: map[string]string{"c": "t,d.day"}}
	for path, want := range map[string]bool{
		"t": true, "t.x": true, "d": true, "d.day": true, "d.day.x": true, "d.da": false, "tt": false, "x": false, "d.x": false,
	} {
		require.Equal(t, want, k.Touches("c", path), path)
	}
	require.True(t, k.Touches("unknown", "x"))
}
