package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/event"
)

func TestRatesLookBackAMinute(t *testing.T) {
	t.Parallel()
	var a, b window
	start := time.Unix(1_700_000_000, 0)
	require.Equal(t, Rates{}, rates(start, &a, &b), "nothing is known")
	for i := range 1000 {
		a.observe(start, time.Duration(i)*time.Millisecond)
	}
	b.observe(start.Add(time.Second), 30*time.Second)
	a.add(start, 600, 60)
	b.add(start.Add(time.Second), 60, 6)

	r := rates(start.Add(10*time.Second), &a, &b)
	require.EqualValues(t, 1001, r.Latency.Count)
	require.InEpsilon(t, 500*time.Millisecond, r.Latency.P50, 0.11)
	require.InEpsilon(t, 990*time.Millisecond, r.Latency.P99, 0.11)
	require.Equal(t, 30*time.Second, r.Latency.Max)
	require.InDelta(t, 11, r.Events, 0.001)
	require.InDelta(t, 1.1, r.Docs, 0.001)

	r = rates(start.Add(61*time.Second), &a, &b)
	require.EqualValues(t, 1, r.Latency.Count, "the first second is over a minute old")
	a.add(start.Add(10*time.Minute), 6, 6)
	require.Zero(t, rates(start.Add(10*time.Minute), &a).Latency.Count)
	require.InDelta(t, 0.1, rates(start.Add(10*time.Minute), &a).Events, 0.001)
}

// TestBacklogIsNoLatency: a lane that starts late reads old changes; how old they
// are says nothing about how fast changes go through.
func TestBacklogIsNoLatency(t *testing.T) {
	t.Parallel()
	g := newGauge()
	g.started(&Checkpoint{})
	pass := func(age time.Duration) {
		wall := time.Now().Add(-age)
		g.passed(&batch{items: []item{{event: &event.Event{Wall: wall}}}, wall: wall}, 1)
	}
	count := func() int64 { return rates(time.Now(), &g.window).Latency.Count }
	pass(time.Hour)
	pass(time.Minute)
	require.Zero(t, count(), "a backlog")
	pass(10 * time.Millisecond)
	require.Zero(t, count(), "the batch that catches up is still backlog")
	pass(10 * time.Millisecond)
	pass(time.Minute)
	require.EqualValues(t, 2, count(), "a delay behind that is one")

	g.started(&Checkpoint{})
	pass(time.Minute)
	require.EqualValues(t, 2, count(), "it starts anew")
}

func TestBucketsHoldTheirLatencies(t *testing.T) {
	t.Parallel()
	for d := 50 * time.Microsecond; d < 40*time.Second; d += d / 7 {
		var buckets [latencyBuckets]int64
		buckets[bucketOf(d)]++
		edge := quantile(buckets[:], 1, 0.99)
		require.LessOrEqual(t, d, edge+time.Microsecond)
		require.LessOrEqual(t, float64(edge), max(1.11*float64(d), float64(latencyFirst)))
	}
	require.Equal(t, latencyBuckets-1, bucketOf(time.Hour))
	require.Zero(t, bucketOf(-time.Second), "clocks differ")
}

func TestQueueBoundsItsBytes(t *testing.T) {
	t.Parallel()
	q := newQueue(100)
	done := make(chan struct{})
	put := func(seq int64, size int) bool {
		return q.put(done, record{pos: position{seq: seq}, marker: nil, event: nil, size: size})
	}
	for i := range int64(5) { // only the position: one record
		require.True(t, put(i, 0))
	}
	r, ok, err := q.peek()
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 4, r.pos.seq)
	require.EqualValues(t, 4, q.take().pos.seq)
	_, ok, err = q.peek()
	require.NoError(t, err)
	require.False(t, ok)

	e := func(size int) record { return record{event: newFakeEvent(), size: size} }
	require.True(t, q.put(done, e(1000)), "one record always fits")
	blocked := make(chan bool, 1)
	go func() { blocked <- q.put(done, e(10)) }()
	q.take()
	require.True(t, <-blocked)
	require.True(t, q.put(done, e(80)))
	go func() { blocked <- q.put(done, e(80)) }()
	close(done)
	require.False(t, <-blocked, "the reader is told to stop")
	q.take()
	q.take()
	q.end(errStopped)
	_, _, err = q.peek()
	require.ErrorIs(t, err, errStopped)
}

// An idle lane that saved its position was 292 years behind until its next change:
// what is saved there has no time of its own.
func TestSavedPositionIsNoLag(t *testing.T) {
	t.Parallel()
	g := newGauge()
	g.passed(&batch{wall: time.Now()}, 0)
	before := g.lag
	g.passed(&batch{pos: position{seq: 7}}, 0)
	require.Equal(t, before, g.lag)
	require.EqualValues(t, 7, g.status.Seq)
}
