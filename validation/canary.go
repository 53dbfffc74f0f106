package validation

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
)

// canaries is how many documents of each collection an audit reads as applications
// do, of each side's sample.
const canaries = 50

// Canaries are documents that are read in the way of applications: through a proxy,
// which places them by its own route and key function.
type Canaries interface {
	// Sample gives some documents of a collection of the source, and of the target.
	Sample(ctx context.Context, collection string, n int) (source, target []bson.Raw, err error)
	// Through reads a document with the _id and shard key of doc through a proxy, and
	// with its _id on the target. Nil is one that is not there.
	Through(ctx context.Context, collection string, doc bson.Raw) (proxied, target bson.Raw, err error)
}

// sing reads canaries of every collection. One that nothing changed between two
// marks must be the same through the proxy, which reads the source, and on the target.
func (a *Auditor) sing(ctx context.Context, r *AuditResult) error {
	from, err := a.mark(ctx)
	if err != nil {
		return err
	}
	differ := map[docKey]string{}
	for _, c := range a.Expected {
		source, target, err := a.Canaries.Sample(ctx, c, canaries)
		if err != nil {
			return fmt.Errorf("sample %s: %w", c, err)
		}
		for _, doc := range slices.Concat(source, target) {
			proxied, have, err := a.Canaries.Through(ctx, c, doc)
			if err != nil {
				return fmt.Errorf("read a canary of %s: %w", c, err)
			}
			r.Canaries++
			if bytes.Equal(proxied, have) && proxied != nil {
				continue
			}
			id, err := chunk.EncodeValue(doc.Lookup("_id"))
			if err != nil {
				return err
			}
			differ[docKey{c, id}] = said(proxied, have)
		}
	}
	to, err := a.mark(ctx)
	if err != nil {
		return err
	}
	touched, err := a.touched(ctx, from, to, a.Settings.Suspects)
	if err != nil {
		return err
	}
	for key, what := range differ {
		if !touched.has(key) && !touched.overflow {
			r.differs("a canary of %s %s", key.collection, what)
		}
	}
	slices.Sort(r.Differences)
	return nil
}

// said is how a canary differs.
func said(proxied, target bson.Raw) string {
	switch {
	case proxied == nil && target == nil:
		return "is neither found through the proxy nor on the target"
	case proxied == nil:
		return "is not found through the proxy"
	case target == nil:
		return "is found through the proxy and not on the target"
	}
	return "is not the same through the proxy and on the target"
}

// Proxied implements [Canaries].
type Proxied struct {
	Proxy     *mongo.Database   // the logical database, through a proxy
	Source    *mongo.Database   // the physical one, as drover_read
	Target    *mongo.Database   // the same
	ShardKeys map[string]string // by collection
}

var _ Canaries = (*Proxied)(nil)

// Sample implements [Canaries].
func (p *Proxied) Sample(ctx context.Context, collection string, n int) (source, target []bson.Raw, err error) {
	for _, side := range []struct {
		db  *mongo.Database
		out *[]bson.Raw
	}{{p.Source, &source}, {p.Target, &target}} {
		cursor, err := side.db.Collection(collection).Aggregate(ctx, bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: n}}}}})
		if err != nil {
			return nil, nil, err
		}
		if err := cursor.All(ctx, side.out); err != nil {
			return nil, nil, err
		}
	}
	return source, target, nil
}

// Through implements [Canaries].
func (p *Proxied) Through(ctx context.Context, collection string, doc bson.Raw) (proxied, target bson.Raw, err error) {
	id := bson.E{Key: "_id", Value: doc.Lookup("_id")}
	filter := bson.D{id}
	for _, name := range chunk.KeyFields(p.ShardKeys[collection]) {
		v, err := chunk.LookupPath(doc, name)
		if err != nil {
			return nil, nil, err
		}
		if name != "_id" && equality(v) {
			filter = append(filter, bson.E{Key: name, Value: v})
		}
	}
	if proxied, err = the(ctx, p.Proxy.Collection(collection), filter, doc); err != nil {
		return nil, nil, fmt.Errorf("through the proxy: %w", err)
	}
	target, err = the(ctx, p.Target.Collection(collection), bson.D{id}, doc)
	return proxied, target, err
}

// equality reports whether a filter with the value finds what has exactly it.
func equality(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeNull, bson.TypeUndefined, bson.TypeRegex, bson.TypeArray:
		return false
	case bson.TypeEmbeddedDocument: // a filter whose names begin with $ is one of operators
		e, err := bson.Raw(v.Value).IndexErr(0)
		return err == nil && len(e.Key()) > 0 && e.Key()[0] != '$'
	}
	return true
}

// the finds the document with the _id of doc: a collation may find others too.
func the(ctx context.Context, c *mongo.Collection, filter bson.D, doc bson.Raw) (bson.Raw, error) {
	cursor, err := c.Find(ctx, filter, options.Find().SetLimit(100))
	if err != nil {
		return nil, err
	}
	var all []bson.Raw
	if err := cursor.All(ctx, &all); err != nil {
		return nil, err
	}
	for _, found := range all {
		if found.Lookup("_id").Equal(doc.Lookup("_id")) {
			return found, nil
		}
	}
	return nil, nil
}
