package balancer

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// calm is a fleet of which each shard serves 40 of 100 operations, and two spare ones.
func calm() (Fleet, []int) {
	f := Fleet{At: now}
	for i := range 4 {
		f.Shards = append(f.Shards, Shard{Name: fmt.Sprintf("s%d", i), Capacity: Load{Bytes: 1000, Ops: 100}})
	}
	for i := range 16 {
		f.Chunks = append(f.Chunks, Chunk{ID: fmt.Sprintf("c%02d", i), Shard: i % 2, Load: Load{Bytes: 10, Ops: 5}})
	}
	return f, []int{2, 3}
}

// TestExpandOpensAsFewSparesAsItTakes, and says why each chunk moves.
func TestExpandOpensAsFewSparesAsItTakes(t *testing.T) {
	t.Parallel()

	f, spare := calm()
	p, err := Expand(f, spare, 1.5, 0.7)
	require.NoError(t, err)
	require.Empty(t, p.Moves, "60 % is calm enough")
	require.Empty(t, p.Opened)

	p, err = Expand(f, spare, 2, 0.7)
	require.NoError(t, err)
	require.Equal(t, []string{"s2"}, p.Opened)
	require.Len(t, p.Moves, 2, "one chunk of each shard, of 10 points")
	require.InDelta(t, 0.8, p.Before, 1e-9)
	require.InDelta(t, 0.7, p.After, 1e-9)
	require.Contains(t, p.Moves[0].Reason, "is at 80 %")

	p, err = Expand(f, spare, 3, 0.7)
	require.NoError(t, err)
	require.Equal(t, []string{"s2", "s3"}, p.Opened)
	require.LessOrEqual(t, p.After, 0.7)
	require.Empty(t, p.Refusals)

	p, err = Expand(f, spare, 10, 0.7)
	require.NoError(t, err)
	require.Len(t, p.Opened, 2)
	require.Greater(t, p.Mean, 1.0, "it does not fit, and is spread over all there is")
	require.InDelta(t, 2.0, p.After, 1e-9)
}

// TestExpandStaysInTheZone: a spare shard elsewhere helps nobody.
func TestExpandStaysInTheZone(t *testing.T) {
	t.Parallel()

	f, spare := calm()
	f.Shards[0].Region, f.Shards[0].Zone, f.Shards[2].Region, f.Shards[2].Zone = "eu", "eu-1", "eu", "eu-2"
	for i := range f.Chunks {
		if f.Chunks[i].Shard == 0 {
			f.Chunks[i].Zone = "eu-1"
		}
	}
	p, err := Expand(f, spare, 2, 0.7)
	require.NoError(t, err)
	require.Equal(t, []string{"s3"}, p.Opened)
	require.Equal(t, "s0", p.Refusals[0].Subject)

	for i := range f.Chunks {
		if f.Chunks[i].Shard == 0 {
			f.Chunks[i].Zone, f.Chunks[i].Region = "", "eu"
		}
	}
	p, err = Expand(f, spare, 2, 0.7)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"s2", "s3"}, p.Opened, "another zone of the region will do")
	require.Empty(t, p.Refusals)
}

// TestShrinkEmptiesWhatExpandFilled: whatever the fleet, nothing is left on the spare
// shards that an expansion has used, unless it is refused by name.
func TestShrinkEmptiesWhatExpandFilled(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		f := fleet(t)
		var spare []int
		for i := range f.Shards {
			if !f.Shards[i].Closed && !slices.ContainsFunc(f.Chunks, func(c Chunk) bool { return c.Shard == i }) {
				spare = append(spare, i)
			}
		}
		if len(f.Chunks) == 0 {
			_, err := Expand(f, spare, 2, 0.7)
			require.ErrorContains(t, err, "there are no chunks")
			return
		}
		p, err := Expand(f, spare, rapid.Float64Range(1.1, 5).Draw(t, "factor"), 0.7)
		require.NoError(t, err)
		after := checkMoves(t, scaled(f), p.Moves)
		for _, m := range p.Moves {
			at := slices.IndexFunc(f.Shards, func(s Shard) bool { return s.Name == m.To })
			require.True(t, !slices.Contains(spare, at) || slices.Contains(p.Opened, m.To))
		}
		back, err := Shrink(after, spare, 0.85)
		require.NoError(t, err)
		left := 0
		for _, c := range after.After(back.Moves).Chunks {
			if slices.Contains(spare, c.Shard) {
				left++
			}
		}
		require.Len(t, back.Refused, left)
	})
}

// scaled is a fleet without limits of apply: a season's writes count as they will be.
func scaled(f Fleet) Fleet {
	f.Shards = slices.Clone(f.Shards)
	for i := range f.Shards {
		f.Shards[i].Apply = 0
	}
	return f
}

func TestSeasonsRefuse(t *testing.T) {
	t.Parallel()

	f, spare := calm()
	for _, factor := range []float64{0.9, 0, math.NaN(), math.Inf(1)} {
		_, err := Expand(f, spare, factor, 0.7)
		require.ErrorContains(t, err, "must not lie below 1")
	}
	_, err := Expand(f, spare, 2, 0)
	require.ErrorContains(t, err, "fill 0")
	f.Shards[0].Name = ""
	_, err = Expand(f, spare, 2, 0.7)
	require.ErrorContains(t, err, "shards[0].name is empty")
	_, err = Shrink(f, spare, 0.7)
	require.ErrorContains(t, err, "shards[0].name is empty")
}
