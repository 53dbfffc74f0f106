package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantileIsByRank(t *testing.T) {
	t.Parallel()
	require.Zero(t, quantile(nil, 0.99))
	values := []time.Duration{4 * time.Millisecond, time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}
	require.InDelta(t, 2, quantile(values, 0.5), 0)
	require.InDelta(t, 4, quantile(values, 0.99), 0)
}
