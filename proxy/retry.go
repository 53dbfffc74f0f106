package proxy

import (
	"context"
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
		if e == nil || at.by == q {
			continue
		}
		if e.route.Load().Placement.ID == at.placement {
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
	var r *route
	for _, past := range e.past.all() {
		if past.Placement.ID == placement {
			r = past.route
		}
	}
	if r == nil || !p.pools.keepsRecords(r.Placement.Shard) {
		return false
	}
	number, found, err := p.record(ctx, q.session, r)
	return err == nil && (!found || number < q.cmd.TxnNumber)
}

// retryHorizon is how long after a switch a driver may still try again what it
// first sent before. Later, an old shard that does not answer is no obstacle.
const retryHorizon = 2 * time.Minute

// strange looks, once for each session and former placement of a chunk, whether
// the shard there has a record of this very write: another proxy may have sent
// it before the switch, and this one the driver's retry.
func (p *Proxy) strange(ctx context.Context, q *request, e *entry) error {
	if !e.past.some.Load() {
		return nil
	}
	for _, past := range e.past.all() {
		age := time.Since(past.left)
		if age > sessionLife || past.Placement.ID == e.route.Load().Placement.ID ||
			!p.pools.keepsRecords(past.Placement.Shard) || !q.session.unchecked(past.Placement.ID) {
			continue
		}
		number, found, err := p.record(ctx, q.session, past.route)
		switch {
		case err != nil && age < retryHorizon:
			q.session.recheck(past.Placement.ID)
			return refuse(codeExceededTimeLimit, "%s cannot say whether it has run this write", past.Placement.Shard).
				labelled(labelRetryableWrite, labelNothingRan)
		case err == nil && found && number >= q.cmd.TxnNumber:
			p.metrics.refused("outcome_unknown")
			return errOutcomeUnknown(e.id)
		}
	}
	return nil
}

// unchecked reports whether the record of a former placement has not been looked
// at for this session, and notes that it is.
func (s *session) unchecked(p chunk.PlacementID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.checked, p) {
		return false
	}
	s.checked = append(s.checked, p)
	return true
}

// recheck takes back that a record was looked at.
func (s *session) recheck(p chunk.PlacementID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = slices.DeleteFunc(s.checked, func(o chunk.PlacementID) bool { return o == p })
}

// record reads the number of the session's newest retryable write that the
// shard of r knows of.
func (p *Proxy) record(ctx context.Context, s *session, r *route) (number int64, found bool, err error) {
	id := s.upstreamSession(r.Placement.ID)
	doc, err := p.lookUp(ctx, r, "config", "transactions", document(func(dst []byte) []byte {
		return bsoncore.AppendBinaryElement(dst, "_id.id", bson.TypeBinaryUUID, id[:])
	}))
	if err != nil || doc == nil {
		return 0, false, err
	}
	n, _ := wire.Find(doc, "txnNum")
	number, found = n.Number()
	return number, found, nil
}
