package balancer

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// dear is a fleet of two shards. On s0 one chunk has few operations, of which each takes
// a second, and nine have many that take nothing.
func dear(strain ...Strain) Fleet {
	f := Fleet{At: now}
	for i, x := range strain {
		f.Shards = append(f.Shards, Shard{Name: fmt.Sprintf("s%d", i), Capacity: Load{Bytes: 1e6, Ops: 1e5}, Strain: x})
	}
	for i := range 10 {
		c := Chunk{ID: fmt.Sprintf("c%d", i), Load: Load{Bytes: 10, Ops: 100, Time: 0.01}}
		if i == 0 {
			c.Load = Load{Bytes: 10, Ops: 2, Time: 2}
		}
		f.Chunks = append(f.Chunks, c)
		c.ID, c.Shard = "d"+c.ID, 1 // s1 serves as much and nobody hears of it
		c.Load.Ops, c.Load.Time = 90.2, 0.01
		f.Chunks = append(f.Chunks, c)
	}
	return f
}

// TestFewDearOperationsAreRelieved: by CPU or by latency, whatever the operations say.
func TestFewDearOperationsAreRelieved(t *testing.T) {
	t.Parallel()

	for says, s0 := range map[string]Strain{
		"90 % of its CPU is busy (limit 80 %)":             {CPU: 7.2, Cores: 8, Write: time.Millisecond},
		"a write takes 150ms in the mean (limit 100ms)":    {CPU: 1, Cores: 8, Write: 150 * time.Millisecond},
		"a write takes 150.3ms in the mean (limit 100ms);": {Write: 150300 * time.Microsecond},
	} {
		p, err := Balance(dear(s0, Strain{CPU: 1, Cores: 16, Write: time.Millisecond}), Policy{}, now)
		require.NoError(t, err)
		require.Len(t, p.Moves, 1, says)
		require.Equal(t, "c0", p.Moves[0].Chunk)
		require.Contains(t, p.Moves[0].Reason, says)
	}
	p, err := Balance(dear(Strain{CPU: 7.2, Cores: 8}, Strain{CPU: 1, Cores: 16}), Policy{}, now)
	require.NoError(t, err)
	require.Contains(t, p.Moves[0].Reason, "96 % of its work off and leaves s1 at 49 %")
}

// TestStrainHasHysteresis: below the limit nothing moves, and what was relieved is well
// below it; nothing swings back.
func TestStrainHasHysteresis(t *testing.T) {
	t.Parallel()

	f := dear(Strain{CPU: 6.2, Cores: 8, Write: 90 * time.Millisecond}, Strain{Cores: 8, CPU: 1})
	p, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Moves)

	f.Shards[0].Strain = Strain{CPU: 6.8, Cores: 8}
	for i := range f.Chunks { // even work: chunks leave until a fifth below the limit
		f.Chunks[i].Load.Time = 0.1
	}
	p, err = Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Len(t, p.Moves, 3, "6.8 to 4.76 cores, of which 5.12 are a fifth below the limit")
	after := f.After(p.Moves)
	after.Shards[0].Strain.CPU, after.Shards[1].Strain.CPU = 6.8-3*0.68, 1+3*0.68
	p, err = Balance(after, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Moves)
}

// TestTargetNearItsLimitIsNotFilled by a round, a drain or a packing, and each says so.
func TestTargetNearItsLimitIsNotFilled(t *testing.T) {
	t.Parallel()

	hot := Strain{CPU: 7.2, Cores: 8}
	for _, target := range []Strain{{CPU: 5.4, Cores: 8}, {CPU: 1, Cores: 8}, {Write: 90 * time.Millisecond}} { // the second: 1 and 6.9 more
		p, err := Balance(dear(hot, target), Policy{}, now)
		require.NoError(t, err)
		for _, m := range p.Moves {
			require.NotEqual(t, "c0", m.Chunk)
		}
		require.Len(t, p.Refusals, 1)
		require.Contains(t, p.Refusals[0].Reason, "90 % of its CPU is busy")
	}
	d, err := Drain(dear(Strain{}, Strain{CPU: 7, Cores: 8}), "s0", 0.8)
	require.NoError(t, err)
	require.Empty(t, d.Moves)
	require.Contains(t, d.Refused[0].Reason, "s1 has room for it, but 88 % of its CPU is busy")
	d, err = Pack(dear(Strain{}, Strain{CPU: 7, Cores: 8}), 0.8)
	require.NoError(t, err)
	for _, m := range d.Moves {
		require.NotEqual(t, "s1", m.To)
	}
	f := dear(Strain{}, Strain{CPU: 7, Cores: 8})
	f.Limits.CPU = 1
	d, err = Drain(f, "s0", 0.8)
	require.NoError(t, err)
	require.Empty(t, d.Moves, "88 % is more than four fifths of it")
	f.Shards[1].Strain.CPU = 6
	d, err = Drain(f, "s0", 0.8)
	require.NoError(t, err)
	require.Len(t, d.Moves, 10)
}

// TestUnknownStrainChangesNothing: size and operations decide as before.
func TestUnknownStrainChangesNothing(t *testing.T) {
	t.Parallel()

	f := dear(Strain{}, Strain{})
	for i := range f.Chunks {
		f.Chunks[i].Shard = 0
	}
	for i := range f.Shards {
		f.Shards[i].Capacity.Ops = 1e4
	}
	plain, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.NotEmpty(t, plain.Moves)
	f.Shards[0].Strain.CPU = 7 // of nobody knows how many cores
	again, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Equal(t, plain, again)
}

// TestStrainOfAMoveIsNoHeat: a shard that a move copies from is not relieved for it.
func TestStrainOfAMoveIsNoHeat(t *testing.T) {
	t.Parallel()

	p, err := Balance(dear(Strain{CPU: 7.9, Cores: 8, Other: "migrate/x copies from it"}, Strain{Cores: 8}), Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Moves)
	require.Len(t, p.Refusals, 1)
	require.Contains(t, p.Refusals[0].Reason, "migrate/x copies from it")
}

// TestStrainIsNotCarriedOutOfSight: a chunk that alone is too much for a shard does not go
// to one of which nobody knows how it bears its load.
func TestStrainIsNotCarriedOutOfSight(t *testing.T) {
	t.Parallel()

	f := dear(Strain{CPU: 7.2, Cores: 8}, Strain{})
	p, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Moves)
	require.Len(t, p.Refusals, 1)
	f.Chunks[0].Load.Time = 0.1 // about half of the work
	p, err = Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Len(t, p.Moves, 1)
	require.Equal(t, "c0", p.Moves[0].Chunk)
}

// TestDearChunkIsCut where it alone is too much, by operations where nobody knows the time.
func TestDearChunkIsCut(t *testing.T) {
	t.Parallel()

	f := dear(Strain{CPU: 7.9, Cores: 8}, Strain{CPU: 1, Cores: 8})
	p, err := Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Len(t, p.Splits, 1)
	require.Equal(t, "c0", p.Splits[0].Chunk)
	require.Contains(t, p.Splits[0].Reason, "it alone makes 96 % of the work of s0")
	require.Len(t, p.Refusals, 1)

	f.Chunks[0].HotKey = 0.9
	p, err = Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Splits)
	require.Contains(t, p.Refusals[0].Reason, "no split point")

	for i := range f.Chunks {
		f.Chunks[i].Load.Time = 0
	}
	p, err = Balance(f, Policy{}, now)
	require.NoError(t, err)
	require.Empty(t, p.Splits)
	require.NotEmpty(t, p.Moves)
	require.NotEqual(t, "c0", p.Moves[0].Chunk)
}

// strainedFleet draws a fleet whose shards bear their load well or badly.
func strainedFleet(t *rapid.T) Fleet {
	f := fleet(t)
	for i := range f.Shards {
		f.Shards[i].Strain = Strain{
			CPU: rapid.Float64Range(0, 8).Draw(t, "cpu"), Cores: rapid.SampledFrom([]float64{0, 8}).Draw(t, "cores"),
			Write: time.Duration(rapid.IntRange(0, 200).Draw(t, "write")) * time.Millisecond,
		}
	}
	for i := range f.Chunks {
		f.Chunks[i].Load.Time = rapid.Float64Range(0, 2).Draw(t, "time")
	}
	return f
}

// TestColdestComesFirst also behind moves that relieve a shard which is itself one of the
// cold ones: chunks went past it to warmer ones.
func TestColdestComesFirst(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		b := played(strainedFleet(t), Policy{}.withDefaults())
		for i := 1; i < b.cold.Len(); i++ {
			require.False(t, b.cold.Less(i, (i-1)/2), "shard %d stands behind a warmer one", b.cold.shards[i])
		}
	})
}

// TestStrainKeepsItsPromises: no target comes near a limit, nothing that is fixed moves,
// and who stays past a limit is spoken of.
func TestStrainKeepsItsPromises(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		f := strainedFleet(t)
		p, err := Balance(f, Policy{}, now)
		require.NoError(t, err)
		checkMoves(t, f, p.Moves)
		after := newState(f)
		to := map[int]bool{}
		for _, m := range p.Moves {
			c := slices.IndexFunc(f.Chunks, func(c Chunk) bool { return c.ID == m.Chunk })
			s := slices.IndexFunc(f.Shards, func(s Shard) bool { return s.Name == m.To })
			after.move(c, s)
			to[s] = true
		}
		for i := range f.Shards {
			share := after.limits.share(after.strain[i])
			require.True(t, !to[i] || share <= eased, "%s is filled up to %.2f of its limit", f.Shards[i].Name, share)
			if share > 1 {
				require.True(t, slices.ContainsFunc(p.Refusals, func(r Refusal) bool { return r.Subject == f.Shards[i].Name }), "%s stays past its limit, and nobody says why", f.Shards[i].Name)
			}
		}
	})
}

// TestBadStrainIsNamed with its field.
func TestBadStrainIsNamed(t *testing.T) {
	t.Parallel()

	for field, spoil := range map[string]func(*Fleet){
		"strain":       func(f *Fleet) { f.Shards[0].Strain.CPU = math.NaN() },
		"limits.cpu":   func(f *Fleet) { f.Limits.CPU = 1.2 },
		"limits.write": func(f *Fleet) { f.Limits.Write = -1 },
		"load":         func(f *Fleet) { f.Chunks[0].Load.Time = -1 },
	} {
		f := dear(Strain{}, Strain{})
		spoil(&f)
		_, err := Balance(f, Policy{}, now)
		require.ErrorContains(t, err, field)
	}
}
