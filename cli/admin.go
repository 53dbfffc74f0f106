package cli

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"drover/proxy"
)

// admin is a process's port for its operators. It answers until the process has
// ended what it does, so that the end can be watched too.
//
// Behaviour: /metrics for Prometheus; /healthz is ok while the process lives, whatever
// it can reach; /readyz is ok when new clients may be sent to the process, and says
// else why not (503); /shapes gives a proxy's request shapes that took most time, n of
// them; /debug/pprof.
type admin struct{ proxy atomic.Pointer[proxy.Proxy] }

// show makes the port speak of a proxy.
func (m *admin) show(p *proxy.Proxy) { m.proxy.Store(p) }

// ready answers /readyz.
func (m *admin) ready(w http.ResponseWriter, _ *http.Request) {
	if p := m.proxy.Load(); p != nil {
		if err := p.Serving(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	_, _ = w.Write([]byte("ok\n"))
}

// mostShapes bounds an answer of /shapes.
const mostShapes = 2000

// shapes answers /shapes.
func (m *admin) shapes(w http.ResponseWriter, r *http.Request) {
	p := m.proxy.Load()
	if p == nil {
		http.Error(w, "this is no proxy", http.StatusNotFound)
		return
	}
	n := 50
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > mostShapes {
			http.Error(w, "n must be between 1 and "+strconv.Itoa(mostShapes), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(p.Shapes(n)) // who asked may have gone
}

// handler gives everything that the port answers.
func (m *admin) handler(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", m.ready)
	mux.HandleFunc("GET /shapes", m.shapes)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// serve answers until stop is called; listen may be empty.
func (m *admin) serve(ctx context.Context, listen string, g prometheus.Gatherer, l *slog.Logger) (stop func(), err error) {
	if listen == "" {
		return func() {}, nil
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: m.handler(g), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			l.Error("Metrics are not served any more", slog.Any("error", err)) //nolint:sloglint // no request here
		}
	}()
	l.InfoContext(ctx, "Metrics are served", slog.String("address", ln.Addr().String()))
	return func() {
		_ = srv.Close()
		<-done
	}, nil
}
