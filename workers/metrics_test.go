package workers

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"drover/activities"
	"drover/bulkimport"
	"drover/cdc"
	"drover/chunk"
	"drover/gate"
	"drover/metadata"
	"drover/proxy"
	"drover/replication"
	"drover/switchover"
)

// update writes docs/metrics.md instead of comparing it.
var update = flag.Bool("update", false, "write docs/metrics.md")

// documented is one row of docs/metrics.md.
type documented struct{ part, name, kind, labels, unit, help string }

// catcher notes what is registered.
type catcher struct {
	part string
	rows []documented
}

// descText is how a description writes itself: it has no other way to be read.
var descText = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)"(?:, unit: "")?, constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// Register implements [prometheus.Registerer].
func (c *catcher) Register(x prometheus.Collector) error {
	kind := ""
	switch x.(type) {
	case *prometheus.CounterVec:
		kind = "counter"
	case *prometheus.GaugeVec, prometheus.Gauge:
		kind = "gauge"
	case *prometheus.HistogramVec, prometheus.Histogram:
		kind = "histogram"
	case prometheus.Counter:
		kind = "counter"
	}
	descs := make(chan *prometheus.Desc, 100)
	x.Describe(descs)
	close(descs)
	for d := range descs {
		m := descText.FindStringSubmatch(d.String())
		if m == nil {
			return fmt.Errorf("cannot read %s", d)
		}
		row := documented{part: c.part, name: m[1], kind: kind, labels: strings.ReplaceAll(m[3], ",", ", "), unit: unitOf(m[1]), help: m[2]}
		if kind == "" { // what is collected when it is asked for: counters are named as such
			row.kind = map[bool]string{true: "counter", false: "gauge"}[strings.HasSuffix(m[1], "_total")]
		}
		c.rows = append(c.rows, row)
	}
	return nil
}

// MustRegister implements [prometheus.Registerer].
func (c *catcher) MustRegister(all ...prometheus.Collector) {
	for _, x := range all {
		if err := c.Register(x); err != nil {
			panic(err)
		}
	}
}

// Unregister implements [prometheus.Registerer].
func (*catcher) Unregister(prometheus.Collector) bool { return false }

// unitOf reads the unit that a name tells.
func unitOf(name string) string {
	for _, u := range []string{"events_per_second", "per_second", "seconds", "bytes", "ratio", "bytes_total"} {
		if strings.HasSuffix(name, "_"+u) {
			return strings.ReplaceAll(strings.TrimSuffix(u, "_total"), "_", " ")
		}
	}
	return "number"
}

// registered is every metric of every part.
func registered(t *testing.T) []documented {
	t.Helper()

	w := &catcher{part: "worker"}
	cdc.NewCaptureMetrics(w)
	cdc.NewArchiveMetrics(w)
	replication.NewMetrics(w)
	gate.NewMetrics(w)
	activities.NewSwitchMetrics(w)
	bulkimport.NewMetrics(w)
	activities.NewRemedyMetrics(w)
	switchover.NewWatchdogMetrics(w)
	w.MustRegister(fleetCollector{})
	p := &catcher{part: "proxy"}
	proxy.New(proxy.Config{Registerer: p}, proxy.Ports{})
	k := newKeeper(nil, t.TempDir(), "p", nil, slog.New(slog.DiscardHandler))
	p.MustRegister(k.stale)
	all := slices.Concat(w.rows, p.rows)
	slices.SortFunc(all, func(a, b documented) int {
		return cmp.Or(-cmp.Compare(a.part, b.part), cmp.Compare(a.name, b.name))
	})
	return all
}

// metricsHead begins docs/metrics.md.
const metricsHead = `# Metrics

What workers and proxies show at ` + "`--metrics-listen`" + `, path /metrics. Beside these each process shows those of its Go runtime (` + "`go_*`" + `) and of
itself (` + "`process_*`" + `). What is named ` + "`drover_fleet_*`, `drover_move_*`, `drover_lease_*` and `drover_override_*`" + ` is read from the metadata when it is asked for, and every
worker shows the same: take the ` + "`max`" + ` over them. The alarms on these metrics are in [alarms.md](alarms.md).

This table is compared with the code by a test; ` + "`go test ./workers -run TestMetricsAreDocumented -update`" + ` writes it anew.

| metric | of | type | labels | unit | meaning |
| --- | --- | --- | --- | --- | --- |
`

// docs/metrics.md has exactly what the code registers.
func TestMetricsAreDocumented(t *testing.T) {
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, r := range registered(t) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.name, r.part, r.kind, cmp.Or(r.labels, "-"), r.unit, r.help)
	}
	const file = "../docs/metrics.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "docs/metrics.md is not what the code registers")
}

// Every metric that the code names is among those that the test above knows: a
// constructor that it does not call would go unseen.
func TestNoMetricIsForgotten(t *testing.T) {
	t.Parallel()

	var names []string
	for _, r := range registered(t) {
		names = append(names, r.name)
	}
	named := regexp.MustCompile(`(?:Name: +|NewDesc\()"(drover_[a-z_]*)"`)
	found := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // of this repository
		if err != nil {
			return err
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			known := slices.ContainsFunc(names, func(n string) bool { return n == m[1] || strings.HasSuffix(m[1], "_") && strings.HasPrefix(n, m[1]) })
			if !known {
				return fmt.Errorf("%s names %s, which no constructor in this test registers", path, m[1])
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, found, 20)
}

// What the metadata tells is shown; where it cannot be read only that is.
func TestFleetCollector(t *testing.T) {
	t.Parallel()

	age, busy, write := 7.5, 0.4, 20*time.Millisecond
	f := metadata.Figures{
		Pressures: map[string]chunk.KeptPressure{
			"a": {Pressure: chunk.Pressure{CPU: &busy, Write: &write}}, "b": {Pressure: chunk.Pressure{Unknown: "it does not tell"}},
			"c": {Pressure: chunk.Pressure{CPU: &busy}, Age: time.Hour},
		},
		Overdue: 2 * time.Second, Proxies: 2, Stragglers: map[string]int64{"a": 1},
		Captures: []metadata.CaptureFigures{{Shard: "a", Silence: 7.5}},
		Leases:   []metadata.LeaseFigures{{Shard: "a", Holder: "ann", Mode: "exclusive", Held: 60, Left: -5}},
		Moves: []metadata.MoveFigures{
			{
				Migration: 4, Chunk: "flights/0001", Phase: chunk.Replicating, LanesAge: &age, Lanes: []byte(`{"lagMS":1500}`),
				Progress:  []byte(`{"pace":"not converging","backlog":10,"applyPerSecond":5,"writePerSecond":9}`),
				ReportAge: &age, Report: []byte(`{"verified":12}`), Mismatches: 1,
			},
			{Migration: 5, Chunk: "flights/0002", Phase: chunk.BurnIn, LanesAge: &age, Paused: true, ServedFor: 100, Step: []byte(`{"burnIn": "1m0s"}`)},
		},
	}
	values := gathered(t, fleetCollector{func(context.Context) (metadata.Figures, error) { return f, nil }, time.Minute})
	for name, want := range map[string]float64{
		"drover_fleet_metadata_up": 1, "drover_fleet_live_proxies": 2, "drover_fleet_attempt_overdue_seconds": 2,
		"drover_fleet_shard_cpu_share a": 0.4, "drover_fleet_shard_write_seconds a": 0.02,
		"drover_fleet_open_stragglers a": 1, "drover_fleet_capture_silence_seconds a": 7.5,
		"drover_lease_remaining_seconds ann exclusive a granted": -5,
		"drover_move_phase flights/0001 4 replicating":           1,
		"drover_move_lanes_silence_seconds flights/0001 4":       7.5,
		"drover_move_lag_seconds flights/0001 4":                 1.5,
		"drover_move_not_converging flights/0001 4":              1,
		"drover_move_write_events_per_second flights/0001 4":     9,
		"drover_move_verified_documents_total flights/0001 4":    12,
		"drover_move_open_mismatches flights/0001 4":             1,
		"drover_move_burn_in_seconds flights/0002 5":             100,
		"drover_move_burn_in_over_seconds flights/0002 5":        40,
		"drover_move_paused flights/0002 5":                      1,
	} {
		require.Contains(t, values, name)
		require.InDelta(t, want, values[name], 1e-9, name)
	}
	require.NotContains(t, values, "drover_move_lanes_silence_seconds flights/0002 5", "a paused move owes no word")
	for _, name := range []string{"drover_fleet_shard_cpu_share b", "drover_fleet_shard_write_seconds b", "drover_fleet_shard_cpu_share c"} {
		require.NotContains(t, values, name, "what is not known is no zero")
	}

	down := gathered(t, fleetCollector{func(context.Context) (metadata.Figures, error) { return f, errors.New("down") }, time.Minute})
	require.Equal(t, map[string]float64{"drover_fleet_metadata_up": 0}, down)
}

// gathered collects values by name and labels.
func gathered(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()

	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			key := []string{family.GetName()}
			for _, l := range m.GetLabel() {
				key = append(key, l.GetValue())
			}
			out[strings.Join(key, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}
