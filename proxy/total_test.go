package proxy

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// rawValue gives a value as it lies in a document.
func rawValue(t testing.TB, v any) bson.RawValue {
	t.Helper()
	return raw(t, bson.D{{Key: "v", Value: v}}).Lookup("v")
}

// decimal parses a decimal.
func decimal(t testing.TB, s string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	require.NoError(t, err)
	return d
}

// Types and roundings are those that mongod gives for $sum of the same values.
func TestTotal(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		in   []any
		want any
	}{
		"nothing":          {nil, int32(0)},
		"ints":             {[]any{int32(1), int32(2)}, int32(3)},
		"int to long":      {[]any{int32(math.MaxInt32), int32(1)}, int64(math.MaxInt32 + 1)},
		"long stays":       {[]any{int64(1), int32(1)}, int64(2)},
		"long to double":   {[]any{int64(math.MaxInt64), int64(1)}, float64(1 << 63)},
		"least long":       {[]any{int64(math.MinInt64), int64(-1)}, -float64(1 << 63)},
		"double":           {[]any{int32(1), 0.5}, 1.5},
		"doubles exact":    {[]any{1e16, 1.0, -1e16, 1.0}, 2.0},
		"infinity":         {[]any{math.Inf(1), 1.0}, math.Inf(1)},
		"decimal":          {[]any{decimal(t, "1.10"), int32(2)}, decimal(t, "3.10")},
		"decimal cents":    {[]any{decimal(t, "0.1"), decimal(t, "0.2")}, decimal(t, "0.3")},
		"decimal rounded":  {[]any{decimal(t, "9999999999999999999999999999999999"), decimal(t, "0.5")}, decimal(t, "1.000000000000000000000000000000000E+34")},
		"decimal infinite": {[]any{decimal(t, "Infinity"), decimal(t, "1")}, decimal(t, "Infinity")},
		"decimal unknown":  {[]any{decimal(t, "Infinity"), decimal(t, "-Infinity")}, decimal(t, "NaN")},
		"decimal double":   {[]any{decimal(t, "1"), 0.1}, decimal(t, "1.100000000000000")},
		"no numbers":       {[]any{"a", nil, bson.A{1}, int32(4)}, int32(4)},
	} {
		var sum total
		for _, v := range tc.in {
			sum.add(rawValue(t, v))
		}
		require.Equal(t, rawValue(t, tc.want).String(), sum.value().String(), name)
		require.Equal(t, rawValue(t, tc.want).Type, sum.value().Type, name)
	}
}

func TestAverage(t *testing.T) {
	t.Parallel()

	avg := func(n int32, in ...any) bson.RawValue {
		var sum, count total
		for _, v := range in {
			sum.add(rawValue(t, v))
		}
		count.add(rawValue(t, n))
		return sum.over(&count)
	}
	require.Equal(t, bson.TypeNull, avg(0).Type)
	require.InDelta(t, 1.5, avg(2, int32(1), int32(2)).Double(), 0)
	require.Equal(t, "2.5", avg(2, decimal(t, "2"), int32(3)).Decimal128().String())
	require.Equal(t, "0.3333333333333333333333333333333333", avg(3, decimal(t, "1")).Decimal128().String())
	require.Equal(t, "NaN", avg(1, decimal(t, "NaN")).Decimal128().String())
}
