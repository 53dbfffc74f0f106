// Package bulkimport copies the documents of a placement to its new shard: it
// cuts each collection into slices of _id, reads each slice at one snapshot into
// an object in S3, and loads the objects in the order of an index.
package bulkimport

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// Bytes is a size of BSON before compression.
type Bytes int64

// Units of [Bytes].
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
)

// Documents is a number of documents.
type Documents int64

// Limits bound one slice. A slice that turns out larger while it is read is cut
// there, and what is left becomes a slice of its own.
type Limits struct {
	Documents Documents     // 20,000 when zero
	Bytes     Bytes         // 16 MiB when zero; one document may be larger
	Snapshot  time.Duration // how long one snapshot may be read, 30 s when zero
}

// longestSnapshot is what a server grants a transaction; a slice's read ends
// well before, see [Limits].
const longestSnapshot = 55 * time.Second

// withDefaults fills in what the caller left open.
func (l Limits) withDefaults() Limits {
	if l.Documents <= 0 {
		l.Documents = 20_000
	}
	if l.Bytes <= 0 {
		l.Bytes = 16 * MiB
	}
	if l.Snapshot <= 0 || l.Snapshot > longestSnapshot {
		l.Snapshot = 30 * time.Second
	}
	return l
}

// State is the durable state of a slice.
type State string

// The states of a slice.
const (
	Planned State = "planned"
	Stored  State = "stored" // its object is complete in S3; a retry loads the same object
	Loaded  State = "loaded" // its documents are on the target
)

// Slice is a range of _id of one collection: [Lo, Hi).
type Slice struct {
	Migration  chunk.MigrationID
	Collection string
	Number     int
	Lo, Hi     bson.Raw // {_id: value}, of any type; nil is open
	State      State
	Object     Object // zero while planned
}

// Object is what is remembered of a stored slice.
type Object struct {
	Key       string // of the documents; the manifest is beside it, see [ManifestKey]
	Documents Documents
	Bytes     Bytes
	Hash      []byte         // SHA-256 of the documents as they stand in the object, uncompressed
	From, To  bson.Timestamp // the window around the snapshot: events at or before From are in it, events after To are not
}

// String names a slice in errors.
func (s Slice) String() string {
	return fmt.Sprintf("slice %d of %s (migration %d)", s.Number, s.Collection, s.Migration)
}

// Slices remembers slices durably. The state of a slice is decided there and
// nowhere else.
type Slices interface {
	// Plan records the slices of a collection unless it has some, and returns
	// what is recorded then, in order of Number.
	Plan(ctx context.Context, m chunk.MigrationID, collection string, plan []Slice) ([]Slice, error)
	// Stored takes a planned slice to stored, in one step with what its read
	// left: done.Hi may lie below the planned one, and rest, when not nil, is
	// recorded as planned under a Number that is new in the collection. A slice
	// that is not planned any more is refused.
	Stored(ctx context.Context, done Slice, rest *Slice) error
	// Loaded takes all stored slices of a collection to loaded; it is refused
	// while one is planned, and does nothing the second time.
	Loaded(ctx context.Context, m chunk.MigrationID, collection string) error
	// List gives all slices of a migration in order of collection and Number.
	List(ctx context.Context, m chunk.MigrationID) ([]Slice, error)
}

// bound gives the value of a slice's boundary; ok is false for an open one.
func bound(b bson.Raw) (v bson.RawValue, ok bool) {
	if len(b) == 0 {
		return v, false
	}
	v, err := b.LookupErr("_id")
	return v, err == nil
}

// boundOf makes a boundary of an _id.
func boundOf(id bson.RawValue) (bson.Raw, error) {
	b, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
	if err != nil {
		return nil, fmt.Errorf("encode boundary: %w", err)
	}
	return b, nil
}

// Holding gives the slice of a collection that an _id belongs to.
func Holding(all []Slice, collection string, id bson.RawValue) (s Slice, ok bool, err error) {
	key, err := chunk.EncodeValue(id)
	if err != nil {
		return s, false, fmt.Errorf("slice of a document of %s: %w", collection, err)
	}
	for _, s := range all {
		if s.Collection != collection {
			continue
		}
		within, err := s.keyRange()
		if err != nil {
			return s, false, err
		}
		if key >= within.Lo && key < within.Hi {
			return s, true, nil
		}
	}
	return Slice{}, false, nil
}

// keyRange gives a slice's range in the order of _id.
func (s Slice) keyRange() (chunk.Range, error) {
	r := chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}
	for _, side := range []struct {
		raw bson.Raw
		key *chunk.Key
	}{{s.Lo, &r.Lo}, {s.Hi, &r.Hi}} {
		v, ok := bound(side.raw)
		if !ok {
			continue
		}
		k, err := chunk.EncodeValue(v)
		if err != nil {
			return r, fmt.Errorf("boundary of %s: %w", s, err)
		}
		*side.key = k
	}
	return r, nil
}
