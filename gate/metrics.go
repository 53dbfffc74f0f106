package gate

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/contract"
)

// shownFor is how long the checks of a chunk stay in the metrics: a gate that
// refuses is asked again long before, one that went through is past.
const shownFor = time.Minute

// Metrics shows the newest report of each chunk, and counts refusals.
type Metrics struct {
	refusals *prometheus.CounterVec
	now      func() time.Time

	mu   sync.Mutex
	last map[chunk.ID]contract.GateReport
}

// Descriptions of what [Metrics] collects.
var (
	checkLabels = []string{"chunk_id", "check"}
	checkOK     = prometheus.NewDesc("drover_gate_check_ok", "Whether a check of the gate passed when it was last looked at.", checkLabels, nil)
	checkValue  = prometheus.NewDesc("drover_gate_check_value", "What the check measured, milliseconds or a number.", checkLabels, nil)
	checkLimit  = prometheus.NewDesc("drover_gate_check_limit", "What the check allows, in the unit of its value.", checkLabels, nil)
)

// NewMetrics registers the metrics; r may be nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_gate_refusals_total", Help: "Reports of the gate in which a check did not pass.",
		}, []string{"check"}),
		now: time.Now, last: map[chunk.ID]contract.GateReport{},
	}
	if r != nil {
		r.MustRegister(m, m.refusals)
	}
	return m
}

// Note keeps a report.
func (m *Metrics) Note(id chunk.ID, r contract.GateReport) {
	for _, c := range r.Checks {
		if !c.OK {
			m.refusals.WithLabelValues(c.Name).Inc()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[id] = r
	for id, r := range m.last {
		if m.now().Sub(r.At) > shownFor {
			delete(m.last, id)
		}
	}
}

// Describe implements [prometheus.Collector].
func (*Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- checkOK
	ch <- checkValue
	ch <- checkLimit
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.last {
		if m.now().Sub(r.At) > shownFor {
			continue
		}
		for _, c := range r.Checks {
			ok := 0.0
			if c.OK {
				ok = 1
			}
			ch <- prometheus.MustNewConstMetric(checkOK, prometheus.GaugeValue, ok, string(id), c.Name)
			ch <- prometheus.MustNewConstMetric(checkValue, prometheus.GaugeValue, c.Measured, string(id), c.Name)
			ch <- prometheus.MustNewConstMetric(checkLimit, prometheus.GaugeValue, c.Bound, string(id), c.Name)
		}
	}
}
