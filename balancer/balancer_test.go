package balancer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

// fleet draws a small fleet with two zones, closed shards and fixed chunks.
func fleet(t *rapid.T) Fleet {
	f := Fleet{At: now}
	zones := []string{"", "eu"}
	n := rapid.IntRange(2, 8).Draw(t, "shards")
	for i := range n {
		f.Shards = append(f.Shards, Shard{
			Name: fmt.Sprintf("s%d", i), Zone: zones[rapid.IntRange(0, 1).Draw(t, "zone")],
			Capacity: Load{Bytes: rapid.Float64Range(50, 200).Draw(t, "bytes"), Ops: rapid.Float64Range(50, 200).Draw(t, "ops")},
			Apply:    rapid.SampledFrom([]float64{0, 5, 50}).Draw(t, "apply"),
			Closed:   rapid.IntRange(0, 5).Draw(t, "closed") == 0,
		})
	}
	for i := range rapid.IntRange(0, 40).Draw(t, "chunks") {
		on := rapid.IntRange(0, n-1).Draw(t, "on")
		c := Chunk{ID: fmt.Sprintf("c%d", i), Shard: on, Zone: f.Shards[on].Zone, Load: Load{
			Bytes: rapid.Float64Range(0, 30).Draw(t, "size"), Ops: rapid.Float64Range(0, 30).Draw(t, "rate"), Writes: rapid.Float64Range(0, 5).Draw(t, "writes"),
		}}
		if rapid.IntRange(0, 4).Draw(t, "fixed") == 0 {
			c.Fixed = "a move of it is open"
		}
		if rapid.IntRange(0, 6).Draw(t, "hotkey") == 0 {
			c.HotKey = 0.9
		}
		f.Chunks = append(f.Chunks, c)
	}
	return f
}

// checkMoves sees that every move is allowed, and gives the fleet after them.
func checkMoves(t require.TestingT, f Fleet, moves []Move) Fleet {
	after := f
	after.Chunks = append([]Chunk(nil), f.Chunks...)
	moved := map[string]bool{}
	coming := map[string]float64{}
	for _, m := range moves {
		require.False(t, moved[m.Chunk], "%s is moved twice", m.Chunk)
		moved[m.Chunk] = true
		for i := range after.Chunks {
			c := &after.Chunks[i]
			if c.ID != m.Chunk {
				continue
			}
			require.Equal(t, m.From, f.Shards[c.Shard].Name)
			require.Empty(t, c.Fixed)
			for to, s := range f.Shards {
				if s.Name != m.To {
					continue
				}
				require.False(t, s.Closed)
				require.Equal(t, c.Zone, s.Zone)
				require.NotEqual(t, c.Shard, to)
				c.Shard = to
			}
			coming[m.To] += c.Load.Writes
		}
		require.NotEmpty(t, m.Reason)
	}
	for _, s := range f.Shards {
		if s.Apply > 0 {
			require.LessOrEqual(t, spareFactor*coming[s.Name], s.Apply+1e-9, s.Name)
		}
	}
	return after
}

func TestBalanceKeepsItsPromises(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		f := fleet(t)
		p, err := Balance(f, Policy{}, now)
		require.NoError(t, err)
		again, err := Balance(f, Policy{}, now)
		require.NoError(t, err)
		require.Equal(t, p, again, "it is not deterministic")
		after := checkMoves(t, f, p.Moves)
		before, then := newState(f), newState(after)
		limit := min(0.85, p.Mean*1.05)
		if p.Mean > limit {
			limit = p.Mean * 1.05
		}
		for i := range f.Shards {
			if then.uses[i] > before.uses[i]+1e-9 {
				require.LessOrEqual(t, then.uses[i], limit+1e-9, "%s was made too hot", f.Shards[i].Name)
			}
		}
		require.LessOrEqual(t, p.After, p.Before+1e-9)
		for i := range f.Shards { // a shard that stays hot is spoken of
			if then.uses[i] > limit+0.002+1e-9 && then.uses[i] > min(0.85, p.Mean*1.2) && before.uses[i] > min(0.85, p.Mean*1.2) {
				said := false
				for _, r := range p.Refusals {
					said = said || r.Subject == f.Shards[i].Name
				}
				require.True(t, said, "%s stays at %.2f and nobody says why", f.Shards[i].Name, then.uses[i])
			}
		}
		next, err := Balance(after, Policy{}, now)
		require.NoError(t, err)
		if len(p.Refusals) == 0 && len(p.Splits) == 0 {
			require.Empty(t, next.Moves, "the next round swings back")
		}
	})
}

// TestBalanceOfALiquid sees that a plan over many small chunks moves hardly more
// than any plan has to.
func TestBalanceOfALiquid(t *testing.T) {
	t.Parallel()

	rnd := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test
	f := Fleet{At: now}
	for i := range 20 {
		f.Shards = append(f.Shards, Shard{Name: fmt.Sprintf("s%d", i), Capacity: Load{Bytes: 1000, Ops: 1000}})
	}
	for i := range 2000 {
		f.Chunks = append(f.Chunks, Chunk{ID: fmt.Sprintf("c%d", i), Shard: int(20 * math.Pow(rnd.Float64(), 2)), Load: Load{Bytes: 1, Ops: 5 * rnd.Float64()}})
	}
	p, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.NotEmpty(t, p.Moves)
	require.Empty(t, p.Refusals)
	require.Less(t, p.Moved, 1.1*p.Bound)
	require.Greater(t, p.Moved, 0.9*p.Bound)
	require.Less(t, p.After, p.Mean*1.2)
}

func TestOneHotKeyIsNotSplit(t *testing.T) {
	t.Parallel()

	f := Fleet{At: now, Shards: []Shard{
		{Name: "a", Capacity: Load{Bytes: 100, Ops: 100}}, {Name: "b", Capacity: Load{Bytes: 100, Ops: 100}},
	}, Chunks: []Chunk{{ID: "one", Load: Load{Bytes: 1, Ops: 95}, HotKey: 0.83}}}
	p, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Splits)
	require.Equal(t, "one", p.Refusals[0].Subject)
	require.Contains(t, p.Refusals[0].Reason, "no split point: one key takes 83 %")
	require.Contains(t, p.Refusals[0].Offer, "isolate")

	f.Chunks[0].HotKey = 0.1
	p, err = Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Len(t, p.Splits, 1)
	require.Equal(t, 2, p.Splits[0].Parts)
}

func TestBalanceRefuses(t *testing.T) {
	t.Parallel()

	good := Fleet{At: now, Shards: []Shard{{Name: "a", Capacity: Load{Bytes: 1, Ops: 1}}}}
	with := func(change func(*Fleet)) Fleet {
		f := good
		f.Shards = append([]Shard(nil), good.Shards...)
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		f    Fleet
		p    Policy
		want string
	}{
		"old figures":  {with(func(f *Fleet) { f.At = now.Add(-6 * time.Minute) }), Policy{}, "6m0s ago, at most 5m0s"},
		"no capacity":  {with(func(f *Fleet) { f.Shards[0].Capacity.Ops = 0 }), Policy{}, `shards[0] "a": capacity`},
		"no name":      {with(func(f *Fleet) { f.Shards[0].Name = "" }), Policy{}, "shards[0].name is empty"},
		"twice":        {with(func(f *Fleet) { f.Shards = append(f.Shards, f.Shards[0]) }), Policy{}, `"a" is there twice`},
		"nowhere":      {with(func(f *Fleet) { f.Chunks = []Chunk{{ID: "x", Shard: 1}} }), Policy{}, `chunks[0] "x" is on shard 1 of 1`},
		"not a number": {with(func(f *Fleet) { f.Chunks = []Chunk{{ID: "x", Load: Load{Ops: math.NaN()}}} }), Policy{}, `chunks[0] "x": load`},
		"no shards":    {Fleet{At: now}, Policy{}, "there are no shards"},
		"no gap":       {good, Policy{Start: 0.05, Stop: 0.1}, "policy.start 0.05 must lie above policy.stop 0.1"},
		"over full":    {good, Policy{Full: 1.5}, "policy.full 1.5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Balance(c.f, c.p, now)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestMovesOfARoundAreBounded(t *testing.T) {
	t.Parallel()

	f := Fleet{At: now, Shards: []Shard{{Name: "a", Capacity: Load{Bytes: 100, Ops: 100}}, {Name: "b", Capacity: Load{Bytes: 100, Ops: 100}}}}
	for i := range 20 {
		f.Chunks = append(f.Chunks, Chunk{ID: fmt.Sprintf("c%02d", i), Load: Load{Bytes: 1, Ops: 4}})
	}
	p, err := Balance(f, Policy{MaxMoves: 3}, now)
	require.NoError(t, err)
	require.Len(t, p.Moves, 3)
	require.Contains(t, p.Refusals[0].Reason, "the round's 3 moves are spent")
}

func TestPackKeepsItsPromises(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		f := fleet(t)
		for i := range f.Shards {
			f.Shards[i].Apply = 0
		}
		p, err := Pack(f, 0.8)
		require.NoError(t, err)
		after := newState(checkMoves(t, f, p.Moves))
		before := newState(f)
		used := 0
		for i := range f.Shards {
			if len(after.on[i]) > 0 {
				used++
			}
			if len(after.on[i]) > len(before.on[i]) {
				require.LessOrEqual(t, after.uses[i], 0.8+1e-9)
			}
		}
		require.Equal(t, used, p.Used)
		held := 0
		for i := range f.Shards {
			if len(before.on[i]) > 0 {
				held++
			}
		}
		pinnedClosed := false // such a shard can't be emptied, yet gives away what it can
		for i := range f.Shards {
			pinnedClosed = pinnedClosed || f.Shards[i].Closed && before.pinned(i) > 0
		}
		if !pinnedClosed {
			require.LessOrEqual(t, used, held, "packing spreads")
		}
	})
}

func TestPackReachesTheBoundOfALiquid(t *testing.T) {
	t.Parallel()

	f := Fleet{}
	for i := range 40 {
		f.Shards = append(f.Shards, Shard{Name: fmt.Sprintf("s%02d", i), Capacity: Load{Bytes: 100, Ops: 1000}})
		for j := range 20 {
			f.Chunks = append(f.Chunks, Chunk{ID: fmt.Sprintf("c%d-%d", i, j), Shard: i, Load: Load{Bytes: 1, Ops: 1}})
		}
	}
	p, err := Pack(f, 0.8)
	require.NoError(t, err)
	require.Equal(t, 10, p.Bound)
	require.Equal(t, 10, p.Used)
	require.Len(t, p.Empty, 30)
	require.InDelta(t, 600, p.Bytes, 0)
}

func TestDrainSaysWhatStays(t *testing.T) {
	t.Parallel()

	f := Fleet{Shards: []Shard{
		{Name: "a", Capacity: Load{Bytes: 100, Ops: 100}}, {Name: "b", Capacity: Load{Bytes: 10, Ops: 100}},
	}, Chunks: []Chunk{
		{ID: "small", Load: Load{Bytes: 5, Ops: 1}},
		{ID: "large", Load: Load{Bytes: 50, Ops: 1}},
		{ID: "pinned", Load: Load{Bytes: 1, Ops: 1}, Fixed: "pinned by anna until Friday"},
		{ID: "other", Shard: 1, Load: Load{Bytes: 1}},
	}}
	p, err := Drain(f, "a", 0.85)
	require.NoError(t, err)
	require.Len(t, p.Moves, 1)
	require.Equal(t, "small", p.Moves[0].Chunk)
	require.Equal(t, "b", p.Moves[0].To)
	require.Empty(t, p.Empty)
	require.Len(t, p.Refused, 2)
	require.Equal(t, Refusal{Subject: "large", Reason: `no shard of zone "" has room for it up to 85 %`}, p.Refused[0])
	require.Equal(t, Refusal{Subject: "pinned", Reason: "pinned by anna until Friday"}, p.Refused[1])

	_, err = Drain(f, "z", 0.85)
	require.ErrorContains(t, err, `shard "z" is unknown`)
}

func TestHeatForgets(t *testing.T) {
	t.Parallel()

	h := Heat{}.Observe(100, now, HalfLife)
	require.InDelta(t, 100, h.Rate, 0)
	h = h.Observe(0, now.Add(HalfLife), HalfLife)
	require.InDelta(t, 50, h.Rate, 1e-9)
	require.Equal(t, h, h.Observe(1e6, now, HalfLife), "time does not go backwards")
}

func TestForecastSeesTheSurgeBeforeItComes(t *testing.T) {
	t.Parallel()

	var d Day
	require.InDelta(t, 10, d.Forecast(10, now, 6*time.Hour), 0, "nothing is known yet")
	for h := range 24 {
		rate := 100.0
		if h == 15 {
			rate = 900
		}
		d = d.Observe(rate, time.Date(2026, 2, 28, h, 30, 0, 0, time.UTC))
	}
	require.InDelta(t, 900, d.Forecast(100, now, 4*time.Hour), 1e-9)
	require.InDelta(t, 1800, d.Forecast(200, now, 4*time.Hour), 1e-9, "today is twice yesterday")
	require.InDelta(t, 2700, d.Forecast(2500, now, 4*time.Hour), 1e-9, "growth is bounded")
	require.InDelta(t, 100, d.Forecast(100, now, 2*time.Hour), 1e-9, "the surge lies further ahead")
}

func TestGrowth(t *testing.T) {
	t.Parallel()

	g, err := Grow(8, 12, 50_000, 240, 200)
	require.NoError(t, err)
	require.InDelta(t, 2.0/3, g.Modulo, 0.02)
	require.InDelta(t, 0.35, g.Ring, 0.03)
	require.GreaterOrEqual(t, g.Plan, g.Bound-1e-9)
	require.LessOrEqual(t, g.Plan, 1.1*g.Bound)
	_, err = Grow(8, 8, 1, 240, 1)
	require.ErrorContains(t, err, "to 8 must lie above from 8")
	_, err = Grow(8, 12, 1, 11, 1)
	require.ErrorContains(t, err, "chunks 11")
}

func TestSimulationIsRepeatable(t *testing.T) {
	t.Parallel()

	s := Simulation{Chunks: 4000, Shards: 80, Rounds: 3, Every: time.Hour, Seed: 5, Packed: 200, Fill: 0.85, Rate: 50e6, Moves: 10}
	still := func(work func()) time.Duration { work(); return time.Second }
	a, err := Simulate(s, still)
	require.NoError(t, err)
	b, err := Simulate(s, still)
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.Less(t, a.WorstAfter, a.WorstBefore)
	require.LessOrEqual(t, a.MovedVsBound, 1.1)
	require.LessOrEqual(t, a.PackedVsBound, 1.05)
	require.GreaterOrEqual(t, a.PackedVsBound, 1.0)

	s.Chunks = 10
	_, err = Simulate(s, still)
	require.ErrorContains(t, err, "chunks 10")
}

// TestIdleFleetIsNotCut: on a fleet that is nearly idle every chunk is more than the mean.
func TestIdleFleetIsNotCut(t *testing.T) {
	t.Parallel()

	f := Fleet{At: now, Shards: []Shard{{Name: "a", Capacity: Load{Bytes: 1e12, Ops: 2e4}}, {Name: "b", Capacity: Load{Bytes: 1e12, Ops: 2e4}}}}
	f.Chunks = []Chunk{{ID: "c", Load: Load{Ops: 900}}}
	p, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Splits)
	f.Chunks[0].Load.Ops = 1100
	p, err = Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Len(t, p.Splits, 1)
}
