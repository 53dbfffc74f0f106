package bulkimport

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Order is the order in which a collection is loaded: that of an index, so that
// at least its pages, and those of every index that begins alike, fill one after
// another. _id is always the last field, so that no two documents are equal.
type Order struct {
	Fields []OrderField `json:"fields"` // without _id; none means by _id alone
	Why    string       `json:"why"`
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

// ChooseOrder picks the index prefix that most of a collection's indexes share:
// the first field that most of them begin with, the first such index where
// several fields tie, then as far as all those indexes go on alike.
func ChooseOrder(indexes []bson.Raw) Order {
	var usable [][]OrderField
	for _, spec := range indexes {
		if fields := orderFields(spec); len(fields) > 0 {
			usable = append(usable, fields)
		}
	}
	if len(usable) == 0 {
		return Order{Why: "by _id: the collection has no other index with an order"}
	}
	var best []int
	for i := range usable {
		var alike []int
		for j := range usable {
			if usable[j][0].Path == usable[i][0].Path {
				alike = append(alike, j)
			}
		}
		if len(alike) > len(best) {
			best = alike
		}
	}
	prefix := usable[best[0]]
	for _, j := range best[1:] {
		n := 0
		for n < min(len(prefix), len(usable[j])) && (n == 0 || prefix[n] == usable[j][n]) {
			n++
		}
		prefix = prefix[:n]
	}
	o := Order{Fields: prefix}
	o.Why = fmt.Sprintf("by %s: %d of %d indexes begin with it", o, len(best), len(usable))
	return o
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
