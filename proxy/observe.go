package proxy

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// split is where a part of a request spent its time.
type split struct{ queue, hold, upstream time.Duration }

// total is all of it.
func (s split) total() time.Duration { return s.queue + s.hold + s.upstream }

// legs is what is known about the parts of a request: how many chunks it
// concerned, and the times of its slowest part.
type legs struct {
	mu     sync.Mutex
	fan    int
	wide   bool          // not by one value of the shard key alone
	queued time.Duration // before any part began
	slow   split
}

// reset begins another request.
func (l *legs) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fan, l.wide, l.queued, l.slow = 0, false, 0, split{}
}

// wait notes time spent before any part began.
func (l *legs) wait(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued += d
}

// note keeps the times of a part that has ended, if it was the slowest.
func (q *request) note(d *delivery) {
	q.client.legs.mu.Lock()
	defer q.client.legs.mu.Unlock()
	if d.split.total() > q.client.legs.slow.total() {
		q.client.legs.slow = d.split
	}
}

// fan notes how many chunks a request concerns, and whether one value of the shard key
// says which: pinned.
func (p *Proxy) fan(q *request, n int, pinned bool) {
	p.metrics.fanOut.Observe(float64(n))
	q.client.legs.mu.Lock()
	defer q.client.legs.mu.Unlock()
	q.client.legs.fan, q.client.legs.wide = max(q.client.legs.fan, n), q.client.legs.wide || !pinned
}

// pinned tells whether entries were found by one value of the shard key: such a
// request concerns one chunk, however the key space is cut.
func pinned(entries []*entry) bool {
	return len(entries) == 1 && len(entries[0].alone) == 1 && &entries[0] == &entries[0].alone[0]
}

// add counts the request in the fan-out of a chunk that it concerned. What finds its
// chunk by something else than documents' keys (the next batch of a cursor, the end of
// a transaction) is left out.
func (l *legs) add(f *fanCount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.fan == 0:
	case l.wide:
		f.wide[fanBucket(l.fan)]++
	default:
		f.pinned++
	}
}

// Classes of requests by the chunks that they concern.
const (
	fanNone = iota
	fanOne
	fanMany
)

// fanClasses names them.
var fanClasses = [3]string{"none", "one", "many"}

// fanClass gives the class of a request.
func (l *legs) fanClass() int {
	switch {
	case l.fan == 0:
		return fanNone
	case l.fan == 1:
		return fanOne
	default:
		return fanMany
	}
}

// finish counts a request that was answered with size bytes.
func (p *Proxy) finish(ctx context.Context, c *command, q *request, failed bool, err error, size int) {
	took := time.Since(q.start)
	q.client.legs.mu.Lock()
	spent, class := q.client.legs.slow, q.client.legs.fanClass()
	spent.queue += q.client.legs.queued
	fan := q.client.legs.fan
	q.client.legs.mu.Unlock()
	c.metrics.done(failed, class, took)
	if q.share != nil {
		q.share.Spend(time.Now(), size)
	}
	if !c.data {
		return
	}
	p.shapes.count(q, failed, took)
	p.envelopes.note(q, c, fan, err)
	if slow := p.live.Load().SlowAfter; slow <= 0 || took < slow {
		return
	}
	attrs := []any{
		slog.String("command", c.name), slog.String("database", string(q.cmd.DB)), slog.String("shape", q.shape()),
		slog.String("user", q.client.user), slog.String("app", q.client.app), slog.Int("chunks", fan), slog.Bool("failed", failed),
		slog.Duration("took", took), slog.Duration("queue", spent.queue), slog.Duration("hold", spent.hold),
		slog.Duration("upstream", spent.upstream), slog.Duration("merge", max(0, took-spent.total())),
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		attrs = append(attrs, slog.Int("code", int(r.code)))
	}
	p.log.WarnContext(ctx, "slow request", attrs...)
}
