package validation

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"drover/internal/mongocode"
)

// Repairer writes the source's image of documents that differ to the target. It
// is for documents that nothing changes while they are compared.
//
// Both sides must still be as they were when they were found to differ, and the
// write is made only if the target's document is what was read: then no lane has
// applied a later change, and every one that comes finds the image that it was
// made for. Whoever calls it compares again.
type Repairer struct {
	Source, Target Side
	Writer         *mongo.Database // the target's, as a user who may write to it
}

// Repair repairs what can be, and gives the number of documents written.
func (r *Repairer) Repair(ctx context.Context, found []Mismatch) (int, error) {
	n := 0
	for _, m := range found {
		id := m.ID.Lookup("_id")
		have, err := one(ctx, r.Target, m.Collection, id)
		if err != nil {
			return n, err
		}
		want, err := one(ctx, r.Source, m.Collection, id)
		if err != nil {
			return n, err
		}
		if hash(have) != m.TargetHash || hash(want) != m.SourceHash {
			continue
		}
		written, err := r.write(ctx, m.Collection, id, have, want)
		if err != nil {
			return n, fmt.Errorf("repair a document of %s: %w", m.Collection, err)
		}
		if written {
			n++
		}
	}
	return n, nil
}

// one reads one document, nil when it is not there.
func one(ctx context.Context, side Side, collection string, id bson.RawValue) (bson.Raw, error) {
	for doc, err := range side.Get(ctx, Read{Collection: collection}, []bson.RawValue{id}) {
		return bytes.Clone(doc), err
	}
	return nil, nil
}

// write brings the target's document from have to want, or does nothing when it
// is not have any more.
func (r *Repairer) write(ctx context.Context, collection string, id bson.RawValue, have, want bson.Raw) (bool, error) {
	c := r.Writer.Collection(collection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	still := bson.D{{Key: "_id", Value: id}, {Key: "$expr", Value: bson.D{{Key: "$eq", Value: bson.A{"$$ROOT", bson.D{{Key: "$literal", Value: have}}}}}}}
	switch {
	case have == nil && want == nil:
		return false, nil
	case have == nil:
		_, err := c.InsertOne(ctx, want, options.InsertOne().SetBypassDocumentValidation(true))
		if mongocode.IsDuplicateKey(err) { // a lane was first, or another document holds a key: the next look tells
			return false, nil
		}
		return err == nil, err
	case want == nil:
		res, err := c.DeleteOne(ctx, still)
		return err == nil && res.DeletedCount == 1, err
	}
	res, err := c.ReplaceOne(ctx, still, want, options.Replace().SetBypassDocumentValidation(true))
	if mongocode.IsDuplicateKey(err) {
		return false, nil
	}
	return err == nil && res.ModifiedCount == 1, err
}
