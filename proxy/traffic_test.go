package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
)

func TestTrafficLooksBackAMinute(t *testing.T) {
	t.Parallel()
	var m trafficMeter
	start := time.Unix(1_700_000_000, 0)
	require.Equal(t, Traffic{}, m.sum(start), "nothing is known")
	for range 98 {
		m.observe(start, time.Millisecond, false, reads, &legs{fan: 1})
	}
	m.observe(start, 0, false, reads, &legs{})
	m.observe(start.Add(time.Second), time.Hour, true, reads, &legs{fan: 5, wide: true})
	got := m.sum(start.Add(10 * time.Second))
	require.EqualValues(t, 100, got.Requests)
	require.EqualValues(t, 1, got.Errors)
	require.Equal(t, (98*time.Millisecond + time.Hour).Microseconds(), got.Spent)
	require.Equal(t, chunk.FanOut{Pinned: 98, Wide: map[int]int64{5: 1}}, got.FanOut)
	require.EqualValues(t, 1, got.Latency[0])
	require.EqualValues(t, 1, got.Latency[trafficBuckets-1])
	for b, n := range got.Latency {
		if n == 98 {
			require.GreaterOrEqual(t, TrafficEdge(b), time.Millisecond)
			require.Less(t, TrafficEdge(b-1), time.Millisecond)
		}
	}
	require.EqualValues(t, 1, m.sum(start.Add(61*time.Second)).Requests, "the first second is over a minute old")
	require.Zero(t, m.sum(start.Add(10*time.Minute)).Requests)
}

// TestFanBucketsHoldTheirWidths: no width is told smaller than it is.
func TestFanBucketsHoldTheirWidths(t *testing.T) {
	t.Parallel()
	for width := 1; width <= fanEdge(fanBuckets-1); width++ {
		b := fanBucket(width)
		require.GreaterOrEqual(t, fanEdge(b), width)
		if b > 0 {
			require.Less(t, fanEdge(b-1), width)
		}
	}
	require.Equal(t, fanBuckets-1, fanBucket(1<<30))
}

// TestOpenWorkIsTold: a transaction counts from its first statement until it is
// decided, a cursor for each shard that still has some of it.
func TestOpenWorkIsTold(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := &Proxy{cursors: newCursors(), gates: &gates{all: map[chunk.PlacementID]*gate{}}}
	g := p.gates.of(7)
	open := &txn{begun: true, first: now.Add(-3 * time.Second)}
	g.add(open)
	g.add(&txn{})                                                           // nothing was sent
	g.add(&txn{begun: true, first: now.Add(-time.Hour), state: txnAborted}) // over
	r := &route{Route: chunk.Route{Placement: chunk.Placement{ID: 7}}, gate: g}
	c := &cursor{streams: []*stream{{route: r, id: 9}, {route: r}}}
	p.cursors.add(c)
	c.made = now.Add(-5 * time.Second)

	require.Equal(t, []Traffic{{Placement: 7, Transactions: 1, OldestTransaction: 3000, Cursors: 1, OldestCursor: 5000}}, p.traffic(now))
	open.finish(txnCommitted)
	c.streams[0].id = 0
	require.Empty(t, p.traffic(now))
}
