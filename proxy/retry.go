package proxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/wire"
)

// errOutcomeUnknown answers a retry of a write that may have run on a placement
// that does not serve any more. It has no label: a driver must not try again.
func errOutcomeUnknown(id chunk.ID) error {
	return refuse(codeIncompleteHistory, "the outcome of this retried write is unknown: chunk %s was switched after it was first sent", id)
}

// retried looks whether a retryable write is a retry of one that was sent to a
// placement which no longer serves its chunk. Such a one never runs again: it is
// answered from memory, or with an error that says that nobody knows. A part
// that the old shard's own record shows not to have run is sent.
func (p *Proxy) retried(ctx context.Context, q *request) (answered bool, err error) {
	if !q.cmd.HasTxnNumber || q.cmd.Transaction || q.session == nil {
		return false, nil
	}
	reply, places := q.session.recall(q.cmd.TxnNumber)
	for _, at := range places {
		e := p.routing.entry(at.chunk)
		if e == nil || at.by == q.id {
			continue
		}
		if !e.ended.Load() && e.route.Load().Placement.ID == at.placement {
			continue
		}
		if len(reply) > 0 {
			q.reply(reply)
			return true, nil
		}
		if !p.neverRan(ctx, q, e, at.placement) {
			p.metrics.refused("outcome_unknown")
			return false, errOutcomeUnknown(at.chunk)
		}
		q.session.erase(q.cmd.TxnNumber, at)
	}
	return false, nil
}

// erase forgets a place on which a write is known not to have run.
func (s *session) erase(number int64, at place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.write.number != number {
		return
	}
	for i, p := range s.write.places {
		if p == at {
			s.write.places = append(s.write.places[:i], s.write.places[i+1:]...)
			return
		}
	}
}

// neverRan asks the shard of an old placement whether it has a record of the
// session's write. It is certain only where shards keep such records and there
// is none with that number; anything else is false.
func (p *Proxy) neverRan(ctx context.Context, q *request, e *entry, placement chunk.PlacementID) bool {
	for _, past := range append(e.past.all(), former{Route: e.route.Load().Route}) {
		if past.Placement.ID != placement {
			continue
		}
		number, found, err := p.record(ctx, q.session, past)
		return err == nil && (!found || number < q.cmd.TxnNumber)
	}
	return false
}

// retryHorizon is how long after a switch a driver may still try again what it
// first sent before. Later, an old shard that does not answer is no obstacle.
const retryHorizon = 2 * time.Minute

// strange looks, once for each session and former route of a chunk, whether the
// shard there has a record of this very write: another proxy may have sent it
// before the switch, and this one, which may not even have run then, the
// driver's retry. r is the route by which the write is about to be sent: the
// former ones were known before it was.
func (p *Proxy) strange(ctx context.Context, q *request, e *entry, r *route) error {
	if !e.past.some.Load() {
		return nil
	}
	for _, past := range e.past.all() {
		age := time.Since(past.left)
		if age > sessionLife || past.Token >= r.Token || past.Placement.ID == r.Placement.ID || q.session.hasChecked(past.Token) {
			continue
		}
		number, found, err := p.record(ctx, q.session, past)
		switch {
		case errors.Is(err, errNoRecords):
		case err != nil && age < retryHorizon:
			return refuse(codeExceededTimeLimit, "%s cannot say whether it has run this write", past.Placement.Shard).
				labelled(labelRetryableWrite, labelNothingRan)
		case err == nil && found && number >= q.cmd.TxnNumber:
			p.metrics.refused("outcome_unknown")
			return errOutcomeUnknown(e.id)
		}
		q.session.check(past.Token)
	}
	return nil
}

// checkedRoute is a former route whose record of a session was looked at.
type checkedRoute struct {
	token chunk.Token
	at    time.Time
}

// hasChecked reports whether the record by a former route has been looked at for
// this session and held none of its writes that may still be tried again.
func (s *session) hasChecked(t chunk.Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.checked, func(c checkedRoute) bool { return c.token == t })
}

// check notes that the record by a former route has been looked at. What no
// former route can have any more is forgotten.
func (s *session) check(t chunk.Token) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = slices.DeleteFunc(s.checked, func(c checkedRoute) bool { return c.token == t || now.Sub(c.at) > sessionLife })
	s.checked = append(s.checked, checkedRoute{t, now})
}

// errNoRecords is a shard that keeps no records of retryable writes.
var errNoRecords = errors.New("the shard keeps no records of retryable writes")

// record reads the number of the session's newest retryable write that the
// shard of a former route knows of.
func (p *Proxy) record(ctx context.Context, s *session, past former) (number int64, found bool, err error) {
	r, err := p.routing.formerRoute(ctx, past)
	if err != nil {
		return 0, false, err
	}
	if !p.pools.keepsRecords(r.Placement.Shard) {
		return 0, false, errNoRecords
	}
	id := s.upstreamSession(r.Placement.ID)
	doc, err := p.lookUp(ctx, r, "config", "transactions", document(func(dst []byte) []byte {
		return bsoncore.AppendDocumentElement(dst, "_id", recordRange(id[:]))
	}))
	if err != nil || doc == nil {
		return 0, false, err
	}
	n, _ := wire.Find(doc, "txnNum")
	number, found = n.Number()
	return number, found, nil
}

// recordRange is a condition on the _id {id, uid} of a session's record, which only a
// range finds by the index: uid is a digest that is the server's affair.
func recordRange(id []byte) []byte {
	withID := func(dst []byte) []byte { return bsoncore.AppendBinaryElement(dst, "id", bson.TypeBinaryUUID, id) }
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendDocumentElement(dst, "$gte", document(withID))
		return bsoncore.AppendDocumentElement(dst, "$lte", document(func(dst []byte) []byte { return bsoncore.AppendMaxKeyElement(withID(dst), "uid") }))
	})
}
