package replication

import (
	"math"
	"slices"
	"sync"
	"time"
)

// minute is how far back rates and latencies look, in seconds.
const minute = 60

// Latency buckets: the first ends at latencyFirst, each next one is latencyStep
// times as wide, so that a quantile is right to a tenth.
const (
	latencyFirst   = 100 * time.Microsecond
	latencyStep    = 1.1
	latencyBuckets = 140 // the last begins at about 50 s
)

// second is what happened within one second.
type second struct {
	at      int64 // unix time
	events  int64
	docs    int64
	batches int64
	worst   time.Duration
	latency [latencyBuckets]uint32
}

// window keeps the last minute, second by second.
type window struct {
	mu   sync.Mutex
	slot [minute + 1]second
}

// slotAt gives the slot of a second, emptied if it held an older one.
func (w *window) slotAt(now time.Time) *second {
	s := &w.slot[now.Unix()%int64(len(w.slot))]
	if s.at != now.Unix() {
		*s = second{at: now.Unix()}
	}
	return s
}

// add counts a batch.
func (w *window) add(now time.Time, events, docs int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slotAt(now)
	s.events += int64(events)
	s.docs += int64(docs)
	s.batches++
}

// observe counts one event's way from its write on the source to the target.
func (w *window) observe(now time.Time, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slotAt(now)
	s.latency[bucketOf(d)]++
	s.worst = max(s.worst, d)
}

// bucketOf gives the bucket of a latency.
func bucketOf(d time.Duration) int {
	if d <= latencyFirst {
		return 0
	}
	b := int(math.Ceil(math.Log(float64(d)/float64(latencyFirst)) / math.Log(latencyStep)))
	return min(b, latencyBuckets-1)
}

// Rates is what lanes did in the last minute.
type Rates struct {
	Events  float64 // applied, per second
	Docs    float64 // written, per second
	Batches float64 // per second
	Latency Latency
}

// Latency is the time from a write on the source to its effect on the target,
// over the last minute. Markers count too, so an idle source gives samples.
// Count 0 says that nothing is known.
type Latency struct {
	Count         int64
	P50, P99, Max time.Duration
}

// rates sums up windows.
func rates(now time.Time, windows ...*window) Rates {
	var buckets [latencyBuckets]int64
	var r Rates
	for _, w := range windows {
		w.mu.Lock()
		for i := range w.slot {
			s := &w.slot[i]
			if age := now.Unix() - s.at; age < 0 || age > minute {
				continue
			}
			r.Events += float64(s.events) / minute
			r.Docs += float64(s.docs) / minute
			r.Batches += float64(s.batches) / minute
			r.Latency.Max = max(r.Latency.Max, s.worst)
			for b, n := range s.latency {
				buckets[b] += int64(n)
				r.Latency.Count += int64(n)
			}
		}
		w.mu.Unlock()
	}
	r.Latency.P50 = min(quantile(buckets[:], r.Latency.Count, 0.50), r.Latency.Max)
	r.Latency.P99 = min(quantile(buckets[:], r.Latency.Count, 0.99), r.Latency.Max)
	return r
}

// quantile gives the upper edge of the bucket that holds the quantile.
func quantile(buckets []int64, total int64, q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(total)))
	at := slices.IndexFunc(buckets, func(n int64) bool {
		rank -= n
		return rank <= 0
	})
	if total == 0 || at < 0 {
		return 0
	}
	return time.Duration(float64(latencyFirst) * math.Pow(latencyStep, float64(at)))
}
