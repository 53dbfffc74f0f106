package proxy

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// easedFor is longer than any test.
const easedFor = int64(time.Hour / time.Millisecond)

// TestWritesWaitForTheirTurn: from the rate that there was, by the notice, and no longer
// than it says; the next state of the attempt lets all go on.
func TestWritesWaitForTheirTurn(t *testing.T) {
	t.Parallel()

	start := time.Unix(1000, 0)
	notice := chunk.Notice{Attempt: 7, State: chunk.Preparing, Source: 1, Target: 2}
	eased := func(share, least float64) *gate {
		g := &gate{placement: 1}
		for range 300 {
			g.traffic.observe(start, time.Millisecond, false, writes, &legs{fan: 1})
			g.traffic.observe(start, time.Millisecond, false, reads, &legs{fan: 1})
		}
		require.True(t, g.apply(notice, start))
		n := notice
		n.Ease = &chunk.Ease{Share: share, Least: least, ForMS: easedFor}
		require.False(t, g.apply(n, start.Add(time.Second)), "it is no change of the attempt")
		return g
	}
	limit := func(g *gate) float64 { return float64(g.eased.Load().limiter.Limit()) }
	require.InDelta(t, 50, limit(eased(0.5, 10)), 0.1, "300 writes within three seconds")
	require.InDelta(t, 80, limit(eased(0.5, 80)), 0.1)
	require.Nil(t, eased(0, 0).eased.Load(), "nobody would ever get through")

	g := eased(0, 1e-9)
	e := g.eased.Load()
	require.Equal(t, start.Add(time.Second+longestEase), e.until)
	r := &route{gate: g}
	turn := func(l leg, q request) time.Duration {
		wait, over := (&delivery{l: &l, q: &q}).turn(r)
		if wait > 0 {
			require.Equal(t, (<-chan struct{})(e.over), over)
		}
		return wait
	}
	e.until = time.Now().Add(time.Hour)
	require.Zero(t, turn(leg{access: writes}, request{}), "the first one's turn is now")
	require.Greater(t, turn(leg{access: writes}, request{}), time.Minute)
	require.Zero(t, turn(leg{access: reads}, request{}))
	require.Zero(t, turn(leg{access: writes}, request{txn: &txn{}}), "a transaction holds what others need")
	d := &delivery{l: &leg{access: writes}, q: &request{}}
	wait, _ := d.turn(r)
	require.Greater(t, wait, time.Minute)
	wait, _ = d.turn(r)
	require.Zero(t, wait, "it has waited")

	fencing := notice
	fencing.State = chunk.Fencing
	require.True(t, g.apply(fencing, start.Add(2*time.Second)))
	require.Nil(t, g.eased.Load())
	select {
	case <-e.over:
	default:
		require.Fail(t, "those who wait do not hear that it is over")
	}
	require.True(t, (&gate{placement: 2}).apply(notice, start))
}

// easedFleet is a fleet of one proxy with an attempt that has asked for few writes.
func easedFleet(t *testing.T, least float64) (*fleet, *Proxy, *move) {
	t.Helper()
	f, s := newFakeFleet(t, 2)
	s.answers(func(cmd bson.Raw) bson.D {
		if cmd.Lookup("find").Type != 0 {
			return bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "d.c"}, {Key: "firstBatch", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}}, {Key: "ok", Value: 1.0}}
		}
		return bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}, {Key: "ok", Value: 1.0}}
	})
	p := f.start(Config{})
	require.Eventually(t, func() bool { return p.hearing.Load() && p.read.Load() == p.heard.Load() }, 10*time.Second, time.Millisecond)
	f.attempt++
	m := &move{f: f, id: firstChunk, from: f.routes[firstChunk].Placement, attempt: f.attempt, waitForAcks: 1}
	m.notice = chunk.Notice{
		Attempt: f.attempt, Migration: 1, Source: m.from.ID, Target: 99, Chunks: []chunk.ID{firstChunk},
		DeadlineUnixMS: time.Now().Add(time.Minute).UnixMilli(),
	}
	m.state(chunk.Preparing)
	m.notice.Ease = &chunk.Ease{Least: least, ForMS: easedFor}
	m.state(chunk.Preparing)
	m.notice.Ease = nil
	e := p.gates.of(m.from.ID).eased.Load()
	require.NotNil(t, e)
	e.until = time.Now().Add(time.Hour)
	return f, p, m
}

// TestWritesGoOnUntilTheSourceIsShut: an eased proxy takes the announcement of a fence
// as heard once the shard refuses writes; one that was not eased, at once.
func TestWritesGoOnUntilTheSourceIsShut(t *testing.T) {
	t.Parallel()

	f, p, m := easedFleet(t, 1e-9)
	g := p.gates.of(m.from.ID)
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	key := bson.D{{Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}
	update := func() error {
		_, err := coll.UpdateOne(context.Background(), key, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		return err
	}
	require.NoError(t, update(), "the first one's turn is at once")
	done := make(chan error)
	go func() { done <- update() }()
	require.Eventually(t, func() bool { return testutil.ToFloat64(p.metrics.eased) == 1 }, 10*time.Second, time.Millisecond, "it does not wait")
	require.NoError(t, coll.FindOne(t.Context(), key).Err(), "reads go on")

	g.eased.Load().unshut = time.Hour
	m.state(chunk.Fencing)
	require.True(t, g.open(writes), "the source still takes them")
	m.notice.Shut = true
	m.state(chunk.Fencing)
	require.False(t, g.open(writes), "the source refuses them")
	m.notice.Shut = false
	m.state(chunk.AttemptAborted)
	require.NoError(t, <-done)

	m.notice.Attempt++
	m.state(chunk.Fencing)
	require.False(t, g.open(writes), "it was not eased")
}

// TestFenceIsHeardWithoutAWord: a proxy that is not told that the source is shut finds
// its peace all the same.
func TestFenceIsHeardWithoutAWord(t *testing.T) {
	t.Parallel()

	_, p, m := easedFleet(t, 1)
	m.state(chunk.Fencing)
	m.await("writes")
	require.False(t, p.gates.of(m.from.ID).open(writes))
}
