package shardsim

import (
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// operation is a command that is under way.
type operation struct {
	id      int32
	conn    *conn
	call    Call
	checked bool // its privileges have been looked at; before that its command is not seen
	killed  int  // the code it ends with; 0: it lives
}

// transaction is an open one.
type transaction struct {
	session string
	user    string
	number  int64
	docs    *documents // its own view
	changes []change
	started time.Time
}

// add makes changes that only the transaction sees.
func (t *transaction) add(changes []change) {
	t.changes = append(t.changes, changes...)
	t.docs.apply(&entry{changes: changes})
}

// begin notes an operation.
func (s *Set) begin(c *conn, call Call) *operation {
	s.opids++
	o := &operation{id: s.opids, conn: c, call: call}
	c.node.ops[o.id] = o
	return o
}

// kill lets an operation end at its next interruption point.
func (o *operation) kill(code int) {
	o.killed = code
	o.conn.node.set.broadcast()
}

// uid is the digest that a server puts into the session ids of a user.
func uid(user string) string {
	sum := sha256.Sum256([]byte(user + "@admin"))
	return string(sum[:])
}

// session gives a command's session: its id and its user's digest; empty without one.
func (c *conn) session(call Call) string {
	_, id, given := call.Body.Lookup("lsid", "id").BinaryOK()
	if !given || len(id) != 16 {
		return ""
	}
	return string(id) + uid(c.user)
}

// join begins a transaction, or sees that the one a command belongs to is open.
func (c *conn) join(call Call) bson.D {
	if auto, given := call.Body.Lookup("autocommit").BooleanOK(); !given || auto {
		return nil
	}
	n, session := c.node, c.session(call)
	number, _ := call.Body.Lookup("txnNumber").AsInt64OK()
	if start, _ := call.Body.Lookup("startTransaction").BooleanOK(); start {
		docs := newDocuments()
		for ns, all := range n.data.byNS {
			docs.byNS[ns] = maps.Clone(all)
		}
		n.txns[session] = &transaction{session: session, user: c.user, number: number, docs: docs, started: n.set.now}
		return nil
	}
	if t := n.txns[session]; t == nil || t.number != number {
		return noTransaction()
	}
	return nil
}

// noTransaction tells that a transaction was aborted, or never was.
func noTransaction() bson.D {
	return append(failed(codeNoSuchTransaction, "Transaction with { txnNumber } has been aborted."), bson.E{Key: "errorLabels", Value: bson.A{"TransientTransactionError"}})
}

// transaction gives the open transaction that a command belongs to.
func (c *conn) transaction(call Call) *transaction {
	if auto, given := call.Body.Lookup("autocommit").BooleanOK(); !given || auto {
		return nil
	}
	return c.node.txns[c.session(call)]
}

// commit ends a transaction with one entry. A commit that was done is done.
func (c *conn) commit(call Call) bson.D {
	n, session := c.node, c.session(call)
	if r := n.writable(); r != nil {
		return r
	}
	number, _ := call.Body.Lookup("txnNumber").AsInt64OK()
	t := n.txns[session]
	if t == nil || t.number != number {
		if old := n.data.ran[session]; old != nil && old.number == number {
			return ok()
		}
		return noTransaction()
	}
	delete(n.txns, session)
	e := n.writeRun(t.changes, &statements{session: session, number: number, replies: map[int32]bson.D{}})
	if problem := n.confirm(e, concernOf(call.Body)); problem != nil {
		return append(bson.D{{Key: "writeConcernError", Value: problem}}, ok()...)
	}
	return ok()
}

// abort gives a transaction up.
func (c *conn) abort(call Call) bson.D {
	session := c.session(call)
	if c.node.txns[session] == nil {
		return noTransaction()
	}
	delete(c.node.txns, session)
	return ok()
}

// currentOps lists what a node is doing, and which transactions are open and idle.
func (n *node) currentOps() []bson.Raw {
	var all []bson.Raw
	busy := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(n.ops)) {
		o := n.ops[id]
		d := bson.D{
			{Key: "type", Value: "op"}, {Key: "host", Value: n.host}, {Key: "connectionId", Value: o.conn.id}, {Key: "opid", Value: o.id}, {Key: "active", Value: true},
			{Key: "effectiveUsers", Value: bson.A{bson.D{{Key: "user", Value: o.conn.user}, {Key: "db", Value: "admin"}}}},
		}
		if o.checked {
			d = append(d, bson.E{Key: "ns", Value: o.call.DB}, bson.E{Key: "command", Value: o.call.Body})
			if session := o.conn.session(o.call); session != "" {
				busy[session] = true
				d = append(d, bson.E{Key: "lsid", Value: lsid(session)})
				if t := n.txns[session]; t != nil {
					d = append(d, t.shown())
				}
			}
		}
		all = append(all, mustMarshal(d))
	}
	for _, session := range slices.Sorted(maps.Keys(n.txns)) {
		if t := n.txns[session]; !busy[session] {
			all = append(all, mustMarshal(bson.D{
				{Key: "type", Value: "idleSession"}, {Key: "host", Value: n.host}, {Key: "active", Value: false}, {Key: "lsid", Value: lsid(session)}, t.shown(),
			}))
		}
	}
	return all
}

// lsid is a session's id as replies show it.
func lsid(session string) bson.D {
	return bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte(session[:16])}}, {Key: "uid", Value: bson.Binary{Data: []byte(session[16:])}}}
}

// shown is what $currentOp tells of a transaction.
func (t *transaction) shown() bson.E {
	return bson.E{Key: "transaction", Value: bson.D{
		{Key: "parameters", Value: bson.D{{Key: "txnNumber", Value: t.number}, {Key: "autocommit", Value: false}}}, {Key: "startWallClockTime", Value: t.started},
	}}
}

// killOp marks an operation; it ends where it can be interrupted.
func (c *conn) killOp(call Call) bson.D {
	id, _ := call.Body.Lookup("op").AsInt64OK()
	if o := c.node.ops[int32(id)]; o != nil { //nolint:gosec // they are made as int32
		o.kill(codeInterrupted)
	}
	return append(bson.D{{Key: "info", Value: "attempting to kill op"}}, ok()...)
}

// killSessions ends exactly the sessions named: {id} is one of the caller's own,
// {id, uid} anybody's.
func (c *conn) killSessions(call Call) bson.D {
	var q struct {
		Sessions []struct {
			ID  bson.Binary  `bson:"id"`
			UID *bson.Binary `bson:"uid"`
		} `bson:"killSessions"`
	}
	if err := bson.Unmarshal(call.Body, &q); err != nil {
		return failed(codeBadValue, err.Error())
	}
	for _, x := range q.Sessions {
		digest := uid(c.user)
		if x.UID != nil {
			digest = string(x.UID.Data)
		}
		c.node.end(string(x.ID.Data) + digest)
	}
	return ok()
}

// end aborts a session's transaction and kills its operations.
func (n *node) end(session string) {
	delete(n.txns, session)
	for _, o := range n.ops {
		if o.conn.session(o.call) == session {
			o.kill(codeInterrupted)
		}
	}
}

// killPattern ends the sessions of users, or all.
func (c *conn) killPattern(call Call) bson.D {
	var q struct {
		Patterns []struct {
			UID *bson.Binary `bson:"uid"`
		} `bson:"killAllSessionsByPattern"`
	}
	if err := bson.Unmarshal(call.Body, &q); err != nil {
		return failed(codeBadValue, err.Error())
	}
	for session := range c.node.txns {
		for _, p := range q.Patterns {
			if p.UID == nil || string(p.UID.Data) == session[16:] {
				c.node.end(session)
			}
		}
		if len(q.Patterns) == 0 {
			c.node.end(session)
		}
	}
	return ok()
}

// Transactions counts a member's open transactions.
func (s *Set) Transactions(host string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.node(host).txns)
}
