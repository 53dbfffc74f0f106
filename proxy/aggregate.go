package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// aggregate runs any allowed pipeline that is targeted at one chunk, and over
// several chunks those whose parts can be put together exactly.
//
// Behaviour: the leading $match targets; batchSize, hint, let, collation and
// allowDiskUse are honoured; explain: true is the explain command. Over several
// chunks: stages that look at one document ($match, $project, $addFields, $set,
// $unset, $unwind, $replaceRoot, $replaceWith, $redact), then a $sort, $skip and
// $limit in any order with $sort first, or one $group ($sum, $min, $max, $avg,
// $count), $count or $sortByCount, itself followed by a $sort, $skip and $limit.
// Sums of doubles may differ in the last digit from those of one server, as they
// do between the shards of a sharded cluster.
//
// Not supported: stages that read another collection, write, or show a shard;
// a change stream; aggregate on a database; over several chunks any other
// pipeline, and a sort or group under a collation.
func aggregate(ctx context.Context, p *Proxy, q *request) error {
	pipeline := q.option("pipeline")
	if pipeline.Type != bson.TypeArray {
		return refuse(codeTypeMismatch, "aggregate needs an array pipeline")
	}
	if err := checkPipeline(pipeline.Document()); err != nil {
		return err
	}
	if q.cmd.First.Type != bson.TypeString {
		return refuse(codeNotSupported, "aggregate on a database is not supported")
	}
	if e := q.option("explain"); e.Type != 0 && e.Truth() {
		return p.explain(ctx, q, q)
	}
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil {
		emptyCursor(q, string(q.cmd.Collection()))
		return nil
	}
	entries := targetOf(db, coll, leadingMatch(pipeline.Document()), q.option("collation"))
	p.fan(q, len(entries), pinned(entries))
	if len(entries) == 1 {
		return p.passRead(ctx, q, entries[0])
	}
	if err := q.bind(entries...); err != nil {
		return err
	}
	if count, ok := countPipeline(pipeline.Document()); ok {
		return p.countMerged(ctx, q, coll, entries, count)
	}
	plan, err := planPipeline(pipeline.Document())
	if err != nil {
		return err
	}
	if (plan.sort != nil || plan.group != nil) && (!coll.simple || q.option("collation").Type == bson.TypeEmbeddedDocument) {
		return refuse(codeNotSupported, "a $sort or $group under a collation is only supported on one chunk: name the shard key in a first $match")
	}
	return p.aggregateMerged(ctx, q, coll, entries, plan)
}

// leadingMatch gives the filter that a pipeline begins with, {} without one.
func leadingMatch(pipeline bson.Raw) bson.Raw {
	stages := wire.Walk(pipeline)
	if stages.Next() {
		if m, ok := wire.Find(stages.Document(), "$match"); ok && m.Type == bson.TypeEmbeddedDocument {
			return m.Document()
		}
	}
	return emptyDocument
}

// aggregateMerged runs a pipeline on several chunks and puts the parts together.
func (p *Proxy) aggregateMerged(ctx context.Context, q *request, coll *collection, entries []*entry, plan *pipelinePlan) error {
	batch := int64(firstBatch)
	if size, ok := wire.Find(q.option("cursor").Document(), "batchSize"); ok {
		n, isNumber := size.Number()
		if !isNumber || n < 0 {
			return refuse(codeBadValue, "cursor.batchSize must be a number that is not negative")
		}
		batch = n
	}
	c := &cursor{rest: coll.name, session: q.session, user: q.client.user, left: plan.limit, skip: plan.skip, order: plan.sort}
	e := edit{drop: []string{"pipeline"}, extra: plan.appendShardPipeline(nil)}
	if plan.group != nil {
		e.drop = append(e.drop, "cursor")
		e.extra = bsoncore.AppendDocumentElement(e.extra, "cursor", bsoncore.Document(emptyDocument))
		c.order = nil
	}
	if err := p.scatter(ctx, q, c, entries, e); err != nil {
		return err
	}
	if plan.group != nil {
		docs, err := p.regroup(ctx, q, c, plan)
		p.closeStreams(ctx, c)
		if err != nil {
			return err
		}
		groups := &stream{docs: docs, coll: coll.name}
		var size int64
		for _, doc := range docs {
			size += int64(len(doc))
		}
		if err := p.hold(groups, size); err != nil {
			return err
		}
		c.streams = []*stream{groups}
	}
	return p.begin(ctx, q, c, batch)
}
