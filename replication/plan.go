package replication

import (
	"bytes"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
)

// docKey names a document of the placement; equal _ids have one key whatever
// their numeric type.
type docKey string

// keyOf gives the key of a document.
func keyOf(collection string, id bson.RawValue) (docKey, error) {
	k, err := chunk.EncodeValue(id)
	if err != nil {
		return "", fmt.Errorf("key of a document of %s: %w", collection, err)
	}
	return docKey(collection + "\x00" + string(k)), nil
}

// change is one event on a document, and how it is to be applied.
type change struct {
	event   *event.Event
	at      int // in the batch
	lenient bool
	counted bool // see [Checkpoint].Foreign
}

// way says how a document's new image gets onto the target.
type way uint8

const (
	inPlace way = iota // replaced where it is, inserted when it is new
	anew               // deleted first and inserted last: its unique keys change hands within the batch
	around             // likewise, but inserted with another value in place of the key and then replaced
	aside              // deleted, and its image parked: another document holds a key of it
)

// document is what a batch does to one document. The second part is worked out
// by each attempt anew.
type document struct {
	collection string
	key        docKey
	id         bson.RawValue // as the events have it; the target's may be of another numeric type
	changes    []change
	probe      bool // its image is read; otherwise it is taken to be missing
	way        way
	apart      bool        // it broke an index of which a joined write does not tell
	holder     *conflict   // the unique index that it broke last
	keep       *chunk.Keep // what the target is to have; nil: all

	old    bson.Raw // the image on the target; nil: none
	parked bool     // it is among the parked ones, and its image is the parked one if old is nil
	was    bson.Raw // old, or the parked image
	now    bson.Raw // nil: none
	missed int      // strict deletes of nothing

	deltas, foreign int // see [Checkpoint].Foreign
}

// stopError is an event that the lane cannot go past.
type stopError struct {
	at     int // in the batch
	code   string
	reason string
	poison bool // not understood, as opposed to not fitting
}

func (e *stopError) Error() string { return e.code + ": " + e.reason }

// splitError says that the batch is too large for one transaction.
type splitError struct{ bytes int }

func (e *splitError) Error() string {
	return fmt.Sprintf("the batch's documents have %d bytes", e.bytes)
}

// group sorts a batch's events by document. Events that the import's copy
// already has are left out.
func (l *Lane) group(b *batch) ([]*document, error) {
	byKey := make(map[docKey]*document, len(b.items))
	docs := make([]*document, 0, len(b.items))
	for i, it := range b.items {
		e := it.event
		id := e.ID()
		key, err := keyOf(e.Collection, id)
		if err != nil {
			return nil, &stopError{at: i, code: "lane.poison", reason: "its documentKey has no valid _id", poison: true}
		}
		lenient, skip, err := l.rule(e, id, i)
		if err != nil {
			return nil, err
		}
		if skip {
			continue
		}
		d := byKey[key]
		if d == nil {
			d = &document{collection: e.Collection, key: key, id: id, keep: l.cfg.Direction.Keep}
			// A strict insert says that there is no document yet.
			d.probe = lenient || e.Op != event.Insert || l.parked.has(key)
			byKey[key] = d
			docs = append(docs, d)
		}
		d.changes = append(d.changes, change{
			event: e, at: i, lenient: lenient,
			counted: d.keep != nil && e.Op == event.Update && e.ClusterTime.After(l.cfg.Direction.Settled),
		})
	}
	return docs, nil
}

// rule says how an event is applied: not at all, leniently or strictly.
func (l *Lane) rule(e *event.Event, id bson.RawValue, at int) (lenient, skip bool, err error) {
	if l.cfg.Windows == nil {
		return false, false, nil
	}
	w, ok := l.cfg.Windows.Window(e.Collection, id)
	switch {
	case !ok:
		return false, false, &stopError{at: at, code: "lane.no_slice", reason: "no slice of the import holds its _id"}
	case !e.ClusterTime.After(w.Lo):
		return false, true, nil
	default:
		return !e.ClusterTime.After(w.Hi), false, nil
	}
}

// resolve folds the document's events onto its image.
func (d *document) resolve(opts FoldOptions) error {
	d.now, d.missed, d.deltas, d.foreign = nil, 0, 0, 0
	var img *Image
	if d.was != nil {
		var err error
		if img, err = NewImage(d.was); err != nil {
			return &stopError{at: d.changes[0].at, code: "lane.poison", reason: "the target's document is not valid BSON", poison: true}
		}
	}
	for _, c := range d.changes {
		var err error
		if img, err = d.take(img, c, opts); err != nil {
			return err
		}
	}
	if img == nil {
		return nil
	}
	raw, err := img.Raw()
	if err != nil {
		return d.poison(d.changes[len(d.changes)-1], err)
	}
	kept, err := d.keeps(raw)
	if err != nil {
		return d.poison(d.changes[len(d.changes)-1], err)
	}
	if kept {
		d.now = raw
	}
	return nil
}

// take applies one event to the image; nil stands for no document.
func (d *document) take(img *Image, c change, opts FoldOptions) (*Image, error) {
	e := c.event
	switch e.Op {
	case event.Insert, event.Replace:
		return d.takeWhole(img, c)
	case event.Update:
		if c.counted {
			d.deltas++
		}
		if img == nil {
			return nil, d.takeNothing(c)
		}
		opts.Lenient = c.lenient
		if err := img.Apply(e.Change, opts); err != nil {
			return nil, d.poison(c, err)
		}
		return img, nil
	case event.Delete:
		if img == nil && !c.lenient {
			d.missed++
		}
		return nil, nil //nolint:nilnil // no document any more
	case event.Mark:
	}
	return nil, d.poison(c, fmt.Errorf("an event %q has no place here", e.Op))
}

// takeWhole applies an event that brings the whole document.
func (d *document) takeWhole(img *Image, c change) (*Image, error) {
	e := c.event
	whole, err := NewImage(e.Document)
	if err != nil {
		return nil, d.poison(c, err)
	}
	if key, err := keyOf(d.collection, bson.Raw(e.Document).Lookup("_id")); err != nil || key != d.key {
		return nil, d.poison(c, errors.New("its document has another _id than its documentKey"))
	}
	kept, err := d.keeps(e.Document)
	if err != nil {
		return nil, d.poison(c, err)
	}
	switch {
	case c.lenient:
	case e.Op == event.Replace && !kept: // it is another target's, or becomes so
	case e.Op == event.Replace && img == nil && d.keep != nil: // it was another target's until now
	case e.Op == event.Replace && img == nil:
		return nil, d.diverged(c, "lane.missing_document", "the document to be replaced is not on the target")
	case e.Op == event.Insert && img != nil:
		if had, err := img.Raw(); err != nil || !bytes.Equal(had, e.Document) {
			return nil, d.diverged(c, "lane.document_exists", "the document to be inserted is on the target already, and differs")
		}
	}
	if !kept {
		return nil, nil //nolint:nilnil // not here
	}
	return whole, nil
}

// keeps reports whether the target is to have the document.
func (d *document) keeps(raw bson.Raw) (bool, error) {
	if d.keep == nil {
		return true, nil
	}
	return d.keep.Has(d.collection, raw) //nolint:wrapcheck // says what it is about
}

// takeNothing deals with an update whose document the target does not have. A leg
// of a split takes it for another target's; that one of them has it is proven
// by [Checkpoint].Foreign. One that may bring the document into this target's
// range does not carry it whole and cannot be applied.
func (d *document) takeNothing(c change) error {
	switch {
	case c.lenient:
		return nil // the copy is newer: the document is gone there already
	case d.keep == nil:
		return d.diverged(c, "lane.missing_document", "the document to be changed is not on the target")
	}
	enters, err := enters(d.keep, d.collection, c.event.Change)
	switch {
	case err != nil:
		return d.poison(c, err)
	case enters:
		return d.diverged(c, "lane.shard_key_changed", "an update changes the shard key of a document that another target has")
	}
	if c.counted {
		d.foreign++
	}
	return nil
}

func (d *document) diverged(c change, code, reason string) error {
	return &stopError{at: c.at, code: code, reason: reason}
}

func (d *document) poison(c change, err error) error {
	return &stopError{at: c.at, code: "lane.poison", reason: err.Error(), poison: true}
}

// failure gives the error that stops the lane at e.
func (e *stopError) failure(id string, ev *event.Event) error {
	f := failure.New(failure.Mismatch, e.code, "lane %s at %s: %s", id, describe(ev), e.reason)
	if e.poison {
		return f.WithHint("the event is kept in the quarantine: compare the document on both shards, then import its slice anew")
	}
	return f.WithHint("source and target differ: compare the document on both shards, then import its slice anew")
}
