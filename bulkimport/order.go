package bulkimport

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

// Order is the order in which a collection is loaded: that of an index, so that
// at least its pages, and those of every index that begins alike, fill one after
// another. _id is always the last field, so that no two documents are equal.
type Order struct {
	Fields []OrderField `json:"fields"` // without _id; none means by _id alone
	Why    string       `json:"why"`
	Share  float64      `json:"share,omitempty"` // of the indexes' weight that begins with it; 0: not known
}

// OrderField is one field of an [Order].
type OrderField struct {
	Path       string `json:"path"`
	Descending bool   `json:"descending,omitempty"`
}

// Equal reports whether o and p put documents in the same order.
func (o Order) Equal(p Order) bool {
	if len(o.Fields) != len(p.Fields) {
		return false
	}
	for i := range o.Fields {
		if o.Fields[i] != p.Fields[i] {
			return false
		}
	}
	return true
}

// String gives the order as operators read it: "origin, date desc, _id".
func (o Order) String() string {
	var b strings.Builder
	for _, f := range o.Fields {
		b.WriteString(f.Path)
		if f.Descending {
			b.WriteString(" desc")
		}
		b.WriteString(", ")
	}
	return b.String() + "_id"
}

// IDIndex is the name of the index on _id in a server's statistics.
const IDIndex = "_id_"

// weighed is an index that can lend its order, with its size or, where sizes
// are not known, 1.
type weighed struct {
	fields []OrderField // by the first one's direction, see [alike]
	weight float64
}

// ChooseOrder picks the index prefix that most of a collection's indexes share,
// weighed by their sizes (by name; the one on _id is [IDIndex]): what is loaded in
// the order of its keys fills page after page of an index, all else goes to pages
// at random. It is the heaviest first field, the first such index where several
// weigh the same, and then the heaviest way on. Without sizes, indexes count alike.
func ChooseOrder(indexes []bson.Raw, sizes map[string]Bytes) Order {
	usable, total, known := weigh(indexes, sizes)
	onID := float64(0)
	if known {
		onID = float64(sizes[IDIndex])
		total += onID
	}
	o := Order{}
	best, weight := heaviest(usable, 0)
	if weight >= onID {
		o.Fields = deepest(best)
	} else {
		best, weight = nil, onID
	}
	o.explain(len(best), len(usable), weight, total, known)
	return o
}

// weigh gives the usable ones among indexes and what all of them weigh; known
// says that weights are bytes.
func weigh(indexes []bson.Raw, sizes map[string]Bytes) (usable []weighed, total float64, known bool) {
	known = true
	for _, spec := range indexes {
		fields := orderFields(spec)
		if len(fields) == 0 {
			continue
		}
		name, _ := spec.Lookup("name").StringValueOK()
		size := sizes[name]
		known = known && size > 0
		usable = append(usable, weighed{fields, float64(size)})
	}
	known = known && len(usable) > 0
	for n := range usable {
		if !known {
			usable[n].weight = 1
		}
		total += usable[n].weight
	}
	return usable, total, known
}

// heaviest gives those of some indexes whose field at a depth is the one that
// weighs most, and what they weigh. At the first field the direction does not
// matter: an index fills from either end.
func heaviest(all []weighed, depth int) (best []weighed, weight float64) {
	for _, one := range all {
		if len(one.fields) <= depth {
			continue
		}
		var alike []weighed
		sum := float64(0)
		for _, other := range all {
			if len(other.fields) > depth && sameField(one.fields, other.fields, depth) {
				alike = append(alike, other)
				sum += other.weight
			}
		}
		if sum > weight {
			best, weight = alike, sum
		}
	}
	return best, weight
}

// sameField compares one field of two indexes, its direction as seen from the
// direction of each one's first field.
func sameField(a, b []OrderField, depth int) bool {
	down := func(f []OrderField) bool { return f[depth].Descending != f[0].Descending }
	return a[depth].Path == b[depth].Path && down(a) == down(b)
}

// deepest goes on from the indexes that share a first field, always with the
// heaviest ones, to the end of an index.
func deepest(group []weighed) []OrderField {
	var path []OrderField
	for depth := 0; len(group) > 0; depth++ {
		path = group[0].fields[:depth+1]
		group, _ = heaviest(group, depth+1)
	}
	return path
}

// LittleGain is the share of the indexes' weight below which an order saves less
// than half of the work.
const LittleGain = 0.5

// explain says why the order is what it is, and when it gains little.
func (o *Order) explain(best, usable int, weight, total float64, known bool) {
	switch {
	case usable == 0:
		o.Why = "by _id: the collection has no other index with an order"
		o.Share = 1
		return
	case len(o.Fields) == 0:
		o.Why = "by _id: its index is larger than those that begin alike"
	default:
		o.Why = fmt.Sprintf("by %s: %d of %d indexes begin with %s", o, best, usable, o.Fields[0].Path)
	}
	o.Share = weight / total
	if known {
		o.Why += fmt.Sprintf(", %.0f%% of %.1f MiB of indexes", 100*o.Share, total/float64(MiB))
	}
	if o.Share < LittleGain {
		o.Why += "; little gain: the other indexes do not begin with it and fill at random"
	}
}

// ParseOrder reads an order as people write it: "origin, date desc". _id is
// always the last field and may be left out; alone it means by _id.
func ParseOrder(text string) (Order, error) {
	o := Order{}
	parts := strings.Split(text, ",")
	for n, part := range parts {
		words := strings.Fields(part)
		bad := len(words) == 0 || len(words) > 2 || len(words) == 2 && words[1] != "desc" && words[1] != "asc"
		if bad || strings.HasPrefix(words[0], "$") {
			return o, failure.New(failure.Invalid, "import.bad_sort", "sort %q: %q is no field", text, strings.TrimSpace(part)).
				WithHint(`write fields with commas between them, as "origin, date desc"`)
		}
		if words[0] == "_id" && n == len(parts)-1 && len(words) == 1 {
			break
		}
		if words[0] == "_id" || slices.ContainsFunc(o.Fields, func(f OrderField) bool { return f.Path == words[0] }) {
			return o, failure.New(failure.Invalid, "import.bad_sort", "sort %q: %s does not belong there", text, words[0]).
				WithHint("no field is there twice, and _id is the last one")
		}
		o.Fields = append(o.Fields, OrderField{Path: words[0], Descending: len(words) == 2 && words[1] == "desc"})
	}
	o.Why = fmt.Sprintf("by %s: as asked", o)
	return o, nil
}

// orderFields gives the leading fields of an index whose entries stand in the
// order of values; none for indexes on _id, hashes, text, places and wildcards.
func orderFields(spec bson.Raw) []OrderField {
	key, ok := spec.Lookup("key").DocumentOK()
	if !ok {
		return nil
	}
	elements, err := key.Elements()
	if err != nil {
		return nil
	}
	var fields []OrderField
	for _, e := range elements {
		n, number := e.Value().AsFloat64OK()
		path := e.Key()
		if !number || path == "_id" || strings.Contains(path, "$**") {
			break
		}
		fields = append(fields, OrderField{Path: path, Descending: n < 0})
	}
	return fields
}

// Key gives a document's place in the order. An array stands at its first
// element: the order only serves the speed of the load.
func (o Order) Key(doc bson.Raw) (chunk.Key, error) {
	var key strings.Builder
	for _, f := range o.Fields {
		v, err := orderValue(doc, f.Path)
		if err != nil {
			return "", err
		}
		k, err := chunk.EncodeValue(v)
		if err != nil {
			return "", fmt.Errorf("value of %s: %w", f.Path, err)
		}
		if !f.Descending {
			key.WriteString(string(k))
			continue
		}
		for i := range len(k) {
			key.WriteByte(^k[i])
		}
	}
	id, err := chunk.EncodeValue(doc.Lookup("_id"))
	if err != nil {
		return "", fmt.Errorf("value of _id: %w", err)
	}
	key.WriteString(string(id))
	return chunk.Key(key.String()), nil
}

// orderValue gives the value at a path for [Order.Key].
func orderValue(doc bson.Raw, path string) (bson.RawValue, error) {
	v, err := chunk.LookupPath(doc, path)
	if !errors.Is(err, chunk.ErrArrayKey) {
		return v, err
	}
	found, err := doc.LookupErr(strings.Split(path, ".")...)
	if err != nil {
		return bson.RawValue{Type: bson.TypeNull}, nil //nolint:nilerr // an array on the way to the field
	}
	if found.Type != bson.TypeArray {
		return found, nil
	}
	values, err := bson.RawArray(found.Value).Values()
	if err != nil {
		return bson.RawValue{}, fmt.Errorf("array at %s: %w", path, err)
	}
	if len(values) == 0 {
		return bson.RawValue{Type: bson.TypeUndefined}, nil
	}
	return values[0], nil
}
