package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// remove answers the delete command.
//
// Behaviour: q, limit, collation, hint, let and ordered. A filter that fixes the shard
// key goes to its chunk, one without limit to all that it may concern; with limit 1 and
// without the shard key the chunks are asked in turn until one had a document.
//
// Not supported: in a transaction, a filter that may concern a second chunk (263).
func remove(ctx context.Context, p *Proxy, q *request) error {
	return p.write(ctx, q, "deletes", planDelete)
}

// planDelete places a statement of delete.
func planDelete(d *database, c *collection, doc bson.Raw) statement {
	s := statement{doc: doc}
	filter, ok := wire.Find(doc, "q")
	if !ok || filter.Type != bson.TypeEmbeddedDocument {
		s.err = refuse(codeTypeMismatch, "delete.deletes.q is no document")
		return s
	}
	limit, _ := wire.Find(doc, "limit")
	n, _ := limit.Number()
	collation, _ := wire.Find(doc, "collation")
	s.entries = targetOf(d, c, filter.Document(), collation)
	s.turns = n == 1 && len(s.entries) > 1
	return s
}
