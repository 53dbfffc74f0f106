package activities

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/contract"
	"drover/remediation"
)

// RemedyMetrics are remediation's; docs/operations.md has the alarms on them.
type RemedyMetrics struct {
	shards     *prometheus.GaugeVec
	held       *prometheus.GaugeVec
	conditions *prometheus.GaugeVec
	leaseWait  *prometheus.GaugeVec
	operations *prometheus.CounterVec
	runs       *prometheus.CounterVec
	grown      prometheus.Counter
	stopped    prometheus.Gauge
	looked     prometheus.Gauge
}

// NewRemedyMetrics registers them; r may be nil.
func NewRemedyMetrics(r prometheus.Registerer) *RemedyMetrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "drover_remediation_" + name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_remediation_" + name, Help: help}, labels)
	}
	m := &RemedyMetrics{
		shards:     gauge("shards", "Shards by what the last look at the fleet found.", "state"),
		held:       gauge("held_shards", "Shards that could be mended and may not yet, by reason.", "reason"),
		conditions: gauge("condition", "1 while an alarm of the last look is on.", "condition"),
		leaseWait:  gauge("lease_wait_seconds", "How long a remediation has been waiting for its shard's lease.", "shard"),
		operations: counter("operations_total", "Operations performed, by outcome.", "operation", "outcome"),
		runs:       counter("runs_total", "Remediations that ended, by verdict.", "verdict"),
		grown:      prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_remediation_plans_grown_total", Help: "Plans that were dearer than what was left of the one before."}),
		stopped:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_remediation_stopped", Help: "1 while the stop switch is on."}),
		looked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_remediation_look_timestamp_seconds",
			Help: "When this worker last noted a look at the fleet, since 1970; 0: never. What the others show of looks counts only where this is the newest.",
		}),
	}
	if r != nil {
		r.MustRegister(m.shards, m.held, m.conditions, m.leaseWait, m.operations, m.runs, m.grown, m.stopped, m.looked)
	}
	return m
}

// waits shows for how long a remediation has been waiting; 0 ends it.
func (m *RemedyMetrics) waits(shard string, d time.Duration) {
	if d == 0 {
		m.leaseWait.DeleteLabelValues(shard)
		return
	}
	m.leaseWait.WithLabelValues(shard).Set(d.Seconds())
}

// operated counts an operation.
func (m *RemedyMetrics) operated(name string, deviates []string, err error) {
	outcome := "took"
	switch {
	case err != nil:
		outcome = "error"
	case len(deviates) > 0:
		outcome = "deviated"
	}
	m.operations.WithLabelValues(name, outcome).Inc()
}

// ran counts a run that has ended.
func (m *RemedyMetrics) ran(r contract.RemediationRecord) {
	if r.Verdict == "" {
		return
	}
	m.runs.WithLabelValues(string(r.Verdict)).Inc()
	m.grown.Add(float64(r.Grown))
}

// watched shows a look at the fleet. The next one may be noted by another worker, and
// this one goes on to show what it saw: looked tells which is newer.
func (m *RemedyMetrics) watched(w contract.WatchResult) {
	s := w.Survey
	for state, n := range map[string]int{
		"healthy": s.Healthy, "unhealthy": len(s.Candidates) + len(s.Persons), "silent": len(s.Silent),
		"needs-person": len(s.Persons), "plan-grows": len(s.Growing),
	} {
		m.shards.WithLabelValues(state).Set(float64(n))
	}
	reasons := map[string]int{
		remediation.HeldSettle: 0, remediation.HeldRunning: 0, remediation.HeldAtOnce: 0, remediation.HeldDomain: 0, remediation.HeldPerHour: 0,
	}
	for _, h := range w.Held {
		reasons[h.Reason]++
	}
	for reason, n := range reasons {
		m.held.WithLabelValues(reason).Set(float64(n))
	}
	on := map[string]float64{}
	for _, c := range w.Conditions {
		on[c] = 1
	}
	for _, c := range []string{contract.LeaseHeldLong, contract.RateLimited, contract.HealthSilent, contract.PlansGrowing} {
		m.conditions.WithLabelValues(c).Set(on[c])
	}
	m.stopped.Set(0)
	if s.Stopped != "" {
		m.stopped.Set(1)
	}
	m.looked.Set(float64(s.Now.UnixMilli()) / 1000)
}
