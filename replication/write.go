package replication

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// A command holds at most so many documents and bytes: below the server's
// limit of a command, which is that of one document.
const (
	commandDocs  = 1000
	commandBytes = 12 << 20
)

// readDocs is how many documents one find reads: some servers compare each _id
// with each of a long list.
const readDocs = 200

// conflict is a document that broke a unique index.
type conflict struct {
	doc     *document
	pattern bson.Raw // nil where the server does not say
	value   bson.Raw
	onID    bool
	vague   bool // a command of its kind alone would say more
	stays   bool // no index: the server does not replace this document
	cause   error
}

func (c *conflict) Error() string {
	return fmt.Sprintf("a document of %s breaks the unique index %s", c.doc.collection, indexName(c.pattern))
}

// fetch gets the images of the documents that are probed, in the transaction.
// One that is not in its collection may be parked.
func (l *Lane) fetch(ctx context.Context, docs []*document) error {
	probed := map[string][]*document{}
	for _, d := range docs {
		d.old, d.was, d.parked = nil, nil, false
		if d.probe {
			probed[d.collection] = append(probed[d.collection], d)
		}
	}
	size := 0
	for collection, ds := range probed {
		n, err := l.readImages(ctx, collection, ds)
		if err != nil {
			return err
		}
		size += n
	}
	if size > l.cfg.Limits.ImageBytes && len(docs) > 1 {
		return &splitError{bytes: size}
	}
	return l.readParked(ctx, docs)
}

// readImages reads documents of one collection.
//
// The filter names no collation: a collection's _id index has the collection's
// own, and with another one each filter would scan. What the index takes for
// equal and bytes do not is told apart here, by the key.
func (l *Lane) readImages(ctx context.Context, collection string, docs []*document) (int, error) {
	size := 0
	for len(docs) > 0 {
		part := docs[:min(len(docs), readDocs)]
		docs = docs[len(part):]
		byKey := make(map[docKey]*document, len(part))
		ids := make(bson.A, len(part))
		for i, d := range part {
			byKey[d.key], ids[i] = d, d.id
		}
		cur, err := l.cfg.Target.Database(l.cfg.Direction.Target.Database).Collection(collection).Find(ctx,
			bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}},
			options.Find().SetBatchSize(int32(len(part)+1))) //nolint:gosec // at most commandDocs
		if err != nil {
			return 0, fmt.Errorf("read %d documents of %s: %w", len(part), collection, err)
		}
		for cur.Next(ctx) {
			key, err := keyOf(collection, cur.Current.Lookup("_id"))
			if err != nil {
				return 0, err
			}
			if d := byKey[key]; d != nil {
				d.old = bytes.Clone(cur.Current)
				d.was = d.old
			}
			size += len(cur.Current)
		}
		if err := cur.Err(); err != nil {
			return 0, fmt.Errorf("read %d documents of %s: %w", len(part), collection, err)
		}
	}
	return size, nil
}

// writes are the commands of one collection, in the order in which they run:
// keys are released before they are taken.
type writes struct {
	collection string

	deletes  []*document
	replaces []*document
	inserts  []*document
	last     []*document // inserts of documents that change keys among each other
	literal  []*document // inserted ones that are not yet stored as they are
}

// write moves the checkpoint and brings the documents' new images onto the target, in
// the transaction.
func (l *Lane) write(ctx context.Context, g goal, docs []*document) error {
	joins := l.joins(docs)
	l.handOver(docs)
	var commands []command
	for _, w := range sorted(docs, l.cfg.KeepsEmptyTimestamps && !joins) {
		commands = append(commands, w.commands()...)
	}
	if joins && len(commands) > 0 {
		if err := l.writeJoined(ctx, g, commands); err != nil {
			return err
		}
	} else if err := l.writeApart(ctx, g, commands); err != nil {
		return err
	}
	return l.writeParked(ctx, docs)
}

// sorted gives the writes of each collection, in the order in which they are met.
func sorted(docs []*document, keepsEmptyTimestamps bool) []*writes {
	var all []*writes
	byCollection := map[string]*writes{}
	for _, d := range docs {
		w := byCollection[d.collection]
		if w == nil {
			w = &writes{collection: d.collection}
			byCollection[d.collection] = w
			all = append(all, w)
		}
		w.add(d, keepsEmptyTimestamps)
	}
	return all
}

// unchanged reports whether the target has nothing to write: it is what it is to be.
func (d *document) unchanged() bool {
	return (d.old != nil || d.was == nil) && bytes.Equal(d.old, d.now) && d.way != aside
}

// add sorts in one document.
func (w *writes) add(d *document, keepsEmptyTimestamps bool) {
	if d.unchanged() {
		return
	}
	replace := d.old != nil && d.now != nil && d.way == inPlace && sameID(d.old, d.now)
	if d.old != nil && !replace {
		w.deletes = append(w.deletes, d)
	}
	if d.now == nil || d.way == aside {
		return
	}
	switch {
	case replace:
		w.replaces = append(w.replaces, d)
		return
	case d.way == around:
		w.last, w.literal = append(w.last, d), append(w.literal, d)
		return
	case d.way == anew || d.old == nil && d.parked:
		w.last = append(w.last, d)
	default:
		w.inserts = append(w.inserts, d)
	}
	if !keepsEmptyTimestamps && hasEmptyTimestamp(d.now) {
		w.literal = append(w.literal, d)
	}
}

// sameID reports whether two images have the very same _id. The server lets no
// update change 1 to 1.0.
func sameID(old, now bson.Raw) bool {
	a, b := old.Lookup("_id"), now.Lookup("_id")
	return a.Type == b.Type && bytes.Equal(a.Value, b.Value)
}

// plain reports whether the server stores raw as it is when it comes as a
// replacement: no name at the top looks like an operator, and no timestamp there
// would be filled in.
func plain(raw bson.Raw) bool {
	operator := false
	eachField(raw, func(f *field) { operator = operator || f.name != "" && f.name[0] == '$' })
	return !operator && !hasEmptyTimestamp(raw)
}

// replacement is the update that makes a document what raw says.
func replacement(raw bson.Raw) any {
	if plain(raw) {
		return raw
	}
	return bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$literal", Value: raw}}}}}
}

// hasEmptyTimestamp reports whether the server would fill in a timestamp of raw:
// it does so at the top of a document, where both parts are zero.
func hasEmptyTimestamp(raw bson.Raw) bool {
	empty := false
	eachField(raw, func(f *field) {
		empty = empty || f.kind == typeTimestamp && f.name != "_id" && binary.LittleEndian.Uint64(f.raw) == 0
	})
	return empty
}

// eachField calls fn for each field at the top of a valid document.
func eachField(raw bson.Raw, fn func(*field)) {
	body, err := documentBody(raw)
	for err == nil && len(body) > 0 {
		var f field
		if f, body, err = nextField(body); err == nil {
			fn(&f)
		}
	}
}

// command is one command of a collection, as far as it may be long.
type command struct {
	collection string
	name, list string
	docs       []*document
	entry      func(*document) any
}

// commands are those of one collection that have something to do.
func (w *writes) commands() []command {
	return slices.DeleteFunc([]command{
		{w.collection, "delete", "deletes", w.deletes, func(d *document) any {
			return bson.D{{Key: "q", Value: byID(d.old)}, {Key: "limit", Value: int32(1)}}
		}},
		{w.collection, "update", "updates", w.replaces, func(d *document) any {
			return bson.D{{Key: "q", Value: byID(d.old)}, {Key: "u", Value: replacement(d.now)}}
		}},
		{w.collection, "insert", "documents", w.inserts, (*document).inserted},
		{w.collection, "insert", "documents", w.last, (*document).inserted},
		{w.collection, "update", "updates", w.literal, func(d *document) any {
			return bson.D{{Key: "q", Value: byID(d.now)}, {Key: "u", Value: replacement(d.now)}}
		}},
	}, func(c command) bool { return len(c.docs) == 0 })
}

// writeApart runs each command by itself, the checkpoint's first.
func (l *Lane) writeApart(ctx context.Context, g goal, commands []command) error {
	if err := l.advance(ctx, g, false); err != nil {
		return err
	}
	if err := l.point(ctx, "lane.checkpoint"); err != nil {
		return err
	}
	for _, c := range commands {
		for docs := c.docs; len(docs) > 0; {
			n := commandLength(docs)
			entries := make(bson.A, n)
			for i, d := range docs[:n] {
				entries[i] = c.entry(d)
			}
			if err := l.writeSome(ctx, c, docs[:n], entries); err != nil {
				return err
			}
			docs = docs[n:]
		}
	}
	return nil
}

// inserted is what an insert of the document brings.
func (d *document) inserted() any {
	if d.way == around {
		return standIn(d.now, d.holder.pattern)
	}
	return d.now
}

// byID is the filter of a document that was read, or written, in this transaction.
func byID(raw bson.Raw) bson.D { return bson.D{{Key: "_id", Value: raw.Lookup("_id")}} }

// commandLength tells how many of docs go into one command.
func commandLength(docs []*document) int {
	size := 0
	for i, d := range docs {
		size += len(d.now) + 512
		if i > 0 && (i >= commandDocs || size > commandBytes) {
			return i
		}
	}
	return len(docs)
}

// writeSome runs one command.
func (l *Lane) writeSome(ctx context.Context, c command, docs []*document, entries bson.A) error {
	cmd := bson.D{{Key: c.name, Value: c.collection}, {Key: c.list, Value: entries}, {Key: "ordered", Value: true}}
	if c.name != "delete" {
		cmd = append(cmd, bson.E{Key: "bypassDocumentValidation", Value: true})
	}
	if c.name == "insert" && l.cfg.KeepsEmptyTimestamps {
		cmd = append(cmd, bson.E{Key: "bypassEmptyTsReplacement", Value: true})
	}
	n, err := l.run(ctx, l.cfg.Direction.Target.Database, cmd)
	if err != nil {
		return unwritten(err, docs, c.name)
	}
	if n != int64(len(docs)) {
		return foreignWrite(c, len(docs), n)
	}
	return nil
}

// unwritten gives the error of a write of docs its meaning.
func unwritten(err error, docs []*document, what string) error {
	if dups := mongocode.Duplicates(err); len(dups) > 0 && dups[0].Index < len(docs) {
		d := dups[0]
		return &conflict{doc: offender(docs, d), pattern: bytes.Clone(d.Pattern), value: bytes.Clone(d.Value), onID: d.OnID()}
	}
	if d, ok := immovable(err, docs); ok {
		return &conflict{doc: d, stays: true, cause: err}
	}
	return fmt.Errorf("%s %d documents of %s: %w", what, len(docs), docs[0].collection, err)
}

// foreignWrite says that documents are not there any more, or are there already.
func foreignWrite(c command, want int, have int64) error {
	return failure.New(failure.Mismatch, "lane.foreign_write", "%s of %d documents of %s met %d", c.name, want, c.collection, have).
		WithHint("somebody else writes to the target placement: find out who, then start the migration again")
}

// unique is a unique index that was broken. From then on documents that change its
// key are deleted before any is inserted again, so that keys can change hands within
// a batch.
type unique struct {
	pattern bson.Raw
	rounds  bool // the server refused an insert of a key that nobody holds: such documents take the way around
}

// unique gives what the lane knows of the index that c tells of.
func (l *Lane) unique(c *conflict) *unique {
	for _, u := range l.uniques[c.doc.collection] {
		if bytes.Equal(u.pattern, c.pattern) {
			return u
		}
	}
	if l.uniques == nil {
		l.uniques = map[string][]*unique{}
	}
	u := &unique{pattern: c.pattern}
	l.uniques[c.doc.collection] = append(l.uniques[c.doc.collection], u)
	return u
}

// keyOf gives the index's key of an image; ok is false where there is no image, and
// where it may have several keys.
func (u *unique) keyOf(image bson.Raw) (key string, ok bool) {
	fields, err := u.pattern.Elements()
	if err != nil || len(image) == 0 {
		return "", false
	}
	var b strings.Builder
	for _, f := range fields {
		v, err := chunk.LookupPath(image, f.Key())
		if err != nil {
			return "", false
		}
		part, err := chunk.EncodeValue(v)
		if err != nil {
			return "", false
		}
		fmt.Fprintf(&b, "%d:%s", len(part), part)
	}
	return b.String(), true
}

// handOver lets documents give up their keys before others take them. All that change
// a key, or take one that another gives up, are found here: each that the server had
// to find would cost a transaction.
func (l *Lane) handOver(docs []*document) {
	for collection, indexes := range l.uniques {
		for _, u := range indexes {
			freed := map[string]bool{}
			for _, d := range docs {
				if d.collection == collection && len(d.old) > 0 {
					u.release(d, freed)
				}
			}
			for _, d := range docs {
				if d.collection != collection || len(d.old) > 0 { // one that keeps its key may have a missing field in common
					continue
				}
				if key, one := u.keyOf(d.now); one && freed[key] {
					u.late(d)
				}
			}
		}
	}
}

// release notes the key that a document gives up, and lets it take its new one late.
func (u *unique) release(d *document, freed map[string]bool) {
	was, one := u.keyOf(d.old)
	now, same := u.keyOf(d.now)
	if one && same && was == now {
		return
	}
	freed[was] = one
	if len(d.now) > 0 {
		u.late(d)
	}
}

// late has a document take its key when all have given up theirs.
func (u *unique) late(d *document) {
	switch {
	case d.way != inPlace && d.way != anew:
	case u.rounds:
		d.way, d.holder = around, &conflict{doc: d, pattern: u.pattern}
	default:
		d.way = anew
	}
}

// offender finds the document that broke a unique index. Inside a transaction a
// server may fail the whole command without an index into it: the document is
// the one whose image has the key that the error names.
func offender(docs []*document, d mongocode.Duplicate) *document {
	if len(d.Pattern) == 0 || len(d.Value) == 0 {
		return docs[d.Index]
	}
	for _, doc := range docs {
		if hasKey(doc.now, d) {
			return doc
		}
	}
	return docs[d.Index]
}

// hasKey reports whether an image has the key of a broken unique index.
func hasKey(image bson.Raw, d mongocode.Duplicate) bool {
	fields, err := d.Pattern.Elements()
	if err != nil || len(image) == 0 {
		return false
	}
	for _, f := range fields {
		want, err := d.Value.LookupErr(f.Key())
		if err != nil {
			return false
		}
		have, err := chunk.LookupPath(image, f.Key())
		if err != nil {
			return false // an array: a multikey index, told by the command's index or not at all
		}
		a, errA := chunk.EncodeValue(have)
		b, errB := chunk.EncodeValue(want)
		if errA != nil || errB != nil || a != b {
			return false
		}
	}
	return true
}

// immutableField is MongoDB's code of that name.
const immutableField = 66

// immovable gives the document that the server refuses to replace because it
// takes its _id for changed. The dev server does so where the _id is MinKey or
// MaxKey.
func immovable(err error, docs []*document) (*document, bool) {
	e, ok := errors.AsType[mongo.WriteException](err)
	if !ok || len(e.WriteErrors) == 0 || e.WriteErrors[0].Code != immutableField || e.WriteErrors[0].Index >= len(docs) {
		return nil, false
	}
	return docs[e.WriteErrors[0].Index], true
}
