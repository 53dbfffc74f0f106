package proxy

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"drover/chunk"
)

// Bounds of a placement's traffic.
const (
	trafficBuckets = 60   // of latencies; the last begins at about 50 s
	trafficSeconds = 60   // how far back it looks
	oldestOpen     = 1000 // of so many cursors the age is looked at
)

// trafficScale is that of a placement's latencies.
var trafficScale = scale{first: 100 * time.Microsecond, step: 1.25, buckets: trafficBuckets}

// TrafficEdge is the upper edge of a bucket of [Traffic.Latency].
func TrafficEdge(bucket int) time.Duration { return trafficScale.edge(bucket) }

// Traffic is what a proxy sent to one placement within the last minute, as the
// placement answered: without the time that a request was held.
type Traffic struct {
	Placement         chunk.PlacementID `json:"placement"`
	Requests          int64             `json:"requests"`
	Errors            int64             `json:"errors"`  // failed commands and broken connections; a refusal by a fence is none
	Latency           []int64           `json:"latency"` // requests by bucket
	Transactions      int               `json:"transactions"`
	OldestTransaction int64             `json:"oldest_transaction_ms"` // since its first statement was sent
	Cursors           int               `json:"cursors"`
	OldestCursor      int64             `json:"oldest_cursor_ms"`
	FanOut            chunk.FanOut      `json:"fan_out"`
	Spent             int64             `json:"spent_us"` // by all answers together
}

// Traffics takes the reports; see [Ports].
type Traffics interface {
	// Report keeps what a proxy says of the placements that it talked to, in place
	// of what it said before; it is called every second.
	Report(ctx context.Context, proxy string, all []Traffic, shards []Answers) error
}

// trafficSecond is what happened within one second.
type trafficSecond struct {
	at       int64 // unix time
	requests int64
	writes   int64
	errors   int64
	spent    time.Duration
	latency  [trafficBuckets]uint32
	fan      fanCount
}

// fanCount is a [chunk.FanOut] by buckets.
type fanCount struct {
	pinned uint32
	wide   [fanBuckets]uint32
}

// fanBuckets: widths up to fanExact have one each, and further ones double.
const (
	fanExact   = 16
	fanBuckets = fanExact + 10
)

// fanBucket gives the bucket of a width.
func fanBucket(width int) int {
	if width <= fanExact {
		return width - 1
	}
	return min(fanBuckets-1, fanExact-1+bits.Len(uint(width-1)/fanExact))
}

// fanEdge is the greatest width in a bucket.
func fanEdge(bucket int) int {
	if bucket < fanExact {
		return bucket + 1
	}
	return fanExact << (bucket - fanExact + 1)
}

// trafficMeter counts the requests to one placement.
type trafficMeter struct {
	mu   sync.Mutex
	ring []trafficSecond // made with the first request
}

// observe counts one answer of the placement to a request of which l is known.
func (m *trafficMeter) observe(now time.Time, took time.Duration, failed bool, a access, l *legs) {
	bucket := trafficScale.bucket(took)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ring == nil {
		m.ring = make([]trafficSecond, trafficSeconds+1)
	}
	s := &m.ring[now.Unix()%int64(len(m.ring))]
	if s.at != now.Unix() {
		*s = trafficSecond{at: now.Unix()}
	}
	s.requests++
	if a == writes {
		s.writes++
	}
	s.spent += took
	s.latency[bucket]++
	l.add(&s.fan)
	if failed {
		s.errors++
	}
}

// writeRateOver is the time that a rate of writes is of.
const writeRateOver = 3 // seconds

// writeRate is how many writes a second there were within the last few whole seconds.
func (m *trafficMeter) writeRate(now time.Time) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := int64(0)
	for i := range m.ring {
		if age := now.Unix() - m.ring[i].at; age >= 1 && age <= writeRateOver {
			n += m.ring[i].writes
		}
	}
	return float64(n) / writeRateOver
}

// sum adds the last minute up.
func (m *trafficMeter) sum(now time.Time) Traffic {
	var t Traffic
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ring == nil {
		return t
	}
	t.Latency = make([]int64, trafficBuckets)
	for i := range m.ring {
		s := &m.ring[i]
		if age := now.Unix() - s.at; age < 0 || age > trafficSeconds {
			continue
		}
		t.Requests += s.requests
		t.Errors += s.errors
		t.Spent += s.spent.Microseconds()
		for b, n := range s.latency {
			t.Latency[b] += int64(n)
		}
		t.FanOut.Pinned += int64(s.fan.pinned)
		for b, n := range s.fan.wide {
			if n > 0 {
				t.FanOut.Add(chunk.FanOut{Wide: map[int]int64{fanEdge(b): int64(n)}})
			}
		}
	}
	return t
}

// report tells the fleet what this proxy does on each placement.
func (p *Proxy) report(ctx context.Context) {
	if p.ports.Traffics == nil {
		return
	}
	now := time.Now()
	if err := p.ports.Traffics.Report(ctx, p.cfg.ID, p.traffic(now), p.answers.list(now)); err != nil && ctx.Err() == nil {
		p.log.WarnContext(ctx, "traffic was not reported", "error", err)
	}
}

// traffic sums up every placement that there was something on.
func (p *Proxy) traffic(now time.Time) []Traffic {
	cursors := p.cursors.ages(now)
	var out []Traffic
	for _, g := range p.gates.list() {
		t := g.traffic.sum(now)
		t.Placement = g.placement
		for _, x := range g.transactions() {
			if since := x.since(); !since.IsZero() {
				t.Transactions++
				t.OldestTransaction = max(t.OldestTransaction, now.Sub(since).Milliseconds())
			}
		}
		if c, ok := cursors[g.placement]; ok {
			t.Cursors, t.OldestCursor = c.Cursors, c.OldestCursor
		}
		if t.Requests > 0 || t.Transactions > 0 || t.Cursors > 0 {
			out = append(out, t)
		}
	}
	return out
}

// list gives every gate.
func (s *gates) list() []*gate {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*gate, 0, len(s.all))
	for _, g := range s.all {
		out = append(out, g)
	}
	return out
}

// ages counts open cursors by placement, with the age of the oldest.
func (s *cursors) ages(now time.Time) map[chunk.PlacementID]Traffic {
	out := map[chunk.PlacementID]Traffic{}
	s.mu.Lock()
	defer s.mu.Unlock()
	looked := 0
	for _, c := range s.all {
		if looked++; looked > oldestOpen || !c.mu.TryLock() { // one in use is not idle: its next batch is on its way
			continue
		}
		for _, x := range c.streams {
			if x.id == 0 {
				continue
			}
			t := out[x.route.Placement.ID]
			t.Cursors++
			t.OldestCursor = max(t.OldestCursor, now.Sub(c.made).Milliseconds())
			out[x.route.Placement.ID] = t
		}
		c.mu.Unlock()
	}
	return out
}
