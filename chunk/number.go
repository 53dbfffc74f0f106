package chunk

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The byte after a number's tag. Not a number is below every number.
const (
	numberNaN byte = 1 + iota
	numberMinusInfinity
	numberNegative
	numberZero
	numberPositive
	numberInfinity
)

// exponentBias makes the exponents of decimals (-6176 to 6144) positive.
const exponentBias = 0x4000

// ten17 splits the 34 digits of a decimal into two halves.
const ten17 = 100_000_000_000_000_000

// number appends the next number, exactly: every double has a finite decimal
// expansion, so all four types meet in decimal digits d.ddd x 10^e.
func (r *reader) number(out []byte, t bson.Type) ([]byte, error) {
	switch t {
	case bson.TypeInt32:
		return appended(out, r.fixed(4), func(out, b []byte) []byte {
			return appendInteger(out, int64(int32(binary.LittleEndian.Uint32(b)))) //nolint:gosec // the same 32 bits, signed
		})
	case bson.TypeInt64:
		return appended(out, r.fixed(8), func(out, b []byte) []byte {
			return appendInteger(out, int64(binary.LittleEndian.Uint64(b))) //nolint:gosec // the same 64 bits, signed
		})
	case bson.TypeDouble:
		return appended(out, r.fixed(8), func(out, b []byte) []byte {
			return appendDouble(out, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		})
	default:
		return appended(out, r.fixed(16), func(out, b []byte) []byte {
			return appendDecimal(out, binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b))
		})
	}
}

// appendInteger appends n.
func appendInteger(out []byte, n int64) []byte {
	magnitude := uint64(n) //nolint:gosec // made positive below
	if n < 0 {
		magnitude = -magnitude
	}
	var buf [20]byte
	digits := strconv.AppendUint(buf[:0], magnitude, 10)
	return appendDigits(out, n < 0, digits, len(digits)-1)
}

// appendDouble appends the exact value of f.
func appendDouble(out []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(out, numberNaN)
	case math.IsInf(f, 1):
		return append(out, numberInfinity)
	case math.IsInf(f, -1):
		return append(out, numberMinusInfinity)
	case f == math.Trunc(f) && math.Abs(f) < 1<<53:
		return appendInteger(out, int64(f))
	}
	// No double has more than 767 significant digits.
	var buf [800]byte
	text := strconv.AppendFloat(buf[:0], math.Abs(f), 'e', 766, 64)
	exponent, err := strconv.Atoi(string(text[769:]))
	if err != nil {
		panic("the exponent of a double is no number: " + string(text[769:]))
	}
	text[1] = text[0] // over the point
	return appendDigits(out, f < 0, text[1:768], exponent)
}

// appendDecimal appends a decimal128 given by its two halves.
func appendDecimal(out []byte, high, low uint64) []byte {
	negative := high>>63 == 1
	switch {
	case high>>58&0x1f == 0x1f:
		return append(out, numberNaN)
	case high>>58&0x1f == 0x1e && negative:
		return append(out, numberMinusInfinity)
	case high>>58&0x1f == 0x1e:
		return append(out, numberInfinity)
	case high>>61&3 == 3:
		return append(out, numberZero) // a coefficient above 34 digits counts as zero
	}
	upper, lower := bits.Div64(high&(1<<49-1), low, ten17)
	if upper >= ten17 {
		return append(out, numberZero)
	}
	var buf, rest [40]byte
	digits := strconv.AppendUint(buf[:0], upper, 10)
	digits = append(digits, strconv.AppendUint(rest[:0], ten17+lower, 10)[1:]...) // the one keeps the zeros before lower
	exponent := int(high>>49&0x3fff) - 6176                                       //nolint:gosec // 14 bits
	return appendDigits(out, negative, digits, exponent+len(digits)-1)
}

// appendDigits appends a number of the given digits, the first of which stands
// for 10^exponent. Zeros at either end change nothing.
func appendDigits(out []byte, negative bool, digits []byte, exponent int) []byte {
	for len(digits) > 0 && digits[0] == '0' {
		digits, exponent = digits[1:], exponent-1
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
	}
	if len(digits) == 0 {
		return append(out, numberZero)
	}
	class, flip := numberPositive, byte(0)
	if negative {
		class, flip = numberNegative, 0xff
	}
	biased := uint16(exponent + exponentBias) //nolint:gosec // within 0x2000 of the bias
	out = append(out, class, byte(biased>>8)^flip, byte(biased)^flip)
	for i := 0; i < len(digits); i += 2 {
		pair := (digits[i] - '0') * 10
		if i+1 < len(digits) {
			pair += digits[i+1] - '0'
		}
		out = append(out, (pair+1)^flip)
	}
	return append(out, flip)
}
