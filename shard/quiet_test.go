package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCalmNeedsTimeAndProbes: neither a disk that stands still nor a burst of probes
// makes a placement quiet, and each change begins anew.
func TestCalmNeedsTimeAndProbes(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1_000_000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for name, tc := range map[string]struct {
		probes []int // when each came, in milliseconds; negative: a change came before it
		quiet  int   // index of the first probe that finds it quiet, -1 for none
	}{
		"many at once":          {[]int{1, 2, 3, 4, 5, 6}, -1},
		"one after a long wait": {[]int{1000}, -1},
		"two after long waits":  {[]int{1000, 2000}, -1},
		"spread":                {[]int{100, 200, 300}, 2},
		"too early":             {[]int{80, 160, 249, 250}, 3},
		"a change begins anew":  {[]int{100, 200, -240, 400, 489, 490}, 5},
		"changes all along":     {[]int{-100, -400, -700, -1000}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := calm{since: begin}
			got := -1
			for i, ms := range tc.probes {
				if c.note(ms < 0, at(max(ms, -ms))) {
					got = i
					break
				}
			}
			require.Equal(t, tc.quiet, got)
		})
	}
}
