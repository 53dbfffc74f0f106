package proxy

import (
	"context"

	"drover/proxy/upstream"
)

// commitTransaction always goes to the placement that the transaction is bound
// to and is never held. One that a switch has ended is not sent: the fence on
// the shard does not stop a commit.
//
// Behaviour: writeConcern, recoveryToken (another proxy finishes what this one has begun)
// and the driver's second commit, which gives the outcome of the first.
//
// Not supported: committing what a switch has ended (NoSuchTransaction, 251, with
// TransientTransactionError).
func commitTransaction(ctx context.Context, p *Proxy, q *request) error {
	t, stranger, err := p.ending(ctx, q)
	if err != nil {
		return err
	}
	t.mu.Lock()
	r, e, state := t.route, t.entry, t.state
	if state == txnOpen {
		t.state = txnDeciding
	}
	t.mu.Unlock()
	if state == txnAborted || r == nil {
		return errTransactionOver("its chunk is being switched, or it was aborted")
	}
	if stranger || p.cfg.Deaf || !p.hearing.Load() {
		if over, err := p.settleStranger(ctx, t, r, e); over {
			if err == nil {
				q.build(func(dst []byte) []byte { return dst })
			}
			return err
		}
	}
	r.gate.enterAnyway(writes)
	t.mu.Lock()
	state = t.state
	t.mu.Unlock()
	if state == txnAborted {
		r.gate.leave(writes, false)
		return errTransactionOver("its chunk is being switched")
	}
	if state == txnDoubt {
		r.gate.leave(writes, false)
		if err := p.outcome(ctx, t, r); err != nil {
			return err
		}
		q.build(func(dst []byte) []byte { return dst })
		return nil
	}
	return p.sendCommit(ctx, q, t, r)
}

// sendCommit sends the commit; the gate has counted it in.
func (p *Proxy) sendCommit(ctx context.Context, q *request, t *txn, r *route) error {
	d := delivery{p: p, q: q, l: &leg{entry: t.entry, access: writes, pinned: r}}
	admin := *r
	admin.Placement.Database = "admin"
	a, err := d.send(ctx, &admin)
	defer a.release()
	r.gate.leave(writes, err != nil && upstream.Ran(err))
	if err != nil {
		return p.unreachable(ctx, r, err).labelled(labelRetryableWrite)
	}
	switch {
	case a.lostPrimary():
		r.pool.NotPrimary(a.conn)
		return refuse(codeHostUnreachable, "%s lost its primary", r.Placement.Shard).labelled(labelRetryableWrite)
	case a.ok:
		t.finish(txnCommitted)
	case a.code == codeNoSuchTransaction:
		t.finish(txnAborted)
	}
	return q.pass(&a)
}
