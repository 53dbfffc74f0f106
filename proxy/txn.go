package proxy

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"drover/chunk"
	"drover/proxy/upstream"
	"drover/proxy/wire"
)

// txnState is where a transaction stands, as far as this proxy knows.
type txnState uint8

// The states of a transaction.
const (
	txnOpen      txnState = iota
	txnDeciding           // commit was sent: it may be over or not
	txnCommitted          // for certain
	txnAborted            // for certain, or it can never commit
	txnDoubt              // commit was sent and is not sent again: only the shard knows what became of it
)

// txn is one transaction of a session. Its first statement binds it to the
// placement that its chunk has then; nothing moves it.
type txn struct {
	session *session
	number  int64

	mu       sync.Mutex
	route    *route // nil: no statement has been sent
	entry    *entry
	begun    bool // a statement has run on the placement
	state    txnState
	running  int
	first    time.Time // when its first statement was sent
	lastUsed time.Time
}

// transaction finds the transaction that q belongs to and begins one when q says so.
func (p *Proxy) transaction(q *request, now time.Time) error {
	if !q.cmd.Transaction {
		return nil
	}
	s := q.session
	s.mu.Lock()
	t := s.txn
	switch {
	case q.cmd.Start && (t == nil || t.number < q.cmd.TxnNumber):
		old := t
		t = &txn{session: s, number: q.cmd.TxnNumber, lastUsed: now}
		s.txn = t
		s.mu.Unlock()
		if old != nil {
			old.finish(txnAborted) // the shard aborts it too, or it was over
		}
		q.txn = t
		return nil
	case t == nil || t.number != q.cmd.TxnNumber:
		s.mu.Unlock()
		return errTransactionOver("this proxy does not know it")
	}
	s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastUsed = now
	if t.state == txnAborted || t.state == txnCommitted {
		return errTransactionOver("it is over")
	}
	q.txn = t
	return nil
}

// enter counts a statement in. The first one binds the transaction to r, and is
// held like a write; a later one never is.
func (t *txn) enter(r *route) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != txnOpen {
		return false, errTransactionOver("its chunk is being switched, or it is over")
	}
	if t.begun {
		if t.route.Placement.ID != r.Placement.ID {
			return false, errTransactionOver("its chunk has moved")
		}
		t.route.gate.enterAnyway(writes)
	} else {
		if !r.gate.enter(writes) {
			return false, nil
		}
		if t.route != nil && t.route.gate != r.gate {
			t.route.gate.remove(t)
		}
		t.route = r
		r.gate.add(t)
	}
	t.running++
	return true, nil
}

// since is when it was opened on its placement; zero while it is not, or no more.
func (t *txn) since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.begun || t.state != txnOpen {
		return time.Time{}
	}
	return t.first
}

// fresh reports whether nothing of the transaction has run anywhere.
func (t *txn) fresh() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.begun
}

// leave counts a statement out.
func (t *txn) leave(r *route, lost bool) {
	t.mu.Lock()
	t.running--
	t.mu.Unlock()
	r.gate.leave(writes, lost)
}

// ran notes that a statement has run, so that the transaction is bound for good.
func (t *txn) ran() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.begun {
		t.begun, t.first = true, time.Now()
	}
}

// finish ends the transaction's life in this proxy.
func (t *txn) finish(s txnState) {
	t.mu.Lock()
	t.state = s
	r := t.route
	t.mu.Unlock()
	if r != nil {
		r.gate.remove(t)
	}
}

// bind gives the transaction its chunk. It has one: the fence of a switch could
// not stop a commit that is spread over several shards.
func (t *txn) bind(e *entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entry != nil && t.entry != e {
		return refuse(codeNotInTransaction, "a transaction is limited to one chunk: it began on %s, and this statement is for %s", t.entry.id, e.id)
	}
	t.entry = e
	return nil
}

// endTransactions aborts what is open on a placement and reports whether there
// was anything.
func (p *Proxy) endTransactions(ctx context.Context, g *gate) bool {
	all := g.transactions()
	var wg sync.WaitGroup
	for _, t := range all {
		wg.Go(func() { p.endTransaction(ctx, t) })
	}
	wg.Wait()
	return len(all) > 0
}

// endTransaction aborts a transaction on its shard. From the first line on, none
// of its statements and no commit is sent any more.
func (p *Proxy) endTransaction(ctx context.Context, t *txn) {
	t.mu.Lock()
	r, running := t.route, t.running
	switch t.state {
	case txnOpen:
		t.state = txnAborted
	case txnDeciding:
		t.state = txnDoubt
	case txnCommitted, txnAborted, txnDoubt:
	}
	t.mu.Unlock()
	if r == nil {
		return
	}
	// A statement that is under way may reach the shard after the abort and
	// begin the transaction anew: it is aborted once more when that is over.
	if running == 0 {
		defer r.gate.remove(t)
	}
	r.gate.enterAnyway(writes)
	s, err := p.decide(ctx, "abortTransaction", r, t.session, t.number, nil)
	r.gate.leave(writes, err != nil && upstream.Ran(err))
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case s.code == codeCommitted:
		t.state = txnCommitted
	case t.state == txnDoubt && (s.ok || s.code == codeNoSuchTransaction):
		t.state = txnAborted
	}
}

// endIdleTransactions aborts transactions whose clients have gone.
func (p *Proxy) endIdleTransactions(ctx context.Context, now time.Time) {
	for _, t := range p.sessions.transactions() {
		t.mu.Lock()
		idle := t.state == txnOpen && t.route != nil && t.running == 0 && now.Sub(t.lastUsed) > transactionLife
		t.mu.Unlock()
		if idle {
			p.endTransaction(ctx, t)
		}
	}
}

// transactionLife is how long a server lets a transaction be open.
const transactionLife = 60 * time.Second

// decide sends commitTransaction or abortTransaction of our own making and
// gives the shard's status.
func (p *Proxy) decide(ctx context.Context, verb string, r *route, s *session, number int64, extra []byte) (status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.ShardWait, errMetadataTimeout)
	defer cancel()

	conn, err := r.pool.Get(ctx)
	if err != nil {
		return status{}, err //nolint:wrapcheck // its type counts
	}
	defer conn.Release()
	at, body := bsoncore.AppendDocumentStart(nil)
	body = bsoncore.AppendInt32Element(body, verb, 1)
	body = bsoncore.AppendInt64Element(body, "txnNumber", number)
	body = bsoncore.AppendBooleanElement(body, "autocommit", false)
	body = append(body, extra...)
	body = appendSession(body, s.upstreamSession(r.Placement.ID))
	body = appendComment(body, r, bson.RawValue{})
	body = bsoncore.AppendStringElement(body, "$db", "admin")
	body, _ = bsoncore.AppendDocumentEnd(body, at)
	raw, err := conn.Command(ctx, body)
	if err != nil {
		return status{}, err //nolint:wrapcheck // its type counts
	}
	st := statusOf(raw)
	if st.lostPrimary() {
		r.pool.NotPrimary(conn)
	}
	return st, nil
}

// recoveryToken is what names a transaction's placement to another proxy.
func appendRecoveryToken(dst []byte, t *txn) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, dst := bsoncore.AppendDocumentElementStart(dst, "recoveryToken")
	dst = bsoncore.AppendStringElement(dst, "chunk", string(t.entry.id))
	dst = bsoncore.AppendInt64Element(dst, "placement", int64(t.route.Placement.ID))
	dst = bsoncore.AppendStringElement(dst, "shard", t.route.Placement.Shard)
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

// recover makes the transaction that a recovery token names, so that a proxy
// that has not seen it can ask its placement. known is false without a token.
func (p *Proxy) recover(ctx context.Context, q *request) (*txn, error) {
	doc := wire.Element{Type: q.cmd.RecoveryToken.Type, Value: q.cmd.RecoveryToken.Value}.Document()
	id, ok := wire.Find(doc, "chunk")
	placement, ok2 := wire.Find(doc, "placement")
	shard, ok3 := wire.Find(doc, "shard")
	e := p.routing.entry(chunk.ID(id.Text()))
	if !ok || !ok2 || !ok3 || e == nil {
		return nil, errTransactionOver("this proxy does not know it")
	}
	n, _ := placement.Number()
	pool, err := p.pools.get(ctx, string(shard.Text()))
	if err != nil {
		return nil, errTransactionOver("its shard is not known")
	}
	r := &route{gate: p.gates.of(chunk.PlacementID(n)), pool: pool}
	r.Chunk = chunk.Chunk{ID: e.id}
	r.Placement = chunk.Placement{ID: chunk.PlacementID(n), Chunk: e.id, Shard: string(shard.Text())}
	r.comment = stamp(r.Route)
	return &txn{session: q.session, number: q.cmd.TxnNumber, route: r, entry: e, begun: true, state: txnDeciding}, nil
}

// ending gives the transaction that a commit or abort is about.
func (p *Proxy) ending(ctx context.Context, q *request) (t *txn, stranger bool, err error) {
	if !q.cmd.Transaction || q.session == nil {
		return nil, false, refuse(codeInvalidOptions, "%s needs autocommit: false and a session", q.cmd.Name)
	}
	q.session.mu.Lock()
	t = q.session.txn
	q.session.mu.Unlock()
	if t != nil && t.number == q.cmd.TxnNumber {
		return t, false, nil
	}
	t, err = p.recover(ctx, q)
	return t, true, err
}

// settleStranger asks about a transaction whose placement may be fenced without
// this proxy having heard of it: there, it is aborted instead of committed. over
// is false when the commit may go on.
func (p *Proxy) settleStranger(ctx context.Context, t *txn, r *route, e *entry) (over bool, _ error) {
	read := p.pollOnce(ctx, e)
	serving := e.route.Load().Placement.ID == r.Placement.ID && r.gate.open(writes)
	if serving && !read {
		f, err := p.readFence(ctx, r)
		serving = err == nil && !f.fenced
	}
	if serving {
		return false, nil
	}
	return true, p.outcome(ctx, t, r)
}

// outcome finds out what became of a transaction whose commit may have run, by
// aborting it: nil says that it is committed. What the shard does not answer for
// certain is asked again by the driver; it must not run the transaction anew.
func (p *Proxy) outcome(ctx context.Context, t *txn, r *route) error {
	s, err := p.decide(ctx, "abortTransaction", r, t.session, t.number, nil)
	switch {
	case err != nil:
		return p.unreachable(ctx, r, err).labelled(labelRetryableWrite)
	case s.code == codeCommitted:
		t.finish(txnCommitted)
		return nil
	case s.ok || s.code == codeNoSuchTransaction:
		t.finish(txnAborted)
		return errTransactionOver("its chunk is being switched")
	default:
		return refuse(codeHostUnreachable, "%s does not say what became of the transaction", r.Placement.Shard).labelled(labelRetryableWrite)
	}
}
