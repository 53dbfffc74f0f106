package proxy

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// place finds the database and collection that a command names.
func (p *Proxy) place(ctx context.Context, q *request) (*database, *collection, error) {
	name := q.cmd.Collection()
	if len(name) == 0 {
		return nil, nil, refuse(codeInvalidNamespace, "%s needs the name of a collection", q.cmd.Name)
	}
	return p.routing.collection(ctx, q.cmd.DB, name)
}

// find is targeted by its filter; otherwise every chunk is asked, and what comes
// back is merged.
//
// Behaviour: filter, sort, projection, hint, skip, limit, batchSize,
// singleBatch, collation, let, min, max, returnKey, showRecordId, allowDiskUse
// are honoured; noCursorTimeout and readPreference mean nothing; over several
// chunks skip is applied after the merge and limit grows by it on the shards.
//
// Not supported: tailable and awaitData; over several chunks a sort by $meta or
// under a collation, returnKey with a sort, and a $slice of what the sort looks at.
func find(ctx context.Context, p *Proxy, q *request) error {
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if e := q.option("tailable"); e.Type != 0 && e.Truth() {
		return refuse(codeNotSupported, "tailable cursors are not supported")
	}
	if coll == nil {
		emptyCursor(q, string(q.cmd.Collection()))
		return nil
	}
	filter, err := q.document("filter")
	if err != nil {
		return err
	}
	entries := targetOf(db, coll, filter, q.option("collation"))
	p.fan(q, len(entries), pinned(entries))
	if len(entries) == 1 {
		return p.passRead(ctx, q, entries[0])
	}
	return p.findMerged(ctx, q, coll, entries)
}

// passRead sends a read to one chunk and passes the cursor or the answer on.
func (p *Proxy) passRead(ctx context.Context, q *request, e *entry) error {
	if err := q.bind(e); err != nil {
		return err
	}
	q.way = leg{entry: e, access: reads}
	a, err := p.dispatch(ctx, q, &q.way)
	if err != nil {
		return err
	}
	defer a.release()
	if !a.ok {
		return q.pass(&a)
	}
	return p.open(q, &a, e)
}

// bind keeps a transaction in its chunk.
func (q *request) bind(entries ...*entry) error {
	if q.txn == nil {
		return nil
	}
	if len(entries) > 1 {
		return refuse(codeNotInTransaction, "a transaction is limited to one chunk: this %s needs %d, name the shard key", q.cmd.Name, len(entries))
	}
	return q.txn.bind(entries[0])
}

// findMerged asks several chunks.
func (p *Proxy) findMerged(ctx context.Context, q *request, coll *collection, entries []*entry) error {
	if err := q.bind(entries...); err != nil {
		return err
	}
	c := &cursor{rest: coll.name, session: q.session, user: q.client.user, left: -1}
	plan, err := q.planFind(c, coll)
	if err != nil {
		return err
	}
	if err := p.scatter(ctx, q, c, entries, plan.edit); err != nil {
		return err
	}
	c.single = plan.single
	return p.begin(ctx, q, c, plan.firstBatch())
}

// findPlan is how a find is put to several chunks.
type findPlan struct {
	edit   edit
	batch  int64 // of the first batch; negative: not said
	single bool
}

// firstBatch is the most documents of the first batch.
func (f *findPlan) firstBatch() int64 {
	switch {
	case f.batch >= 0:
		return f.batch
	case f.single:
		return 1 << 31
	default:
		return firstBatch
	}
}

// planFind reads skip, limit, sort and projection, which change on the way to
// several chunks.
func (q *request) planFind(c *cursor, coll *collection) (*findPlan, error) {
	f := &findPlan{edit: edit{drop: []string{"skip", "limit", "singleBatch"}}}
	skip, err := q.number("skip", 0)
	if err != nil {
		return nil, err
	}
	limit, err := q.number("limit", 0)
	if err != nil {
		return nil, err
	}
	if f.batch, err = q.number("batchSize", -1); err != nil {
		return nil, err
	}
	if skip < 0 || limit < 0 {
		return nil, refuse(codeBadValue, "skip and limit must not be negative")
	}
	single := q.option("singleBatch")
	f.single = single.Type != 0 && single.Truth()
	c.skip = skip
	if limit > 0 {
		c.left = limit
		f.edit.extra = bsoncore.AppendInt64Element(f.edit.extra, "limit", chunkLimit(skip, limit))
	}
	sort, err := q.document("sort")
	if err != nil {
		return nil, err
	}
	if c.order, err = parseSort(sort); err != nil || c.order == nil {
		return f, err
	}
	if !coll.simple || q.option("collation").Type == bson.TypeEmbeddedDocument {
		return nil, refuse(codeNotSupported, "a sort under a collation is only supported on one chunk: name the shard key")
	}
	if key := q.option("returnKey"); key.Type != 0 && key.Truth() {
		return nil, refuse(codeNotSupported, "returnKey with a sort is only supported on one chunk: name the shard key")
	}
	projection, err := q.document("projection")
	if err != nil {
		return nil, err
	}
	projected, changed, refused := c.order.project(projection)
	if refused != nil {
		return nil, refused
	}
	if changed {
		f.edit.drop = append(f.edit.drop, "projection")
		f.edit.extra = bsoncore.AppendDocumentElement(f.edit.extra, "projection", projected)
	}
	return f, nil
}

// chunkLimit is how many documents each chunk gives at most, so that limit are left
// behind skip.
func chunkLimit(skip, limit int64) int64 {
	if limit > math.MaxInt64-skip {
		return math.MaxInt64
	}
	return skip + limit
}

// scatter sends a read to several chunks at once and makes their answers the
// cursor's streams. On an error nothing stays open.
func (p *Proxy) scatter(ctx context.Context, q *request, c *cursor, entries []*entry, e edit) error {
	c.streams = make([]*stream, len(entries))
	errs := make([]error, len(entries))
	p.parallel(entries, func(i int) {
		a, err := p.dispatch(ctx, q, &leg{entry: entries[i], access: reads, edit: e})
		if err != nil {
			errs[i] = err
			return
		}
		defer a.release()
		s := &stream{route: a.route, entry: entries[i], coll: c.rest}
		c.streams[i] = s
		errs[i] = p.takeBatch(s, &a)
	})
	for _, err := range errs {
		if err == nil {
			continue
		}
		for _, s := range c.streams {
			if s != nil {
				p.closeStream(ctx, q.session, s)
			}
		}
		return err
	}
	return nil
}
