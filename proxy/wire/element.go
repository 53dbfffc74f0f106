package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// errMalformed is what every broken document, section or message wraps.
var errMalformed = errors.New("malformed message")

// ErrMalformed reports bytes that are no valid message. Its connection is of no
// further use: nobody knows where the next message would begin.
func ErrMalformed() error { return errMalformed }

// Element is one element of a document, as it lies in the message.
type Element struct {
	Type  bson.Type
	Key   []byte
	Value []byte // without type and key
	Raw   []byte // the whole element
}

// RawValue gives the element's value in the driver's form.
func (e Element) RawValue() bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

// Is reports whether the element has the given key.
func (e Element) Is(key string) bool { return string(e.Key) == key }

// Document gives the value of an embedded document or array, nil otherwise.
func (e Element) Document() bson.Raw {
	if e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray {
		return nil
	}
	return e.Value
}

// Text gives the bytes of a string without its length and end, nil otherwise.
func (e Element) Text() []byte {
	if e.Type != bson.TypeString {
		return nil
	}
	return e.Value[4 : len(e.Value)-1]
}

// Binary gives the bytes of a binary value, nil otherwise.
func (e Element) Binary() []byte {
	if e.Type != bson.TypeBinary {
		return nil
	}
	return e.Value[5:]
}

// Number gives a number of any BSON type as an integer; ok is false for other
// types and for doubles that are none.
func (e Element) Number() (n int64, ok bool) {
	switch e.Type {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.Value))), true //nolint:gosec // two's complement is meant
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(e.Value)), true //nolint:gosec // two's complement is meant
	case bson.TypeDouble:
		f := math.Float64frombits(binary.LittleEndian.Uint64(e.Value))
		if f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
			return 0, false
		}
		return int64(f), true
	default:
		return 0, false
	}
}

// Truth gives what MongoDB makes of a value where a boolean is wanted.
func (e Element) Truth() bool {
	switch e.Type {
	case bson.TypeBoolean:
		return e.Value[0] != 0
	case bson.TypeDouble:
		return math.Float64frombits(binary.LittleEndian.Uint64(e.Value)) != 0
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := e.Number()
		return n != 0
	case bson.TypeNull, bson.TypeUndefined:
		return false
	default:
		return true
	}
}

// Walker goes over the elements of one document without allocating.
//
//	for w := wire.Walk(doc); w.Next(); { use(w.Element) }
//
// What is wrong with the document shows in Err after the loop.
type Walker struct {
	Element
	rest []byte
	err  error
}

// Walk starts at the first element of doc, which must be exactly one document.
func Walk(doc []byte) Walker {
	if !Whole(doc) {
		return Walker{err: errMalformed}
	}
	return Walker{rest: doc[4:]}
}

// Whole reports whether b is framed as exactly one document.
func Whole(b []byte) bool {
	return len(b) >= 5 && uint64(binary.LittleEndian.Uint32(b)) == uint64(len(b)) && b[len(b)-1] == 0
}

// Err tells why the walk ended before the document's end, nil if it did not.
func (w *Walker) Err() error { return w.err }

// Next moves to the next element.
func (w *Walker) Next() bool {
	if w.err != nil || len(w.rest) == 0 {
		return false
	}
	if w.rest[0] == 0 {
		if len(w.rest) != 1 {
			w.err = errMalformed
		}
		return false
	}
	end := bytes.IndexByte(w.rest[1:], 0)
	if end < 0 {
		w.err = errMalformed
		return false
	}
	head := end + 2
	n := valueLength(bson.Type(w.rest[0]), w.rest[head:])
	// At least the document's own end must follow.
	if n < 0 || head+n >= len(w.rest) {
		w.err = errMalformed
		return false
	}
	w.Element = Element{
		Type:  bson.Type(w.rest[0]),
		Key:   w.rest[1 : head-1],
		Value: w.rest[head : head+n : head+n],
		Raw:   w.rest[: head+n : head+n],
	}
	w.rest = w.rest[head+n:]
	return true
}

// fixedLength holds the size of the values of types that have one, by type; -1
// for the others.
var fixedLength = func() (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for typ, n := range map[bson.Type]int8{
		bson.TypeDouble: 8, bson.TypeUndefined: 0, bson.TypeObjectID: 12, bson.TypeBoolean: 1,
		bson.TypeDateTime: 8, bson.TypeNull: 0, bson.TypeInt32: 4, bson.TypeTimestamp: 8,
		bson.TypeInt64: 8, bson.TypeDecimal128: 16, bson.TypeMinKey: 0, bson.TypeMaxKey: 0,
	} {
		t[typ] = n
	}
	return t
}()

// valueLength gives the length of the value of type t that b begins with, or a
// negative number when there is none.
func valueLength(t bson.Type, b []byte) int {
	if n := int(fixedLength[t]); n >= 0 {
		if n > len(b) {
			return -1
		}
		return n
	}
	switch t {
	case bson.TypeString, bson.TypeJavaScript, bson.TypeSymbol:
		return stringLength(b)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		n := prefixed(b, 0, 5)
		if n > 0 && b[n-1] != 0 {
			return -1
		}
		return n
	case bson.TypeCodeWithScope:
		return prefixed(b, 0, 14)
	case bson.TypeBinary:
		return prefixed(b, 5, 5)
	case bson.TypeDBPointer:
		if n := stringLength(b); n > 0 && n+12 <= len(b) {
			return n + 12
		}
		return -1
	case bson.TypeRegex:
		first := bytes.IndexByte(b, 0)
		if first < 0 {
			return -1
		}
		second := bytes.IndexByte(b[first+1:], 0)
		if second < 0 {
			return -1
		}
		return first + second + 2
	default:
		return -1
	}
}

// stringLength is the length of the string value at the start of b.
func stringLength(b []byte) int {
	n := prefixed(b, 4, 5)
	if n < 0 || b[n-1] != 0 {
		return -1
	}
	return n
}

// prefixed reads a length that stands at the start of b and adds extra to it;
// the sum must be at least least and at most len(b).
func prefixed(b []byte, extra, least int) int {
	if len(b) < 4 {
		return -1
	}
	n := int(int32(binary.LittleEndian.Uint32(b))) //nolint:gosec // a negative length is caught below
	if n < 0 || n+extra < least || n+extra > len(b) {
		return -1
	}
	return n + extra
}

// Find gives the first element of doc with the given key. A document that is
// broken before it has none.
func Find(doc []byte, key string) (Element, bool) {
	for w := Walk(doc); w.Next(); {
		if w.Is(key) {
			return w.Element, true
		}
	}
	return Element{}, false
}

// MaxDepth is how many documents and arrays may lie in one another, as mongod has it.
const MaxDepth = 200

// Deep reports whether more than [MaxDepth] documents and arrays lie in one another in doc.
// What looks into a document level by level may do so only when they do not: each takes
// stack, and a stack that is full ends the process.
func Deep(doc []byte) bool {
	if len(doc) < 7*MaxDepth || !Whole(doc) { // each level takes seven bytes at least
		return false
	}
	var open [MaxDepth][]byte // what is left of each document that the next element lies in
	open[0] = doc[4:]
	depth := 0
	for depth >= 0 {
		w := Walker{rest: open[depth]}
		// A broken document hides nothing that lies behind it in the one around it.
		if !w.Next() {
			depth--
			continue
		}
		open[depth] = w.rest
		inner := w.Document()
		if inner == nil || !Whole(inner) {
			continue
		}
		if depth++; depth == MaxDepth {
			return true
		}
		open[depth] = inner[4:]
	}
	return false
}
