package cdc

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/event"
)

// CaptureMetrics tells how capture does. A nil one does nothing.
type CaptureMetrics struct {
	events     *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	restarts   *prometheus.CounterVec
	stragglers *prometheus.CounterVec

	mu     sync.Mutex
	saves  map[string]time.Time // by shard: when the position was last saved
	newest map[string]time.Time // by shard: when the newest captured change was written

	lasts *prometheus.GaugeVec
	short *prometheus.GaugeVec
}

// NewCaptureMetrics registers them; one set serves every capture of a process.
func NewCaptureMetrics(r prometheus.Registerer) *CaptureMetrics {
	shard := []string{"shard"}
	m := &CaptureMetrics{
		saves:  map[string]time.Time{},
		newest: map[string]time.Time{},
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_capture_events_total",
			Help: "Changes read from the shard."}, []string{"shard", "op"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_capture_bytes_total",
			Help: "Bytes of records sent to Kafka, before compression."}, shard),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_capture_restarts_total",
			Help: "Times the stream or the producer was opened again after an error."}, shard),
		stragglers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "drover_capture_stragglers_total",
			Help: "Changes of placements that were closed."}, []string{"shard", "kind"}),
	}
	m.lasts = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "drover_capture_log_lasts_seconds",
		Help: "Forecast of how long the shard's own log holds what capture has not read yet."}, shard)
	m.short = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "drover_capture_log_short",
		Help: "1 while the shard's own log lasts less than is safe: an alarm."}, shard)
	r.MustRegister(m.lasts, m.short, m.events, m.bytes, m.restarts, m.stragglers, m)
	return m
}

// What is computed when it is asked for, so that it grows while nothing happens.
var (
	positionAge = prometheus.NewDesc("drover_capture_position_age_seconds",
		"Time since the capture position was last saved.", []string{"shard"}, nil)
	captureLag = prometheus.NewDesc("drover_capture_lag_seconds",
		"Age of the newest captured change. Heartbeats keep it low: silence shows.", []string{"shard"}, nil)
)

// Describe implements [prometheus.Collector].
func (m *CaptureMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- positionAge; ch <- captureLag }

// Collect implements [prometheus.Collector].
func (m *CaptureMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for shard, at := range m.saves {
		ch <- prometheus.MustNewConstMetric(positionAge, prometheus.GaugeValue, time.Since(at).Seconds(), shard)
	}
	for shard, at := range m.newest {
		ch <- prometheus.MustNewConstMetric(captureLag, prometheus.GaugeValue, max(0, time.Since(at).Seconds()), shard)
	}
}

// captured counts a change and its records.
func (m *CaptureMetrics) captured(shard string, e *event.Event, records []record) {
	if m == nil {
		return
	}
	m.mu.Lock()
	m.newest[shard] = e.Wall
	m.mu.Unlock()
	op := e.Op
	if !op.OnDocument() && op != event.Mark {
		op = "ddl"
	}
	m.events.WithLabelValues(shard, string(op)).Inc()
	n := 0
	for _, r := range records {
		n += len(r.value)
	}
	m.bytes.WithLabelValues(shard).Add(float64(n))
}

// saved says that the position was saved.
func (m *CaptureMetrics) saved(shard string) {
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.saves[shard] = time.Now()
	}
}

// restarted counts a new beginning after an error.
func (m *CaptureMetrics) restarted(shard string) {
	if m != nil {
		m.restarts.WithLabelValues(shard).Inc()
	}
}

// straggler counts one.
func (m *CaptureMetrics) straggler(shard, kind string) {
	if m != nil {
		m.stragglers.WithLabelValues(shard, kind).Inc()
	}
}

// window says how long a shard's own log lasts, and whether that is an alarm.
func (m *CaptureMetrics) window(shard string, left time.Duration, short bool) {
	if m == nil {
		return
	}
	m.lasts.WithLabelValues(shard).Set(left.Seconds())
	alarm := 0.0
	if short {
		alarm = 1
	}
	m.short.WithLabelValues(shard).Set(alarm)
}
