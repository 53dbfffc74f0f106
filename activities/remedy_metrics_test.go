package activities

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"drover/contract"
)

// A worker goes on to show the last look that it noted when others note the next ones:
// alarms would not end. By its time everybody knows which one is the newest.
func TestTheNewestLookIsKnown(t *testing.T) {
	t.Parallel()

	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	shown := func(r *prometheus.Registry) map[string]float64 {
		families, err := r.Gather()
		require.NoError(t, err)
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				out[name] = m.GetGauge().GetValue()
			}
		}
		return out
	}
	note := func(r *prometheus.Registry, at time.Time, conditions ...string) {
		m := &Remedier{Metrics: NewRemedyMetrics(r)}
		require.Zero(t, shown(r)["drover_remediation_look_timestamp_seconds"], "it has noted none")
		_, err := m.RecordWatch(t.Context(), contract.WatchResult{Survey: contract.Survey{Now: at}, Conditions: conditions})
		require.NoError(t, err)
	}
	first, second := prometheus.NewRegistry(), prometheus.NewRegistry()
	note(first, noon, contract.HealthSilent)
	note(second, noon.Add(time.Minute))
	const condition, looked = "drover_remediation_condition " + contract.HealthSilent, "drover_remediation_look_timestamp_seconds"
	require.Equal(t, []float64{1, 0}, []float64{shown(first)[condition], shown(second)[condition]})
	require.InDelta(t, 60, shown(second)[looked]-shown(first)[looked], 1e-3)
}
