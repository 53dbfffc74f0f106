package bulkimport

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// edge is that of buckets a tenth apart, from 0.1 ms on.
func edge(bucket int) time.Duration {
	return time.Duration(float64(100*time.Microsecond) * math.Pow(1.1, float64(bucket)))
}

// served is a simulated shard that applications use, through one proxy.
type served struct {
	random *rand.Rand
	rate   int                         // requests per second
	median time.Duration               // of a request without an import
	hurt   func(level float64) float64 // times what a request takes, by what an import does
	counts []int64
	before map[string][][]int64 // as the proxy knows it
	now    time.Time
	took   []time.Duration // of the last second
}

// newServed makes one of 300 requests per second.
func newServed(hurt func(float64) float64) *served {
	return &served{random: rand.New(rand.NewPCG(1, 2)), rate: 300, median: 3 * time.Millisecond, hurt: hurt, now: time.Unix(1_000_000, 0)}
}

// second serves for a second beside an import and tells c of it.
func (s *served) second(c *courtesy) {
	s.now = s.now.Add(time.Second)
	s.took = s.took[:0]
	level := c.level
	if c.stands() {
		level = 0
	}
	for range s.rate {
		s.serve(s.hurt(level))
	}
	c.hear(s.now, Heard{Served: Served{"p": slices.Clone(s.counts)}, Before: s.before})
}

// serve serves one request, so many times as slowly as without an import.
func (s *served) serve(slower float64) {
	took := time.Duration(float64(s.median) * math.Exp(0.6*s.random.NormFloat64()) * slower)
	s.took = append(s.took, took)
	b := max(0, int(math.Ceil(math.Log(float64(took)/float64(edge(0)))/math.Log(1.1))))
	s.counts = add(s.counts, make([]int64, b+1))
	s.counts[b]++
}

// minute serves for one without an import, which the proxy remembers as the one before it.
func (s *served) minute() {
	s.before = map[string][][]int64{}
	for range 6 {
		s.counts = nil
		for range 10 * s.rate {
			s.serve(1)
		}
		s.before["p"] = append(s.before["p"], s.counts)
	}
}

// slow is the share of requests that took longer than limit within so many seconds, and
// the mean level meanwhile.
func (s *served) slow(c *courtesy, seconds int, limit time.Duration) (share, level float64) {
	n, over := 0, 0
	for range seconds {
		s.second(c)
		for _, took := range s.took {
			if n++; took > limit {
				over++
			}
		}
		level += c.level / float64(seconds)
	}
	return float64(over) / float64(n), level
}

// newCourtesy is one that allows 1.2 times p99.
func newCourtesy() *courtesy { return &courtesy{edge: edge, slower: 1.2} }

// p99 of requests without an import: 2.326 standard deviations.
func (s *served) p99() time.Duration { return time.Duration(float64(s.median) * math.Exp(0.6*2.326)) }

// TestCourtesyKeepsTheTail: an import that hurts applications the more, the more it does,
// comes to do about what is allowed, and not much more or less.
func TestCourtesyKeepsTheTail(t *testing.T) {
	t.Parallel()
	for name, perLevel := range map[string]float64{"a little": 0.05, "much": 0.5} {
		s, c := newServed(func(level float64) float64 { return 1 + perLevel*level }), newCourtesy()
		s.slow(c, 60, 0)
		allowed := 0.2 / perLevel // the level at which p99 is 1.2 times what it was
		share, level := s.slow(c, 300, time.Duration(1.2*float64(s.p99())))
		require.Less(t, share, 0.02, name)
		require.Greater(t, level, 0.3*allowed, name)
		require.Less(t, level, 1.5*allowed, name)
		require.InDelta(t, s.p99().Seconds(), c.calm.Seconds(), 0.25*s.p99().Seconds(), name)
	}
}

// TestCourtesyOfWhatHurtsNobody goes up to all that there is, within seconds.
func TestCourtesyOfWhatHurtsNobody(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(float64) float64 { return 1 }), newCourtesy()
	s.second(c)
	require.InEpsilon(t, levelFirst, c.level, 1e-9)
	s.slow(c, 40, 0)
	require.GreaterOrEqual(t, c.level, levelMost/4)
	require.Contains(t, c.reason(), "things at once")
}

// TestCourtesyIsForThoseWhoAreThere: nobody's requests hold nothing up, neither at the
// beginning nor after the last one has gone.
func TestCourtesyIsForThoseWhoAreThere(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(float64) float64 { return 1 }), newCourtesy()
	for range 10 {
		s.now = s.now.Add(time.Second)
		c.hear(s.now, Heard{})
		require.False(t, c.crowd)
	}
	require.Empty(t, c.reason())
	s.second(c)
	require.True(t, c.crowd, "what proxies have sent so far may go on")
	require.Contains(t, c.reason(), "is being measured")
	s.rate = 0
	for range 4 {
		s.second(c)
		require.True(t, c.crowd)
	}
	s.second(c)
	require.False(t, c.crowd)
	s.rate = 300
	s.second(c)
	require.True(t, c.crowd)
	require.InEpsilon(t, levelFirst, c.level, 1e-9, "they are met anew")
	s.slow(c, 60, 0)
	require.Greater(t, c.level, 1.0)
	s.now = s.now.Add(time.Hour)
	s.second(c)
	require.InEpsilon(t, levelFirst, c.level, 1e-9, "no import ran meanwhile")
	require.Contains(t, c.reason(), "is being measured")
}

// TestCourtesyNeverStarves: a shard that becomes slow for other reasons brings the import
// down to its least, never to nothing; then that is how the shard is, and it goes on.
func TestCourtesyNeverStarves(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(level float64) float64 { return 1 + 0.1*level }), newCourtesy()
	s.slow(c, 60, 0)
	before := c.level
	require.Greater(t, before, 0.5)
	s.median *= 3
	least := c.level
	for range 60 {
		s.second(c)
		require.GreaterOrEqual(t, c.level, levelLeast)
		least = min(least, c.level)
	}
	require.LessOrEqual(t, least, levelFirst)
	_, level := s.slow(c, 240, 0)
	require.Greater(t, level, 0.3)
	require.InDelta(t, s.p99().Seconds(), c.calm.Seconds(), 0.25*s.p99().Seconds())
}

// TestCourtesyKnowsTheMinuteBefore: it judges at once, and holds an import for what it is
// that slows requests down even at its least.
func TestCourtesyKnowsTheMinuteBefore(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(level float64) float64 {
		if level > 0 {
			return 1.5
		}
		return 1
	}), newCourtesy()
	s.minute()
	s.second(c)
	require.InDelta(t, s.p99().Seconds(), c.calm.Seconds(), 0.1*s.p99().Seconds())
	require.Contains(t, c.reason(), "p99 of their requests is kept to")
	for range 6 {
		s.second(c)
	}
	require.InEpsilon(t, levelLeast, c.level, 1e-9)
	stood, of := 0, 300
	for range of {
		s.second(c)
		if c.stands() {
			stood++
			require.Contains(t, c.reason(), "does nothing for a while")
		}
	}
	require.InDelta(t, s.p99().Seconds(), c.calm.Seconds(), 0.15*s.p99().Seconds())
	require.InEpsilon(t, levelLeast, c.level, 1e-9)
	require.Positive(t, stood)
	require.Less(t, stood, of/3, "it goes on")
}

// TestCourtesyIsNotDecidedByOneStall: neither by one in the minute before, nor for long by
// one of those that a shard has now and then.
func TestCourtesyIsNotDecidedByOneStall(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(float64) float64 { return 1 }), newCourtesy()
	s.minute()
	stalled := s.before["p"][2]
	stalled[len(stalled)-1] += int64(s.rate)
	s.slow(c, 15, 0)
	require.InDelta(t, s.p99().Seconds(), c.calm.Seconds(), 0.1*s.p99().Seconds())
	before := c.level
	s.median *= 20
	s.second(c)
	s.median /= 20
	s.slow(c, 5, 0)
	require.Less(t, c.level, before)
	s.slow(c, 45, 0)
	require.GreaterOrEqual(t, c.level, before)
}

// TestCourtesyLearnsOfBetterTimes: a minute before that was a bad one is no excuse.
func TestCourtesyLearnsOfBetterTimes(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(level float64) float64 { return 1 + 0.1*level }), newCourtesy()
	s.median *= 3
	s.minute()
	s.median /= 3
	s.slow(c, 400, 0)
	require.InDelta(t, s.p99().Seconds(), c.calm.Seconds(), 0.25*s.p99().Seconds())
}

// TestCourtesyAwaitsTheFirstWord: until every proxy has spoken there may be applications;
// one that never does holds an import up for a few seconds.
func TestCourtesyAwaitsTheFirstWord(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	later := func(c *courtesy, h Heard) {
		now = now.Add(time.Second)
		c.hear(now, h)
	}
	c := newCourtesy()
	later(c, Heard{Silent: true})
	require.True(t, c.crowd)
	require.InEpsilon(t, levelFirst, c.level, 1e-9)
	require.Contains(t, c.reason(), "is being asked")
	later(c, Heard{Served: Served{"p": nil}})
	require.False(t, c.crowd, "nobody is there")

	c = newCourtesy()
	later(c, Heard{Served: Served{"p": nil}, Silent: true})
	later(c, Heard{Served: Served{"p": nil, "q": {100}}, Before: map[string][][]int64{"p": {}, "q": {{99}}}})
	require.True(t, c.crowd)
	require.Equal(t, c.quantile([]int64{99}, 0.99), c.calm)
	later(c, Heard{Served: Served{"p": nil, "q": {100}}, Silent: true})
	require.True(t, c.crowd, "it was there a second ago")

	c = newCourtesy()
	for range int(silentMost / time.Second) {
		later(c, Heard{Silent: true})
		require.True(t, c.crowd)
	}
	later(c, Heard{Silent: true})
	require.False(t, c.crowd)
	later(c, Heard{Silent: true})
	require.False(t, c.crowd)
}

// TestCourtesyOfAFew: where so few requests come that one in a hundred says nothing, it
// goes on carefully and is no obstacle.
func TestCourtesyOfAFew(t *testing.T) {
	t.Parallel()
	s, c := newServed(func(float64) float64 { return 1 }), newCourtesy()
	s.rate = 1
	s.slow(c, 5, 0)
	require.LessOrEqual(t, c.level, 2*levelFirst)
	s.slow(c, 60, 0)
	require.GreaterOrEqual(t, c.level, 1.0)
}

// TestServedSince: only what a proxy that is known has counted meanwhile is new.
func TestServedSince(t *testing.T) {
	t.Parallel()
	before := Served{"a": {1, 2}, "b": {5}, "c": {1, 1}}
	more, n := Served{"a": {1, 4, 3}, "b": {4, 9}, "c": {7}, "d": {100}}.since(before)
	require.Equal(t, []int64{0, 2, 3}, more, "b and c have begun anew, d was not there")
	require.InEpsilon(t, 5.0, n, 1e-9)
	more, n = before.since(before)
	require.Zero(t, n)
	require.Equal(t, []int64{0, 0}, more[:2])
}

// TestTailOfAWindow: within a bucket requests are taken to lie evenly.
func TestTailOfAWindow(t *testing.T) {
	t.Parallel()
	c := &courtesy{edge: func(b int) time.Duration { return time.Duration(b+1) * 10 * time.Millisecond }, window: []int64{90, 10}}
	require.Equal(t, 19*time.Millisecond, c.quantile(c.window, 0.99))
	require.InEpsilon(t, 5.0, c.above(15*time.Millisecond), 1e-9)
	require.InEpsilon(t, 55.0, c.above(5*time.Millisecond), 1e-9)
	require.Zero(t, c.above(20*time.Millisecond))
}
