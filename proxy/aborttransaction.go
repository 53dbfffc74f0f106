package proxy

import (
	"context"

	"drover/proxy/upstream"
)

// abortTransaction goes to the placement that the transaction is bound to.
//
// Behaviour: as commitTransaction, by recoveryToken too; one that has sent nothing yet
// ends here.
//
// Not supported: aborting what is over (NoSuchTransaction, 251).
func abortTransaction(ctx context.Context, p *Proxy, q *request) error {
	t, _, err := p.ending(ctx, q)
	if err != nil {
		return err
	}
	t.mu.Lock()
	r, state := t.route, t.state
	t.mu.Unlock()
	if state == txnAborted {
		return errTransactionOver("it is over")
	}
	if r == nil {
		t.finish(txnAborted)
		q.build(func(dst []byte) []byte { return dst })
		return nil
	}
	r.gate.enterAnyway(writes)
	d := delivery{p: p, q: q, l: &leg{entry: t.entry, access: writes, pinned: r}}
	admin := *r
	admin.Placement.Database = "admin"
	a, err := d.send(ctx, &admin)
	defer a.release()
	r.gate.leave(writes, err != nil && upstream.Ran(err))
	if err != nil {
		return p.unreachable(ctx, r, err).labelled(labelRetryableWrite)
	}
	if a.lostPrimary() {
		r.pool.NotPrimary(a.conn)
		return refuse(codeHostUnreachable, "%s lost its primary", r.Placement.Shard).labelled(labelRetryableWrite)
	}
	t.finish(txnAborted)
	return q.pass(&a)
}
