package chunk

import (
	"encoding/binary"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The first byte of an encoded value, in MongoDB's order of types. The values
// are part of stored keys: they never change. Gaps are left for types to come.
const (
	tagEnd           byte = 0x00 // after the last field or element: a prefix is below what goes on
	tagMinKey        byte = 0x10
	tagUndefined     byte = 0x18
	tagNull          byte = 0x20
	tagNumber        byte = 0x28
	tagString        byte = 0x30
	tagObject        byte = 0x38
	tagArray         byte = 0x40
	tagBinary        byte = 0x48
	tagObjectID      byte = 0x50
	tagBool          byte = 0x58
	tagDate          byte = 0x60
	tagTimestamp     byte = 0x68
	tagRegex         byte = 0x70
	tagDBPointer     byte = 0x78
	tagCode          byte = 0x80
	tagCodeWithScope byte = 0x88
	tagMaxKey        byte = 0xf0
)

// maxDepth is above the nesting that a server stores (180 levels).
const maxDepth = 250

// EncodeValue gives the canonical encoding of any BSON value: encodings compare
// bytewise as MongoDB compares the values, and values that compare equal (1,
// 1.0, NumberLong(1) and NumberDecimal("1.00"); a string and the same symbol)
// have one encoding. Every encoding lies above [KeyMin] and below [KeyMax].
// Strings compare as simple binary, whatever a collection's collation. The
// only error is malformed BSON.
func EncodeValue(v bson.RawValue) (Key, error) {
	out, err := appendEncoded(make([]byte, 0, len(v.Value)+16), v)
	return Key(out), err
}

// appendEncoded appends v's encoding to dst; on an error it gives nil.
func appendEncoded(dst []byte, v bson.RawValue) ([]byte, error) {
	r := reader{buf: v.Value}
	out, err := r.value(dst, v.Type, nil, 0)
	if err != nil {
		return nil, err
	}
	if len(r.buf) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after a %s", ErrMalformed, len(r.buf), v.Type)
	}
	return out, nil
}

// reader takes BSON apart from the front of buf.
type reader struct{ buf []byte }

// value appends the encoding of the next value, which is of type t. name is
// what stands between tag and value: a field's name within a document, nil
// elsewhere.
func (r *reader) value(out []byte, t bson.Type, name []byte, depth int) ([]byte, error) {
	tag, ok := tagOf(t)
	if !ok {
		return nil, fmt.Errorf("%w: type %#x", ErrMalformed, byte(t))
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested deeper than %d", ErrMalformed, maxDepth)
	}
	out = append(append(out, tag), name...)
	switch tag {
	case tagMinKey, tagMaxKey, tagUndefined, tagNull:
		return out, nil
	case tagNumber:
		return r.number(out, t)
	case tagObject:
		return r.document(out, true, depth)
	case tagArray:
		return r.document(out, false, depth)
	case tagCodeWithScope:
		return r.codeWithScope(out, depth)
	default:
		return r.scalar(out, tag)
	}
}

// tagOf gives the canonical type of t; ok is false for what is no BSON type.
func tagOf(t bson.Type) (tag byte, ok bool) {
	switch t {
	case bson.TypeMinKey:
		return tagMinKey, true
	case bson.TypeUndefined:
		return tagUndefined, true
	case bson.TypeNull:
		return tagNull, true
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return tagNumber, true
	case bson.TypeString, bson.TypeSymbol:
		return tagString, true
	case bson.TypeEmbeddedDocument:
		return tagObject, true
	case bson.TypeArray:
		return tagArray, true
	case bson.TypeBinary:
		return tagBinary, true
	case bson.TypeObjectID:
		return tagObjectID, true
	case bson.TypeBoolean:
		return tagBool, true
	case bson.TypeDateTime:
		return tagDate, true
	case bson.TypeTimestamp:
		return tagTimestamp, true
	case bson.TypeRegex:
		return tagRegex, true
	case bson.TypeDBPointer:
		return tagDBPointer, true
	case bson.TypeJavaScript:
		return tagCode, true
	case bson.TypeCodeWithScope:
		return tagCodeWithScope, true
	case bson.TypeMaxKey:
		return tagMaxKey, true
	default:
		return 0, false
	}
}

// scalar appends the next value, which holds no other and is no number.
func (r *reader) scalar(out []byte, tag byte) ([]byte, error) {
	switch tag {
	case tagString, tagCode:
		return appended(out, r.text, appendText)
	case tagBinary:
		return r.binary(out)
	case tagObjectID:
		return appended(out, r.fixed(12), appendPlain)
	case tagBool:
		return r.boolean(out)
	case tagDate:
		return appended(out, r.fixed(8), func(out, b []byte) []byte {
			return binary.BigEndian.AppendUint64(out, binary.LittleEndian.Uint64(b)^1<<63)
		})
	case tagTimestamp:
		return appended(out, r.fixed(8), func(out, b []byte) []byte {
			return binary.BigEndian.AppendUint64(out, binary.LittleEndian.Uint64(b))
		})
	case tagRegex:
		out, err := appended(out, r.cstring, appendCString)
		if err != nil {
			return nil, err
		}
		return appended(out, r.cstring, appendCString)
	case tagDBPointer:
		return r.dbPointer(out)
	default:
		panic(fmt.Sprintf("tag %#x is no scalar", tag))
	}
}

// appended takes a piece with next and appends it with add.
func appended(out []byte, next func() ([]byte, error), add func(out, piece []byte) []byte) ([]byte, error) {
	piece, err := next()
	if err != nil {
		return nil, err
	}
	return add(out, piece), nil
}

// appendPlain appends a piece whose length is known.
func appendPlain(out, piece []byte) []byte { return append(out, piece...) }

// appendCString appends a piece that holds no zero byte.
func appendCString(out, piece []byte) []byte { return append(append(out, piece...), 0) }

// appendText appends a piece that may hold zero bytes: each becomes 00 FF, and
// 00 01 ends the text, so that a prefix stays below what goes on.
func appendText(out, piece []byte) []byte {
	for _, c := range piece {
		out = append(out, c)
		if c == 0 {
			out = append(out, 0xff)
		}
	}
	return append(out, 0, 1)
}

// document appends the next document, field by field: type, name, value. Names
// count for nothing in an array.
func (r *reader) document(out []byte, named bool, depth int) ([]byte, error) {
	body, err := r.documentBody()
	if err != nil {
		return nil, err
	}
	in := reader{buf: body}
	for len(in.buf) > 0 {
		t := bson.Type(in.buf[0])
		in.buf = in.buf[1:]
		name, err := in.cstring()
		if err != nil {
			return nil, err
		}
		name = name[:len(name)+1] // with its zero byte
		if !named {
			name = nil
		}
		if out, err = in.value(out, t, name, depth+1); err != nil {
			return nil, err
		}
	}
	return append(out, tagEnd), nil
}

// codeWithScope appends the next code with scope: code, then scope.
func (r *reader) codeWithScope(out []byte, depth int) ([]byte, error) {
	size, err := r.length(14)
	if err != nil {
		return nil, err
	}
	body, err := r.take(size - 4)
	if err != nil {
		return nil, err
	}
	in := reader{buf: body}
	if out, err = appended(out, in.text, appendText); err != nil {
		return nil, err
	}
	if out, err = in.document(out, true, depth+1); err != nil {
		return nil, err
	}
	if len(in.buf) != 0 {
		return nil, fmt.Errorf("%w: bytes after a scope", ErrMalformed)
	}
	return out, nil
}

// binary appends the next binary: length, subtype, bytes, as they are stored.
func (r *reader) binary(out []byte) ([]byte, error) {
	size, err := r.length(0)
	if err != nil {
		return nil, err
	}
	body, err := r.take(size + 1)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(out, uint32(size)), body...), nil //nolint:gosec // never negative
}

// boolean appends the next boolean.
func (r *reader) boolean(out []byte) ([]byte, error) {
	b, err := r.take(1)
	if err != nil {
		return nil, err
	}
	if b[0] > 1 {
		return nil, fmt.Errorf("%w: boolean %#x", ErrMalformed, b[0])
	}
	return append(out, b[0]), nil
}

// dbPointer appends the next pointer: length, namespace, id.
func (r *reader) dbPointer(out []byte) ([]byte, error) {
	namespace, err := r.text()
	if err != nil {
		return nil, err
	}
	out = append(binary.BigEndian.AppendUint32(out, uint32(len(namespace))), namespace...) //nolint:gosec // came from an int32
	return appended(out, r.fixed(12), appendPlain)
}
