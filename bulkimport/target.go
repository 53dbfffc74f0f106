package bulkimport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/xoptions"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// Target is the placement that is loaded.
type Target struct {
	Client   *mongo.Client // as [chunk.LoaderUser]
	Database string        // the physical one
	// KeepsEmptyTimestamps is [chunk.Capabilities].KeepsEmptyTimestamps: without
	// it documents with an empty timestamp at the top are put right after they
	// are inserted.
	KeepsEmptyTimestamps bool
	// Keep says which documents are this import's; nil stands for all. Others come
	// from other sources of a merge, and are never touched.
	Keep *chunk.Keep
}

// batch is what goes to the target in one command.
type batch struct {
	docs  []bson.Raw
	bytes Bytes
	share float64 // of what is small, see [piece]
}

// Bounds of a batch: large enough to cost little, and small enough that several
// of them are a small part of any cache and hold up nobody for long; well below a server's maxMessageSizeBytes (48 MB) and
// maxWriteBatchSize (100,000). One document may be larger than batchBytes.
const (
	batchDocuments = 1_000
	batchBytes     = 2 * MiB

	smallDocuments = 200
	smallBytes     = 256 * KiB
)

// takes reports whether doc may go into the batch.
func (b *batch) takes(doc bson.Raw) bool {
	documents, bytes := batchDocuments, batchBytes
	if b.share > 0 {
		documents, bytes = int(partOf(smallDocuments, b.share)), Bytes(b.share*float64(smallBytes))
	}
	return len(b.docs) == 0 || len(b.docs) < documents && b.bytes+Bytes(len(doc)) <= bytes
}

// add puts doc into the batch.
func (b *batch) add(doc bson.Raw) {
	b.docs = append(b.docs, doc)
	b.bytes += Bytes(len(doc))
}

// reset empties the batch.
func (b *batch) reset() { b.docs, b.bytes = b.docs[:0], 0 }

// collection gives the target's collection, writing with majority.
func (t Target) collection(name string) *mongo.Collection {
	return t.Client.Database(t.Database).Collection(name, options.Collection().SetWriteConcern(writeconcern.Majority()))
}

// insert loads a batch and returns how many of its documents were parked. It may
// be called again with the same documents, whatever became of the first call.
func (t Target) insert(ctx context.Context, m chunk.MigrationID, name string, docs []bson.Raw) (parked Documents, err error) {
	opts := options.InsertMany().SetOrdered(false).SetBypassDocumentValidation(true)
	if t.KeepsEmptyTimestamps {
		if err := xoptions.SetInternalInsertManyOptions(opts, "addCommandFields",
			bson.D{{Key: "bypassEmptyTsReplacement", Value: true}}); err != nil {
			return 0, fmt.Errorf("prepare insert: %w", err)
		}
	}
	any := make([]any, len(docs))
	for i, doc := range docs {
		any[i] = doc
	}
	_, err = t.collection(name).InsertMany(ctx, any, opts)
	if err == nil {
		return 0, t.restoreTimestamps(ctx, name, docs)
	}
	if refused, ok := errors.AsType[mongo.CommandError](err); ok && refused.Code == mongocode.DuplicateKey && len(docs) > 1 {
		return t.insertHalves(ctx, m, name, docs)
	}
	duplicates, err := duplicatesOnly(err, len(docs))
	if err != nil {
		return 0, fmt.Errorf("insert into %s.%s: %w", t.Database, name, brief(err))
	}
	left, err := t.unlikePresent(ctx, name, docs, duplicates)
	if err != nil {
		return 0, err
	}
	for _, d := range left {
		if err := t.park(ctx, m, name, docs[d.Index], d); err != nil {
			return 0, err
		}
	}
	return Documents(len(left)), t.restoreTimestamps(ctx, name, docs)
}

// insertHalves loads a batch that was refused as a whole, for one document that it
// does not name.
func (t Target) insertHalves(ctx context.Context, m chunk.MigrationID, name string, docs []bson.Raw) (parked Documents, err error) {
	for _, half := range [][]bson.Raw{docs[:len(docs)/2], docs[len(docs)/2:]} {
		n, err := t.insert(ctx, m, name, half)
		parked += n
		if err != nil {
			return parked, err
		}
	}
	return parked, nil
}

// duplicatesOnly gives the broken unique indexes that an insert of so many documents
// met, or the error when it met anything else.
func duplicatesOnly(err error, docs int) ([]mongocode.Duplicate, error) {
	if _, ok := errors.AsType[mongo.CommandError](err); ok && docs == 1 && mongocode.IsDuplicateKey(err) {
		return mongocode.Duplicates(err), nil
	}
	bulk, ok := errors.AsType[mongo.BulkWriteException](err)
	if !ok || bulk.WriteConcernError != nil {
		return nil, err
	}
	duplicates := mongocode.Duplicates(err)
	if len(duplicates) != len(bulk.WriteErrors) {
		return nil, err
	}
	return duplicates, nil
}

// unlikePresent checks the documents that met a duplicate: one whose _id is on
// the target must be there as it is, for nobody else writes before the lanes
// start. The others, whose _id is free, are returned.
func (t Target) unlikePresent(ctx context.Context, name string, docs []bson.Raw, duplicates []mongocode.Duplicate) ([]mongocode.Duplicate, error) {
	ids := make(bson.A, 0, len(duplicates))
	for _, d := range duplicates {
		ids = append(ids, docs[d.Index].Lookup("_id"))
	}
	cursor, err := t.collection(name).Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
	if err != nil {
		return nil, fmt.Errorf("look duplicates up in %s.%s: %w", t.Database, name, brief(err))
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	present := map[chunk.Key]bson.Raw{}
	for cursor.Next(ctx) {
		key, err := chunk.EncodeValue(cursor.Current.Lookup("_id"))
		if err != nil {
			return nil, fmt.Errorf("_id of a duplicate in %s.%s: %w", t.Database, name, err)
		}
		present[key] = append(bson.Raw(nil), cursor.Current...)
	}
	if err := cursor.Err(); err != nil {
		return nil, fmt.Errorf("look duplicates up in %s.%s: %w", t.Database, name, brief(err))
	}
	var left []mongocode.Duplicate
	for _, d := range duplicates {
		doc := docs[d.Index]
		key, err := chunk.EncodeValue(doc.Lookup("_id"))
		if err != nil {
			return nil, fmt.Errorf("_id of a duplicate in %s.%s: %w", t.Database, name, err)
		}
		found, ok := present[key]
		switch {
		case !ok && d.OnID():
			return nil, failure.New(failure.Mismatch, "import.foreign_document", "%s.%s: _id %v is taken by a document that is not there under it",
				t.Database, name, doc.Lookup("_id")).WithHint("the collation of the target's collection is not the source's")
		case !ok:
			left = append(left, d)
		case !sameButTimestamps(found, doc):
			return nil, failure.New(failure.Mismatch, "import.foreign_document", "%s.%s holds another document with _id %v",
				t.Database, name, doc.Lookup("_id")).WithHint("somebody else wrote to the new placement: abort the migration and start another one")
		}
	}
	return left, nil
}

// park keeps a document whose unique value another one holds, in the form in
// which lanes keep theirs: they put it in its place as soon as that is free.
func (t Target) park(ctx context.Context, m chunk.MigrationID, name string, doc bson.Raw, d mongocode.Duplicate) error {
	id := bson.D{{Key: "m", Value: int64(m)}, {Key: "c", Value: name}, {Key: "id", Value: doc.Lookup("_id")}}
	image := bson.D{{Key: "_id", Value: id}, {Key: "migration", Value: int64(m)}, {Key: "doc", Value: bson.Binary{Data: doc}}}
	if d.Pattern != nil {
		image = append(image, bson.E{Key: "index", Value: d.Pattern})
	}
	if d.Value != nil {
		image = append(image, bson.E{Key: "key", Value: d.Value})
	}
	image = append(image, bson.E{Key: "at", Value: time.Now()})
	collection := t.Client.Database(chunk.SystemDatabase).
		Collection(chunk.ParkedCollection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	_, err := collection.ReplaceOne(ctx, bson.D{{Key: "_id", Value: id}}, image, options.Replace().SetUpsert(true))
	if err != nil && !mongocode.IsDuplicateKey(err) { // another call parked it at the same moment
		return fmt.Errorf("park a document of %s.%s: %w", t.Database, name, brief(err))
	}
	return nil
}

// restoreTimestamps puts documents right in which the server replaced an empty
// timestamp at the top by its own time.
func (t Target) restoreTimestamps(ctx context.Context, name string, docs []bson.Raw) error {
	if t.KeepsEmptyTimestamps {
		return nil
	}
	for _, doc := range docs {
		if !hasEmptyTimestamp(doc) {
			continue
		}
		_, err := t.collection(name).UpdateOne(ctx, bson.D{{Key: "_id", Value: doc.Lookup("_id")}},
			bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$literal", Value: doc}}}}},
			options.UpdateOne().SetBypassDocumentValidation(true))
		if err != nil {
			return fmt.Errorf("restore the empty timestamp of a document of %s.%s: %w", t.Database, name, brief(err))
		}
	}
	return nil
}

// isEmptyTimestamp reports whether e is Timestamp(0, 0) in a field that a server
// replaces: any at the top but _id.
func isEmptyTimestamp(e bson.RawElement) bool {
	if bson.Type(e[0]) != bson.TypeTimestamp || e.Key() == "_id" {
		return false
	}
	t, i := e.Value().Timestamp()
	return t == 0 && i == 0
}

// hasEmptyTimestamp reports whether a server might change doc at insert.
func hasEmptyTimestamp(doc bson.Raw) bool {
	if !bytes.Contains(doc, make([]byte, 8)) {
		return false
	}
	elements, err := doc.Elements()
	if err != nil {
		return false
	}
	for _, e := range elements {
		if isEmptyTimestamp(e) {
			return true
		}
	}
	return false
}

// sameButTimestamps reports whether found is doc, empty timestamps that a server
// replaced aside.
func sameButTimestamps(found, doc bson.Raw) bool {
	if bytes.Equal(found, doc) {
		return true
	}
	if len(found) != len(doc) || !hasEmptyTimestamp(doc) {
		return false
	}
	want, err := doc.Elements()
	if err != nil {
		return false
	}
	have, err := found.Elements()
	if err != nil || len(have) != len(want) {
		return false
	}
	for i := range want {
		replaced := isEmptyTimestamp(want[i]) && bson.Type(have[i][0]) == bson.TypeTimestamp && have[i].Key() == want[i].Key()
		if !replaced && !bytes.Equal(want[i], have[i]) {
			return false
		}
	}
	return true
}

// clearBatch is how many documents one delete names.
const clearBatch = 500

// clearKept deletes those documents of a slice's range that are this import's.
func (t Target) clearKept(ctx context.Context, c collection, s Slice) error {
	opts := options.Find()
	if c.collated {
		opts.SetCollation(&options.Collation{Locale: "simple"})
	}
	cursor, err := t.collection(s.Collection).Find(ctx, idFilter(s.Lo, s.Hi), opts)
	if err != nil {
		return fmt.Errorf("read %s of %s: %w", s, t.Database, brief(err))
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	var ids bson.A
	remove := func() error {
		if len(ids) == 0 {
			return nil
		}
		_, err := t.collection(s.Collection).DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
		ids = nil
		return brief(err)
	}
	for cursor.Next(ctx) {
		kept, err := t.Keep.Has(s.Collection, cursor.Current)
		if err != nil {
			return err //nolint:wrapcheck // says what it is about
		}
		if !kept {
			continue
		}
		id := cursor.Current.Lookup("_id")
		ids = append(ids, bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)})
		if len(ids) >= clearBatch {
			if err := remove(); err != nil {
				return fmt.Errorf("delete from %s of %s: %w", s, t.Database, err)
			}
		}
	}
	if err := errors.Join(brief(cursor.Err()), remove()); err != nil {
		return fmt.Errorf("delete from %s of %s: %w", s, t.Database, err)
	}
	return nil
}

// clearing says what goes before a slice is read.
type clearing uint8

const (
	keepTarget clearing = iota // nothing was loaded yet
	clearSlice                 // other slices are loaded, and lanes have changed them since
	clearWhole                 // the load begins anew, and parks again what it parked
)

// clear deletes the documents of a slice's range, before a slice that was read
// anew is loaded, and the parked ones that would come into their place.
func (t Target) clear(ctx context.Context, c collection, s Slice, what clearing) error {
	opts := options.DeleteMany()
	if c.collated {
		opts.SetCollation(&options.Collation{Locale: "simple"})
	}
	if t.Keep != nil {
		if err := t.clearKept(ctx, c, s); err != nil {
			return err
		}
	} else if _, err := t.collection(s.Collection).DeleteMany(ctx, idFilter(s.Lo, s.Hi), opts); err != nil {
		return fmt.Errorf("delete %s from %s: %w", s, t.Database, brief(err))
	}
	if err := t.clearParked(ctx, s, what); err != nil {
		return fmt.Errorf("delete parked documents of %s: %w", s, brief(err))
	}
	return nil
}

// clearParked deletes the parked documents of a slice, or of its whole collection.
func (t Target) clearParked(ctx context.Context, s Slice, what clearing) error {
	parked := t.Client.Database(chunk.SystemDatabase).
		Collection(chunk.ParkedCollection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	filter := bson.D{{Key: "_id.m", Value: int64(s.Migration)}, {Key: "_id.c", Value: s.Collection}}
	if what == clearWhole {
		_, err := parked.DeleteMany(ctx, filter)
		return err
	}
	cursor, err := parked.Find(ctx, filter, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return err
	}
	var all []bson.Raw
	if err := cursor.All(ctx, &all); err != nil {
		return err
	}
	within, err := s.keyRange()
	if err != nil {
		return err
	}
	for _, p := range all {
		key, err := chunk.EncodeValue(p.Lookup("_id", "id"))
		if err != nil {
			return err
		}
		if key < within.Lo || key >= within.Hi {
			continue
		}
		if _, err := parked.DeleteOne(ctx, bson.D{{Key: "_id", Value: p.Lookup("_id")}}); err != nil {
			return err
		}
	}
	return nil
}
