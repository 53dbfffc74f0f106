package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShortStretchesAreNotUsual: a stretch that the end cut off, or without operations.
func TestShortStretchesAreNotUsual(t *testing.T) {
	t.Parallel()
	var f felt
	f.stretch(felt{reads: []time.Duration{4 * time.Millisecond}}, stretchFor)
	f.stretch(felt{updates: []time.Duration{time.Millisecond}}, stretchFor/2)
	f.stretch(felt{reads: []time.Duration{time.Second}}, stretchFor/2-1)
	f.stretch(felt{}, stretchFor)
	require.Equal(t, []time.Duration{4 * time.Millisecond, time.Millisecond}, f.tails)
	require.InDelta(t, 1000, f.p99(), 0, "all operations count among all")
}

func TestQuantileIsByRank(t *testing.T) {
	t.Parallel()
	require.Zero(t, quantile(nil, 0.99))
	values := []time.Duration{4 * time.Millisecond, time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}
	require.InDelta(t, 2, quantile(values, 0.5), 0)
	require.InDelta(t, 4, quantile(values, 0.99), 0)
}
