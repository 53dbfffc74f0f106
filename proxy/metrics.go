package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/proxy/admission"
	"drover/proxy/upstream"
)

// metrics is what a proxy tells about itself.
type metrics struct {
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	held        prometheus.Gauge
	heldTotal   prometheus.Counter
	eased       prometheus.Counter
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
		}, []string{"command", "chunks"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "drover_proxy_held_requests", Help: "Requests that wait for a switch now.",
		}),
		heldTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_proxy_held_requests_total", Help: "Requests that had to wait for a switch.",
		}),
		eased: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "drover_proxy_eased_requests_total", Help: "Writes that waited for their turn because a fence was near.",
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
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_proxy_info", Help: "1, with the name of this proxy and the region in which it stands.",
	}, []string{"proxy", "region"})
	info.WithLabelValues(p.cfg.ID, p.cfg.Region).Set(1)
	r.MustRegister(info, m.requests, m.seconds, m.held, m.heldTotal, m.eased, m.holdSeconds, m.resent, m.fanOut, m.refusals, m.unheard,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "drover_proxy_client_connections", Help: "Open connections of clients.",
		}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(len(p.clients))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "drover_proxy_cursor_bytes", Help: "Documents that wait in cursors over several chunks.",
		}, func() float64 { return float64(p.cursors.bytes.Load()) }),
		&poolCollector{pools: p.pools}, callerCollector{p})
	return m
}

// refused counts a refusal of the proxy's own.
func (m *metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// commandMetrics is the metrics of one command, looked up once.
type commandMetrics struct {
	ok, failed prometheus.Counter
	seconds    [3]prometheus.Observer // by the class of chunks concerned
}

// command gives the metrics of one command.
func (m *metrics) command(name string) commandMetrics {
	return commandMetrics{
		ok:     m.requests.WithLabelValues(name, "ok"),
		failed: m.requests.WithLabelValues(name, "error"),
		seconds: [3]prometheus.Observer{
			m.seconds.WithLabelValues(name, fanClasses[fanNone]), m.seconds.WithLabelValues(name, fanClasses[fanOne]),
			m.seconds.WithLabelValues(name, fanClasses[fanMany]),
		},
	}
}

// done counts one request.
func (m *commandMetrics) done(failed bool, class int, took time.Duration) {
	if failed {
		m.failed.Inc()
	} else {
		m.ok.Inc()
	}
	m.seconds[class].Observe(took.Seconds())
}

// poolCollector shows the connections to each shard.
type poolCollector struct{ pools *pools }

// upstreamConns describes the gauge of a shard's connections.
var upstreamConns = prometheus.NewDesc("drover_proxy_upstream_connections", "Open connections to a shard.", []string{"shard"}, nil)

// What a shard's gate shows.
var (
	shardLimit   = prometheus.NewDesc("drover_proxy_shard_limit", "Requests to a shard that may run at once.", []string{"shard", "kind"}, nil)
	shardRunning = prometheus.NewDesc("drover_proxy_shard_running_requests", "Requests that run on a shard.", []string{"shard", "kind"}, nil)
	shardWaiting = prometheus.NewDesc("drover_proxy_shard_waiting_requests", "Requests that wait for room at a shard.", []string{"shard", "kind"}, nil)
	shardBreaker = prometheus.NewDesc("drover_proxy_shard_breaker", "1 for the state that a shard's breaker is in.", []string{"shard", "state"}, nil)
)

// Describe implements [prometheus.Collector].
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upstreamConns, shardLimit, shardRunning, shardWaiting, shardBreaker} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	c.pools.each(func(pool *upstream.Pool) {
		ch <- prometheus.MustNewConstMetric(upstreamConns, prometheus.GaugeValue, float64(pool.Open()), pool.Name())
		s := pool.Gate().State()
		for kind, crowd := range map[string]admission.Crowd{"reads": s.Reads, "writes": s.Writes} {
			for d, v := range map[*prometheus.Desc]int{shardLimit: crowd.Limit, shardRunning: crowd.Running, shardWaiting: crowd.Waiting} {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), pool.Name(), kind)
			}
		}
		for _, word := range []string{"closed", "open", "returning"} {
			on := 0.0
			if word == s.Breaker {
				on = 1
			}
			ch <- prometheus.MustNewConstMetric(shardBreaker, prometheus.GaugeValue, on, pool.Name(), word)
		}
	})
}
