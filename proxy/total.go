package proxy

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// total adds numbers as $sum does: the result has the widest type of what was
// added, an int becomes a long and a long a double where it must, and doubles are
// added with the error that each addition makes kept aside. What is no number
// counts as nothing.
type total struct {
	whole      int64
	high, low  float64 // high + low is the sum of the doubles
	dec        *big.Int
	exp        int    // dec * 10^exp is the sum of the decimals
	odd        string // NaN or an infinity among the decimals
	long       bool
	double     bool
	oddDecimal bool
}

// add adds one number.
func (t *total) add(v bson.RawValue) {
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := wire.Element{Type: v.Type, Value: v.Value}.Number()
		t.long = t.long || v.Type == bson.TypeInt64
		sum := t.whole + n
		if (sum > t.whole) == (n > 0) || n == 0 {
			t.whole = sum
			return
		}
		t.addDouble(float64(t.whole))
		t.whole = n
	case bson.TypeDouble:
		t.addDouble(math.Float64frombits(binary.LittleEndian.Uint64(v.Value)))
	case bson.TypeDecimal128:
		t.addDecimal(v.Decimal128())
	}
}

// addDouble adds a double and keeps the error of it (Knuth's two-sum).
func (t *total) addDouble(f float64) {
	t.double = true
	sum := t.high + f
	if math.IsInf(sum, 0) || math.IsNaN(sum) {
		t.high, t.low = sum, 0
		return
	}
	b := sum - t.high
	t.low += (t.high - (sum - b)) + (f - b)
	t.high = sum
}

// addDecimal adds a decimal.
func (t *total) addDecimal(d bson.Decimal128) {
	n, exp, err := d.BigInt()
	if t.dec == nil {
		t.dec = new(big.Int)
	}
	if err != nil {
		text := d.String()
		if t.oddDecimal && t.odd != text {
			text = "NaN"
		}
		t.odd, t.oddDecimal = text, true
		return
	}
	t.dec, t.exp = addScaled(t.dec, t.exp, n, exp)
}

// addScaled adds two numbers, each a whole one times a power of ten.
func addScaled(a *big.Int, ae int, b *big.Int, be int) (*big.Int, int) {
	if a.Sign() == 0 {
		return b, be
	}
	if b.Sign() == 0 {
		return a, ae
	}
	if ae < be {
		a, ae, b, be = b, be, a, ae
	}
	scaled := new(big.Int).Mul(a, pow10(ae-be))
	return scaled.Add(scaled, b), be
}

// pow10 is ten to the n.
func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// value gives the sum.
func (t *total) value() bson.RawValue {
	switch {
	case t.dec != nil:
		return decimalValue(t.decimal())
	case t.double:
		return doubleValue(t.float())
	case t.long || t.whole != int64(int32(t.whole)): //nolint:gosec // that is the question
		return bson.RawValue{Type: bson.TypeInt64, Value: binary.LittleEndian.AppendUint64(nil, uint64(t.whole))} //nolint:gosec // two's complement is meant
	default:
		return bson.RawValue{Type: bson.TypeInt32, Value: binary.LittleEndian.AppendUint32(nil, uint32(t.whole))} //nolint:gosec // two's complement is meant
	}
}

// float gives everything but the decimals as a double.
func (t *total) float() float64 {
	f := *t
	f.addDouble(float64(t.whole))
	return f.high + f.low
}

// decimal gives everything as a whole number times a power of ten; ok is false
// when it is an infinity or no number.
func (t *total) decimal() (n *big.Int, exp int, odd string) {
	if t.oddDecimal {
		return nil, 0, t.odd
	}
	n, exp = addScaled(t.dec, t.exp, big.NewInt(t.whole), 0)
	if !t.double {
		return n, exp, ""
	}
	f := t.high + t.low
	// A double counts as the 15 digits that it surely has, as in mongod.
	d, err := bson.ParseDecimal128(strconv.FormatFloat(f, 'e', 14, 64))
	if err != nil {
		return nil, 0, "NaN"
	}
	m, mexp, err := d.BigInt()
	if err != nil {
		return nil, 0, d.String()
	}
	n, exp = addScaled(n, exp, m, mexp)
	return n, exp, ""
}

// over gives the sum divided by a count: null for none.
func (t *total) over(count *total) bson.RawValue {
	k := count.whole
	if k == 0 {
		return nullValue
	}
	if t.dec == nil {
		return doubleValue(t.float() / float64(k))
	}
	n, exp, odd := t.decimal()
	if odd != "" {
		return decimalValue(nil, 0, odd)
	}
	// Digits enough that rounding to 34 is right.
	scaled := new(big.Int).Mul(n, pow10(decimalDigits+20))
	quotient, rest := new(big.Int).QuoRem(scaled, big.NewInt(k), new(big.Int))
	exp -= decimalDigits + 20
	if rest.Sign() == 0 {
		quotient, exp = trimmed(quotient, exp)
	}
	return decimalValue(quotient, exp, "")
}

// trimmed takes zeros off the end of a fraction.
func trimmed(n *big.Int, exp int) (*big.Int, int) {
	ten, digit := big.NewInt(10), new(big.Int)
	for exp < 0 && n.Sign() != 0 {
		q := new(big.Int)
		if q.QuoRem(n, ten, digit); digit.Sign() != 0 {
			break
		}
		n, exp = q, exp+1
	}
	return n, exp
}

// decimalDigits is the precision of a decimal.
const decimalDigits = 34

// doubleValue makes a value of a double.
func doubleValue(f float64) bson.RawValue {
	return bson.RawValue{Type: bson.TypeDouble, Value: binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))}
}

// decimalValue makes a value of a decimal, rounded half to even.
func decimalValue(n *big.Int, exp int, odd string) bson.RawValue {
	d, err := bson.ParseDecimal128(odd)
	if odd == "" {
		var ok bool
		n, exp = rounded(n, exp)
		if d, ok = bson.ParseDecimal128FromBigInt(n, exp); ok {
			err = nil
		}
	}
	if err != nil {
		d, _ = bson.ParseDecimal128("NaN")
	}
	high, low := d.GetBytes()
	out := binary.LittleEndian.AppendUint64(nil, low)
	return bson.RawValue{Type: bson.TypeDecimal128, Value: binary.LittleEndian.AppendUint64(out, high)}
}

// rounded cuts a number down to the digits that a decimal has.
func rounded(n *big.Int, exp int) (*big.Int, int) {
	extra := len(new(big.Int).Abs(n).String()) - decimalDigits
	if extra <= 0 {
		return n, exp
	}
	unit := pow10(extra)
	q, r := new(big.Int).QuoRem(n, unit, new(big.Int))
	twice := new(big.Int).Abs(r)
	twice.Lsh(twice, 1)
	if c := twice.Cmp(unit); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(int64(n.Sign())))
	}
	return q, exp + extra
}
