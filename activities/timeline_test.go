package activities

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"drover/switchover"
)

// TestStepsAreObservedAsDifferences, and the window only of a switch that came to
// its end.
func TestStepsAreObservedAsDifferences(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := NewSwitchMetrics(registry)
	line := switchover.Timeline{{Step: "fencing", At: 2000}, {Step: "open", At: 50_000}}
	m.observe(line, true)
	m.observe(line[:1], false)
	m.observe(nil, true)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "drover_switch_step_seconds", families[0].GetName())
	sums, counts := map[string]float64{}, map[string]uint64{}
	for _, x := range families[0].GetMetric() {
		step := x.GetLabel()[0].GetValue()
		sums[step], counts[step] = x.GetHistogram().GetSampleSum(), x.GetHistogram().GetSampleCount()
	}
	require.Equal(t, map[string]uint64{"fencing": 2, "open": 1, "window": 1}, counts)
	require.InDelta(t, 0.048, sums["open"], 1e-9)
	require.InDelta(t, 0.050, sums["window"], 1e-9)
}
