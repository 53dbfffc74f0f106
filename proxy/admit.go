package proxy

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/admission"
	"drover/proxy/upstream"
	"drover/proxy/wire"
)

// Behaviour: a database's policy is applied before anything is routed: default
// maxTimeMS, quotas (a request over its quota may wait quotaWait for it), no
// scatter, no scans. Then each part of a request needs room at its shard's gate.
// Commit, abort and getMore of what was let in are never refused by a policy.
// A refusal for want of room is IngressRequestRateLimitExceeded (462) with the
// labels SystemOverloadedError and RetryableError: drivers that know them wait
// and try again, others tell the application at once and do not add to the load.
// One for a rule is InvalidOptions (72) and names the rule.

const (
	// quotaWait is how long a request may wait for its database's quota: enough
	// to smooth bursts.
	quotaWait = 100 * time.Millisecond
	// maxQuotaWaiting bounds the requests that do.
	maxQuotaWaiting = 2000
)

// admit applies the policy of the command's database.
func (p *Proxy) admit(ctx context.Context, q *request) error {
	q.share = p.tenants.Of(q.cmd.DB)
	if !q.deadline.IsZero() && !time.Now().Before(q.deadline) {
		return errTimeLimit()
	}
	t := q.share
	name := string(q.cmd.Name)
	if t == nil || name == "getMore" || name == "killCursors" {
		return nil
	}
	if t.DefaultMaxTimeMS > 0 && q.cmd.MaxTimeMS == 0 {
		q.cmd.MaxTimeMS = t.DefaultMaxTimeMS
		q.deadline = q.start.Add(time.Duration(t.DefaultMaxTimeMS) * time.Millisecond)
	}
	if err := p.checkRules(ctx, q, t); err != nil {
		return err
	}
	return p.takeQuota(ctx, q, t)
}

// errTimeLimit says that a request's own time is over.
func errTimeLimit() *refusal { return refuse(codeMaxTimeMSExpired, "operation exceeded time limit") }

// takeQuota takes the request out of its database's quotas.
func (p *Proxy) takeQuota(ctx context.Context, q *request, t *admission.Tenant) error {
	size := len(q.cmd.Body)
	for _, s := range q.sequences {
		size += len(s.Docs)
	}
	until := time.Now().Add(quotaWait)
	for {
		now := time.Now()
		rule, after := t.Take(now, size)
		if rule == "" {
			return nil
		}
		if now.Add(after).After(until) || p.queued.Load() >= maxQuotaWaiting {
			p.metrics.refused(rule)
			return overloaded(codeRateLimited, "database %s is over its quota %s: there is room in %v", t.Name, rule, after.Round(time.Millisecond))
		}
		if err := p.rest(ctx, q, after); err != nil {
			return err
		}
	}
}

// rest waits for a moment, outside of everything.
func (p *Proxy) rest(ctx context.Context, q *request, pause time.Duration) error {
	p.queued.Add(1)
	defer p.queued.Add(-1)
	q.client.legs.wait(pause)
	timer := time.NewTimer(max(pause, time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return refuse(codeExceededTimeLimit, "the proxy is shutting down")
	}
}

// overloaded makes a refusal for want of room: nothing ran.
func overloaded(c code, format string, args ...any) *refusal {
	return refuse(c, format, args...).labelled(labelOverloaded, labelRetryable, labelNothingRan)
}

// checkRules applies the rules about what a request asks for.
func (p *Proxy) checkRules(ctx context.Context, q *request, t *admission.Tenant) error {
	scatter := t.Scatter == admission.ScatterBounded || t.Scatter == admission.ScatterNone
	if !scatter && !t.NeedIndex {
		return nil
	}
	db, coll, err := p.place(ctx, q)
	if err != nil || coll == nil {
		return nil //nolint:nilerr // the command itself says what is wrong
	}
	for _, f := range filtersOf(q) {
		bounded := string(q.cmd.Name) == "find" && f.limited
		if scatter && (t.Scatter == admission.ScatterNone || !bounded) {
			if n := len(targetOf(db, coll, f.doc, f.collation)); n > 1 {
				p.metrics.refused("scatter")
				return refuse(codeInvalidOptions, "the policy of database %s refuses this %s on %d chunks (rule scatter: %s): name the shard key %s",
					t.Name, q.cmd.Name, n, t.Scatter, coll.shardKey)
			}
		}
		empty := len(f.doc) <= len(emptyDocument)
		if t.NeedIndex && !f.hinted && !(empty && bounded) && !coll.indexed(f.doc) {
			p.metrics.refused("need_index")
			return refuse(codeInvalidOptions, "the policy of database %s refuses this %s (rule need_index): its filter names no first field of an index of %s",
				t.Name, q.cmd.Name, coll.name)
		}
	}
	return nil
}

// filter is one filter of a command.
type filter struct {
	doc       bson.Raw
	collation wire.Element
	limited   bool
	hinted    bool
}

// filtersOf finds the filters of a command; an insert has none.
func filtersOf(q *request) []filter {
	at := func(name string) []filter {
		doc := q.option(name).Document()
		if doc == nil {
			doc = emptyDocument
		}
		limit, _ := q.option("limit").Number()
		return []filter{{doc: doc, collation: q.option("collation"), limited: limit > 0, hinted: q.option("hint").Type != 0}}
	}
	switch string(q.cmd.Name) {
	case "find":
		return at("filter")
	case "count", "distinct", "findAndModify", "findandmodify":
		return at("query")
	case "aggregate":
		first := filter{doc: emptyDocument, collation: q.option("collation"), hinted: q.option("hint").Type != 0}
		if w := wire.Walk(q.option("pipeline").Document()); w.Next() {
			if match, ok := wire.Find(w.Document(), "$match"); ok && match.Document() != nil {
				first.doc = match.Document()
			}
		}
		return []filter{first}
	case "update":
		return statementFilters(q, "updates")
	case "delete":
		return statementFilters(q, "deletes")
	default:
		return nil
	}
}

// statementFilters finds the filters of a batch.
func statementFilters(q *request, array string) (out []filter) {
	docs, err := q.sequence(nil, array)
	if err != nil {
		return nil // the command itself says what is wrong
	}
	for _, doc := range docs {
		query, _ := wire.Find(doc, "q")
		collation, _ := wire.Find(doc, "collation")
		_, hinted := wire.Find(doc, "hint")
		if query.Document() != nil {
			out = append(out, filter{doc: query.Document(), collation: collation, hinted: hinted})
		}
	}
	return out
}

// leadsOf gives the first fields of a collection's indexes.
func leadsOf(c chunk.Collection) map[string]bool {
	leads := map[string]bool{"_id": true}
	for _, ix := range c.Indexes {
		key, _ := wire.Find(ix, "key")
		if w := wire.Walk(key.Document()); w.Next() {
			leads[string(w.Key)] = true
		}
	}
	return leads
}

// indexed reports whether an index of the collection can serve a filter: it names
// the first field of one, and every branch of an $or does.
func (c *collection) indexed(doc bson.Raw) bool {
	for w := wire.Walk(doc); w.Next(); {
		switch string(w.Key) {
		case "$and":
			for b := wire.Walk(w.Document()); b.Next(); {
				if c.indexed(b.Document()) {
					return true
				}
			}
		case "$or":
			all, n := true, 0
			for b := wire.Walk(w.Document()); b.Next(); n++ {
				all = all && c.indexed(b.Document())
			}
			if all && n > 0 {
				return true
			}
		default:
			if c.leads[string(w.Key)] {
				return true
			}
		}
	}
	return false
}

// takeRoom waits for room at r's shard.
func (d *delivery) takeRoom(ctx context.Context, r *route) error {
	if r.pool == nil {
		return nil
	}
	priority := admission.Normal
	if d.q.share != nil {
		priority = d.q.share.Priority
	}
	began := time.Now()
	pass, err := d.enterRoom(ctx, r.pool.Gate(), priority)
	d.split.queue += time.Since(began)
	if err == nil {
		d.room, d.pass = r.pool.Gate(), pass
		return nil
	}
	return d.refuseRoom(r, err)
}

// errNoRoom is the cause of a wait for room that took too long.
var errNoRoom = errors.New("no room at the shard")

// enterRoom waits at a gate, no longer than for a connection.
func (d *delivery) enterRoom(ctx context.Context, g *admission.Gate, priority admission.Priority) (admission.Pass, error) {
	kind := admission.Reads
	if d.l.access == writes {
		kind = admission.Writes
	}
	if pass, ok := g.Try(priority, kind); ok {
		return pass, nil
	}
	wait := d.p.cfg.ShardWait
	if !d.q.deadline.IsZero() {
		wait = min(wait, time.Until(d.q.deadline))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errNoRoom)
	defer cancel()
	return g.Enter(ctx, string(d.q.cmd.DB), priority, kind) //nolint:wrapcheck // turned into a refusal
}

// refuseRoom says why there is no room.
func (d *delivery) refuseRoom(r *route, err error) error {
	var out *refusal
	shard := r.Placement.Shard
	switch {
	case !d.q.deadline.IsZero() && !time.Now().Before(d.q.deadline):
		d.p.metrics.refused("deadline")
		return errTimeLimit()
	case errors.Is(err, admission.ErrBreaker):
		d.p.metrics.refused("breaker")
		out = overloaded(codeHostUnreachable, "%s does not answer: nothing is sent there for now", shard)
	case errors.Is(err, admission.ErrQueueFull):
		d.p.metrics.refused("queue_full")
		out = overloaded(codeRateLimited, "too many requests wait for %s", shard)
	default:
		d.p.metrics.refused("queue_wait")
		out = overloaded(codeRateLimited, "%s had no room for this request within %v", shard, d.p.cfg.ShardWait)
	}
	if d.q.cmd.Transaction {
		out.labels = append(out.labels, labelTransient)
	}
	return out
}

// leaveRoom gives the room back.
func (d *delivery) leaveRoom(o admission.Outcome, took time.Duration) {
	if d.room == nil {
		return
	}
	d.room.Leave(d.pass, o, took)
	d.room = nil
	d.split.upstream += took
}

// outcome tells the gate what a try has shown about the shard. A request with
// little time of its own shows nothing by failing.
func (d *delivery) outcome(a *answer, err error) admission.Outcome {
	switch {
	case err == nil && a.code == codeUnauthorized:
		return admission.Declined
	case err == nil:
		return admission.Answered
	case upstream.Ran(err) || !d.q.deadline.IsZero():
		return admission.Unknown
	default:
		return admission.Unreachable
	}
}
