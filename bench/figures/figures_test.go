package figures_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/bench/figures"
)

func TestQuantileIsByRank(t *testing.T) {
	t.Parallel()
	require.Zero(t, figures.Quantile[float64](nil, 0.5))
	values := []float64{4, 1, 3, 2}
	require.InDelta(t, 2, figures.Quantile(values, 0.5), 0)
	require.InDelta(t, 4, figures.Quantile(values, 0.99), 0)
	require.InDelta(t, 4, figures.Quantile(values, 1), 0)
	require.Equal(t, []float64{4, 1, 3, 2}, values, "the caller's order stays")
	require.Equal(t, 2*time.Second, figures.Quantile([]time.Duration{3 * time.Second, time.Second, 2 * time.Second}, 0.5))
}

func TestWriteMakesTheFolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out", "x.json")
	text, err := figures.Write(path, map[string]any{"a": 1})
	require.NoError(t, err)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text+"\n", string(got))
	require.JSONEq(t, `{"a":1}`, text)
}
