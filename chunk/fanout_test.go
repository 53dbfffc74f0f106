package chunk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFanOut(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		f             FanOut
		before, after int // medians, after a cut in three
	}{
		"nothing":            {FanOut{}, 0, 0},
		"by key":             {FanOut{Pinned: 10}, 1, 1},
		"mostly by key":      {FanOut{Pinned: 10, Wide: map[int]int64{4: 9}}, 1, 1},
		"half by key":        {FanOut{Pinned: 10, Wide: map[int]int64{4: 10}}, 1, 1},
		"mostly wide":        {FanOut{Pinned: 10, Wide: map[int]int64{4: 11}}, 4, 6},
		"wide over one":      {FanOut{Wide: map[int]int64{1: 3}}, 1, 3},
		"of several widths":  {FanOut{Pinned: 1, Wide: map[int]int64{1: 1, 2: 5, 8: 4}}, 2, 4},
		"narrow, wide later": {FanOut{Pinned: 1, Wide: map[int]int64{1: 9, 2: 1}}, 1, 3},
	} {
		require.Equal(t, tc.before, tc.f.Quantile(0.5), name)
		require.Equal(t, tc.after, tc.f.Cut(3).Quantile(0.5), name)
		require.Equal(t, tc.f.Requests(), tc.f.Cut(3).Requests(), name)
	}
	var sum FanOut
	sum.Add(FanOut{Pinned: 1, Wide: map[int]int64{2: 1}})
	sum.Add(FanOut{Pinned: 1, Wide: map[int]int64{2: 1, 4: 1}})
	require.Equal(t, FanOut{Pinned: 2, Wide: map[int]int64{2: 2, 4: 1}}, sum)
	require.InDelta(t, 2, sum.Mean(), 0.001)
	require.Equal(t, 4, sum.Quantile(1))
	require.Equal(t, 2, FanOut{Wide: map[int]int64{2: 5}}.Quantile(0), "nobody was on fewer")
}
