package chunk

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrArrayKey is an array where a shard key's value belongs: one document
// would have several points.
var ErrArrayKey = errors.New("a shard key's value is or passes through an array")

// hashTag comes before a hash, so that every hashed point is below [KeyMax].
const hashTag = 0x80

// HashString is the first 8 bytes of s's SHA-256, big endian. Keys, partitions
// and stored ranges depend on it: it never changes.
func HashString(s string) uint64 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint64(sum[:8])
}

// hashKey is the point of a hash.
func hashKey(h uint64) Key {
	var k [9]byte
	k[0] = hashTag
	binary.BigEndian.PutUint64(k[1:], h)
	return Key(k[:])
}

// scratch is where the encoding of a value is made that is only hashed.
type scratch struct{ buf []byte }

// scratches keeps some: every targeted command needs one.
var scratches = sync.Pool{New: func() any { return &scratch{buf: make([]byte, 0, 128)} }}

// hashValue is the point of a value in a hashed key space.
func hashValue(v bson.RawValue) (Key, error) {
	s := scratches.Get().(*scratch) //nolint:errcheck,forcetypeassert // nothing else is put there
	defer scratches.Put(s)
	out, err := appendEncoded(s.buf[:0], v)
	if err != nil {
		return "", err
	}
	if cap(out) <= 4096 {
		s.buf = out
	}
	sum := sha256.Sum256(out)
	return hashKey(binary.BigEndian.Uint64(sum[:8])), nil
}

// Point gives the point of a shard key's value. Values that MongoDB compares
// equal have one point. An array is refused with [ErrArrayKey].
func (s KeySpace) Point(v bson.RawValue) (Key, error) {
	if v.Type == bson.TypeArray {
		return "", ErrArrayKey
	}
	switch s {
	case Hashed:
		return hashValue(v)
	case Ranged:
		return EncodeValue(v)
	default:
		return "", fmt.Errorf("key space %q is neither %s nor %s", s, Hashed, Ranged)
	}
}

// DocumentPoint gives the point of a document by its shard key. Everything that
// places a document uses it, so that all agree.
func (s KeySpace) DocumentPoint(doc bson.Raw, shardKey string) (Key, error) {
	if strings.IndexByte(shardKey, ',') >= 0 {
		return s.compoundPoint(doc, shardKey)
	}
	v, err := LookupPath(doc, shardKey)
	if err != nil {
		return "", err
	}
	return s.Point(v)
}

// Split gives n ranges of equal width that together are the whole key space.
// Only a hashed key space can be split without knowing its values: it gives nil
// for any other, and for n < 1.
func (s KeySpace) Split(n int) []Range {
	if s != Hashed || n < 1 {
		return nil
	}
	ranges := make([]Range, n)
	lo := KeyMin
	for i := range n {
		hi := KeyMax
		if i+1 < n {
			bound, _ := bits.Div64(uint64(i+1), 0, uint64(n))
			hi = hashKey(bound)
		}
		ranges[i] = Range{Lo: lo, Hi: hi}
		lo = hi
	}
	return ranges
}

// RangesAt gives the len(points)+1 ranges that meet at the given points, which
// must ascend and lie inside the key space.
func RangesAt(points []Key) ([]Range, error) {
	ranges := make([]Range, 0, len(points)+1)
	lo := KeyMin
	for i, p := range points {
		if p <= lo || p >= KeyMax {
			return nil, fmt.Errorf("split point %d (%x) does not lie between %x and the end of the key space", i+1, string(p), string(lo))
		}
		ranges = append(ranges, Range{Lo: lo, Hi: p})
		lo = p
	}
	return append(ranges, Range{Lo: lo, Hi: KeyMax}), nil
}

// LookupPath gives the value at a dotted path, null when there is none. Dots
// only ever lead into embedded documents: a field whose own name is "a.b" is
// not at path a.b. An array at the end of the path or on the way to it is
// refused with [ErrArrayKey].
func LookupPath(doc bson.Raw, path string) (bson.RawValue, error) {
	v := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
	for name := range strings.SplitSeq(path, ".") {
		if v.Type != bson.TypeEmbeddedDocument {
			return bson.RawValue{Type: bson.TypeNull}, nil
		}
		var ok bool
		var err error
		if v, ok, err = field(v.Value, name); err != nil {
			return bson.RawValue{}, fmt.Errorf("look up %s: %w", path, err)
		}
		if !ok {
			return bson.RawValue{Type: bson.TypeNull}, nil
		}
		if v.Type == bson.TypeArray {
			return bson.RawValue{}, fmt.Errorf("%w: %s", ErrArrayKey, path)
		}
	}
	return v, nil
}

// field gives the first field of a document that has the given name.
func field(doc []byte, name string) (v bson.RawValue, ok bool, err error) {
	outer := reader{buf: doc}
	body, err := outer.documentBody()
	if err != nil {
		return v, false, err
	}
	in := reader{buf: body}
	for len(in.buf) > 0 {
		t := bson.Type(in.buf[0])
		in.buf = in.buf[1:]
		key, err := in.cstring()
		if err != nil {
			return v, false, err
		}
		start := in.buf
		if err := in.skip(t); err != nil {
			return v, false, err
		}
		if string(key) == name {
			return bson.RawValue{Type: t, Value: start[:len(start)-len(in.buf)]}, true, nil
		}
	}
	return v, false, nil
}
