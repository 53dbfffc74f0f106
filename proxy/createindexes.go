package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/wire"
)

// createIndexes builds indexes on every chunk.
//
// Behaviour: indexes with all options of the shards' version; ones that are there are ok.
//
// Not supported: a unique index that does not begin with the whole shard key, as it would
// be unique in each chunk only (CannotCreateIndex, 67); commitQuorum, which is the
// control plane's.
func createIndexes(ctx context.Context, p *Proxy, q *request) error {
	coll, err := p.shapedCollection(ctx, q)
	if err != nil {
		return err
	}
	if err := checkIndexes(q.option("indexes"), coll); err != nil {
		return err
	}
	return p.shape(ctx, q)
}

// checkIndexes refuses unique indexes that would be unique in each chunk only.
func checkIndexes(list wire.Element, c *collection) error {
	if list.Type != bson.TypeArray {
		return refuse(codeFailedToParse, "createIndexes needs an array indexes")
	}
	for w := wire.Walk(list.Document()); w.Next(); {
		unique, _ := wire.Find(w.Document(), "unique")
		key, _ := wire.Find(w.Document(), "key")
		if unique.Type == 0 || !unique.Truth() || beginsWith(key.Document(), c.keys()) {
			continue
		}
		return refuse(codeCannotCreateIndex, "cannot create unique index over %s: it must begin with the shard key %s, or it would be unique in each chunk only",
			key.RawValue(), c.shardKey)
	}
	return nil
}

// beginsWith reports whether an index's pattern begins with the fields, in their order.
func beginsWith(pattern bson.Raw, fields []string) bool {
	w := wire.Walk(pattern)
	for _, f := range fields {
		if !w.Next() || !w.Is(f) {
			return false
		}
	}
	return true
}
