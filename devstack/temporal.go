package devstack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// temporalServer is the server of the nested module: all services and the web
// UI in one process over a SQLite file.
type temporalServer struct {
	process
	access TemporalAccess
	tools  Tools
}

// newTemporal describes Temporal of stack s.
func newTemporal(s *Stack, tools Tools) *temporalServer {
	return &temporalServer{
		process: process{name: "temporal", dir: filepath.Join(s.Dir, "temporal"), stop: syscall.SIGTERM, wait: 25 * time.Second},
		access:  s.Temporal,
		tools:   tools,
	}
}

// start runs the server.
func (t *temporalServer) start(ctx context.Context) error {
	server, err := t.tools.temporal()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return err
	}
	return t.process.start(ctx, program{
		path: server,
		args: []string{
			"-db", filepath.Join(t.dir, "temporal.db"), "-namespaces", t.access.Namespace,
			"-port", strconv.Itoa(t.access.Port), "-ui-port", strconv.Itoa(t.access.UIPort),
			"-health-port", strconv.Itoa(t.access.HealthPort),
		},
		env: []string{"GOGC=400"}, // its heap is small beside its caches: it would be swept all the time under many moves
	}, t.ready)
}

// ready says nil when the frontend serves the namespace with all its search attributes.
func (t *temporalServer) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", t.access.HealthPort), nil)
	if err != nil {
		return err
	}
	// One connection for each question: a kept one outlives the server it was made to.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the Temporal server answers %s", resp.Status)
	}
	return nil
}
