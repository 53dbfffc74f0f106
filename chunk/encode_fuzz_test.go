package chunk

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// FuzzEncodeValue wants of any bytes: an error that says malformed or a key
// inside the key space, never a panic; what the driver calls a valid value of
// a known type is encoded unless something nested in it is broken; and a value
// has one key.
func FuzzEncodeValue(f *testing.F) {
	for _, class := range ordered {
		for _, v := range class {
			raw := rawValue(f, v)
			f.Add(byte(raw.Type), raw.Value)
		}
	}
	f.Add(byte(bson.TypeString), []byte{3, 0, 0, 0, 0x41, 0xff, 0}) // not UTF-8, and a server keeps it
	f.Fuzz(func(t *testing.T, typ byte, data []byte) {
		v := bson.RawValue{Type: bson.Type(typ), Value: data}
		k, err := EncodeValue(v)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		require.NoError(t, v.Validate())
		require.True(t, KeyMin < k && k < KeyMax)

		again, err := EncodeValue(v)
		require.NoError(t, err)
		require.Equal(t, k, again)

		for _, s := range []KeySpace{Hashed, Ranged} {
			p, err := s.Point(v)
			if v.Type == bson.TypeArray {
				require.ErrorIs(t, err, ErrArrayKey)
				continue
			}
			require.NoError(t, err)
			require.True(t, Range{Lo: KeyMin, Hi: KeyMax}.Contains(p))
		}
	})
}

// FuzzLookupPath wants of any bytes: an error of a known kind or a value that
// lies in the document.
func FuzzLookupPath(f *testing.F) {
	for _, doc := range []bson.D{
		{{Key: "_id", Value: 1}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: "x"}}}},
		{{Key: "a.b", Value: 1}, {Key: "a", Value: bson.A{1}}},
		{{Key: "r", Value: bson.Regex{Pattern: "a"}}, {Key: "c", Value: bson.CodeWithScope{Code: "x", Scope: bson.D{}}}, {Key: "a", Value: bson.Binary{Data: []byte{1}}}},
	} {
		b, err := bson.Marshal(doc)
		require.NoError(f, err)
		f.Add(b, "a.b")
	}
	f.Fuzz(func(t *testing.T, doc []byte, path string) {
		v, err := LookupPath(doc, path)
		if err != nil {
			require.True(t, errors.Is(err, ErrMalformed) || errors.Is(err, ErrArrayKey), "%v", err)
			return
		}
		require.NotEqual(t, bson.TypeArray, v.Type)
		require.LessOrEqual(t, len(v.Value), len(doc))
	})
}
