package proxy

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/proxy/admission"
	"drover/proxy/upstream"
	"drover/proxy/wire"
)

// leg is the part of a request that goes to one chunk.
type leg struct {
	entry  *entry
	access access
	edit   edit
	tail   [][]byte // sections after the body
	pinned *route   // go there and nowhere else
}

// answer is a shard's reply. It lives in the connection until release.
type answer struct {
	raw   bson.Raw
	route *route
	conn  *upstream.Conn
	status
}

// release gives the connection back; the reply is gone with it.
func (a *answer) release() {
	if a.conn != nil {
		a.conn.Release()
		a.conn = nil
	}
}

// errTransactionOver is what a statement of a transaction is told that a switch
// has ended.
func errTransactionOver(why string) *refusal {
	return refuse(codeNoSuchTransaction, "transaction was aborted: %s", why).labelled(labelTransient)
}

// dispatch sends a leg and follows its chunk wherever it goes. The answer may
// be an error of the shard's; one that the client must not see never is.
func (p *Proxy) dispatch(ctx context.Context, q *request, l *leg) (answer, error) {
	d := delivery{p: p, q: q, l: l}
	defer func() {
		if d.held != nil {
			d.held.end()
		}
		d.abandon()
		q.note(&d)
	}()
	for {
		r := l.pinned
		if r == nil {
			r = l.entry.route.Load()
		}
		if d.retryable() {
			if err := p.strange(ctx, q, l.entry, r); err != nil {
				return answer{}, err
			}
		}
		if err := d.takeRoom(ctx, r); err != nil {
			return answer{}, err
		}
		if wait, over := d.turn(r); wait > 0 {
			d.leaveRoom(admission.Unknown, 0)
			if err := d.await(ctx, wait, over); err != nil {
				return answer{}, err
			}
			continue
		}
		entered, err := d.enter(r)
		if err != nil {
			return answer{}, err
		}
		if !entered {
			d.leaveRoom(admission.Unknown, 0)
			if err := d.wait(ctx, r, d.holding()); err != nil {
				return answer{}, d.labelled(err)
			}
			continue
		}
		d.under = r
		sent := time.Now()
		tryCtx, span := d.traceTry(ctx, r)
		a, err := d.send(tryCtx, r)
		endTry(span, &a, err)
		d.under = nil
		d.leaveRoom(d.outcome(&a, err), time.Since(sent))
		again, err := d.judge(ctx, r, &a, err)
		switch {
		case err != nil:
			a.release()
			return answer{}, err
		case again:
			a.release()
		default:
			if q.txn != nil {
				q.txn.ran()
			}
			p.mirror(q, l, &a)
			return a, nil
		}
	}
}

// delivery is one leg on its way.
type delivery struct {
	p       *Proxy
	q       *request
	l       *leg
	resends int
	room    *admission.Gate // counted in there
	pass    admission.Pass  // by this
	split   split
	under   *route         // counted in there
	conn    *upstream.Conn // in use for it
	sent    time.Time      // when the try went out; zero: it did not
	held    *hold          // nil: it never had to wait
	eased   bool           // its turn has come, see [delivery.turn]
}

// holding gives the leg's time in its chunk's room.
func (d *delivery) holding() *hold {
	if d.held == nil {
		d.held = &hold{}
	}
	return d.held
}

// abandon cleans up after a panic: the count and the connection.
func (d *delivery) abandon() {
	d.leaveRoom(admission.Unknown, 0)
	if d.under == nil {
		return
	}
	if d.conn != nil {
		d.conn.Break()
	}
	d.leave(d.under, true)
}

// leave counts the leg out.
func (d *delivery) leave(r *route, lost bool) {
	if d.q.txn != nil {
		d.q.txn.leave(r, lost)
	} else {
		r.gate.leave(d.l.access, lost)
	}
}

// retryable reports whether a driver may send the request again with the same
// number.
func (d *delivery) retryable() bool {
	return d.l.access == writes && d.q.cmd.HasTxnNumber && !d.q.cmd.Transaction
}

// enter counts the leg in. It reports false when the leg must wait.
func (d *delivery) enter(r *route) (bool, error) {
	if d.q.txn != nil {
		return d.q.txn.enter(r)
	}
	if !r.gate.enter(d.l.access) {
		return false, nil
	}
	if d.retryable() && d.q.session.begin(d.q, r) {
		r.gate.leave(d.l.access, false)
		return false, errOutcomeUnknown(r.Chunk.ID)
	}
	return true, nil
}

// wait holds the leg. One that is bound to a placement does not outlive it.
func (d *delivery) wait(ctx context.Context, r *route, h *hold) error {
	a := d.l.access
	if d.q.txn != nil {
		a = writes
	}
	began := time.Now()
	err := d.p.wait(ctx, d.q, d.l.entry, a, h)
	d.split.hold += time.Since(began)
	if r, ok := errors.AsType[*refusal](err); ok && r.ended {
		switch {
		case d.q.txn != nil:
			return errTransactionOver("its chunk was split or merged")
		case d.l.pinned != nil:
			return errMoved
		}
	}
	if err != nil {
		return err
	}
	now := d.l.entry.route.Load()
	if d.l.pinned != nil && now.Placement.ID != r.Placement.ID {
		return errMoved
	}
	if now.pool != nil {
		now.pool.Gate().Expect()
	}
	return nil
}

// errMoved ends what is bound to a placement that does not serve any more.
var errMoved = errors.New("the chunk has moved")

// send makes one try.
func (d *delivery) send(ctx context.Context, r *route) (answer, error) {
	conn := r.pool.TryGet()
	if conn == nil {
		wait := d.p.cfg.ShardWait
		if !d.q.deadline.IsZero() {
			wait = min(wait, time.Until(d.q.deadline))
		}
		getCtx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		var err error
		if conn, err = r.pool.Get(getCtx); err != nil {
			return answer{}, err //nolint:wrapcheck // says what it is, and its type counts
		}
	}
	d.conn = conn
	a := answer{route: r, conn: conn}
	env := envelope{route: r}
	var deadline time.Time
	if d.q.session != nil {
		env.session, env.hasLSID = d.q.session.upstreamSession(r.Placement.ID), true
	}
	if d.q.txn != nil {
		env.start = d.q.txn.fresh()
	}
	if !d.q.deadline.IsZero() && d.q.cmd.MaxTimeMS > 0 {
		env.maxTime = time.Until(d.q.deadline)
		// The shard ends the command itself; this is for a shard that hangs.
		deadline = d.q.deadline.Add(time.Second)
	}
	d.sent = time.Now()
	conn.Begin()
	conn.Out = d.q.appendBody(conn.Out, env, &d.l.edit)
	var err error
	if a.raw, err = conn.Exchange(deadline, d.l.tail...); err != nil {
		return a, err //nolint:wrapcheck // says what it is, and its type counts
	}
	a.status = statusOf(a.raw)
	return a, nil
}

// statusOf reads what decides about a reply. A reply without ok is a failure.
func statusOf(raw bson.Raw) (s status) {
	for w := wire.Walk(raw); w.Next(); {
		switch string(w.Key) {
		case "ok":
			s.ok = w.Truth()
		case "code":
			n, _ := w.Number()
			s.code = code(n) //nolint:gosec // codes are small
		case "errorLabels":
			s.labels = w.Document()
		}
	}
	return s
}

// measure counts the try in the placement's traffic. A fence's refusal says nothing
// about how well the placement serves.
func (d *delivery) measure(r *route, a *answer, err error) {
	if d.sent.IsZero() || err == nil && a.code == codeUnauthorized {
		return
	}
	now := time.Now()
	r.gate.traffic.observe(now, now.Sub(d.sent), err != nil || !a.ok, d.l.access, &d.q.client.legs)
	d.p.answers.count(r.Placement.Shard, now.Sub(d.sent)+d.split.queue)
	d.sent = time.Time{}
}

// judge counts the leg out and decides what its answer means: done, send again,
// or an error.
func (d *delivery) judge(ctx context.Context, r *route, a *answer, err error) (again bool, _ error) {
	lost := err != nil && upstream.Ran(err)
	d.leave(r, lost)
	d.measure(r, a, err)
	if err != nil {
		return d.judgeBroken(ctx, r, err)
	}
	if a.ok {
		return false, nil
	}
	if a.code == codeUnauthorized || a.neverRan() {
		if d.retryable() {
			d.q.session.undo(d.q, r)
		}
	}
	switch {
	case a.code == codeUnauthorized:
		return d.judgeRefused(ctx, r, d.holding())
	case a.lostPrimary():
		r.pool.NotPrimary(a.conn)
		return d.judgeLostPrimary(r, a)
	default:
		return false, nil
	}
}

// judgeRefused handles a shard's Unauthorized: the placement is fenced or closed.
func (d *delivery) judgeRefused(ctx context.Context, r *route, h *hold) (bool, error) {
	if d.q.txn != nil && !d.q.txn.fresh() {
		d.p.endTransaction(ctx, d.q.txn)
		return false, errTransactionOver("its chunk is being switched")
	}
	d.p.metrics.refused("shard")
	d.p.metrics.resent.Inc()
	h.refused = r
	h.polls, _, _ = d.l.entry.room.look(0)
	if err := d.wait(ctx, r, h); err != nil {
		return false, d.labelled(err)
	}
	return true, nil
}

// maxResends bounds how often a leg is sent again because a primary was lost.
const maxResends = 3

// judgeBroken handles a connection that could not be had, or died.
func (d *delivery) judgeBroken(ctx context.Context, r *route, err error) (bool, error) {
	ran := upstream.Ran(err)
	if d.retryable() && !ran {
		d.q.session.undo(d.q, r)
	}
	if d.q.txn != nil {
		if ran {
			d.q.txn.ran()
		}
		return false, d.p.unreachable(ctx, r, err).labelled(labelTransient)
	}
	if ran && d.l.access == reads && d.l.pinned == nil && d.resends < maxResends {
		d.resends++
		return true, nil
	}
	out := d.p.unreachable(ctx, r, err)
	if d.retryable() {
		out.labels = append(out.labels, labelRetryableWrite)
		if !ran {
			out.labels = append(out.labels, labelNothingRan)
		}
	}
	return false, out
}

// judgeLostPrimary handles a member that is not, or soon no longer, the primary.
func (d *delivery) judgeLostPrimary(r *route, a *answer) (bool, error) {
	if d.q.txn != nil && !d.q.txn.fresh() {
		return false, errTransactionOver("its shard has a new primary")
	}
	if (d.l.access == reads || a.neverRan()) && d.resends < maxResends {
		d.resends++
		return true, nil
	}
	out := refuse(codeHostUnreachable, "%s lost its primary", r.Placement.Shard)
	for w := wire.Walk(a.labels); w.Next(); {
		out.labels = append(out.labels, string(w.Text()))
	}
	return false, out
}

// labelled adds to the error of a wait what tells a driver to try once more.
func (d *delivery) labelled(err error) error {
	r, ok := errors.AsType[*refusal](err)
	if !ok || r.code != codeExceededTimeLimit {
		return err
	}
	switch {
	case d.q.cmd.Transaction:
		return r.labelled(labelTransient)
	case d.retryable():
		return r.labelled(labelRetryableWrite, labelNothingRan)
	default:
		return r
	}
}
