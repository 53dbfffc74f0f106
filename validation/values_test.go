package validation_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/validation"
)

// B003, B007: values that a server's own hash or comparison takes for equal, and
// that are not: another numeric type, doubles beyond the integers, the sign of
// zero, a decimal's precision, two types that change places.
func TestValuesThatOnlyBytesTellApart(t *testing.T) {
	t.Parallel()
	decimal := func(s string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(s)
		require.NoError(t, err)
		return d
	}
	type pair struct{ source, target any }
	for name, p := range map[string]pair{
		"large doubles":       {1e300, 1.0000000001e300},
		"int and long":        {bson.A{int32(5), int64(7)}, bson.A{int64(5), int32(7)}},
		"zero and minus zero": {0.0, math.Copysign(0, -1)},
		"double and int":      {5.0, int32(5)},
		"5.9 and 5":           {5.9, 5.0},
		"precision":           {decimal("1.0"), decimal("1.00")},
		"decimal NaN":         {decimal("NaN"), math.NaN()},
		"null and missing":    {bson.D{{Key: "x", Value: nil}}, bson.D{}},
		"string and symbol":   {"s", bson.Symbol("s")},
		"binary subtypes":     {bson.Binary{Subtype: 3, Data: make([]byte, 16)}, bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.both("c", docs(11)...)
			w.source.put("c", raw(bson.D{{Key: "_id", Value: 900}, {Key: "v", Value: p.source}}))
			w.target.put("c", raw(bson.D{{Key: "_id", Value: 900}, {Key: "v", Value: p.target}}))
			result := w.run(t, w.validator(), "c")
			require.Equal(t, int64(1), result.Mismatched)
			require.NotEqual(t, validation.DifferentOrder, result.Mismatches[0].Kind)
			require.Contains(t, result.Mismatches[0].Path, "v")
		})
	}
}
