package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
)

// strains are the part of the metadata that keeps how shards and chunks bear their load.
type strains struct {
	mu       sync.Mutex
	times    map[chunk.PlacementID]float64
	kept     map[string]chunk.KeptPressure
	copying  map[string]string
	heats    map[chunk.ID]json.RawMessage
	observed int // heats that were kept
}

func (s *strains) Times(context.Context) (map[chunk.PlacementID]float64, error) { return s.times, nil }

func (s *strains) Pressures(context.Context) (map[string]chunk.KeptPressure, error) {
	return s.kept, nil
}

func (s *strains) Copying(context.Context) (map[string]string, error) { return s.copying, nil }

func (s *strains) Heats(context.Context) (map[chunk.ID]json.RawMessage, error) { return s.heats, nil }

func (s *strains) KeepHeats(_ context.Context, all map[chunk.ID]json.RawMessage) error {
	s.heats, s.observed = all, s.observed+len(all)
	return nil
}

func (s *strains) KeepPressure(_ context.Context, shard string, c chunk.Counters, p chunk.Pressure) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[string]chunk.KeptPressure{}
	for name, k := range s.kept {
		next[name] = k
	}
	next[shard] = chunk.KeptPressure{Counters: c, Pressure: p}
	s.kept = next
	return nil
}

// counted is shard-a's primary after some minutes, in which it was busy with so many of
// its four cores.
func counted(minutes int, cores float64) chunk.Counters {
	up := time.Duration(minutes) * time.Minute
	return chunk.Counters{
		Host: "a:1", At: time.Unix(1_800_000_000, 0).Add(up), Up: time.Hour + up, Cores: 4, CPU: time.Hour + time.Duration(cores*float64(up)),
		Writes: chunk.Latency{Ops: 1000 + int64(100*minutes), Time: time.Minute + up/100},
	}
}

// look reads the fleet minutes after the beginning; shard-a says c.
func look(t *testing.T, b books, age time.Duration, c chunk.Counters) fleet.View {
	t.Helper()

	for name, k := range b.kept {
		k.Age = age
		b.kept[name] = k
	}
	r := fleet.Reader{
		Metadata: b,
		Sizes:    func(context.Context, chunk.Shard, string) (int64, error) { return 100, nil },
		Counting: func(_ context.Context, s chunk.Shard, _ chunk.Counters) (chunk.Counters, error) {
			if s.Name == "shard-a" {
				return c, nil
			}
			return chunk.Counters{}, errors.New("not authorized")
		},
	}
	v, err := r.Read(t.Context())
	require.NoError(t, err)
	return v
}

// TestBusyShardIsRelieved once two readings say so, of its dear chunk; who does not tell
// is unknown and may take it.
func TestBusyShardIsRelieved(t *testing.T) {
	t.Parallel()

	b := someBooks()
	b.loads = map[chunk.PlacementID]float64{1: 1, 2: 10, 3: 10, 4: 10}
	b.times = map[chunk.PlacementID]float64{1: 3, 2: 1.2, 3: 0.8}
	plan := func(v fleet.View) contract.FleetPlan {
		p, err := v.Balance(contract.BalanceSettings{}, v.Fleet.At)
		require.NoError(t, err)
		return p
	}
	p := plan(look(t, b, 0, counted(0, 0)))
	require.Empty(t, p.Moves)
	require.Contains(t, p.Shards[0].Unknown, "first reading")

	p = plan(look(t, b, 5*time.Minute, counted(5, 3.6)))
	require.Len(t, p.Moves, 1)
	require.Equal(t, chunk.ID("shop/0001"), p.Moves[0].Chunk)
	require.Contains(t, p.Moves[0].Reason, "90 % of its CPU is busy (limit 80 %)")
	require.Equal(t, "shard-a", p.Shards[0].Shard)
	require.InDelta(t, 0.9, *p.Shards[0].CPU, 1e-9)
	require.Equal(t, contract.Duration(6*time.Millisecond), *p.Shards[0].Write)
	require.Nil(t, p.Shards[0].Read)
	require.Nil(t, p.Shards[1].CPU)
	require.Contains(t, p.Shards[1].Unknown, "not authorized")

	v := look(t, b, time.Second, chunk.Counters{})
	require.InDelta(t, 0.9, *v.Pressures["shard-a"].CPU, 1e-9, "it was read just now, and is not asked again")

	b.copying = map[string]string{"shard-a": "migrate/shop/0002"}
	v = look(t, b, 5*time.Minute, counted(10, 3.6))
	p = plan(v)
	require.Empty(t, p.Moves)
	require.Contains(t, p.Refusals[0].Reason, "migrate/shop/0002 copies")
}

// TestPressureForgetsSlowly: one quiet reading does not make a shard idle, nor does a
// burst make it busy.
func TestPressureForgetsSlowly(t *testing.T) {
	t.Parallel()

	b := someBooks()
	look(t, b, 0, counted(0, 0))
	v := look(t, b, 5*time.Minute, counted(5, 3.2))
	require.InDelta(t, 0.8, *v.Pressures["shard-a"].CPU, 1e-9)
	c := counted(5, 3.2)
	c.At, c.Up, c.Writes.Ops, c.Writes.Time = c.At.Add(15*time.Minute), c.Up+15*time.Minute, c.Writes.Ops+100, c.Writes.Time+time.Second
	v = look(t, b, 15*time.Minute, c)
	require.InDelta(t, 0.4, *v.Pressures["shard-a"].CPU, 1e-9, "half of it is forgotten after a half-life")
	require.Equal(t, 20*time.Millisecond, 2**v.Pressures["shard-a"].Write-6*time.Millisecond+10*time.Millisecond)

	c.CPU = 0
	c.At, c.Up = c.At.Add(5*time.Minute), c.Up+5*time.Minute
	v = look(t, b, 5*time.Minute, c)
	require.Nil(t, v.Pressures["shard-a"].CPU, "a counter that goes backwards is no reading")
	require.Contains(t, v.Pressures["shard-a"].Unknown, "started anew")
}

// TestHeatForgetsAndForesees: rates of chunks decay, and yesterday tells of the next hour.
func TestHeatForgetsAndForesees(t *testing.T) {
	t.Parallel()

	b := someBooks()
	rate := func(r float64, memory string, s contract.BalanceSettings) float64 {
		b.loads = map[chunk.PlacementID]float64{1: r}
		b.heats = nil
		if memory != "" {
			b.heats = map[chunk.ID]json.RawMessage{"shop/0001": json.RawMessage(memory)}
		}
		return read(t, b, s, "").Fleet.Chunks[0].Load.Ops
	}
	require.InDelta(t, 40, rate(40, "", contract.BalanceSettings{}), 1e-9, "nothing is remembered")
	require.Equal(t, 1, b.observed, "cold chunks are not kept")
	at := time.Unix(1_800_000_000, 0).UTC() // 08:00
	ago := func(d time.Duration) string { return at.Add(-d).Format(time.RFC3339) }
	require.InDelta(t, 25, rate(40, `{"heat":{"rate":10,"at":"`+ago(15*time.Minute)+`"}}`, contract.BalanceSettings{}), 1e-6)
	require.InDelta(t, 38.125, rate(40, `{"heat":{"rate":10,"at":"`+ago(time.Hour)+`"}}`, contract.BalanceSettings{}), 1e-6)
	hours := `"day":{"hours":[0,0,0,0,0,0,0,0,20,90,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"known":[false,false,false,false,false,false,false,false,true,true]}`
	busy := `{"heat":{"rate":40,"at":"` + ago(15*time.Minute) + `"},` + hours + `}`
	require.InDelta(t, 180, rate(40, busy, contract.BalanceSettings{}), 1e-6, "twice yesterday's 90 at nine, as it is twice yesterday's 20 at eight")
	require.InDelta(t, 40, rate(40, busy, contract.BalanceSettings{Ahead: -1}), 1e-6)
}
