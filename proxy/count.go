package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// count adds what the chunks count.
//
// Behaviour: query, skip, limit, hint, collation; without a query too. Over several
// chunks skip and limit are applied to the sum.
//
// Not supported: fields, which means nothing to a count.
func count(ctx context.Context, p *Proxy, q *request) error {
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil {
		q.build(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "n", 0) })
		return nil
	}
	filter, err := q.document("query")
	if err != nil {
		return err
	}
	entries := targetOf(db, coll, filter, q.option("collation"))
	p.fan(q, len(entries), pinned(entries))
	if err := q.bind(entries...); err != nil {
		return err
	}
	skip, err := q.number("skip", 0)
	if err != nil {
		return err
	}
	limit, err := q.number("limit", 0)
	if err != nil {
		return err
	}
	if skip < 0 {
		return refuse(codeBadValue, "skip must not be negative")
	}
	e := edit{drop: []string{"skip", "limit"}}
	if limit = max(limit, -limit); limit > 0 {
		e.extra = bsoncore.AppendInt64Element(nil, "limit", chunkLimit(skip, limit))
	}
	var total int64
	answers, err := p.gather(ctx, q, entries, e)
	if err != nil {
		return err
	}
	for i := range answers {
		n, _ := wire.Find(answers[i].raw, "n")
		k, _ := n.Number()
		total += k
	}
	if total = max(0, total-skip); limit > 0 {
		total = min(total, limit)
	}
	q.build(func(dst []byte) []byte { return appendCount(dst, "n", total) })
	return nil
}

// counting is a pipeline that counts documents.
type counting struct {
	match       bson.Raw // the stage, nil: none
	skip, limit int64    // limit 0: none
	id          wire.Element
	field       string    // holds the count
	kind        bson.Type // of what is added up: the count's own, but for large ints
}

// countPipeline recognises what drivers send for countDocuments.
func countPipeline(pipeline bson.Raw) (c counting, ok bool) {
	grouped := false
	for w := wire.Walk(pipeline); w.Next(); {
		stage := wire.Walk(w.Document())
		if grouped || !stage.Next() {
			return c, false
		}
		n, isNumber := stage.Number()
		switch string(stage.Key) {
		case "$match":
			if c.match != nil || c.skip > 0 || c.limit > 0 {
				return c, false
			}
			c.match = w.Document()
		case "$skip":
			if !isNumber || n < 0 || c.skip > 0 || c.limit > 0 {
				return c, false
			}
			c.skip = n
		case "$limit":
			if !isNumber || n <= 0 || c.limit > 0 {
				return c, false
			}
			c.limit = n
		case "$group":
			if grouped = c.group(stage.Document()); !grouped {
				return c, false
			}
		default:
			return c, false
		}
	}
	return c, grouped
}

// group recognises {_id: <constant>, n: {$sum: 1}}.
func (c *counting) group(group bson.Raw) bool {
	for w := wire.Walk(group); w.Next(); {
		if w.Is("_id") {
			switch w.Type {
			case bson.TypeInt32, bson.TypeInt64, bson.TypeNull, bson.TypeDouble, bson.TypeBoolean:
				c.id = w.Element
				continue
			}
			return false
		}
		sum := wire.Walk(w.Document())
		if c.field != "" || !sum.Next() || !sum.Is("$sum") {
			return false
		}
		n, isNumber := sum.Number()
		if c.kind = sum.Type; !isNumber || n != 1 || sum.Next() {
			return false
		}
		c.field = string(w.Key)
	}
	return c.id.Type != 0 && c.field != ""
}

// countMerged adds what the chunks count. Each counts no more than is needed.
func (p *Proxy) countMerged(ctx context.Context, q *request, coll *collection, entries []*entry, c counting) error {
	if err := q.bind(entries...); err != nil {
		return err
	}
	at, extra := bsoncore.AppendArrayElementStart(nil, "pipeline")
	n := 0
	stage := func(doc []byte) {
		extra = bsoncore.AppendDocumentElement(extra, index(n), doc)
		n++
	}
	if c.match != nil {
		stage(c.match)
	}
	if c.limit > 0 {
		stage(document(func(dst []byte) []byte {
			return bsoncore.AppendInt64Element(dst, "$limit", chunkLimit(c.skip, c.limit))
		}))
	}
	stage(document(func(dst []byte) []byte {
		group := document(func(dst []byte) []byte {
			dst = append(dst, c.id.Raw...)
			return bsoncore.AppendDocumentElement(dst, c.field, document(func(dst []byte) []byte {
				return bsoncore.AppendInt32Element(dst, "$sum", 1)
			}))
		})
		return bsoncore.AppendDocumentElement(dst, "$group", group)
	}))
	extra, _ = bsoncore.AppendArrayEnd(extra, at)

	parts := &cursor{rest: coll.name, session: q.session, left: -1}
	if err := p.scatter(ctx, q, parts, entries, edit{drop: []string{"pipeline"}, extra: extra}); err != nil {
		return err
	}
	var total int64
	for _, s := range parts.streams {
		for _, doc := range s.docs {
			e, _ := wire.Find(doc, c.field)
			k, _ := e.Number()
			total += k
		}
	}
	p.closeStreams(ctx, parts)
	if total = max(0, total-c.skip); c.limit > 0 {
		total = min(total, c.limit)
	}
	q.countReply(coll.name, c, total)
	return nil
}

// countReply appends the reply of a counting pipeline: no document for nothing.
func (q *request) countReply(coll string, c counting, total int64) {
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendDocumentElementStart(dst, "cursor")
		list, dst := bsoncore.AppendArrayElementStart(dst, "firstBatch")
		if total > 0 {
			dst = bsoncore.AppendDocumentElement(dst, "0", document(func(dst []byte) []byte {
				dst = append(dst, c.id.Raw...)
				switch c.kind {
				case bson.TypeDouble:
					return bsoncore.AppendDoubleElement(dst, c.field, float64(total))
				case bson.TypeInt64:
					return bsoncore.AppendInt64Element(dst, c.field, total)
				default:
					return appendCount(dst, c.field, total)
				}
			}))
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, list)
		dst = bsoncore.AppendInt64Element(dst, "id", 0)
		dst = appendNamespace(dst, string(q.cmd.DB), coll)
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return dst
	})
}

// appendCount appends a count in the smaller type that holds it, as mongod does.
func appendCount(dst []byte, name string, n int64) []byte {
	if n == int64(int32(n)) { //nolint:gosec // that is the question
		return bsoncore.AppendInt32Element(dst, name, int32(n)) //nolint:gosec // it fits
	}
	return bsoncore.AppendInt64Element(dst, name, n)
}
