package proxy

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// findAndModify changes one document and gives it back.
//
// Behaviour: as mongod has it where the query fixes the shard key; otherwise the
// chunks are asked in turn until one has a document.
//
// Not supported: a sort without the shard key, since no chunk knows the first of
// all; an upsert without it; a change of it.
func findAndModify(ctx context.Context, p *Proxy, q *request) error {
	db, coll, err := p.place(ctx, q)
	if err != nil {
		return err
	}
	if coll == nil || len(db.entries) == 0 {
		return refuse(codeNamespaceNotFound, "ns does not exist: %s.%s (collections are made with drover db)", q.cmd.DB, q.cmd.Collection())
	}
	if answered, err := p.retried(ctx, q); answered || err != nil {
		return err
	}
	entries, ed, err := q.planFindAndModify(db, coll)
	if err != nil {
		return err
	}
	if err := q.bind(entries...); err != nil {
		return err
	}
	if sort, _ := q.document("sort"); len(entries) > 1 && len(sort) > len(emptyDocument) {
		return refuse(codeShardKeyNotFound, "findAndModify with a sort must have the shard key %s in its query", coll.shardKey)
	}
	at := len(q.client.out)
	if err := p.findAndModifyTurns(ctx, q, entries, ed); err != nil {
		return err
	}
	if !q.failed && q.session != nil && q.cmd.HasTxnNumber && !q.cmd.Transaction {
		q.session.told(q, q.client.out[at:])
	}
	return nil
}

// planFindAndModify gives the chunks, and the query if it changes.
func (q *request) planFindAndModify(db *database, coll *collection) ([]*entry, edit, error) {
	filter, err := q.document("query")
	if err != nil {
		return nil, edit{}, err
	}
	u := change{filter: filter, update: q.option("update"), collation: q.option("collation")}
	if e := q.option("remove"); e.Type != 0 && e.Truth() {
		return targetOf(db, coll, filter, u.collation), edit{}, nil
	}
	if e := q.option("upsert"); e.Type != 0 {
		u.upsert = e.Truth()
	}
	entries, refused := u.plan(db, coll)
	if refused != nil {
		return nil, edit{}, refused
	}
	if &u.filter[0] == &filter[0] {
		return entries, edit{}, nil
	}
	return entries, edit{
		drop:  []string{"query"},
		extra: bsoncore.AppendDocumentElement(nil, "query", bsoncore.Document(u.filter)),
	}, nil
}

// findAndModifyTurns asks chunks in turn and passes the first answer that has a
// document, or the last one. A retry goes straight to where the first try ended.
func (p *Proxy) findAndModifyTurns(ctx context.Context, q *request, entries []*entry, ed edit) error {
	if len(entries) > 1 && q.session != nil && q.cmd.HasTxnNumber {
		if _, places := q.session.recall(q.cmd.TxnNumber); len(places) > 0 {
			for _, e := range entries {
				if e.id == places[len(places)-1].chunk {
					entries = []*entry{e}
					break
				}
			}
		}
	}
	p.fan(q, len(entries), pinned(entries))
	for i, e := range entries {
		a, err := p.dispatch(ctx, q, &leg{entry: e, access: writes, edit: ed})
		if err != nil {
			return err
		}
		if !a.ok || i == len(entries)-1 || modified(a.raw) {
			err = q.pass(&a)
			a.release()
			return err
		}
		a.release()
	}
	return nil
}

// modified reports whether a findAndModify found a document.
func modified(raw bson.Raw) bool {
	last, _ := wire.Find(raw, "lastErrorObject")
	n, _ := wire.Find(last.Document(), "n")
	k, _ := n.Number()
	return k > 0
}
