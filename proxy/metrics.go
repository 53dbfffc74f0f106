package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/proxy/upstream"
)

// metrics is what a proxy tells about itself.
type metrics struct {
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	held        prometheus.Gauge
	heldTotal   prometheus.Counter
	holdSeconds prometheus.Histogram
	resent      prometheus.Counter
	fanOut      prometheus.Histogram
	refusals    *prometheus.CounterVec
	unheard     prometheus.Counter
}

// newMetrics registers everything with r, which may be nil.
func newMetrics(r prometheus.Registerer, p *Proxy) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_proxy_requests_total", Help: "Requests of clients by command and result.",
		}, []string{"command", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "drover_proxy_request_seconds", Help: "Time from a request's arrival to its reply.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 14),
		}, []string{"command"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_proxy_held_requests", Help: "Requests that wait for a switch now.",
		}),
		heldTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_proxy_held_requests_total", Help: "Requests that had to wait for a switch.",
		}),
		holdSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "drover_proxy_hold_seconds", Help: "Time that requests waited for a switch.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}),
		resent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_proxy_resent_requests_total", Help: "Requests that were sent again after a shard refused them.",
		}),
		fanOut: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "drover_proxy_fan_out_chunks", Help: "Chunks that a request concerned.",
			Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128},
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_proxy_refusals_total", Help: "Requests that the proxy itself refused, by reason.",
		}, []string{"reason"}),
		unheard: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_proxy_unacknowledged_failures_total", Help: "Unacknowledged writes that failed, of which no client was told.",
		}),
	}
	if r == nil {
		return m
	}
	r.MustRegister(m.requests, m.seconds, m.held, m.heldTotal, m.holdSeconds, m.resent, m.fanOut, m.refusals, m.unheard,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "drover_proxy_client_connections", Help: "Open connections of clients.",
		}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(len(p.clients))
		}),
		&poolCollector{pools: p.pools})
	return m
}

// refused counts a refusal of the proxy's own.
func (m *metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// commandMetrics is the metrics of one command, looked up once.
type commandMetrics struct {
	ok, failed prometheus.Counter
	seconds    prometheus.Observer
}

// command gives the metrics of one command.
func (m *metrics) command(name string) commandMetrics {
	return commandMetrics{
		ok:      m.requests.WithLabelValues(name, "ok"),
		failed:  m.requests.WithLabelValues(name, "error"),
		seconds: m.seconds.WithLabelValues(name),
	}
}

// done counts one request.
func (m commandMetrics) done(failed bool, took time.Duration) {
	if failed {
		m.failed.Inc()
	} else {
		m.ok.Inc()
	}
	m.seconds.Observe(took.Seconds())
}

// poolCollector shows the connections to each shard.
type poolCollector struct{ pools *pools }

// upstreamConns describes the gauge of a shard's connections.
var upstreamConns = prometheus.NewDesc("drover_proxy_upstream_connections", "Open connections to a shard.", []string{"shard"}, nil)

// Describe implements [prometheus.Collector].
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) { ch <- upstreamConns }

// Collect implements [prometheus.Collector].
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	c.pools.each(func(pool *upstream.Pool) {
		ch <- prometheus.MustNewConstMetric(upstreamConns, prometheus.GaugeValue, float64(pool.Open()), pool.Name())
	})
}
