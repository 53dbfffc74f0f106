package replication

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what lanes do. One serves all lanes of a process.
type Metrics struct {
	events    prometheus.Counter
	docs      prometheus.Counter
	changed   prometheus.Counter
	written   prometheus.Counter
	latency   prometheus.Histogram
	batchSize prometheus.Histogram
	commit    prometheus.Histogram
	retries   prometheus.Counter
	conflicts prometheus.Counter
	parked    prometheus.Counter
	unparked  prometheus.Counter
	unchanged prometheus.Counter
	missed    prometheus.Counter
	diverged  prometheus.Counter
	poison    prometheus.Counter
	followed  prometheus.Counter
}

// NewMetrics registers the metrics; with nil they are counted and not shown.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_applier_" + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_applier_" + name, Help: help, Buckets: buckets})
	}
	m := &Metrics{
		events:    counter("events_total", "Events applied to a target."),
		docs:      counter("documents_total", "Documents written to a target; several events of one document in a batch make one."),
		changed:   counter("change_bytes_total", "Bytes of the changes that were applied: documents, descriptions of updates, keys of deletes."),
		written:   counter("written_bytes_total", "Bytes of the documents and keys that were written to a target for them. Documents are written whole: divided by the bytes of the changes this is the write amplification."),
		latency:   histogram("latency_seconds", "From the write on the source to its effect on the target.", prometheus.ExponentialBuckets(0.001, 2, 16)),
		batchSize: histogram("batch_events", "Events of one transaction.", prometheus.ExponentialBuckets(1, 2, 12)),
		commit:    histogram("batch_seconds", "From the first try of a transaction to its end.", prometheus.ExponentialBuckets(0.001, 2, 16)),
		retries:   counter("retries_total", "Transactions tried again because of the target."),
		conflicts: counter("unique_conflicts_total", "Transactions tried again because of a unique index."),
		parked:    counter("parked_total", "Documents set aside because another one holds their unique key."),
		unparked:  counter("unparked_total", "Documents brought home from there."),
		unchanged: counter("unchanged_total", "Documents that were on the target already as they came to be, and were not written."),
		missed:    counter("missing_deletes_total", "Deletes of documents that were not on the target."),
		diverged:  counter("divergences_total", "Changes that did not fit the target's document."),
		poison:    counter("quarantined_total", "Events that could not be understood."),
		followed:  counter("ddl_followed_total", "Changes of indexes and options that were made on a target too."),
	}
	if r != nil {
		r.MustRegister(m.events, m.docs, m.changed, m.written, m.latency, m.batchSize, m.commit, m.retries, m.conflicts, m.parked, m.unparked,
			m.unchanged, m.missed, m.diverged, m.poison, m.followed)
	}
	return m
}

// batch counts a batch that took effect.
func (m *Metrics) batch(b *batch, docs []*document, took time.Duration) {
	now := time.Now()
	for _, it := range b.items {
		m.latency.Observe(now.Sub(it.event.Wall).Seconds())
		m.changed.Add(float64(len(it.event.Key) + len(it.event.Document) + len(it.event.Change)))
	}
	m.events.Add(float64(len(b.items)))
	if len(b.items) > 0 {
		m.batchSize.Observe(float64(len(b.items)))
		m.commit.Observe(took.Seconds())
	}
	written := 0
	for _, d := range docs {
		if d.unchanged() {
			m.unchanged.Inc()
		} else {
			written++
			m.written.Add(float64(len(d.id.Value) + len(d.now)))
		}
		m.missed.Add(float64(d.missed))
	}
	m.docs.Add(float64(written))
}
