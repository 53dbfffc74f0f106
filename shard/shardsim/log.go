package shardsim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// entry is one change in the replicated log. Entries are shared between members
// and never changed.
type entry struct {
	at      bson.Timestamp
	term    int64
	wall    time.Time
	changes []change
	ran     *statements // of a retryable write or a transaction
}

// change sets a document, or deletes it when it is nil.
type change struct {
	ns  string
	key string
	doc bson.Raw
}

// statements is what a session's retryable write did, for its retry.
type statements struct {
	session string
	number  int64
	replies map[int32]bson.D // by statement
}

// documents is what a log adds up to.
type documents struct {
	byNS map[string]map[string]bson.Raw
	ran  map[string]*statements // the newest of each session
}

// newDocuments is what an empty log adds up to.
func newDocuments() *documents {
	return &documents{byNS: map[string]map[string]bson.Raw{}, ran: map[string]*statements{}}
}

// apply adds an entry.
func (d *documents) apply(e *entry) {
	for _, c := range e.changes {
		if d.byNS[c.ns] == nil {
			d.byNS[c.ns] = map[string]bson.Raw{}
		}
		if c.doc == nil {
			delete(d.byNS[c.ns], c.key)
		} else {
			d.byNS[c.ns][c.key] = c.doc
		}
	}
	if e.ran == nil {
		return
	}
	old := d.ran[e.ran.session]
	if old == nil || old.number < e.ran.number {
		old = &statements{session: e.ran.session, number: e.ran.number, replies: map[int32]bson.D{}}
		d.ran[e.ran.session] = old
	}
	maps.Copy(old.replies, e.ran.replies)
}

// list gives a collection's documents in a steady order.
func (d *documents) list(ns string) []bson.Raw {
	docs := d.byNS[ns]
	var out []bson.Raw
	for _, k := range slices.Sorted(maps.Keys(docs)) {
		out = append(out, docs[k])
	}
	return out
}

// last gives the newest entry, nil when there is none.
func (n *node) last() *entry {
	if len(n.log) == 0 {
		return nil
	}
	return n.log[len(n.log)-1]
}

// optime is the time of the newest entry.
func (n *node) optime() (bson.Timestamp, int64) {
	if e := n.last(); e != nil {
		return e.at, e.term
	}
	return bson.Timestamp{}, -1
}

// optimeDate is the wall time of the newest entry.
func (n *node) optimeDate() time.Time {
	if e := n.last(); e != nil {
		return e.wall
	}
	return time.Time{}
}

// behind reports whether n lacks what o has.
func (n *node) behind(o *node) bool {
	a, at := n.optime()
	b, bt := o.optime()
	return at < bt || at == bt && a.Before(b)
}

// write appends one entry to the log of a primary.
func (n *node) write(changes []change) *entry { return n.writeRun(changes, nil) }

// writeRun is write for a retryable write or a transaction.
func (n *node) writeRun(changes []change, ran *statements) *entry {
	s := n.set
	s.inc++
	e := &entry{at: stamp(s.now, s.inc), term: n.term, wall: s.now, changes: changes, ran: ran}
	if ran != nil {
		e.changes = append(slices.Clone(changes), ran.record(e))
	}
	n.append(e)
	s.step(0)
	return e
}

// stamp is a moment as the log counts it.
func stamp(now time.Time, inc uint32) bson.Timestamp {
	return bson.Timestamp{T: uint32(now.Unix()), I: inc} //nolint:gosec // until 2106
}

// record is the document that config.transactions keeps of a session.
func (r *statements) record(e *entry) change {
	id := bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte(r.session[:16])}}, {Key: "uid", Value: bson.Binary{Data: []byte(r.session[16:])}}}
	doc := mustMarshal(bson.D{
		{Key: "_id", Value: id}, {Key: "txnNum", Value: r.number},
		{Key: "lastWriteOpTime", Value: bson.D{{Key: "ts", Value: e.at}, {Key: "t", Value: e.term}}}, {Key: "lastWriteDate", Value: e.wall},
	})
	return change{ns: "config.transactions", key: idKey(doc.Lookup("_id")), doc: doc}
}

// append adds an entry and what follows from it.
func (n *node) append(e *entry) {
	n.log = append(n.log, e)
	n.data.apply(e)
	for _, c := range e.changes {
		if (c.ns == usersNS || c.ns == rolesNS) && !n.sticky {
			n.caches = map[string][]privilege{}
		}
	}
}

// common gives how many entries two logs have in common.
func common(a, b []*entry) int {
	i := min(len(a), len(b))
	for i > 0 && a[i-1] != b[i-1] {
		i--
	}
	return i
}

// pull lets n take from a source what it lacks and may have by now, first giving
// up what the source does not have.
func (n *node) pull(from *node) {
	c := common(n.log, from.log)
	if c < len(n.log) {
		_, mine := n.optime()
		if _, theirs := from.optime(); mine > theirs {
			return
		}
		n.rollBack(c)
	}
	hold := n.lag
	if m := n.config.member(n.host); m != nil {
		hold += m.delay
	}
	for _, e := range from.log[c:] {
		if hold > 0 && e.wall.Add(hold).After(n.set.now) {
			return
		}
		n.append(e)
	}
}

// rollBack gives up all but the first entries.
func (n *node) rollBack(keep int) {
	n.log = slices.Clone(n.log[:keep])
	n.data = build(n.log)
	n.caches = map[string][]privilege{}
}

// build adds a log up.
func build(log []*entry) *documents {
	d := newDocuments()
	for _, e := range log {
		d.apply(e)
	}
	return d
}

// committed reports whether a majority of the voters has an entry.
func (n *node) committed(e *entry) bool {
	have := 0
	for _, m := range n.config.members {
		if o := n.set.find(m.host); m.counts() == 1 && o != nil && o.has(e) {
			have++
		}
	}
	return have >= n.config.majority()
}

// has reports whether a log holds an entry. An arbiter holds none.
func (n *node) has(e *entry) bool {
	for i := len(n.log) - 1; i >= 0; i-- {
		if n.log[i] == e {
			return true
		}
		if n.log[i].at.Before(e.at) {
			return false
		}
	}
	return false
}

// snapshot is the majority's view.
func (n *node) snapshot() *documents {
	for i := len(n.log); i > 0; i-- {
		if n.committed(n.log[i-1]) {
			if i == len(n.log) {
				return n.data
			}
			return build(n.log[:i])
		}
	}
	return newDocuments()
}

// commitPoint is the time of the newest entry that a majority has.
func (n *node) commitPoint() (bson.Timestamp, int64) {
	for i := len(n.log); i > 0; i-- {
		if e := n.log[i-1]; n.committed(e) {
			return e.at, e.term
		}
	}
	return bson.Timestamp{}, -1
}

// mustMarshal encodes what the simulator made itself.
func mustMarshal(v any) bson.Raw {
	raw, err := bson.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("shardsim: encode %T: %v", v, err))
	}
	return raw
}
