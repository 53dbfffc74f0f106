package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRates(t *testing.T) {
	t.Parallel()
	m := &meter{}
	require.Zero(t, m.over())
	start := time.Unix(0, 0)
	for s, done := range []float64{0, 100, 200, 300, 310, 320} {
		m.note(start.Add(time.Duration(s)*time.Second), done)
	}
	require.InDelta(t, 64, m.over(), 1e-9)
	require.InDelta(t, 10, m.last(2*time.Second), 1e-9)
	require.InDelta(t, 40, m.last(3*time.Second), 1e-9)
}

func TestQuantileIsByRank(t *testing.T) {
	t.Parallel()
	require.Zero(t, quantile(nil, 0.99))
	values := []time.Duration{4 * time.Millisecond, time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}
	require.InDelta(t, 2, quantile(values, 0.5), 0)
	require.InDelta(t, 4, quantile(values, 0.99), 0)
}
