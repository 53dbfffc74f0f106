package shardsim

import (
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// write concern of a command.
type concern struct {
	majority bool
	timeout  time.Duration
}

// concernOf reads a command's write concern; the default is majority.
func concernOf(cmd bson.Raw) concern {
	w := concern{majority: true}
	d, given := cmd.Lookup("writeConcern").DocumentOK()
	if !given {
		return w
	}
	if n, isNumber := d.Lookup("w").AsInt64OK(); isNumber {
		w.majority = n > 1
	}
	if ms, isNumber := d.Lookup("wtimeout").AsInt64OK(); isNumber {
		w.timeout = time.Duration(ms) * time.Millisecond
	}
	return w
}

// confirm waits until a write has the confirmations that its command asks for, and
// gives what the reply says when it does not come to that.
func (n *node) confirm(e *entry, w concern) bson.D {
	if !w.majority {
		return nil
	}
	term := n.term
	confirmed := n.set.await(w.timeout, func() bool {
		return n.committed(e) || n.role != primary || n.term != term || !n.up
	})
	switch {
	case n.committed(e) && n.has(e):
		return nil
	case confirmed:
		return bson.D{{Key: "code", Value: codeStateChange}, {Key: "codeName", Value: "InterruptedDueToReplStateChange"}, {Key: "errmsg", Value: "stepped down while waiting for replication"}}
	default:
		return bson.D{{Key: "code", Value: codeWriteConcern}, {Key: "codeName", Value: "WriteConcernFailed"}, {Key: "errmsg", Value: "waiting for replication timed out"}}
	}
}

// store is the write of a command on users and roles: on the primary, confirmed.
func (c *conn) store(call Call, changes []change) bson.D {
	n := c.node
	if r := n.writable(); r != nil {
		return r
	}
	e := n.write(changes)
	if problem := n.confirm(e, concernOf(call.Body)); problem != nil {
		return append(bson.D{{Key: "writeConcernError", Value: problem}}, ok()...)
	}
	return ok()
}

// writable refuses writes where there is no primary that writes. A stalled one
// lets them wait.
func (n *node) writable() bson.D {
	if n.role == primary && n.stalled {
		n.set.await(0, func() bool { return n.role != primary || !n.stalled || !n.up })
	}
	if n.role != primary {
		return failed(codeNotPrimary, "not primary")
	}
	return nil
}

// readable refuses reads where a node cannot serve them.
func (c *conn) readable(call Call) bson.D {
	n := c.node
	if n.role != primary && n.role != secondary {
		return failed(codeNotPrimaryOrSecond, "node is not in primary or recovering state")
	}
	if n.role == secondary {
		if mode, _ := call.Body.Lookup("$readPreference", "mode").StringValueOK(); mode == "" || mode == "primary" {
			return failed(codeNotPrimaryNoOk, "not primary and secondaryOk=false")
		}
	}
	return nil
}

// view gives the documents that a read sees: its transaction's, the majority's or
// the newest.
func (c *conn) view(call Call) *documents {
	if t := c.transaction(call); t != nil {
		return t.docs
	}
	switch level, _ := call.Body.Lookup("readConcern", "level").StringValueOK(); level {
	case "majority", "snapshot":
		return c.node.snapshot()
	default:
		return c.node.data
	}
}

// firstBatch is the reply of a command that gives a cursor which is at its end.
func firstBatch(ns string, docs []bson.Raw) bson.D {
	batch := bson.A{}
	for _, d := range docs {
		batch = append(batch, d)
	}
	return append(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: ns}, {Key: "firstBatch", Value: batch}}}}, ok()...)
}

// find answers all matches at once, in the order of _id.
func (c *conn) find(call Call) bson.D {
	if r := c.readable(call); r != nil {
		return r
	}
	if r := c.join(call); r != nil {
		return r
	}
	name, _ := call.Body.Lookup("find").StringValueOK()
	filter, _ := call.Body.Lookup("filter").DocumentOK()
	limit, _ := call.Body.Lookup("limit").AsInt64OK()
	ns := call.DB + "." + name
	var found []bson.Raw
	for _, d := range c.view(call).list(ns) {
		if matches(d, filter) {
			found = append(found, d)
		}
	}
	if limit > 0 && int64(len(found)) > limit {
		found = found[:limit]
	}
	return firstBatch(ns, found)
}

// aggregate answers $currentOp, and $match with a count as drivers send it.
func (c *conn) aggregate(call Call) bson.D {
	stages, _ := call.Body.Lookup("pipeline").ArrayOK()
	values, err := stages.Values()
	if err != nil || len(values) == 0 {
		return failed(codeBadValue, "no pipeline")
	}
	if _, err := values[0].Document().LookupErr("$currentOp"); err == nil {
		return firstBatch("admin.$cmd.aggregate", c.node.currentOps())
	}
	if r := c.readable(call); r != nil {
		return r
	}
	name, _ := call.Body.Lookup("aggregate").StringValueOK()
	found := c.view(call).list(call.DB + "." + name)
	for _, v := range values {
		stage := v.Document()
		switch e, _ := stage.IndexErr(0); e.Key() {
		case "$match":
			found = slices.DeleteFunc(slices.Clone(found), func(d bson.Raw) bool { return !matches(d, e.Value().Document()) })
		case "$group":
			count := mustMarshal(bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: int32(len(found))}}) //nolint:gosec // few
			if len(found) == 0 {
				found = nil
			} else {
				found = []bson.Raw{count}
			}
		default:
			return failed(codeStageUnknown, "Unrecognized pipeline stage name: '"+e.Key()+"'")
		}
	}
	return firstBatch(call.DB+"."+name, found)
}

// collStats tells the size of the oplog, and counts others.
func (c *conn) collStats(call Call) bson.D {
	name, _ := call.Body.Lookup("collStats").StringValueOK()
	if call.DB == "local" && name == "oplog.rs" {
		return append(bson.D{{Key: "ns", Value: "local.oplog.rs"}, {Key: "capped", Value: true}, {Key: "maxSize", Value: int64(c.node.oplogMB) << 20}}, ok()...)
	}
	return append(bson.D{{Key: "count", Value: len(c.node.data.byNS[call.DB+"."+name])}}, ok()...)
}

// statement is one insert, update or delete of a command. It changes docs and
// gives what the log is to hold.
type statement func(docs *documents) (changes []change, reply bson.D, err bson.D)

// insert, update and delete.
func (c *conn) insert(call Call) bson.D {
	list, _ := call.Body.Lookup("documents").ArrayOK()
	values, _ := list.Values()
	name, _ := call.Body.Lookup("insert").StringValueOK()
	ns := call.DB + "." + name
	var all []statement
	for _, v := range values {
		all = append(all, func(docs *documents) ([]change, bson.D, bson.D) {
			ch := put(ns, v.Document())
			if _, taken := docs.byNS[ns][ch.key]; taken {
				return nil, nil, duplicate(ns, v.Document())
			}
			return []change{ch}, bson.D{{Key: "n", Value: 1}}, nil
		})
	}
	return c.write(call, all)
}

// duplicate is the error of a key that is taken.
func duplicate(ns string, doc bson.Raw) bson.D {
	id := bson.D{{Key: "_id", Value: doc.Lookup("_id")}}
	return bson.D{
		{Key: "code", Value: codeDuplicateKey}, {Key: "errmsg", Value: "E11000 duplicate key error collection: " + ns + " index: _id_"},
		{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "keyValue", Value: id},
	}
}

// update answers update by filter, one document or many.
func (c *conn) update(call Call) bson.D {
	list, _ := call.Body.Lookup("updates").ArrayOK()
	values, _ := list.Values()
	name, _ := call.Body.Lookup("update").StringValueOK()
	ns := call.DB + "." + name
	var all []statement
	for _, v := range values {
		q := v.Document()
		all = append(all, func(docs *documents) ([]change, bson.D, bson.D) { return updateOf(docs, ns, q) })
	}
	return c.write(call, all)
}

// updateOf is one update.
func updateOf(docs *documents, ns string, q bson.Raw) (changes []change, reply, problem bson.D) {
	filter, _ := q.Lookup("q").DocumentOK()
	change, _ := q.Lookup("u").DocumentOK()
	multi, _ := q.Lookup("multi").BooleanOK()
	upsert, _ := q.Lookup("upsert").BooleanOK()
	matched, modified := 0, 0
	for _, d := range docs.list(ns) {
		if !matches(d, filter) {
			continue
		}
		matched++
		next, err := changed(d, change, false)
		if err != nil {
			return nil, nil, bson.D{{Key: "code", Value: codeBadValue}, {Key: "errmsg", Value: err.Error()}}
		}
		if string(next) != string(d) {
			modified++
			changes = append(changes, put(ns, next))
		}
		if !multi {
			break
		}
	}
	if matched > 0 || !upsert {
		return changes, bson.D{{Key: "n", Value: matched}, {Key: "nModified", Value: modified}}, nil
	}
	fresh, err := changed(equalities(filter), change, true)
	if err != nil {
		return nil, nil, bson.D{{Key: "code", Value: codeBadValue}, {Key: "errmsg", Value: err.Error()}}
	}
	ch := put(ns, fresh)
	if _, taken := docs.byNS[ns][ch.key]; taken {
		return nil, nil, duplicate(ns, fresh)
	}
	return append(changes, ch), bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 0}, {Key: "upserted", Value: fresh.Lookup("_id")}}, nil
}

// remove answers delete by filter.
func (c *conn) remove(call Call) bson.D {
	list, _ := call.Body.Lookup("deletes").ArrayOK()
	values, _ := list.Values()
	name, _ := call.Body.Lookup("delete").StringValueOK()
	ns := call.DB + "." + name
	var all []statement
	for _, v := range values {
		filter, _ := v.Document().Lookup("q").DocumentOK()
		limit, _ := v.Document().Lookup("limit").AsInt64OK()
		all = append(all, func(docs *documents) (changes []change, reply, _ bson.D) {
			for _, d := range docs.list(ns) {
				if matches(d, filter) && (limit == 0 || len(changes) == 0) {
					changes = append(changes, change{ns: ns, key: idKey(d.Lookup("_id"))})
				}
			}
			return changes, bson.D{{Key: "n", Value: len(changes)}}, nil
		})
	}
	return c.write(call, all)
}

// write runs the statements of a command one after the other: each an entry of its
// own, or part of a transaction. One that a session has run already is answered
// from its record.
func (c *conn) write(call Call, all []statement) bson.D {
	n := c.node
	if r := n.writable(); r != nil {
		return r
	}
	if r := c.join(call); r != nil {
		return r
	}
	t := c.transaction(call)
	number, numbered := call.Body.Lookup("txnNumber").AsInt64OK()
	ordered, given := call.Body.Lookup("ordered").BooleanOK()
	session := c.session(call)
	total := writeReply{}
	var last *entry
	for i, st := range all {
		docs := n.data
		if t != nil {
			docs = t.docs
		} else if numbered {
			if old := docs.ran[session]; old != nil && old.number > number {
				return failed(225, fmt.Sprintf("Cannot start transaction %d because a newer transaction %d has already started", number, old.number))
			} else if old != nil && old.number == number {
				if reply, done := old.replies[int32(i)]; done { //nolint:gosec // few
					total.add(i, reply, nil)
					continue
				}
			}
		}
		changes, reply, problem := st(docs)
		total.add(i, reply, problem)
		switch {
		case problem != nil && t != nil:
			delete(n.txns, session)
			return append(bson.D{{Key: "ok", Value: 0.0}}, problem...)
		case problem != nil && (ordered || !given):
			return total.reply(n.confirmLast(last, call))
		case problem != nil:
		case t != nil:
			t.add(changes)
		case numbered:
			last = n.writeRun(changes, &statements{session: session, number: number, replies: map[int32]bson.D{int32(i): reply}}) //nolint:gosec // few
		case len(changes) > 0:
			last = n.write(changes)
		}
	}
	if t != nil {
		return total.reply(nil)
	}
	return total.reply(n.confirmLast(last, call))
}

// confirmLast confirms the last write of a command: what is before it is in it. A
// command that wrote nothing waits for what there is.
func (n *node) confirmLast(e *entry, call Call) bson.D {
	if e == nil {
		e = n.last()
	}
	return n.confirm(e, concernOf(call.Body))
}

// writeReply is the reply of a write command as it grows.
type writeReply struct {
	n, modified int
	upserted    bson.A
	errors      bson.A
}

// add takes one statement's outcome.
func (w *writeReply) add(i int, reply, problem bson.D) {
	if problem != nil {
		w.errors = append(w.errors, append(bson.D{{Key: "index", Value: i}}, problem...))
	}
	for _, e := range reply {
		count, _ := e.Value.(int)
		switch e.Key {
		case "n":
			w.n += count
		case "nModified":
			w.modified += count
		case "upserted":
			w.upserted = append(w.upserted, bson.D{{Key: "index", Value: i}, {Key: "_id", Value: e.Value}})
		}
	}
}

// reply is the whole.
func (w *writeReply) reply(concernError bson.D) bson.D {
	r := bson.D{{Key: "n", Value: w.n}, {Key: "nModified", Value: w.modified}}
	if len(w.upserted) > 0 {
		r = append(r, bson.E{Key: "upserted", Value: w.upserted})
	}
	if len(w.errors) > 0 {
		r = append(r, bson.E{Key: "writeErrors", Value: w.errors})
	}
	if concernError != nil {
		r = append(r, bson.E{Key: "writeConcernError", Value: concernError})
	}
	return append(r, ok()...)
}
