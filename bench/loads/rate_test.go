package loads_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/bench/loads"
)

func TestRates(t *testing.T) {
	t.Parallel()
	m := &loads.Meter{}
	require.Zero(t, m.Over())
	start := time.Unix(0, 0)
	for s, done := range []float64{0, 100, 200, 300, 310, 320} {
		m.Note(start.Add(time.Duration(s)*time.Second), done)
	}
	require.InDelta(t, 64, m.Over(), 1e-9)
	require.InDelta(t, 10, m.Last(2*time.Second), 1e-9)
	require.InDelta(t, 40, m.Last(3*time.Second), 1e-9)
}
