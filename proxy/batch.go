package proxy

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/proxy/wire"
)

// What insert, update and delete have in common: a batch that concerns one chunk
// is passed on as it came. Otherwise it is split. An ordered batch goes on in its
// order, run by run, and ends at the first error; an unordered one goes to all
// its chunks at once. Indexes in writeErrors and upserted are those of the
// client's batch; n and nModified are summed; of several write concern errors
// the first is given.

// statement is one element of a batch.
type statement struct {
	doc     bson.Raw
	entries []*entry
	turns   bool     // one document in whichever chunk: ask them in turn
	err     *refusal // it is refused here
	failed  bool     // its error is known
}

// batch is a write command that is being worked on.
type batch struct {
	q          *request
	array      string // the command's array: documents, updates or deletes
	coll       *collection
	statements []statement
	ordered    bool
	rewritten  bool // a statement is not as it came

	sum batchSum
}

// batchSum is what the parts of a batch came to.
type batchSum struct {
	n, modified int64
	updates     bool
	upserted    [][]byte // documents {index, _id}
	errors      []writeError
	concern     []byte // a writeConcernError element
	labels      []string
	ran         bool // a part has run
}

// writeError is one statement's error.
type writeError struct {
	index int32
	doc   []byte // {index, code, ...}
}

// planner finds the chunks of a statement.
type planner func(d *database, c *collection, doc bson.Raw) statement

// write answers a write command.
func (p *Proxy) write(ctx context.Context, q *request, array string, plan planner) error {
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
	docs, err := q.sequence(q.client.docs[:0], array)
	if err != nil {
		return err
	}
	q.client.docs = docs
	if len(docs) == 0 || len(docs) > maxWriteBatch {
		return refuse(codeInvalidLength, "Write batch sizes must be between 1 and %d. Got %d operations.", maxWriteBatch, len(docs))
	}
	b := &q.client.batch
	*b = batch{q: q, array: array, coll: coll, ordered: true, statements: slices.Grow(b.statements[:0], len(docs))[:len(docs)]}
	b.sum.updates = array == "updates"
	if e := q.option("ordered"); e.Type != 0 {
		b.ordered = e.Truth()
	}
	for i, doc := range docs {
		b.statements[i] = plan(db, coll, doc)
		if got := b.statements[i].doc; len(got) != len(doc) || &got[0] != &doc[0] {
			b.rewritten = true
		}
	}
	at := len(q.client.out)
	if e := b.single(); e != nil {
		err = p.passWrite(ctx, q, b, e)
	} else {
		err = p.writeSplit(ctx, b)
	}
	if err == nil && !q.failed && q.session != nil && q.cmd.HasTxnNumber && !q.cmd.Transaction {
		q.session.told(q, q.client.out[at:])
	}
	return err
}

// single gives the chunk that the whole batch is for, nil when it must be split.
func (b *batch) single() *entry {
	if b.rewritten {
		return nil
	}
	var only *entry
	for i := range b.statements {
		s := &b.statements[i]
		if s.err != nil || len(s.entries) != 1 || only != nil && only != s.entries[0] {
			return nil
		}
		only = s.entries[0]
	}
	return only
}

// pinned tells whether the batch concerns one chunk however the key space is cut.
func (b *batch) pinned() bool { return len(b.statements) == 1 && pinned(b.statements[0].entries) }

// passWrite passes a whole batch to one chunk.
func (p *Proxy) passWrite(ctx context.Context, q *request, b *batch, e *entry) error {
	if err := q.bind(e); err != nil {
		return err
	}
	p.fan(q, 1, b.pinned())
	var tail [][]byte
	for _, s := range q.sequences {
		tail = append(tail, s.Raw)
	}
	q.way = leg{entry: e, access: writes, tail: tail}
	a, err := p.dispatch(ctx, q, &q.way)
	if err != nil {
		return err
	}
	defer a.release()
	return q.pass(&a)
}

// step is a part of a batch that is done before the next one begins.
type step struct {
	entries []*entry
	indexes []int // of the statements
	turns   bool  // the entries one after the other, until one has the document
}

// writeSplit does a batch that concerns several chunks.
func (p *Proxy) writeSplit(ctx context.Context, b *batch) error {
	if b.q.txn != nil {
		if err := b.bind(); err != nil {
			return err
		}
	}
	var err error
	if b.ordered {
		err = p.writeOrdered(ctx, b)
	} else {
		err = p.writeUnordered(ctx, b)
	}
	if err != nil {
		return b.failed(err)
	}
	b.reply()
	return nil
}

// bind keeps a transaction in its chunk.
func (b *batch) bind() error {
	for i := range b.statements {
		if s := &b.statements[i]; s.err == nil {
			if err := b.q.bind(s.entries...); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeOrdered does the statements in their order, as many at once as follow
// each other to the same chunk.
func (p *Proxy) writeOrdered(ctx context.Context, b *batch) error {
	for i := 0; i < len(b.statements); {
		s := &b.statements[i]
		if s.err != nil {
			b.refuse(i, s.err)
			return nil
		}
		st := step{entries: s.entries, indexes: []int{i}, turns: s.turns}
		for i++; i < len(b.statements) && len(st.entries) == 1; i++ {
			next := &b.statements[i]
			if next.err != nil || len(next.entries) != 1 || next.entries[0] != st.entries[0] {
				break
			}
			st.indexes = append(st.indexes, i)
		}
		if err := p.doStep(ctx, b, st); err != nil {
			return err
		}
		if len(b.sum.errors) > 0 {
			return nil
		}
	}
	return nil
}

// writeUnordered does every chunk's statements at once, and then those that ask
// chunks in turn.
func (p *Proxy) writeUnordered(ctx context.Context, b *batch) error {
	byEntry := map[*entry]int{}
	var groups, turns []step
	for i := range b.statements {
		s := &b.statements[i]
		switch {
		case s.err != nil:
			b.refuse(i, s.err)
		case s.turns:
			turns = append(turns, step{entries: s.entries, indexes: []int{i}, turns: true})
		default:
			for _, e := range s.entries {
				at, ok := byEntry[e]
				if !ok {
					at = len(groups)
					byEntry[e] = at
					groups = append(groups, step{entries: []*entry{e}})
				}
				groups[at].indexes = append(groups[at].indexes, i)
			}
		}
	}
	p.fan(b.q, max(1, len(groups)), b.pinned())
	results := make([]partResult, len(groups))
	entries := make([]*entry, len(groups))
	for i := range groups {
		entries[i] = groups[i].entries[0]
	}
	p.parallel(entries, func(i int) {
		results[i] = p.doPart(ctx, b, entries[i], groups[i].indexes)
	})
	b.note(results)
	for i := range results {
		if err := p.take(ctx, b, &results[i], groups[i].indexes); err != nil {
			return err
		}
	}
	for _, st := range turns {
		if err := p.doStep(ctx, b, st); err != nil {
			return err
		}
	}
	return nil
}

// doStep does one step and adds its results.
func (p *Proxy) doStep(ctx context.Context, b *batch, st step) error {
	p.fan(b.q, len(st.entries), b.pinned())
	if st.turns {
		return p.doTurns(ctx, b, st)
	}
	results := make([]partResult, len(st.entries))
	p.parallel(st.entries, func(i int) {
		results[i] = p.doPart(ctx, b, st.entries[i], st.indexes)
	})
	b.note(results)
	for i := range results {
		if err := p.take(ctx, b, &results[i], st.indexes); err != nil {
			return err
		}
	}
	return nil
}

// note remembers whether any of some parts has run, before one's error counts.
func (b *batch) note(results []partResult) {
	for i := range results {
		b.sum.ran = b.sum.ran || results[i].ran
	}
}

// doTurns asks chunks in turn until one had the document. A retry goes straight
// to where the first try ended.
func (p *Proxy) doTurns(ctx context.Context, b *batch, st step) error {
	entries := st.entries
	if len(b.statements) == 1 && b.q.cmd.HasTxnNumber && !b.q.cmd.Transaction {
		if _, places := b.q.session.recall(b.q.cmd.TxnNumber); len(places) > 0 {
			last := places[len(places)-1].chunk
			entries = slices.DeleteFunc(slices.Clone(entries), func(e *entry) bool { return e.id != last })
		}
	}
	for _, e := range entries {
		before := b.sum.n
		r := p.doPart(ctx, b, e, st.indexes)
		if err := p.take(ctx, b, &r, st.indexes); err != nil {
			return err
		}
		// Other statements' errors say nothing about this one.
		if b.sum.n > before || b.statements[st.indexes[0]].failed {
			return nil
		}
	}
	return nil
}

// doPart sends some statements to one chunk.
func (p *Proxy) doPart(ctx context.Context, b *batch, e *entry, indexes []int) partResult {
	size := len(b.array) + 8 // what stands before the documents
	for _, i := range indexes {
		size += len(b.statements[i].doc)
	}
	at, section := wire.BeginSequence(make([]byte, 0, size), b.array)
	for _, i := range indexes {
		section = append(section, b.statements[i].doc...)
	}
	wire.EndSequence(section, at, 0)
	ed := edit{drop: []string{b.array}}
	if b.q.cmd.HasTxnNumber && !b.q.cmd.Transaction {
		ed.drop = append(ed.drop, "stmtIds")
		ed.extra = appendStatementIDs(nil, indexes)
	}
	a, err := p.dispatch(ctx, b.q, &leg{entry: e, access: writes, edit: ed, tail: [][]byte{section}})
	if err != nil {
		return partResult{err: err}
	}
	defer a.release()
	return b.read(&a, indexes)
}

// appendStatementIDs names each statement by its place in the client's batch,
// so that a retry finds it again whatever batch it then travels in.
func appendStatementIDs(dst []byte, indexes []int) []byte {
	at, dst := bsoncore.AppendArrayElementStart(dst, "stmtIds")
	for i, id := range indexes {
		dst = bsoncore.AppendInt32Element(dst, index(i), int32(id)) //nolint:gosec // a position in a batch
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// partResult is what one chunk's part of a batch came to.
type partResult struct {
	batchSum
	err error
}

// read copies what counts from a shard's reply.
func (b *batch) read(a *answer, indexes []int) partResult {
	if !a.ok {
		return partResult{err: a.asError()}
	}
	r := partResult{}
	r.ran = true
	mapped := func(i int32) int32 {
		if int(i) < len(indexes) {
			return int32(indexes[i]) //nolint:gosec // a position in a batch
		}
		return i
	}
	for w := wire.Walk(a.raw); w.Next(); {
		switch string(w.Key) {
		case "n":
			r.n, _ = w.Number()
		case "nModified":
			r.modified, _ = w.Number()
		case "upserted":
			for u := wire.Walk(w.Document()); u.Next(); {
				r.upserted = append(r.upserted, mapIndex(u.Document(), mapped))
			}
		case "writeErrors":
			for e := wire.Walk(w.Document()); e.Next(); {
				el := appendWriteError(nil, 0, e.Document(), a.route, mapped)
				doc := el[len("\x030\x00"):]
				i, _ := wire.Find(doc, "index")
				n, _ := i.Number()
				r.errors = append(r.errors, writeError{index: int32(n), doc: doc}) //nolint:gosec // a position in a batch
			}
		case "writeConcernError":
			r.concern = appendWriteConcernError(nil, w.Document(), a.route)
		case "errorLabels":
			for l := wire.Walk(w.Document()); l.Next(); {
				r.labels = append(r.labels, string(l.Text()))
			}
		}
	}
	return r
}

// mapIndex gives an element of upserted with the client's index.
func mapIndex(doc bson.Raw, mapped func(int32) int32) []byte {
	return document(func(dst []byte) []byte {
		for w := wire.Walk(doc); w.Next(); {
			if w.Is("index") {
				i, _ := w.Number()
				dst = bsoncore.AppendInt32Element(dst, "index", mapped(int32(i))) //nolint:gosec // a position in a batch
				continue
			}
			dst = append(dst, w.Raw...)
		}
		return dst
	})
}

// take adds one part. An error ends the batch when the driver can try all of it
// again or nothing has run; otherwise it becomes the statements' own.
func (p *Proxy) take(ctx context.Context, b *batch, r *partResult, indexes []int) error {
	if r.err != nil {
		whole := b.q.cmd.HasTxnNumber || !b.sum.ran && len(b.sum.errors) == 0
		if whole || errors.Is(r.err, errClientLeft) {
			return r.err
		}
		for _, i := range indexes {
			b.refuse(i, p.asRefusal(ctx, r.err))
			if b.ordered {
				break
			}
		}
		return nil
	}
	b.sum.ran = true
	b.sum.n += r.n
	b.sum.modified += r.modified
	b.sum.upserted = append(b.sum.upserted, r.upserted...)
	for _, e := range r.errors {
		b.fail(e)
	}
	if b.sum.concern == nil {
		b.sum.concern = r.concern
	}
	for _, l := range r.labels {
		if !slices.Contains(b.sum.labels, l) {
			b.sum.labels = append(b.sum.labels, l)
		}
	}
	return nil
}

// failed gives the error of a whole batch. When a part has run, the driver must
// not be told otherwise.
func (b *batch) failed(err error) error {
	r, ok := errors.AsType[*refusal](err)
	if ok && b.sum.ran {
		r.labels = slices.DeleteFunc(r.labels, func(l string) bool {
			return l == labelNothingRan || l == labelOverloaded || l == labelRetryable
		})
		r.ended = false // it cannot be planned anew as a whole
	}
	return err
}

// refuse adds the error of a statement that was not sent, or not all the way.
func (b *batch) refuse(i int, r *refusal) {
	b.fail(writeError{index: int32(i), doc: document(func(dst []byte) []byte { //nolint:gosec // a position in a batch
		dst = bsoncore.AppendInt32Element(dst, "index", int32(i)) //nolint:gosec // a position in a batch
		dst = bsoncore.AppendInt32Element(dst, "code", int32(r.code))
		return bsoncore.AppendStringElement(dst, "errmsg", r.msg)
	})})
}

// fail adds the error of a statement. One may have failed on several chunks: once is enough.
func (b *batch) fail(e writeError) {
	if i := int(e.index); i >= 0 && i < len(b.statements) {
		if b.statements[i].failed {
			return
		}
		b.statements[i].failed = true
	}
	b.sum.errors = append(b.sum.errors, e)
}

// errorBytes bounds the errors of a batch that are told in full; the others have their index
// and code only. Every shard bounds its own reply, but there are many.
const errorBytes = 8 << 20

// errorDocs gives the errors as they are told.
func (b *batch) errorDocs() (docs [][]byte) {
	size := 0
	for _, e := range b.sum.errors {
		if size += len(e.doc); size > errorBytes {
			c, _ := wire.Find(e.doc, "code")
			e.doc = document(func(dst []byte) []byte {
				dst = bsoncore.AppendInt32Element(dst, "index", e.index)
				dst = append(dst, c.Raw...)
				return bsoncore.AppendStringElement(dst, "errmsg", "")
			})
		}
		docs = append(docs, e.doc)
	}
	return docs
}

// reply appends the reply of a split batch.
func (b *batch) reply() {
	s := &b.sum
	slices.SortFunc(s.errors, func(x, y writeError) int { return int(x.index) - int(y.index) })
	b.q.failed = len(s.errors) > 0
	b.q.build(func(dst []byte) []byte {
		dst = appendCount(dst, "n", s.n)
		if s.updates {
			dst = appendCount(dst, "nModified", s.modified)
		}
		dst = appendDocuments(dst, "upserted", s.upserted)
		dst = appendDocuments(dst, "writeErrors", b.errorDocs())
		dst = append(dst, s.concern...)
		dst = appendLabels(dst, s.labels)
		if b.q.txn != nil {
			dst = appendRecoveryToken(dst, b.q.txn)
		}
		return dst
	})
}

// appendDocuments appends an array of documents, unless it is empty.
func appendDocuments(dst []byte, name string, docs [][]byte) []byte {
	if len(docs) == 0 {
		return dst
	}
	at, dst := bsoncore.AppendArrayElementStart(dst, name)
	for i, d := range docs {
		dst = bsoncore.AppendDocumentElement(dst, index(i), d)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}
