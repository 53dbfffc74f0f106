package proxy

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Envelope is what a proxy has learned about one user's application: how it
// behaves when it is refused, which bounds how long a switch may make it wait.
type Envelope struct {
	User string `json:"user"`
	App  string `json:"app"`

	Requests   int64 `json:"requests,omitempty"`  // that concern documents
	Chunks     int64 `json:"chunks,omitempty"`    // that these concerned, in all
	Scattered  int64 `json:"scattered,omitempty"` // requests that concerned several
	Writes     int64 `json:"writes"`
	Unnumbered int64 `json:"unnumbered"`  // writes without a txnNumber: no driver repeats them
	Deadlines  int64 `json:"deadlines"`   // requests with a maxTimeMS of their own
	ShortestMS int64 `json:"shortest_ms"` // of those; 0: none was seen
	Refused    int64 `json:"refused"`     // retryable writes that were told to come back
	Returned   int64 `json:"returned"`
	SoonestMS  int64 `json:"soonest_ms"`  // time to the soonest return; 0: none was seen
	GaveUp     int64 `json:"gave_up"`     // refused and not seen again
	PatienceMS int64 `json:"patience_ms"` // longest time from a first refusal to the last try
}

// habits counts one user's application.
type habits struct {
	requests, chunks, scattered                              atomic.Int64
	writes, unnumbered, deadlines, refused, returned, gaveUp atomic.Int64
	shortest, soonest                                        atomic.Int64 // ms; MaxInt64: none
	patience                                                 atomic.Int64
	seen                                                     atomic.Int64 // unix seconds
}

// caller tells envelopes apart.
type caller struct{ user, app string }

// tried is one refused write: its session and number.
type tried struct {
	session [16]byte
	number  int64
}

// refusedWrite is when a write was refused.
type refusedWrite struct {
	by          *habits
	first, last time.Time
}

const (
	// maxEnvelopes bounds the callers that are told apart; the rest is one.
	maxEnvelopes = 1000
	// maxRefused bounds the refused writes whose return is looked out for.
	maxRefused = 10_000
	// gaveUpAfter is how long after the last try a client counts as gone.
	gaveUpAfter = 30 * time.Second
)

// envelopes learns about callers.
type envelopes struct {
	mu      sync.Mutex
	all     map[caller]*habits
	refused map[tried]*refusedWrite
	open    atomic.Int64 // len(refused)
}

// newEnvelopes makes an empty one.
func newEnvelopes() *envelopes {
	return &envelopes{all: map[caller]*habits{}, refused: map[tried]*refusedWrite{}}
}

// of gives the envelope of a client's user and application.
func (s *envelopes) of(c *client) *habits {
	key := caller{c.user, c.app}
	if c.habits != nil && c.caller == key {
		return c.habits
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[key]
	if e == nil && len(s.all) >= maxEnvelopes {
		key = caller{"", "(others)"}
		e = s.all[key]
	}
	if e == nil {
		e = &habits{}
		e.shortest.Store(math.MaxInt64)
		e.soonest.Store(math.MaxInt64)
		s.all[key] = e
	}
	c.habits, c.caller = e, key
	return e
}

// note learns from one request that concerned so many chunks and was answered with err.
func (s *envelopes) note(q *request, c *command, fan int, err error) {
	e := s.of(q.client)
	e.seen.Store(q.start.Unix())
	if fan > 0 {
		e.requests.Add(1)
		e.chunks.Add(int64(fan))
	}
	if fan > 1 {
		e.scattered.Add(1)
	}
	if q.cmd.MaxTimeMS > 0 && (q.share == nil || q.share.DefaultMaxTimeMS != q.cmd.MaxTimeMS) {
		e.deadlines.Add(1)
		least(&e.shortest, q.cmd.MaxTimeMS)
	}
	if !c.writes {
		return
	}
	e.writes.Add(1)
	if !q.cmd.HasTxnNumber {
		e.unnumbered.Add(1)
		return
	}
	r, isRefusal := errors.AsType[*refusal](err)
	told := isRefusal && (r.has(labelRetryableWrite) || r.has(labelRetryable))
	if told || s.open.Load() > 0 {
		s.follow(e, tried{[16]byte(q.cmd.LSID), q.cmd.TxnNumber}, q.start, told)
	}
}

// follow looks whether a write is the return of a refused one, and notes its own
// refusal.
func (s *envelopes) follow(e *habits, key tried, arrived time.Time, told bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.refused[key]
	if w != nil {
		e.returned.Add(1)
		least(&e.soonest, max(1, arrived.Sub(w.last).Milliseconds()))
		most(&e.patience, arrived.Sub(w.first).Milliseconds())
	}
	switch {
	case !told:
		delete(s.refused, key)
	case w != nil:
		w.last = time.Now()
	case len(s.refused) < maxRefused:
		now := time.Now()
		s.refused[key] = &refusedWrite{by: e, first: now, last: now}
	}
	if told {
		e.refused.Add(1)
	}
	s.open.Store(int64(len(s.refused)))
}

// sweep counts those who did not come back.
func (s *envelopes) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, w := range s.refused {
		if now.Sub(w.last) > gaveUpAfter {
			w.by.gaveUp.Add(1)
			delete(s.refused, key)
		}
	}
	s.open.Store(int64(len(s.refused)))
}

// least lowers v to n.
func least(v *atomic.Int64, n int64) {
	for old := v.Load(); n < old && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// most raises v to n.
func most(v *atomic.Int64, n int64) {
	for old := v.Load(); n > old && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// seenMS gives a lowest value, 0 when there was none.
func seenMS(v *atomic.Int64) int64 {
	if n := v.Load(); n != math.MaxInt64 {
		return n
	}
	return 0
}

// Envelopes gives what is known about every caller.
func (p *Proxy) Envelopes() []Envelope {
	s := p.envelopes
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Envelope, 0, len(s.all))
	for key, e := range s.all {
		out = append(out, Envelope{
			User: key.user, App: key.app, Requests: e.requests.Load(), Chunks: e.chunks.Load(), Scattered: e.scattered.Load(), Writes: e.writes.Load(), Unnumbered: e.unnumbered.Load(), Deadlines: e.deadlines.Load(),
			ShortestMS: seenMS(&e.shortest), Refused: e.refused.Load(), Returned: e.returned.Load(), SoonestMS: seenMS(&e.soonest),
			GaveUp: e.gaveUp.Load(), PatienceMS: e.patience.Load(),
		})
	}
	return out
}

// Callers records what a proxy has learned about its callers.
type Callers interface {
	PutEnvelopes(ctx context.Context, proxy string, all []Envelope) error
}

// envelopePause is the time between two records of the envelopes.
const envelopePause = 30 * time.Second

// reportCallers records the envelopes for as long as the proxy runs, and at its end.
func (p *Proxy) reportCallers(ctx context.Context) {
	ticker := time.NewTicker(envelopePause)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.reportOnce(ctx)
		case <-ctx.Done():
			p.reportOnce(context.WithoutCancel(ctx))
			return
		}
	}
}

// reportOnce records the envelopes now.
func (p *Proxy) reportOnce(ctx context.Context) {
	all := p.Envelopes()
	if p.ports.Callers == nil || len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.MetadataTimeout, errMetadataTimeout)
	defer cancel()
	if err := p.ports.Callers.PutEnvelopes(ctx, p.cfg.ID, all); err != nil {
		p.log.WarnContext(ctx, "envelopes of callers were not recorded", "error", err)
	}
}

// envelopeDescs describes the metrics of callers, whose number is bounded.
var (
	callerWrites     = prometheus.NewDesc("drover_proxy_caller_writes_total", "Writes of a caller.", []string{"user", "app"}, nil)
	callerUnnumbered = prometheus.NewDesc("drover_proxy_caller_unnumbered_writes_total", "Writes of a caller that no driver repeats.", []string{"user", "app"}, nil)
	callerPatience   = prometheus.NewDesc("drover_proxy_caller_patience_seconds", "Longest time from a first refusal to the caller's last try.", []string{"user", "app"}, nil)
	callerDeadline   = prometheus.NewDesc("drover_proxy_caller_shortest_deadline_seconds", "Shortest maxTimeMS of a caller; 0: none was seen.", []string{"user", "app"}, nil)
)

// callerCollector shows the envelopes.
type callerCollector struct{ p *Proxy }

// Describe implements [prometheus.Collector].
func (c callerCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- callerWrites
	ch <- callerUnnumbered
	ch <- callerPatience
	ch <- callerDeadline
}

// Collect implements [prometheus.Collector].
func (c callerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.p.Envelopes() {
		show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, e.User, e.App)
		}
		show(callerWrites, prometheus.CounterValue, float64(e.Writes))
		show(callerUnnumbered, prometheus.CounterValue, float64(e.Unnumbered))
		show(callerPatience, prometheus.GaugeValue, float64(e.PatienceMS)/1000)
		show(callerDeadline, prometheus.GaugeValue, float64(e.ShortestMS)/1000)
	}
}
