package admission

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// service is a simulated shard: so many at once, each for so long, one behind another
// beyond that.
type service struct {
	servers chan struct{} // one token for each; capacity is the most
	mu      sync.Mutex
	takes   time.Duration
	served  int
	inside  int
	most    int
}

func newService(servers int, takes time.Duration) *service {
	s := &service{servers: make(chan struct{}, 1000), takes: takes}
	s.add(servers)
	return s
}

// add puts servers to work, or takes some away.
func (s *service) add(n int) {
	for range n {
		s.servers <- struct{}{}
	}
	for range -n {
		<-s.servers
	}
}

// slow sets how long each request takes.
func (s *service) slow(takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = takes
}

// serve runs one request.
func (s *service) serve() {
	s.mu.Lock()
	takes := s.takes
	s.inside++
	s.most = max(s.most, s.inside)
	s.mu.Unlock()
	<-s.servers
	time.Sleep(takes) //nolint:forbidigo // the bubble's clock
	s.servers <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside--
	s.served++
}

// measure lets a span pass and gives requests per second, and the most at once.
func (s *service) measure(span time.Duration) (perSecond float64, most int) {
	s.mu.Lock()
	s.served, s.most = 0, s.inside
	s.mu.Unlock()
	time.Sleep(span) //nolint:forbidigo // the bubble's clock
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.served) / span.Seconds(), s.most
}

// crowd lets clients of a database send writes through a gate until ctx ends, one
// after another, and gives what the slowest of them waited to be let in.
func crowd(ctx context.Context, wg *sync.WaitGroup, g *Gate, s *service, database string, clients int) func() time.Duration {
	var mu sync.Mutex
	var longest time.Duration
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				came := time.Now()
				pass, err := g.Enter(ctx, database, Normal, Writes)
				if err != nil {
					return
				}
				began := time.Now()
				mu.Lock()
				longest = max(longest, began.Sub(came))
				mu.Unlock()
				s.serve()
				g.Leave(pass, Answered, time.Since(began))
			}
		})
	}
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return longest
	}
}

// saturated runs check beside two gates at which more clients than one shard can
// serve send writes all the time.
func saturated(t *testing.T, s *service, clients int, check func(gates []*Gate)) {
	t.Helper()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	gates := []*Gate{NewGate(GateConfig{}), NewGate(GateConfig{})}
	gates[1].now = func() time.Time { return time.Now().Add(60 * time.Millisecond) } // clocks differ
	for _, g := range gates {
		crowd(ctx, &wg, g, s, "shop", clients)
	}
	check(gates)
}

// TestKneeOfSerialSyncs: a shard that syncs one write after another is never given
// the crowd that waits, whatever the proxies' first limits were, and loses no speed.
func TestKneeOfSerialSyncs(t *testing.T) {
	t.Parallel()

	for _, takes := range []time.Duration{4 * time.Millisecond, 7 * time.Millisecond, 20 * time.Millisecond} {
		for _, clients := range []int{firstLimit, 4 * firstLimit} { // nobody waits at first, and most of them do
			t.Run(fmt.Sprintf("%v, %d clients", takes, clients), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newService(1, takes)
					saturated(t, s, clients, func(gates []*Gate) {
						s.measure(100 * time.Second)
						rate, most := s.measure(30 * time.Second)
						require.GreaterOrEqual(t, rate, 0.98/takes.Seconds())
						require.LessOrEqual(t, most, 24, "%v %v", gates[0].State().Writes, gates[1].State().Writes)
					})
				})
			})
		}
	}
}

// TestKneeIsFoundAgain when the shard changes.
func TestKneeIsFoundAgain(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const takes = 60 * time.Millisecond
		servers := 10
		s := newService(servers, takes)
		saturated(t, s, 150, func([]*Gate) {
			for _, step := range []struct {
				servers int
				most    int
			}{{10, 45}, {20, 80}, {40, 140}, {20, 80}, {5, 30}} {
				s.add(step.servers - servers)
				servers = step.servers
				s.measure(2 * time.Minute)
				rate, most := s.measure(30 * time.Second)
				require.GreaterOrEqual(t, rate, 0.9*float64(step.servers)/takes.Seconds(), "%d servers", step.servers)
				require.LessOrEqual(t, most, step.most, "%d servers", step.servers)
			}
			s.slow(3 * takes)
			s.measure(2 * time.Minute)
			rate, _ := s.measure(30 * time.Second)
			require.GreaterOrEqual(t, rate, 0.9*5/(3*takes).Seconds(), "three times slower for good")
			s.slow(takes)
			s.measure(2 * time.Minute)
			rate, _ = s.measure(30 * time.Second)
			require.GreaterOrEqual(t, rate, 0.9*5/takes.Seconds(), "quick again")
		})
	})
}

// TestKneeOfGroupCommits: a shard at which writes cost each other nothing is given
// all of them.
func TestKneeOfGroupCommits(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		s := newService(1000, 60*time.Millisecond)
		saturated(t, s, 150, func([]*Gate) {
			s.measure(15 * time.Second)
			rate, _ := s.measure(30 * time.Second)
			require.GreaterOrEqual(t, rate, 0.95*300/0.06)
		})
	})
}

// TestQuietDatabaseBesideANoisyOne has its turn at once, also while the noisy one's
// requests hold every place for long.
func TestQuietDatabaseBesideANoisyOne(t *testing.T) {
	t.Parallel()

	for _, takes := range []time.Duration{7 * time.Millisecond, 30 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var wg sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				defer wg.Wait()
				defer cancel()
				g := NewGate(GateConfig{})
				noisy, quiet := newService(1, takes), newService(1, time.Millisecond)
				if takes > time.Second {
					noisy.add(100)
				}
				crowd(ctx, &wg, g, noisy, "noisy", 64)
				time.Sleep(20 * time.Second) //nolint:forbidigo // the bubble's clock
				waited := crowd(ctx, &wg, g, quiet, "quiet", 1)
				rate, _ := quiet.measure(20 * time.Second)
				require.Positive(t, rate)
				require.Less(t, waited(), 1300*time.Millisecond)
			})
		})
	}
}

// TestFenceTeachesNothing: refusals of a fence are quick, and no answers.
func TestFenceTeachesNothing(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		g := NewGate(GateConfig{})
		answer := func(o Outcome, took time.Duration) {
			for range 100 {
				pass := in(t, g, "a", Normal)
				time.Sleep(20 * time.Millisecond) //nolint:forbidigo // the bubble's clock
				g.Leave(pass, o, took)
			}
		}
		answer(Answered, 20*time.Millisecond)
		answer(Declined, time.Microsecond)
		require.Equal(t, 20*time.Millisecond, g.sides[Writes].knee.alone)
	})
}

// TestAges counts who came within the last second.
func TestAges(t *testing.T) {
	t.Parallel()

	var a ages
	first := a.enter(0)
	a.enter(50 * time.Millisecond)
	last := a.enter(950 * time.Millisecond)
	require.Equal(t, 3, a.young(999*time.Millisecond))
	require.Equal(t, 1, a.young(time.Second))
	a.leave(time.Second, first)
	require.Equal(t, 1, a.young(1100*time.Millisecond), "who was forgotten is not counted out again")
	a.leave(1200*time.Millisecond, last)
	require.Zero(t, a.young(1200*time.Millisecond))
	a.leave(time.Hour, a.enter(time.Hour))
	require.Zero(t, a.young(time.Hour), fmt.Sprint(a))
}

// TestScanAmongQuickOnes: one answer that takes very long is no queue.
func TestScanAmongQuickOnes(t *testing.T) {
	t.Parallel()

	k := newKnee(4, 200)
	k.alone = 10 * time.Millisecond
	now := time.Now()
	k.learned = now.Add(probeEvery)
	for i := range 2 * windowSamples {
		took := 10 * time.Millisecond
		if i%windowSamples == 0 {
			took = time.Minute
		}
		k.add(now.Add(time.Duration(i)*windowLength/10), sample{took: took, beside: 30})
	}
	require.GreaterOrEqual(t, k.limit, float64(firstLimit))
}

// TestProbeWaitsForOthers that had sent much before it: what stands behind their
// requests is not alone.
func TestProbeWaitsForOthers(t *testing.T) {
	t.Parallel()

	k := newKnee(4, 200)
	start := time.Now()
	k.alone, k.probing = 10*time.Millisecond, start
	k.add(start.Add(90*time.Millisecond), sample{took: 80 * time.Millisecond, calm: true})
	at := start.Add(probeSettle)
	for range calmSamples {
		require.InDelta(t, 1, k.room(), 0)
		at = at.Add(8 * time.Millisecond)
		k.add(at, sample{took: 8 * time.Millisecond, calm: true})
	}
	require.InDelta(t, firstLimit, k.room(), 0)
	require.Equal(t, 9*time.Millisecond, k.alone)
}

// TestNoProbeWhileThereIsRoom: where nobody waits for room nobody is made to wait so
// that something can be learned, though no answer ever comes without company.
func TestNoProbeWhileThereIsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer wg.Wait()
		defer cancel()
		s := newService(64, 4*fine)
		waited := crowd(ctx, &wg, NewGate(GateConfig{}), s, "shop", firstLimit/2)
		perSecond, _ := s.measure(4 * probeEvery)
		require.Zero(t, waited())
		require.InDelta(t, float64(firstLimit/2)/(4*fine).Seconds(), perSecond, 20)
	})
}

// TestDoubt: what was learned wrongly, while another proxy filled the shard, does not
// keep a crowd on it for ever, though all of it finds room.
func TestDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(1, 10*time.Millisecond)
		saturated(t, s, 2*firstLimit, func(gates []*Gate) {
			for _, g := range gates {
				g.mu.Lock()
				k := &g.sides[Writes].knee
				k.alone, k.learned, k.limit = 600*time.Millisecond, time.Now(), 4*firstLimit
				g.mu.Unlock()
			}
			s.measure(10 * time.Minute)
			_, most := s.measure(30 * time.Second)
			require.LessOrEqual(t, most, 24)
		})
	})
}

// TestProbeThatLearnsNothing, because single requests take long, is short, and made once
// in its turn: all others wait for it.
func TestProbeThatLearnsNothing(t *testing.T) {
	t.Parallel()

	k := newKnee(4, 200)
	start := time.Unix(0, 1000*int64(probeEvery))
	k.alone, k.learned, k.last, k.full = 10*time.Millisecond, start.Add(-probeEvery), 2*fine, true
	slow := sample{took: 20 * time.Millisecond, beside: 10, crowded: true}
	k.add(start, slow)
	require.InDelta(t, 1, k.room(), 0)
	k.look(start.Add(probeLongest - 1))
	require.InDelta(t, 1, k.room(), 0)
	k.look(start.Add(probeLongest))
	require.InDelta(t, firstLimit/2, k.room(), 0, "the queue may be what kept it")
	k.add(start.Add(probeLongest+time.Millisecond), slow)
	require.InDelta(t, firstLimit/2, k.room(), 0, "it was made in this turn")
	k.add(start.Add(probeEvery), slow)
	require.InDelta(t, 1, k.room(), 0)
}

// TestNoProbeBehindAHold: behind a switch all that were held come at once to a shard of
// which little is known. They waited one for another then, for as long as a probe lasts.
func TestNoProbeBehindAHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		saturated(t, newService(1, 6*time.Millisecond), 40, func(gates []*Gate) {
			knee := &gates[0].sides[Writes].knee
			probes := func() bool {
				gates[0].mu.Lock()
				defer gates[0].mu.Unlock()
				return !knee.probing.IsZero()
			}
			for range 70_000 / 100 {
				gates[0].Expect()
				require.False(t, probes())
				time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the bubble's clock
				require.False(t, probes())
			}
			until := time.Now().Add(behindHold + 2*probeEvery)
			for !probes() {
				require.True(t, time.Now().Before(until), "it probes again")
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the bubble's clock
			}
			gates[0].Expect()
			require.False(t, probes())
			require.True(t, gates[0].State().Expecting.After(time.Now()))
		})
	})
}
