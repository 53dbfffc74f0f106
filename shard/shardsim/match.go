package shardsim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// idKey is a value as a key: numbers that are equal have one, whatever their type.
func idKey(v bson.RawValue) string {
	if f, isNumber := numeric(v); isNumber {
		return fmt.Sprintf("n%g", f)
	}
	return string(append([]byte{byte(v.Type)}, v.Value...))
}

// stringKey is the key of a string.
func stringKey(s string) string { return idKey(mustMarshal(bson.D{{Key: "v", Value: s}}).Lookup("v")) }

// numeric gives a number of any type.
func numeric(v bson.RawValue) (float64, bool) {
	if v.Type == bson.TypeDouble {
		return v.DoubleOK()
	}
	n, isInt := v.AsInt64OK()
	return float64(n), isInt
}

// compare orders two values of comparable types.
func compare(a, b bson.RawValue) (int, bool) {
	x, xNumber := numeric(a)
	y, yNumber := numeric(b)
	switch {
	case xNumber && yNumber && x < y:
		return -1, true
	case xNumber && yNumber && x > y:
		return 1, true
	case xNumber && yNumber:
		return 0, true
	case a.Type != b.Type:
		return 0, false
	case a.Type == bson.TypeString:
		return strings.Compare(a.StringValue(), b.StringValue()), true
	case a.Type == bson.TypeTimestamp:
		at, ai := a.Timestamp()
		bt, bi := b.Timestamp()
		return (bson.Timestamp{T: at, I: ai}).Compare(bson.Timestamp{T: bt, I: bi}), true
	case a.Type == bson.TypeDateTime:
		return int(a.DateTime() - b.DateTime()), true
	case a.Type == bson.TypeEmbeddedDocument:
		c, err := chunk.CompareValues(a, b)
		return c, err == nil
	default:
		return bytes.Compare(a.Value, b.Value), true
	}
}

// matches reports whether a document meets a filter.
func matches(doc, filter bson.Raw) bool {
	elements, err := filter.Elements()
	if err != nil {
		return len(filter) == 0
	}
	for _, e := range elements {
		if !meets(doc, e.Key(), e.Value()) {
			return false
		}
	}
	return true
}

// meets reports whether a document meets one condition. What is not known is met
// by nothing.
func meets(doc bson.Raw, key string, cond bson.RawValue) bool {
	switch key {
	case "$and", "$or":
		list, _ := cond.ArrayOK()
		values, _ := list.Values()
		holds := func(v bson.RawValue) bool { return matches(doc, v.Document()) }
		if key == "$or" {
			return slices.ContainsFunc(values, holds)
		}
		return !slices.ContainsFunc(values, func(v bson.RawValue) bool { return !holds(v) })
	case "$comment":
		return true
	}
	v, err := doc.LookupErr(strings.Split(key, ".")...)
	d, isDoc := cond.DocumentOK()
	if first, e := d.IndexErr(0); isDoc && e == nil && strings.HasPrefix(first.Key(), "$") {
		elements, _ := d.Elements()
		for _, e := range elements {
			if !operator(v, err == nil, e.Key(), e.Value()) {
				return false
			}
		}
		return true
	}
	return equal(v, err == nil, cond)
}

// equal compares a field with a value; a missing one is null.
func equal(v bson.RawValue, found bool, want bson.RawValue) bool {
	if !found {
		return want.Type == bson.TypeNull
	}
	c, comparable := compare(v, want)
	return comparable && c == 0
}

// operator applies one operator.
func operator(v bson.RawValue, found bool, name string, want bson.RawValue) bool {
	c, comparable := 0, false
	if found {
		c, comparable = compare(v, want)
	}
	switch name {
	case "$eq":
		return equal(v, found, want)
	case "$ne":
		return !equal(v, found, want)
	case "$lt":
		return comparable && c < 0
	case "$lte":
		return comparable && c <= 0
	case "$gt":
		return comparable && c > 0
	case "$gte":
		return comparable && c >= 0
	case "$exists":
		return found == (want.Type != bson.TypeBoolean || want.Boolean())
	case "$in":
		list, _ := want.ArrayOK()
		values, _ := list.Values()
		return slices.ContainsFunc(values, func(w bson.RawValue) bool { return equal(v, found, w) })
	default:
		return false
	}
}

// equalities is the document that an upsert's filter begins with.
func equalities(filter bson.Raw) bson.Raw {
	d := bson.D{}
	elements, _ := filter.Elements()
	for _, e := range elements {
		v, isDoc := e.Value().DocumentOK()
		first, err := v.IndexErr(0)
		if !strings.HasPrefix(e.Key(), "$") && !(isDoc && err == nil && strings.HasPrefix(first.Key(), "$")) {
			d = append(d, bson.E{Key: e.Key(), Value: e.Value()})
		}
	}
	return mustMarshal(d)
}

// changed gives a document after an update: a replacement, or operators on fields
// of the top level.
func changed(doc, update bson.Raw, fresh bool) (bson.Raw, error) {
	elements, err := update.Elements()
	if err != nil {
		return nil, fmt.Errorf("update: %w", err)
	}
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		return nil, fmt.Errorf("document: %w", err)
	}
	if len(elements) == 0 || !strings.HasPrefix(elements[0].Key(), "$") {
		next := bson.D{}
		if id, err := doc.LookupErr("_id"); err == nil {
			next = append(next, bson.E{Key: "_id", Value: id})
		}
		for _, e := range elements {
			if e.Key() != "_id" {
				next = append(next, bson.E{Key: e.Key(), Value: e.Value()})
			} else if len(next) == 0 {
				next = append(next, bson.E{Key: "_id", Value: e.Value()})
			}
		}
		return withID(next), nil
	}
	for _, op := range elements {
		fields, _ := op.Value().Document().Elements()
		for _, f := range fields {
			if strings.Contains(f.Key(), ".") {
				return nil, fmt.Errorf("path %q: only fields of the top level are simulated", f.Key())
			}
			if d, err = operate(d, op.Key(), f, fresh); err != nil {
				return nil, err
			}
		}
	}
	return withID(d), nil
}

// operate applies one operator to one field.
func operate(d bson.D, name string, f bson.RawElement, fresh bool) (bson.D, error) {
	at := slices.IndexFunc(d, func(e bson.E) bool { return e.Key == f.Key() })
	set := func(v any) {
		if at < 0 {
			d = append(d, bson.E{Key: f.Key(), Value: v})
		} else {
			d[at].Value = v
		}
	}
	switch name {
	case "$set":
		set(f.Value())
	case "$setOnInsert":
		if fresh {
			set(f.Value())
		}
	case "$unset":
		if at >= 0 {
			d = slices.Delete(d, at, at+1)
		}
	case "$inc":
		by, _ := f.Value().AsInt64OK()
		var was int64
		if at >= 0 {
			was, _ = mustMarshal(bson.D{{Key: "v", Value: d[at].Value}}).Lookup("v").AsInt64OK()
		}
		set(was + by)
	default:
		return nil, fmt.Errorf("operator %s is not simulated", name)
	}
	return d, nil
}

// withID encodes a document, with an _id made for it if it has none.
func withID(d bson.D) bson.Raw {
	if !slices.ContainsFunc(d, func(e bson.E) bool { return e.Key == "_id" }) {
		d = append(bson.D{{Key: "_id", Value: bson.NewObjectID()}}, d...)
	}
	return mustMarshal(d)
}
