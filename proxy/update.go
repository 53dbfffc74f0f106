package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// update changes documents where they are.
//
// Behaviour: q, u (operators, a replacement, a pipeline), multi, upsert, arrayFilters,
// collation, hint, let and ordered. A filter that fixes the shard key goes to its chunk,
// multi without it to all that it may concern, and a single update without it asks the
// chunks in turn until one has a document. A replacement whose filter leaves the shard
// key open goes by its own.
//
// Not supported: a change of the shard key, or a pipeline of which that cannot be told
// (ImmutableField, 66); an upsert whose filter does not fix the shard key, also where a
// collation makes an equality of strings no such thing (ShardKeyNotFound, 61).
func update(ctx context.Context, p *Proxy, q *request) error {
	return p.write(ctx, q, "updates", planUpdate)
}

// planUpdate places a statement of update.
func planUpdate(d *database, c *collection, doc bson.Raw) statement {
	s := statement{doc: doc}
	var u change
	for w := wire.Walk(doc); w.Next(); {
		switch string(w.Key) {
		case "q":
			u.filter = w.Document()
		case "u":
			u.update = w.Element
		case "multi":
			u.multi = w.Truth()
		case "upsert":
			u.upsert = w.Truth()
		case "collation":
			u.collation = w.Element
		}
	}
	if u.filter == nil {
		s.err = refuse(codeTypeMismatch, "update.updates.q is no document")
		return s
	}
	filter := u.filter
	entries, err := u.plan(d, c)
	if err != nil {
		s.err = err
		return s
	}
	if &u.filter[0] != &filter[0] {
		s.doc = document(func(dst []byte) []byte {
			dst = bsoncore.AppendDocumentElement(dst, "q", bsoncore.Document(u.filter))
			for w := wire.Walk(doc); w.Next(); {
				if !w.Is("q") {
					dst = append(dst, w.Raw...)
				}
			}
			return dst
		})
	}
	s.entries = entries
	s.turns = !u.multi && len(entries) > 1
	return s
}
