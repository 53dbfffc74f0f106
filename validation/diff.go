package validation

import (
	"bytes"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Kind says how two documents differ.
type Kind string

// The kinds, as seen from the target.
const (
	MissingDocument Kind = "missing document"
	ExtraDocument   Kind = "extra document"
	MissingField    Kind = "missing field"
	ExtraField      Kind = "extra field"
	DifferentType   Kind = "type" // equal numbers of different types too
	DifferentValue  Kind = "value"
	DifferentOrder  Kind = "order" // the same fields in another order, and nothing else
	DuplicateField  Kind = "duplicate field"
)

// Difference is the first difference between two documents: the first one that
// is not a matter of order, where there is one.
type Difference struct {
	Path string `json:"path,omitempty"` // dotted; empty for the document as a whole
	Kind Kind   `json:"kind"`
}

// Diff compares two documents byte by byte; nil documents are absent. ok is true
// when they are equal.
func Diff(source, target bson.Raw) (d Difference, ok bool) {
	switch {
	case source == nil && target == nil:
		return d, true
	case target == nil:
		return Difference{Kind: MissingDocument}, false
	case source == nil:
		return Difference{Kind: ExtraDocument}, false
	case bytes.Equal(source, target):
		return d, true
	}
	if d, ok = diffDocuments(source, target, "", 0); ok {
		// Not the same bytes, though nothing was found: malformed BSON.
		return Difference{Kind: DifferentValue}, false
	}
	return d, false
}

// deepest is above the nesting that a server stores.
const deepest = 250

// field is an element's value, or the values of all elements of one name.
type field struct {
	values []bson.RawValue
}

// fieldsOf gives the fields of a document in order of their first elements.
func fieldsOf(doc bson.Raw) (names []string, fields map[string]field, err error) {
	elements, err := doc.Elements()
	if err != nil {
		return nil, nil, err
	}
	fields = make(map[string]field, len(elements))
	for _, e := range elements {
		f, known := fields[e.Key()]
		if !known {
			names = append(names, e.Key())
		}
		f.values = append(f.values, e.Value())
		fields[e.Key()] = f
	}
	return names, fields, nil
}

// diffDocuments finds the first difference of two documents that differ.
func diffDocuments(source, target bson.Raw, path string, depth int) (Difference, bool) {
	if bytes.Equal(source, target) {
		return Difference{}, true
	}
	here := Difference{Path: path, Kind: DifferentValue}
	names, have, err := fieldsOf(source)
	if err != nil || depth > deepest {
		return here, false
	}
	others, wants, err := fieldsOf(target)
	if err != nil {
		return here, false
	}
	ordered := Difference{Path: path, Kind: DifferentOrder}
	for _, name := range names {
		d, ok := diffFields(have[name], wants[name], join(path, name), depth)
		switch {
		case ok:
		case d.Kind == DifferentOrder && ordered.Path == path:
			ordered = d
		case d.Kind == DifferentOrder:
		default:
			return d, false
		}
	}
	for _, name := range others {
		if _, known := have[name]; !known {
			return Difference{Path: join(path, name), Kind: ExtraField}, false
		}
	}
	return ordered, false
}

// diffFields compares the values of one name.
func diffFields(source, target field, path string, depth int) (Difference, bool) {
	switch {
	case len(target.values) == 0:
		return Difference{Path: path, Kind: MissingField}, false
	case len(source.values) == 1 && len(target.values) == 1:
		return diffValues(source.values[0], target.values[0], path, depth)
	case len(source.values) != len(target.values):
		return Difference{Path: path, Kind: DuplicateField}, false
	}
	for n := range source.values {
		if !source.values[n].Equal(target.values[n]) {
			return Difference{Path: path, Kind: DuplicateField}, false
		}
	}
	return Difference{}, true
}

// diffValues compares two values.
func diffValues(source, target bson.RawValue, path string, depth int) (Difference, bool) {
	switch {
	case source.Type != target.Type:
		return Difference{Path: path, Kind: DifferentType}, false
	case bytes.Equal(source.Value, target.Value):
		return Difference{}, true
	case source.Type == bson.TypeEmbeddedDocument:
		return diffDocuments(source.Value, target.Value, path, depth+1)
	case source.Type == bson.TypeArray:
		return diffArrays(source.Value, target.Value, path, depth+1)
	default:
		return Difference{Path: path, Kind: DifferentValue}, false
	}
}

// diffArrays compares two arrays, element by element: their order is a value.
func diffArrays(source, target bson.RawArray, path string, depth int) (Difference, bool) {
	here := Difference{Path: path, Kind: DifferentValue}
	have, err := source.Values()
	if err != nil || depth > deepest {
		return here, false
	}
	wants, err := target.Values()
	if err != nil {
		return here, false
	}
	var ordered *Difference
	for n := range min(len(have), len(wants)) {
		d, ok := diffValues(have[n], wants[n], join(path, strconv.Itoa(n)), depth)
		switch {
		case ok:
		case d.Kind == DifferentOrder && ordered == nil:
			ordered = &d
		case d.Kind == DifferentOrder:
		default:
			return d, false
		}
	}
	switch {
	case len(have) > len(wants):
		return Difference{Path: join(path, strconv.Itoa(len(wants))), Kind: MissingField}, false
	case len(have) < len(wants):
		return Difference{Path: join(path, strconv.Itoa(len(have))), Kind: ExtraField}, false
	case ordered != nil:
		return *ordered, false
	default:
		return here, false // the names of elements, which should be their numbers
	}
}

// join appends a name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
