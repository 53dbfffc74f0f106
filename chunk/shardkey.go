package chunk

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A shard key of several fields is written as their paths with commas between
// them, "origin,date". In a range key space its points are ordered as MongoDB
// orders the values field by field, so that the documents with one value of the
// first fields lie side by side, and right behind the point of that value alone:
// collections with the keys "origin" and "origin,date" can share the borders of a
// database. In a hashed one the values are hashed together.

// ErrShardKey is what cannot be a shard key.
var ErrShardKey = errors.New("not a shard key")

// maxKeyFields is how many fields a compound index can have.
const maxKeyFields = 32

// KeyFields gives the paths of a shard key's fields, in their order.
func KeyFields(shardKey string) []string {
	if !strings.Contains(shardKey, ",") {
		return []string{shardKey}
	}
	return strings.Split(shardKey, ",")
}

// CheckShardKey refuses what cannot be a shard key, with [ErrShardKey].
func CheckShardKey(shardKey string) error {
	fields := KeyFields(shardKey)
	if len(fields) > maxKeyFields {
		return fmt.Errorf("%w: it has %d fields; %d are the most", ErrShardKey, len(fields), maxKeyFields)
	}
	for i, f := range fields {
		for part := range strings.SplitSeq(f, ".") {
			if part == "" || part[0] == '$' || strings.ContainsAny(part, " \x00") {
				return fmt.Errorf("%w: %q is no path of a field (write it as a.b, and several with commas and no space)", ErrShardKey, f)
			}
		}
		for _, other := range fields[:i] {
			if f == other || strings.HasPrefix(f, other+".") || strings.HasPrefix(other, f+".") {
				return fmt.Errorf("%w: %s and %s are not fields beside each other", ErrShardKey, other, f)
			}
		}
	}
	return nil
}

// TuplePoint gives the point of the values of a shard key's fields, in their
// order. In a range key space fewer values than fields give the point at which
// everything that has these values begins; see [PrefixRange].
func (s KeySpace) TuplePoint(values ...bson.RawValue) (Key, error) {
	if len(values) == 1 {
		return s.Point(values[0])
	}
	sc := scratches.Get().(*scratch) //nolint:errcheck,forcetypeassert // nothing else is put there
	defer scratches.Put(sc)
	out := sc.buf[:0]
	var err error
	for _, v := range values {
		if v.Type == bson.TypeArray {
			return "", ErrArrayKey
		}
		if out, err = appendEncoded(out, v); err != nil {
			return "", err
		}
	}
	if cap(out) <= 4096 {
		sc.buf = out
	}
	return s.joined(out)
}

// joined gives the point of encoded values that stand one after the other.
func (s KeySpace) joined(encoded []byte) (Key, error) {
	switch s {
	case Hashed:
		sum := sha256.Sum256(encoded)
		return hashKey(binary.BigEndian.Uint64(sum[:8])), nil
	case Ranged:
		return Key(encoded), nil
	default:
		return "", fmt.Errorf("key space %q is neither %s nor %s", s, Hashed, Ranged)
	}
}

// Joined gives the point of values whose points in a range key space stand one
// after the other in ranged.
func (s KeySpace) Joined(ranged Key) Key {
	if s == Hashed {
		sum := sha256.Sum256([]byte(ranged))
		return hashKey(binary.BigEndian.Uint64(sum[:8]))
	}
	return ranged
}

// PrefixRange gives the part of a range key space in which all lies whose first
// fields have the point's values.
func PrefixRange(point Key) Range { return Range{Lo: point, Hi: point + KeyMax} }

// compoundPoint is [KeySpace.DocumentPoint] for a key of several fields.
func (s KeySpace) compoundPoint(doc bson.Raw, shardKey string) (Key, error) {
	var kept [4]bson.RawValue
	values := kept[:0]
	for path := range strings.SplitSeq(shardKey, ",") {
		v, err := LookupPath(doc, path)
		if err != nil {
			return "", err
		}
		values = append(values, v)
	}
	return s.TuplePoint(values...)
}

// Border gives the point that a person names: a value of the shard key, or an
// array with the values of its fields; in a range key space, of its first fields.
func (s KeySpace) Border(v bson.RawValue) (Key, error) {
	if v.Type != bson.TypeArray {
		return s.Point(v)
	}
	elements, err := v.Array().Values()
	if err != nil || len(elements) == 0 {
		return "", fmt.Errorf("%w: an array of values must have one for the first field", ErrShardKey)
	}
	return s.TuplePoint(elements...)
}

// touchesField reports whether a change at path may change the value at field:
// the path itself, one above it or one below it.
func touchesField(field, path string) bool {
	if len(field) > len(path) {
		field, path = path, field
	}
	return strings.HasPrefix(path, field) && (len(path) == len(field) || path[len(field)] == '.')
}
