package validation

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// part takes the sums out of a group; the rest must be the same on both sides.
func (p *Probe) part(group bson.Raw) (rest bson.Raw, sums []sum, err error) {
	var exact bson.D
	elements, err := group.Elements()
	if err != nil {
		return nil, nil, err
	}
	for _, e := range elements {
		beside := strings.HasPrefix(e.Key(), besidePrefix) && e.Key() != besideNumber
		if !beside && !slices.Contains(p.Sums, e.Key()) {
			exact = append(exact, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	n, _ := group.Lookup(besideNumber).AsInt64OK()
	for i, name := range p.Sums {
		scale, _ := floatOf(group.Lookup(besideScale(i)))
		sums = append(sums, sum{value: group.Lookup(name), scale: scale, additions: float64(n)})
	}
	rest, err = bson.Marshal(exact)
	return rest, sums, err
}

// unlikeSums says how the sums of groups differ that are the same otherwise, empty when they
// do not.
func (p *Probe) unlikeSums(a, b Answer) string {
	on := map[string][]sum{}
	for i := range b.Sums {
		on[string(b.Documents[i])] = b.Sums[i]
	}
	for i := range a.Sums {
		other := on[string(a.Documents[i])]
		for n, name := range p.Sums {
			if !a.Sums[i][n].near(other[n]) {
				return fmt.Sprintf("%d groups, of one of them another %s", len(a.Sums), name)
			}
		}
	}
	return ""
}

// sum is a sum or an average as a server added it.
type sum struct {
	value     bson.RawValue
	scale     float64 // the same of the amounts without their signs
	additions float64
}

// rounding is what one addition of two doubles may lose of them on each of two sides.
const rounding = 0x1p-52

// near reports whether two sums are of the same numbers, as far as can be told: each addition
// rounds, by at most a known share of all that is added, and differently in another
// order. Sums of whole numbers are exact.
func (s sum) near(o sum) bool {
	a, one := floatOf(s.value)
	b, other := floatOf(o.value)
	x, err := canonical(s.value)
	y, yerr := canonical(o.value)
	if err == nil && yerr == nil && string(x) == string(y) {
		return true
	}
	if !one || !other || isInteger(s.value) && isInteger(o.value) {
		return false
	}
	scale := max(s.scale, o.scale)
	return math.IsInf(scale, 1) || math.Abs(a-b) <= (s.additions+2)*rounding*scale
}

// isInteger reports whether a value is a whole number by its type.
func isInteger(v bson.RawValue) bool { return v.Type == bson.TypeInt32 || v.Type == bson.TypeInt64 }

// floatOf gives a number as a double.
func floatOf(v bson.RawValue) (f float64, ok bool) {
	if d, ok := v.Decimal128OK(); ok {
		f, _ = strconv.ParseFloat(d.String(), 64) // what is out of range is infinite
		return f, true
	}
	return v.AsFloat64OK()
}
