package chunk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrMalformed is an input that is no BSON.
var ErrMalformed = errors.New("malformed BSON")

// take gives the next n bytes.
func (r *reader) take(n int) ([]byte, error) {
	if n < 0 || n > len(r.buf) {
		return nil, fmt.Errorf("%w: %d bytes wanted of %d", ErrMalformed, n, len(r.buf))
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b, nil
}

// fixed gives a function that takes n bytes.
func (r *reader) fixed(n int) func() ([]byte, error) {
	return func() ([]byte, error) { return r.take(n) }
}

// length takes an int32 that must be at least least.
func (r *reader) length(least int) (int, error) {
	b, err := r.take(4)
	if err != nil {
		return 0, err
	}
	n := int(int32(binary.LittleEndian.Uint32(b))) //nolint:gosec // BSON's lengths are signed
	if n < least {
		return 0, fmt.Errorf("%w: length %d", ErrMalformed, n)
	}
	return n, nil
}

// text takes a string with its length, and gives it without its zero byte.
func (r *reader) text() ([]byte, error) {
	n, err := r.length(1)
	if err != nil {
		return nil, err
	}
	b, err := r.take(n)
	if err != nil {
		return nil, err
	}
	if b[n-1] != 0 {
		return nil, fmt.Errorf("%w: string without its end", ErrMalformed)
	}
	return b[:n-1], nil
}

// cstring takes bytes up to a zero byte, and gives them without it.
func (r *reader) cstring() ([]byte, error) {
	n := bytes.IndexByte(r.buf, 0)
	if n < 0 {
		return nil, fmt.Errorf("%w: name without its end", ErrMalformed)
	}
	b := r.buf[:n]
	r.buf = r.buf[n+1:]
	return b, nil
}

// documentBody takes a document and gives its elements, without length and end.
func (r *reader) documentBody() ([]byte, error) {
	n, err := r.length(5)
	if err != nil {
		return nil, err
	}
	b, err := r.take(n - 4)
	if err != nil {
		return nil, err
	}
	if b[n-5] != 0 {
		return nil, fmt.Errorf("%w: document without its end", ErrMalformed)
	}
	return b[:n-5], nil
}

// skip takes the next value, which is of type t, without looking into it.
func (r *reader) skip(t bson.Type) error {
	var err error
	switch t {
	case bson.TypeMinKey, bson.TypeMaxKey, bson.TypeUndefined, bson.TypeNull:
	case bson.TypeBoolean:
		_, err = r.take(1)
	case bson.TypeInt32:
		_, err = r.take(4)
	case bson.TypeInt64, bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp:
		_, err = r.take(8)
	case bson.TypeObjectID:
		_, err = r.take(12)
	case bson.TypeDecimal128:
		_, err = r.take(16)
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		_, err = r.text()
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		_, err = r.documentBody()
	case bson.TypeBinary:
		err = r.skipSized(0, 1)
	case bson.TypeCodeWithScope:
		err = r.skipSized(14, -4)
	case bson.TypeDBPointer:
		if _, err = r.text(); err == nil {
			_, err = r.take(12)
		}
	case bson.TypeRegex:
		if _, err = r.cstring(); err == nil {
			_, err = r.cstring()
		}
	default:
		err = fmt.Errorf("%w: type %#x", ErrMalformed, byte(t))
	}
	return err
}

// skipSized takes a length of at least least, and more bytes than it says.
func (r *reader) skipSized(least, more int) error {
	n, err := r.length(least)
	if err == nil {
		_, err = r.take(n + more)
	}
	return err
}
