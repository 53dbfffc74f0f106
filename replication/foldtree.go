package replication

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
)

// BSON types that the fold must know.
const (
	typeDouble    = 0x01
	typeString    = 0x02
	typeDocument  = 0x03
	typeArray     = 0x04
	typeNull      = 0x0a
	typeInt32     = 0x10
	typeInt64     = 0x12
	typeTimestamp = 0x11
	typeDecimal   = 0x13
)

// indexAt is the number of elements from which a document's names are looked
// up in a map. Below, a scan is faster.
const indexAt = 24

// value is one BSON value. A container is parsed when a path leads into it;
// until then, and for ever when no path does, it is the bytes it came as.
type value struct {
	kind     byte
	raw      []byte // the value's bytes; stale once children is set
	children *container
}

// field is one element of a container.
type field struct {
	name string
	value
}

// container is a parsed document or array.
type container struct {
	array  bool
	fields []field
	names  map[string]int // of the first field of that name; nil when small or stale
	dotted bool           // a name has a dot in it: paths need more than a split
	gone   int            // fields removed and not yet swept, see [container.sweep]

	// What the event being applied did here.
	event    int64 // its number; the rest is of an older event when it differs
	fresh    int   // fields[fresh:] are new
	reinsert bool  // the event moves fields to the end
}

// removed marks a field that is gone but not yet swept out. No BSON type is 0.
const removed = 0

// into gives v's container, parsing it the first time.
func (v *value) into() (*container, bool, error) {
	if v.kind != typeDocument && v.kind != typeArray {
		return nil, false, nil
	}
	if v.children == nil {
		c, err := parseContainer(v.raw, v.kind == typeArray)
		if err != nil {
			return nil, false, err
		}
		v.children = c
	}
	return v.children, true, nil
}

// parseContainer reads one level of a document or array.
func parseContainer(raw []byte, array bool) (*container, error) {
	body, err := documentBody(raw)
	if err != nil {
		return nil, err
	}
	c := &container{array: array, fields: make([]field, 0, 8)}
	for len(body) > 0 {
		var f field
		if f, body, err = nextField(body); err != nil {
			return nil, err
		}
		c.dotted = c.dotted || !array && strings.IndexByte(f.name, '.') >= 0
		c.fields = append(c.fields, f)
	}
	return c, nil
}

// find gives the place of the field called name, or -1. It fails when there are
// several: which one the server would change is not ours to guess.
func (c *container) find(name string) (int, error) {
	if len(c.fields) >= indexAt {
		return c.findIndexed(name)
	}
	at := -1
	for i := range c.fields {
		if c.fields[i].kind == removed || c.fields[i].name != name {
			continue
		}
		if at >= 0 {
			return -1, foldErr(DuplicateField, name)
		}
		at = i
	}
	return at, nil
}

// duplicated stands in [container.names] for a name that several fields have.
const duplicated = -2

func (c *container) findIndexed(name string) (int, error) {
	if c.names == nil {
		c.names = make(map[string]int, len(c.fields)+8)
		for i := range c.fields {
			if c.fields[i].kind == removed {
				continue
			}
			if _, ok := c.names[c.fields[i].name]; ok {
				c.names[c.fields[i].name] = duplicated
				continue
			}
			c.names[c.fields[i].name] = i
		}
	}
	at, ok := c.names[name]
	switch {
	case !ok:
		return -1, nil
	case at == duplicated:
		return -1, foldErr(DuplicateField, name)
	default:
		return at, nil
	}
}

// push appends a field.
func (c *container) push(f field) {
	c.fields = append(c.fields, f)
	if c.names != nil {
		c.names[f.name] = len(c.fields) - 1
	}
	c.dotted = c.dotted || !c.array && strings.IndexByte(f.name, '.') >= 0
}

// drop removes the field at i. Places of other fields stay until the sweep.
func (c *container) drop(i int) {
	if c.names != nil {
		delete(c.names, c.fields[i].name)
	}
	c.fields[i].value = value{kind: removed}
	c.gone++
}

// sweep takes out what was dropped.
func (c *container) sweep() {
	if c.gone == 0 {
		return
	}
	kept := c.fields[:0]
	for _, f := range c.fields {
		if f.kind != removed {
			kept = append(kept, f)
		}
	}
	c.fields, c.names, c.gone = kept, nil, 0
}

// append writes v's bytes at the end of b.
func (v *value) append(b []byte) []byte {
	if v.children == nil {
		return append(b, v.raw...)
	}
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	for i := range v.children.fields {
		f := &v.children.fields[i]
		if f.kind == removed {
			continue
		}
		b = append(b, f.kind)
		b = append(b, f.name...)
		b = append(b, 0)
		b = f.append(b)
	}
	b = append(b, 0)
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start)) //nolint:gosec // checked by the caller against maxImage
	return b
}

// elementName gives the name of the i-th element of an array.
func elementName(i int) string { return strconv.Itoa(i) }

// documentBody checks a document's frame and gives what is inside.
func documentBody(raw []byte) ([]byte, error) {
	if len(raw) < 5 || int64(binary.LittleEndian.Uint32(raw)) != int64(len(raw)) || raw[len(raw)-1] != 0 {
		return nil, foldErr(BadBSON, "")
	}
	return raw[4 : len(raw)-1], nil
}

// nextField reads the first element of a document's body.
func nextField(body []byte) (field, []byte, error) {
	end := bytes.IndexByte(body[1:], 0)
	if end < 0 {
		return field{}, nil, foldErr(BadBSON, "")
	}
	f := field{name: string(body[1 : 1+end]), value: value{kind: body[0]}}
	rest := body[2+end:]
	n, ok := valueLength(f.kind, rest)
	if !ok || n > len(rest) {
		return field{}, nil, foldErr(BadBSON, f.name)
	}
	f.raw = rest[:n:n]
	return f, rest[n:], nil
}

// valueLength gives the length of a value of the given type at the start of b.
func valueLength(kind byte, b []byte) (int, bool) {
	switch kind {
	case 0x06, typeNull, 0x7f, 0xff:
		return 0, true
	case 0x08:
		return 1, true
	case typeInt32:
		return 4, true
	case typeDouble, 0x09, typeTimestamp, typeInt64:
		return 8, true
	case 0x07:
		return 12, true
	case typeDecimal:
		return 16, true
	case typeString, 0x0d, 0x0e:
		return prefixed(b, 4, 5)
	case 0x0c:
		return prefixed(b, 16, 17)
	case typeDocument, typeArray, 0x0f:
		return prefixed(b, 0, 5)
	case 0x05:
		return prefixed(b, 5, 5)
	case 0x0b:
		first := bytes.IndexByte(b, 0)
		if first < 0 {
			return 0, false
		}
		second := bytes.IndexByte(b[first+1:], 0)
		return first + second + 2, second >= 0
	default:
		return 0, false
	}
}

// prefixed gives the length of a value that begins with an int32 which counts
// everything but extra bytes; least is the length of the shortest valid one.
func prefixed(b []byte, extra, least int) (int, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n := int64(binary.LittleEndian.Uint32(b)) + int64(extra)
	if n < int64(least) || n > int64(len(b)) {
		return 0, false
	}
	return int(n), true
}
