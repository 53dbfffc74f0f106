package bulkimport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
)

// snapshot is what one read of a slice gave.
type snapshot struct {
	docs     []bson.Raw
	bytes    Bytes
	from, to bson.Timestamp
	next     bson.Raw // where the read was cut, nil when it came to the end
}

// taker takes documents into a snapshot in the order of _id until a limit.
type taker struct {
	snapshot
	c      collection
	slice  Slice
	within chunk.Range
	limits Limits
	until  time.Time
	last   chunk.Key
	keep   *chunk.Keep // nil: all
	seen   Documents   // with those that are not kept
}

// take puts doc into the snapshot, or cuts the slice before it and wants no
// more. It checks that _id ascends within the slice: every later step leans on
// that.
func (t *taker) take(doc bson.Raw) (more bool, err error) {
	id, err := doc.LookupErr("_id")
	if err != nil {
		return false, fmt.Errorf("document without _id in %s: %w", t.slice, err)
	}
	key, err := chunk.EncodeValue(id)
	if err != nil {
		return false, fmt.Errorf("_id in %s: %w", t.slice, err)
	}
	if key < t.within.Lo || key >= t.within.Hi || t.seen > 0 && key <= t.last {
		return false, failure.New(failure.Invalid, "import.unordered", "%s: the server does not return %v in MongoDB's order of _id", t.slice, id).
			WithHint("_id values of these types cannot be moved from this server")
	}
	t.last = key
	size := Bytes(len(doc))
	n := Documents(len(t.docs))
	full := n > 0 && (n >= t.limits.Documents || t.bytes+size > t.limits.Bytes) || t.seen > 0 && time.Now().After(t.until)
	if full && t.c.divides(id) {
		t.next, err = boundOf(id)
		return false, err
	}
	t.seen++
	if t.keep != nil {
		if kept, err := t.keep.Has(t.slice.Collection, doc); err != nil || !kept {
			return err == nil, err
		}
	}
	t.docs = append(t.docs, doc)
	t.bytes += size
	return true, nil
}

// perTurn is how many documents a turn is to bring, by the size of those before.
func (t *taker) perTurn() int32 {
	if t.bytes == 0 {
		return firstTurn
	}
	return int32(min(turnDocuments, max(1, turnBytes*Bytes(len(t.docs))/t.bytes)))
}

// newTaker gives a taker for a slice.
func newTaker(c collection, s Slice, limits Limits, keep *chunk.Keep) (*taker, error) {
	within, err := s.keyRange()
	return &taker{c: c, slice: s, within: within, limits: limits, keep: keep, until: time.Now().Add(limits.Snapshot)}, err
}

// collect drains a cursor into memory until a limit.
func collect(ctx context.Context, turns turns, cursor *mongo.Cursor, c collection, s Slice, limits Limits, keep *chunk.Keep) (snapshot, error) {
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	t, err := newTaker(c, s, limits, keep)
	if err != nil {
		return snapshot{}, err
	}
	for turns.next(ctx, cursor, t.perTurn()) {
		if more, err := t.take(slices.Clone(cursor.Current)); err != nil || !more {
			return t.snapshot, err
		}
	}
	if err := cutOff(ctx, cursor); err != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", s, err)
	}
	return t.snapshot, nil
}

// collectUnordered is collect for a server that does not sort: the whole slice
// is read before it can be cut.
func collectUnordered(ctx context.Context, turns turns, cursor *mongo.Cursor, c collection, s Slice, limits Limits, keep *chunk.Keep) (snapshot, error) {
	t, err := newTaker(c, s, limits, keep)
	if err != nil {
		return snapshot{}, err
	}
	var docs []bson.Raw
	for turns.next(ctx, cursor, firstTurn) {
		docs = append(docs, slices.Clone(cursor.Current))
	}
	if err := errors.Join(cutOff(ctx, cursor), cursor.Close(context.WithoutCancel(ctx))); err != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", s, err)
	}
	entries := make([]entry, len(docs))
	for n, doc := range docs {
		key, err := Order{}.Key(doc)
		if err != nil {
			return snapshot{}, fmt.Errorf("read %s: %w", s, err)
		}
		entries[n] = entry{key, doc}
	}
	slices.SortFunc(entries, func(a, b entry) int { return compareKeys(a.key, b.key) })
	for _, e := range entries {
		if more, err := t.take(e.doc); err != nil || !more {
			return t.snapshot, err
		}
	}
	return t.snapshot, nil
}
