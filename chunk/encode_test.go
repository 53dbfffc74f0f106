package chunk

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// rawValue marshals v.
func rawValue(t require.TestingT, v any) bson.RawValue {
	if v == nil {
		return bson.RawValue{Type: bson.TypeNull}
	}
	typ, data, err := bson.MarshalValue(v)
	require.NoError(t, err)
	return bson.RawValue{Type: typ, Value: data}
}

// encode gives v's encoding.
func encode(t require.TestingT, v any) Key {
	k, err := EncodeValue(rawValue(t, v))
	require.NoError(t, err)
	return k
}

// decimal parses s.
func decimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

// ordered holds classes of equal values in MongoDB's order.
var ordered = [][]any{
	{bson.MinKey{}},
	{bson.Undefined{}},
	{bson.Null{}, nil},
	{math.NaN(), -math.NaN(), decimal("NaN"), bson.NewDecimal128(0xfc00<<48, 7), math.Float64frombits(0x7ff8000000000001)},
	{math.Inf(-1), decimal("-Infinity")},
	{decimal("-9.999999999999999999999999999999999E+6144")},
	{-math.MaxFloat64},
	{-1e30}, // the double is 1000000000000000019884624838656
	{decimal("-1E+30"), decimal("-1000000000000000000000000000000")},
	{int64(math.MinInt64), float64(math.MinInt64), decimal("-9223372036854775808")},
	{int64(math.MinInt64 + 1), decimal("-9223372036854775807")},
	{int64(-1 << 53), float64(-1 << 53)},
	{int32(-10), int64(-10), -10.0, decimal("-10"), decimal("-1.0E1")},
	{decimal("-9.99")},
	{-1.5, decimal("-1.50")},
	{int32(-1), int64(-1), -1.0, decimal("-1"), decimal("-1.000")},
	{decimal("-0.1")},
	{-0.09},
	{-math.SmallestNonzeroFloat64},
	{decimal("-1E-6176")},
	{int32(0), int64(0), 0.0, math.Copysign(0, -1), decimal("0"), decimal("-0"), decimal("0E+6111"), decimal("-0E-6176"), bson.NewDecimal128(0x6000<<48, 12)},
	{decimal("1E-6176")},
	{decimal("4E-324")},
	{math.SmallestNonzeroFloat64},
	{decimal("5E-324")},
	{2.2250738585072014e-308},
	{decimal("0.1")},
	{0.1}, // the double is a little more than a tenth
	{decimal("0.1000000000000000055511151231257828")},
	{decimal("0.5"), 0.5, decimal("0.50000")},
	{math.Nextafter(1, 0)},
	{int32(1), int64(1), 1.0, decimal("1"), decimal("1.0"), decimal("1.000000000000000000000000000000000"), decimal("10E-1")},
	{decimal("1.000000000000000000000000000000001")},
	{math.Nextafter(1, 2)},
	{int32(2)},
	{int32(9), 9.0},
	{int32(10), 10.0, decimal("1E1")},
	{int32(11)},
	{int32(99)},
	{int32(100), decimal("1E+2")},
	{int32(101)},
	{int32(math.MaxInt32), int64(math.MaxInt32), float64(math.MaxInt32)},
	{int64(1 << 53), float64(1 << 53)},
	{int64(1<<53 + 1), decimal("9007199254740993")},
	{float64(1<<53 + 2), int64(1<<53 + 2)},
	{int64(math.MaxInt64 - 1)},
	{int64(math.MaxInt64), decimal("9223372036854775807")},
	{float64(1 << 63), decimal("9223372036854775808")},
	{1e300},
	{1.0000000001e300},
	{math.MaxFloat64},
	{decimal("9.999999999999999999999999999999998E+6144")},
	{decimal("9.999999999999999999999999999999999E+6144")},
	{math.Inf(1), decimal("Infinity")},
	{"", bson.Symbol("")},
	{"\x00"},
	{"\x00\x00"},
	{"\x00\x01"},
	{"\x01"},
	{"A", bson.Symbol("A")},
	{"a", bson.Symbol("a")},
	{"a\x00"},
	{"a\x00b"},
	{"a\x01"},
	{"aa"},
	{"b"},
	{"é"},
	{"\xff"},
	{"\xff\xff"},
	{bson.D{}},
	{bson.D{{Key: "b", Value: bson.MinKey{}}}},
	{bson.D{{Key: "z", Value: nil}}},
	{bson.D{{Key: "", Value: 0.0}}},
	{bson.D{{Key: "a", Value: int32(1)}}, bson.D{{Key: "a", Value: 1.0}}},
	{bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: int32(0)}}},
	{bson.D{{Key: "a", Value: int32(2)}}},
	{bson.D{{Key: "aa", Value: int32(1)}}},
	{bson.D{{Key: "x", Value: int32(1)}, {Key: "y", Value: int32(2)}}},
	{bson.D{{Key: "y", Value: int32(2)}, {Key: "x", Value: int32(1)}}},
	{bson.D{{Key: "a", Value: "s"}}, bson.D{{Key: "a", Value: bson.Symbol("s")}}},
	{bson.D{{Key: "a", Value: bson.A{}}}},
	{bson.A{}},
	{bson.A{bson.MinKey{}}},
	{bson.A{int32(1)}, bson.A{1.0}},
	{bson.A{int32(1), nil}},
	{bson.A{int32(2)}},
	{bson.A{"a"}},
	{bson.A{bson.A{}}},
	{bson.Binary{Subtype: 0, Data: []byte{}}},
	{bson.Binary{Subtype: 0x80, Data: []byte{}}},
	{bson.Binary{Subtype: 0, Data: []byte{0xff}}},
	{bson.Binary{Subtype: 4, Data: []byte{0x00}}},
	{bson.Binary{Subtype: 0, Data: []byte{0, 0}}},
	{bson.Binary{Subtype: 2, Data: []byte{1}}}, // stored as four bytes of length and one
	{bson.Binary{Subtype: 0, Data: bytes.Repeat([]byte{0}, 300)}},
	{bson.ObjectID{}},
	{bson.ObjectID{11: 1}},
	{bson.ObjectID{0: 0xff}},
	{false},
	{true},
	{bson.DateTime(math.MinInt64)},
	{bson.DateTime(-1)},
	{bson.DateTime(0)},
	{bson.DateTime(math.MaxInt64)},
	{bson.Timestamp{}},
	{bson.Timestamp{T: 0, I: math.MaxUint32}},
	{bson.Timestamp{T: 1, I: 0}},
	{bson.Timestamp{T: math.MaxUint32, I: 0}},
	{bson.Regex{}},
	{bson.Regex{Pattern: "a", Options: "i"}},
	{bson.Regex{Pattern: "a", Options: "im"}},
	{bson.Regex{Pattern: "aa"}},
	{bson.DBPointer{DB: "z"}},
	{bson.DBPointer{DB: "z", Pointer: bson.ObjectID{11: 1}}},
	{bson.DBPointer{DB: "aa"}},
	{bson.JavaScript("a")},
	{bson.JavaScript("a\x00")},
	{bson.JavaScript("b")},
	{bson.CodeWithScope{Code: "a", Scope: bson.D{}}},
	{bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: int32(1)}}}, bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1.0}}}},
	{bson.CodeWithScope{Code: "b", Scope: bson.D{}}},
	{bson.MaxKey{}},
}

func TestEncodingOrder(t *testing.T) {
	t.Parallel()

	var keys []Key
	for _, class := range ordered {
		first := encode(t, class[0])
		for _, v := range class {
			require.Equal(t, hex.EncodeToString([]byte(first)), hex.EncodeToString([]byte(encode(t, v))), "%v and %v", class[0], v)
		}
		require.Less(t, KeyMin, first)
		require.Less(t, first, KeyMax)
		keys = append(keys, first)
	}
	for i := range keys {
		for j := range keys {
			require.Equal(t, cmp.Compare(i, j), cmp.Compare(keys[i], keys[j]), "%v against %v", ordered[i], ordered[j])
		}
	}
}

// TestEncodingIsStable guards what is stored: ranges in the metadata, the
// partitions of a topic.
func TestEncodingIsStable(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		value any
		want  string
	}{
		{int32(1), "280540000b00"},
		{-1.5, "2803bfffefff"},
		{"ATL", "3041544c0001"},
		{bson.D{{Key: "a", Value: bson.A{true}}}, "3840610058010000"},
		{bson.ObjectID{0: 0xab}, "50ab0000000000000000000000"},
	} {
		require.Equal(t, c.want, hex.EncodeToString([]byte(encode(t, c.value))), "%v", c.value)
	}
	require.Equal(t, uint64(0xe3b0c44298fc1c14), HashString(""))
	require.Equal(t, uint64(0xba7816bf8f01cfea), HashString("abc"))
}

func TestEncodingAgreesWithExactComparison(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		a := genValue(3).Draw(t, "a")
		b := genValue(3).Draw(t, "b")
		require.Equal(t, compareValues(a, b), cmp.Compare(encode(t, a), encode(t, b)), "%v against %v", a, b)
	})
}

func TestNumbersAgreeWithExactComparison(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		a := genNumber().Draw(t, "a")
		b := genNumber().Draw(t, "b")
		if rapid.Bool().Draw(t, "near") {
			b = retype(t, a)
		}
		require.Equal(t, compareNumbers(a, b), cmp.Compare(encode(t, a), encode(t, b)), "%v against %v", a, b)
	})
}

// retype gives a number equal or next to a, in another type.
func retype(t *rapid.T, a any) any {
	r, special := exact(a)
	if special != 0 {
		return genNumber().Draw(t, "b")
	}
	switch f, _ := r.Float64(); rapid.IntRange(0, 3).Draw(t, "type") {
	case 0:
		return f
	case 1:
		return math.Nextafter(f, math.Inf(rapid.SampledFrom([]int{-1, 1}).Draw(t, "side")))
	case 2:
		text := new(big.Float).SetPrec(2000).SetRat(r).Text('e', rapid.IntRange(0, 33).Draw(t, "digits"))
		d, err := bson.ParseDecimal128(text)
		if err != nil {
			return f
		}
		return d
	default:
		n := new(big.Int).Quo(r.Num(), r.Denom())
		if !n.IsInt64() {
			return f
		}
		return n.Int64()
	}
}

// exact gives the value of a number; special is -2 for NaN, -1 and 1 for the
// infinities.
func exact(v any) (r *big.Rat, special int) {
	switch v := v.(type) {
	case int32:
		return new(big.Rat).SetInt64(int64(v)), 0
	case int64:
		return new(big.Rat).SetInt64(v), 0
	case float64:
		switch {
		case math.IsNaN(v):
			return nil, -2
		case math.IsInf(v, 0):
			return nil, int(math.Copysign(1, v))
		}
		return new(big.Rat).SetFloat64(v), 0
	case bson.Decimal128:
		switch s := v.String(); s {
		case "NaN":
			return nil, -2
		case "Infinity":
			return nil, 1
		case "-Infinity":
			return nil, -1
		default:
			r, ok := new(big.Rat).SetString(s)
			if !ok {
				panic(s)
			}
			return r, 0
		}
	default:
		panic("no number")
	}
}

// compareNumbers is MongoDB's order of numbers, by exact fractions.
func compareNumbers(a, b any) int {
	x, sx := exact(a)
	y, sy := exact(b)
	if sx != 0 || sy != 0 {
		return cmp.Compare(sx, sy)
	}
	return x.Cmp(y)
}

// rank is the place of v's type in MongoDB's order.
func rank(v any) int {
	switch v.(type) {
	case bson.MinKey:
		return 0
	case bson.Undefined:
		return 1
	case nil, bson.Null:
		return 2
	case int32, int64, float64, bson.Decimal128:
		return 3
	case string, bson.Symbol:
		return 4
	case bson.D:
		return 5
	case bson.A:
		return 6
	case bson.Binary:
		return 7
	case bson.ObjectID:
		return 8
	case bool:
		return 9
	case bson.DateTime:
		return 10
	case bson.Timestamp:
		return 11
	case bson.Regex:
		return 12
	case bson.DBPointer:
		return 13
	case bson.JavaScript:
		return 14
	case bson.CodeWithScope:
		return 15
	case bson.MaxKey:
		return 16
	default:
		panic("no rank")
	}
}

// stored gives a binary's length and bytes as BSON stores them.
func stored(b bson.Binary) []byte {
	if b.Subtype != 2 {
		return b.Data
	}
	return append([]byte{byte(len(b.Data)), 0, 0, 0}, b.Data...)
}

// compareValues is MongoDB's order, written down apart from the encoding.
func compareValues(a, b any) int {
	if c := cmp.Compare(rank(a), rank(b)); c != 0 {
		return c
	}
	switch x := a.(type) {
	case int32, int64, float64, bson.Decimal128:
		return compareNumbers(a, b)
	case string, bson.Symbol:
		return strings.Compare(text(a), text(b))
	case bson.D:
		return compareDocuments(x, b.(bson.D))
	case bson.A:
		return slices.CompareFunc(x, b.(bson.A), compareValues)
	case bson.Binary:
		y := b.(bson.Binary)
		return cmp.Or(cmp.Compare(len(stored(x)), len(stored(y))), cmp.Compare(x.Subtype, y.Subtype), bytes.Compare(stored(x), stored(y)))
	case bson.ObjectID:
		y := b.(bson.ObjectID)
		return bytes.Compare(x[:], y[:])
	case bool:
		switch y := b.(bool); {
		case x == y:
			return 0
		case y:
			return -1
		default:
			return 1
		}
	case bson.DateTime:
		return cmp.Compare(x, b.(bson.DateTime))
	case bson.Timestamp:
		return x.Compare(b.(bson.Timestamp))
	case bson.Regex:
		y := b.(bson.Regex)
		return cmp.Or(strings.Compare(x.Pattern, y.Pattern), strings.Compare(x.Options, y.Options))
	case bson.DBPointer:
		y := b.(bson.DBPointer)
		return cmp.Or(cmp.Compare(len(x.DB), len(y.DB)), strings.Compare(x.DB, y.DB), bytes.Compare(x.Pointer[:], y.Pointer[:]))
	case bson.JavaScript:
		return cmp.Compare(x, b.(bson.JavaScript))
	case bson.CodeWithScope:
		y := b.(bson.CodeWithScope)
		return cmp.Or(cmp.Compare(x.Code, y.Code), compareDocuments(x.Scope.(bson.D), y.Scope.(bson.D)))
	default:
		return 0
	}
}

// text gives a string's or symbol's content.
func text(v any) string {
	if s, ok := v.(bson.Symbol); ok {
		return string(s)
	}
	return v.(string)
}

// compareDocuments compares field by field: type, name, value.
func compareDocuments(a, b bson.D) int {
	return slices.CompareFunc(a, b, func(x, y bson.E) int {
		return cmp.Or(cmp.Compare(rank(x.Value), rank(y.Value)), strings.Compare(x.Key, y.Key), compareValues(x.Value, y.Value))
	})
}

// genNumber draws numbers of all types, with a liking for borders.
func genNumber() *rapid.Generator[any] {
	anyDecimal := rapid.Custom(func(t *rapid.T) bson.Decimal128 {
		return bson.NewDecimal128(rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low"))
	}).Filter(func(d bson.Decimal128) bool {
		n, _, err := d.BigInt() // what is beyond 34 digits has no text of its own
		return err != nil || len(n.Text(10)) <= 34
	})
	return rapid.OneOf(
		rapid.Int32().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), anyDecimal.AsAny(),
		rapid.Int32Range(-3, 3).AsAny(), rapid.Int64Range(-3, 3).AsAny(),
		rapid.Map(rapid.Uint64(), math.Float64frombits).AsAny(),
		rapid.Map(rapid.IntRange(-300, 300), func(n int) float64 { return float64(n) / 4 }).AsAny(),
		rapid.Map(rapid.Int64Range(-30000, 30000), func(n int64) bson.Decimal128 {
			d, _ := bson.ParseDecimal128FromBigInt(big.NewInt(n), -2)
			return d
		}).AsAny(),
		rapid.SampledFrom([]any{math.NaN(), math.Inf(1), math.Inf(-1), decimal("NaN"), decimal("Infinity"), decimal("-Infinity"), decimal("-0E5"), math.Copysign(0, -1)}),
	)
}

// genValue draws values of all types, nested up to depth.
func genValue(depth int) *rapid.Generator[any] {
	shortText := rapid.StringOfN(rapid.RuneFrom([]rune{0, 1, 'a', 'b', 'é', 0x10ffff}), 0, 3, -1)
	name := rapid.StringOfN(rapid.RuneFrom([]rune{'a', 'b', '.', '0'}), 0, 2, -1)
	id := rapid.Map(rapid.SliceOfN(rapid.ByteRange(0, 1), 12, 12), func(b []byte) bson.ObjectID { return bson.ObjectID(b) })
	kinds := []*rapid.Generator[any]{
		rapid.SampledFrom([]any{bson.MinKey{}, bson.MaxKey{}, bson.Undefined{}, bson.Null{}, nil, true, false}),
		genNumber(),
		shortText.AsAny(),
		rapid.Map(shortText, func(s string) bson.Symbol { return bson.Symbol(s) }).AsAny(),
		rapid.Map(shortText, func(s string) bson.JavaScript { return bson.JavaScript(s) }).AsAny(),
		id.AsAny(),
		rapid.Map(rapid.Int64(), func(n int64) bson.DateTime { return bson.DateTime(n) }).AsAny(),
		rapid.Custom(func(t *rapid.T) any {
			return bson.Timestamp{T: rapid.Uint32().Draw(t, "t"), I: rapid.Uint32Range(0, 2).Draw(t, "i")}
		}),
		rapid.Custom(func(t *rapid.T) any {
			return bson.Binary{Subtype: rapid.SampledFrom([]byte{0, 2, 3, 4, 0x80}).Draw(t, "subtype"), Data: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "data")}
		}),
		rapid.Custom(func(t *rapid.T) any {
			return bson.Regex{Pattern: name.Draw(t, "pattern"), Options: rapid.SampledFrom([]string{"", "i", "im"}).Draw(t, "options")}
		}),
		rapid.Custom(func(t *rapid.T) any {
			return bson.DBPointer{DB: name.Draw(t, "namespace"), Pointer: id.Draw(t, "pointer")}
		}),
	}
	if depth > 0 {
		fields := rapid.Custom(func(t *rapid.T) bson.D {
			d := bson.D{}
			for range rapid.IntRange(0, 3).Draw(t, "fields") {
				d = append(d, bson.E{Key: name.Draw(t, "name"), Value: genValue(depth-1).Draw(t, "value")})
			}
			return d
		})
		kinds = append(kinds, fields.AsAny(),
			rapid.Map(rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return genValue(depth - 1) }), 0, 3), func(a []any) bson.A { return append(bson.A{}, a...) }).AsAny(),
			rapid.Custom(func(t *rapid.T) any {
				return bson.CodeWithScope{Code: bson.JavaScript(shortText.Draw(t, "code")), Scope: fields.Draw(t, "scope")}
			}))
	}
	return rapid.OneOf(kinds...)
}
