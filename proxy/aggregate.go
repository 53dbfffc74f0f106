package proxy

import (
	"bytes"
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// allowedStages are the stages of a pipeline that reads nothing but its own
// documents. What reads another collection would see one chunk of it, and what
// writes would write past the routes.
var allowedStages = map[string]bool{
	"$match": true, "$project": true, "$addFields": true, "$set": true, "$unset": true, "$group": true, "$sort": true,
	"$limit": true, "$skip": true, "$unwind": true, "$count": true, "$sortByCount": true, "$bucket": true,
	"$bucketAuto": true, "$replaceRoot": true, "$replaceWith": true, "$redact": true, "$sample": true,
	"$setWindowFields": true, "$densify": true, "$fill": true, "$geoNear": true, "$facet": true,
}

// knownStages are real stages that are refused, so that the error can say why.
var knownStages = map[string]string{
	"$out": "writes past the routes", "$merge": "writes past the routes",
	"$lookup": "would see one chunk of the other collection", "$graphLookup": "would see one chunk of the other collection",
	"$unionWith":    "would see one chunk of the other collection",
	"$changeStream": "read the captured log instead: it survives a move, a change stream does not",
	"$indexStats":   "shows a shard", "$collStats": "shows a shard", "$planCacheStats": "shows a shard",
	"$currentOp": "shows a shard", "$listSessions": "shows a shard", "$listLocalSessions": "shows a shard",
}

// checkPipeline refuses stages that are not allowed.
func checkPipeline(pipeline bson.Raw) error {
	for w := wire.Walk(pipeline); w.Next(); {
		stage := wire.Walk(w.Document())
		if !stage.Next() {
			return refuse(codeUnknownStage, "a stage of a pipeline must have one field")
		}
		name := string(stage.Key)
		if !allowedStages[name] {
			if why, known := knownStages[name]; known {
				return refuse(codeNotSupported, "%s is not supported: %s", name, why)
			}
			return refuse(codeUnknownStage, "Unrecognized pipeline stage name: '%s'", name)
		}
		if name != "$facet" {
			continue
		}
		for f := wire.Walk(stage.Document()); f.Next(); {
			if err := checkPipeline(f.Document()); err != nil {
				return err
			}
		}
	}
	return nil
}

// aggregate runs any allowed pipeline that is targeted at one chunk, and over
// several chunks the one that drivers count documents with.
//
// Behaviour: the leading $match targets; batchSize, hint, let, collation and
// allowDiskUse are honoured.
//
// Not supported: stages that read another collection, write, or show a shard;
// explain; over several chunks any pipeline but
// [{$match}, {$skip}?, {$limit}?, {$group: {_id: 1, n: {$sum: 1}}}].
func aggregate(ctx context.Context, p *Proxy, q *request) error {
	pipeline := q.option("pipeline")
	if pipeline.Type != bson.TypeArray {
		return refuse(codeTypeMismatch, "aggregate needs an array pipeline")
	}
	if e := q.option("explain"); e.Type != 0 && e.Truth() {
		return refuse(codeNotSupported, "explain is not supported")
	}
	if err := checkPipeline(pipeline.Document()); err != nil {
		return err
	}
	if q.cmd.First.Type != bson.TypeString {
		return refuse(codeNotSupported, "aggregate on a database is not supported")
	}
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil {
		emptyCursor(q, string(q.cmd.Collection()))
		return nil
	}
	filter := emptyDocument
	stages := wire.Walk(pipeline.Document())
	if stages.Next() {
		if m, ok := wire.Find(stages.Document(), "$match"); ok && m.Type == bson.TypeEmbeddedDocument {
			filter = m.Document()
		}
	}
	entries := targetOf(db, coll, filter, q.option("collation"))
	p.metrics.fanOut.Observe(float64(len(entries)))
	if len(entries) == 1 {
		return p.passRead(ctx, q, entries[0])
	}
	count, ok := countPipeline(pipeline.Document())
	if !ok {
		return refuse(codeNotSupported, "this pipeline needs %d chunks: only counting is supported over several, name the shard key in a first $match", len(entries))
	}
	return p.countMerged(ctx, q, coll, entries, count)
}

// counting is a pipeline that counts documents.
type counting struct {
	match       bson.Raw // the stage, nil: none
	skip, limit int64    // limit 0: none
	id          wire.Element
	field       string // holds the count
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
			if !isNumber || c.skip > 0 || c.limit > 0 {
				return c, false
			}
			c.skip = n
		case "$limit":
			if !isNumber || n <= 0 || c.limit > 0 {
				return c, false
			}
			c.limit = n
		case "$group":
			if c.id, c.field, grouped = countGroup(stage.Document()); !grouped {
				return c, false
			}
		default:
			return c, false
		}
	}
	return c, grouped
}

// countGroup recognises {_id: <constant>, n: {$sum: 1}}.
func countGroup(group bson.Raw) (id wire.Element, field string, ok bool) {
	for w := wire.Walk(group); w.Next(); {
		if w.Is("_id") {
			switch w.Type {
			case bson.TypeInt32, bson.TypeInt64, bson.TypeNull, bson.TypeDouble, bson.TypeBoolean:
				id = w.Element
				continue
			}
			return id, "", false
		}
		sum := wire.Walk(w.Document())
		if field != "" || !sum.Next() || !sum.Is("$sum") {
			return id, "", false
		}
		if n, isNumber := sum.Number(); !isNumber || n != 1 || sum.Next() {
			return id, "", false
		}
		field = string(w.Key)
	}
	return id, field, id.Type != 0 && field != ""
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
		stage(document(func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$limit", c.skip+c.limit) }))
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
				return appendCount(dst, c.field, total)
			}))
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, list)
		dst = bsoncore.AppendInt64Element(dst, "id", 0)
		dst = appendNamespace(dst, string(q.cmd.DB), coll)
		dst, _ = bsoncore.AppendDocumentEnd(dst, at)
		return dst
	})
}

// document builds one document.
func document(fn func(dst []byte) []byte) []byte {
	at, dst := bsoncore.AppendDocumentStart(nil)
	dst, _ = bsoncore.AppendDocumentEnd(fn(dst), at)
	return dst
}

// appendCount appends a count in the smaller type that holds it, as mongod does.
func appendCount(dst []byte, name string, n int64) []byte {
	if n == int64(int32(n)) { //nolint:gosec // that is the question
		return bsoncore.AppendInt32Element(dst, name, int32(n)) //nolint:gosec // it fits
	}
	return bsoncore.AppendInt64Element(dst, name, n)
}

// count adds what the chunks count.
//
// Behaviour: query, skip, limit, hint, collation; without a query too.
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
	p.metrics.fanOut.Observe(float64(len(entries)))
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
	e := edit{drop: []string{"skip", "limit"}}
	if limit = max(limit, -limit); limit > 0 {
		e.extra = bsoncore.AppendInt64Element(nil, "limit", skip+limit)
	}
	var total int64
	answers, err := p.gather(ctx, q, entries, e)
	defer releaseAll(answers)
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

// gather sends a read to some chunks at once. The answers are good ones; they
// are there to be released even with an error.
func (p *Proxy) gather(ctx context.Context, q *request, entries []*entry, e edit) ([]answer, error) {
	answers := make([]answer, len(entries))
	errs := make([]error, len(entries))
	p.parallel(len(entries), func(i int) {
		answers[i], errs[i] = p.dispatch(ctx, q, &leg{entry: entries[i], access: reads, edit: e})
		if errs[i] == nil && !answers[i].ok {
			errs[i] = answers[i].asError()
		}
	})
	for _, err := range errs {
		if err != nil {
			return answers, err
		}
	}
	return answers, nil
}

// releaseAll releases some answers.
func releaseAll(answers []answer) {
	for i := range answers {
		answers[i].release()
	}
}

// distinct puts the chunks' values together, each once and in order.
//
// Behaviour: key, query, hint; values that compare equal are one.
//
// Not supported: a collation over several chunks.
func distinct(ctx context.Context, p *Proxy, q *request) error {
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil {
		q.build(func(dst []byte) []byte {
			at, dst := bsoncore.AppendArrayElementStart(dst, "values")
			dst, _ = bsoncore.AppendArrayEnd(dst, at)
			return dst
		})
		return nil
	}
	filter, err := q.document("query")
	if err != nil {
		return err
	}
	entries := targetOf(db, coll, filter, q.option("collation"))
	p.metrics.fanOut.Observe(float64(len(entries)))
	if err := q.bind(entries...); err != nil {
		return err
	}
	if len(entries) > 1 && (!coll.simple || q.option("collation").Type == bson.TypeEmbeddedDocument) {
		return refuse(codeNotSupported, "distinct under a collation is only supported on one chunk: name the shard key")
	}
	answers, err := p.gather(ctx, q, entries, edit{})
	defer releaseAll(answers)
	if err != nil {
		return err
	}
	merged, err := distinctValues(answers)
	if err != nil {
		return err
	}
	q.build(func(dst []byte) []byte {
		at, dst := bsoncore.AppendArrayElementStart(dst, "values")
		for i, v := range merged {
			dst = bsoncore.AppendValueElement(dst, index(i), bsoncore.Value{Type: bsoncore.Type(v.value.Type), Data: v.value.Value})
		}
		dst, _ = bsoncore.AppendArrayEnd(dst, at)
		return dst
	})
	return nil
}

// keyed is a value with its place in BSON order.
type keyed struct {
	key   []byte
	value bson.RawValue
}

// distinctValues merges the values of some answers.
func distinctValues(answers []answer) ([]keyed, error) {
	var all []keyed
	for i := range answers {
		list, _ := wire.Find(answers[i].raw, "values")
		for w := wire.Walk(list.Document()); w.Next(); {
			k, err := extreme([]bson.RawValue{w.RawValue()}, false)
			if err != nil {
				return nil, err
			}
			all = append(all, keyed{[]byte(k), w.RawValue()})
		}
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return bytes.Compare(a.key, b.key) })
	return slices.CompactFunc(all, func(a, b keyed) bool { return bytes.Equal(a.key, b.key) }), nil
}
