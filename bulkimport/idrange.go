package bulkimport

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A comparison in a filter only finds values of its own bracket of types
// ({_id: {$gt: 5}} finds no string), so a range of _id that spans brackets is a
// union: the upper part of the first, all of those between, the lower part of
// the last. A filter is used, and not the cursor's min and max, since its
// meaning does not depend on the plan.

// brackets lists the types in MongoDB's order, those that compare with each
// other together, as $type names them. An array or a regular expression cannot
// be an _id.
var brackets = [][]string{
	{"minKey"},
	{"undefined"},
	{"null"},
	{"int", "long", "double", "decimal"},
	{"string", "symbol"},
	{"object"},
	{"binData"},
	{"objectId"},
	{"bool"},
	{"date"},
	{"timestamp"},
	{"dbPointer"},
	{"javascript"},
	{"javascriptWithScope"},
	{"maxKey"},
}

// bracketOf gives the index in [brackets] of a type that can be an _id.
func bracketOf(t bson.Type) (int, bool) {
	switch t {
	case bson.TypeMinKey:
		return 0, true
	case bson.TypeUndefined:
		return 1, true
	case bson.TypeNull:
		return 2, true
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return 3, true
	case bson.TypeString, bson.TypeSymbol:
		return 4, true
	case bson.TypeEmbeddedDocument:
		return 5, true
	case bson.TypeBinary:
		return 6, true
	case bson.TypeObjectID:
		return 7, true
	case bson.TypeBoolean:
		return 8, true
	case bson.TypeDateTime:
		return 9, true
	case bson.TypeTimestamp:
		return 10, true
	case bson.TypeDBPointer:
		return 11, true
	case bson.TypeJavaScript:
		return 12, true
	case bson.TypeCodeWithScope:
		return 13, true
	case bson.TypeMaxKey:
		return 14, true
	case bson.TypeArray, bson.TypeRegex:
		return 0, false
	default:
		return 0, false
	}
}

// numbers is the bracket of numbers, where NaN needs a clause of its own: it is
// below every number and yet no comparison with a number finds it.
const numbers = 3

// idFilter gives the filter for lo <= _id < hi; a boundary that is not of a type
// that can be an _id, or not there, is open.
func idFilter(lo, hi bson.Raw) bson.D {
	var clauses []bson.D
	add := func(condition any) { clauses = append(clauses, bson.D{{Key: "_id", Value: condition}}) }

	first, last := 0, len(brackets)-1
	low, hasLow := bound(lo)
	high, hasHigh := bound(hi)
	var lowIn, highIn int
	if hasLow {
		lowIn, hasLow = bracketOf(low.Type)
	}
	if hasHigh {
		highIn, hasHigh = bracketOf(high.Type)
	}
	switch {
	case !hasLow && !hasHigh:
		return bson.D{}
	case hasLow && hasHigh && lowIn == highIn:
		if !isNaN(low) {
			return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: low}, {Key: "$lt", Value: high}}}}
		}
		add(low)
		add(bson.D{{Key: "$lt", Value: high}})
		return either(clauses)
	}
	if hasLow {
		first = lowIn + 1
		if isNaN(low) || hasOneValue(lowIn) {
			first = lowIn
		} else {
			add(bson.D{{Key: "$gte", Value: low}})
		}
	}
	if hasHigh {
		last = highIn - 1
		if highIn == numbers && !isNaN(high) {
			add(math.NaN())
		}
		if !isNaN(high) && !hasOneValue(highIn) {
			add(bson.D{{Key: "$lt", Value: high}})
		}
	}
	var whole []string
	for i := first; i <= last; i++ {
		whole = append(whole, brackets[i]...)
	}
	if len(whole) > 0 {
		add(bson.D{{Key: "$type", Value: whole}})
	}
	return either(clauses)
}

// hasOneValue reports whether a bracket holds one value only, which is then the
// bracket's lower end. Comparisons with some of these values find other types.
func hasOneValue(bracket int) bool {
	return len(brackets[bracket]) == 1 && (bracket < numbers || bracket == len(brackets)-1)
}

// isNaN reports whether v is a number that is none.
func isNaN(v bson.RawValue) bool {
	if f, ok := v.DoubleOK(); ok {
		return math.IsNaN(f)
	}
	d, ok := v.Decimal128OK()
	return ok && d.IsNaN()
}

// either joins clauses; none of them finds nothing.
func either(clauses []bson.D) bson.D {
	switch len(clauses) {
	case 0:
		return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{}}}}}
	case 1:
		return clauses[0]
	default:
		return bson.D{{Key: "$or", Value: clauses}}
	}
}
