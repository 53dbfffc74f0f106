package proxy

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// sortField is one field of a sort.
type sortField struct {
	path []string // in the shards' documents
	desc bool
}

// sortOrder is how documents of several chunks are put in order.
type sortOrder struct {
	fields []sortField
	hidden map[string]bool // fields that were added for the sort and are taken out again
	cut    []string        // dotted paths that the client excluded and the sort needs
}

// parseSort reads a sort that can be merged; nil when there is none.
func parseSort(sort bson.Raw) (*sortOrder, error) {
	var o sortOrder
	for w := wire.Walk(sort); w.Next(); {
		if w.Is("$natural") {
			return nil, nil //nolint:nilnil // any order will do
		}
		n, ok := w.Number()
		if !ok || n != 1 && n != -1 {
			return nil, refuse(codeNotSupported, "sort by %s over several chunks is only possible as 1 or -1", w.Key)
		}
		o.fields = append(o.fields, sortField{path: strings.Split(string(w.Key), "."), desc: n < 0})
	}
	if len(o.fields) == 0 {
		return nil, nil //nolint:nilnil // no order
	}
	return &o, nil
}

// key gives the document's place in the order: keys compare bytewise.
//
// As in MongoDB a missing field counts as null, an empty array as less than
// null, and an array as its least element, or its greatest when descending. Two
// fields of one sort that lead through the same array are looked at apart.
func (o *sortOrder) key(doc bson.Raw) (string, error) {
	var out []byte
	for i := range o.fields {
		f := &o.fields[i]
		best, err := extreme(values(nil, wire.Element{Type: bson.TypeEmbeddedDocument, Value: doc}, f.path), f.desc)
		if err != nil {
			return "", err
		}
		if f.desc {
			inverted := []byte(best)
			for j := range inverted {
				inverted[j] = ^inverted[j]
			}
			// Above everything that can follow, as a prefix must then be.
			out = append(append(out, inverted...), 0xff)
			continue
		}
		out = append(out, best...)
	}
	return string(out), nil
}

// extreme gives the least or greatest encoding of vs.
func extreme(vs []bson.RawValue, desc bool) (chunk.Key, error) {
	if len(vs) == 0 {
		vs = []bson.RawValue{nullValue}
	}
	var best chunk.Key
	for i, v := range vs {
		k, err := chunk.EncodeValue(v)
		if err != nil {
			return "", refuse(codeFailedToParse, "value of a sort: %v", err)
		}
		if i == 0 || desc && k > best || !desc && k < best {
			best = k
		}
	}
	return best, nil
}

// values appends the values that a sort sees at path of e: through arrays, and
// of an array at the end its elements.
func values(dst []bson.RawValue, e wire.Element, path []string) []bson.RawValue {
	if len(path) == 0 {
		if e.Type != bson.TypeArray {
			return append(dst, e.RawValue())
		}
		n := len(dst)
		for w := wire.Walk(e.Document()); w.Next(); {
			dst = append(dst, w.RawValue())
		}
		if len(dst) == n {
			dst = append(dst, bson.RawValue{Type: bson.TypeUndefined})
		}
		return dst
	}
	switch e.Type {
	case bson.TypeEmbeddedDocument:
		if next, ok := wire.Find(e.Document(), path[0]); ok {
			return values(dst, next, path[1:])
		}
		return append(dst, nullValue)
	case bson.TypeArray:
		if _, err := strconv.ParseUint(path[0], 10, 31); err == nil {
			if next, ok := wire.Find(e.Document(), path[0]); ok {
				return values(dst, next, path[1:])
			}
		}
		n := len(dst)
		for w := wire.Walk(e.Document()); w.Next(); {
			if w.Type == bson.TypeEmbeddedDocument {
				dst = values(dst, w.Element, path)
			} else {
				dst = append(dst, nullValue) // it has no such field
			}
		}
		if len(dst) == n {
			dst = append(dst, nullValue)
		}
		return dst
	default:
		return append(dst, nullValue)
	}
}
