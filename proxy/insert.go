package proxy

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// insert stores each document on the chunk of its shard key.
//
// Behaviour: documents, ordered and bypassDocumentValidation; at most 100,000
// documents; one without the shard key, or a part of it, is placed by null there;
// batches over several chunks as batch.go has it.
//
// Not supported: an array in the shard key (ShardKeyNotFound, 61); a collection
// that is not in the catalog (NamespaceNotFound, 26): none springs up; a batch of a
// transaction for a second chunk (263).
func insert(ctx context.Context, p *Proxy, q *request) error {
	return p.write(ctx, q, "documents", planInsert)
}

// planInsert places a document by its shard key; one without it by null. When
// _id is of the key and the document has none, it is made here, as the shard would.
func planInsert(d *database, c *collection, doc bson.Raw) statement {
	s := statement{doc: doc}
	if slices.ContainsFunc(c.keys(), ofID) {
		if _, ok := wire.Find(doc, "_id"); !ok {
			s.doc = document(func(dst []byte) []byte {
				dst = bsoncore.AppendObjectIDElement(dst, "_id", bson.NewObjectID())
				return append(dst, doc[4:len(doc)-1]...)
			})
		}
	}
	k, err := d.space.DocumentPoint(s.doc, c.shardKey)
	if err != nil {
		s.err = refuseKey(c, err)
		return s
	}
	return s.at(d, k)
}
