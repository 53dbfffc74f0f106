package bulkimport

import "github.com/prometheus/client_golang/prometheus"

// Metrics tell how imports give way. Nil ones do nothing.
type Metrics struct{ level, rest, felt, limit *prometheus.GaugeVec }

// NewMetrics registers them; one set serves every import of a process.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "drover_import_" + name, Help: help}, []string{"shard"})
	}
	m := &Metrics{
		level: gauge("level", "How much imports of this worker do on a shard that applications use: below 1 a share of the time, else so many things at once; 0: nobody uses it."),
		rest:  gauge("rest_ratio", "How many times as long as they work imports of this worker rest, because a shard is slow, full or its secondaries behind."),
		felt:  gauge("felt_p99_seconds", "p99 of applications' requests to a shard that imports of this worker read or load, as the proxies measured it last; 0: not known."),
		limit: gauge("felt_limit_seconds", "What imports of this worker keep it to; 0: not known yet."),
	}
	r.MustRegister(m.level, m.rest, m.felt, m.limit)
	return m
}

// show tells how a throttle stands.
func (m *Metrics) show(shard string, c *courtesy, rest float64) {
	if m == nil {
		return
	}
	level := 0.0
	if c.crowd {
		level = c.level
	}
	m.level.WithLabelValues(shard).Set(level)
	m.rest.WithLabelValues(shard).Set(rest)
	m.felt.WithLabelValues(shard).Set(c.tail.Seconds())
	m.limit.WithLabelValues(shard).Set(c.limit().Seconds())
}
