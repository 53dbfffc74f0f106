package ops_test

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"drover/internal/testkit"
)

// notice is what Alertmanager tells a receiver.
type notice struct {
	Alerts []struct {
		Status string            `json:"status"`
		Labels map[string]string `json:"labels"`
	} `json:"alerts"`
}

// freeAddress gives an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()

	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	return ln.Addr().String()
}

// told is what receivers were told: the path by name and status of an alarm.
type told struct {
	mu   sync.Mutex
	seen map[string]string
}

// ServeHTTP implements [http.Handler]: it is the receivers.
func (r *told) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	var n notice
	if json.NewDecoder(req.Body).Decode(&n) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range n.Alerts {
		r.seen[a.Labels["alertname"]+" "+a.Status] = req.URL.Path
	}
}

// await waits until all of these alarms were told in a status, each to whom its
// severity says.
func (r *told) await(t *testing.T, status string, all []rule) {
	t.Helper()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !slices.ContainsFunc(all, func(x rule) bool { return r.seen[x.Alert+" "+status] == "" })
	}, time.Minute, 50*time.Millisecond, "not all are told as %s", status)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range all {
		require.Equal(t, "/"+x.Labels["severity"]+"s", r.seen[x.Alert+" "+status], x.Alert)
	}
}

// startAlertmanager runs one with our routes, sooner, to these receivers.
func startAlertmanager(t *testing.T, receivers string) (address string) {
	t.Helper()
	program := testkit.Program(t, "prometheus-alertmanager", "prometheus-alertmanager")
	config := strings.NewReplacer("http://127.0.0.1:9099", receivers, "group_wait: 10s", "group_wait: 100ms", "group_interval: 1m", "group_interval: 200ms").
		Replace(read(t, "deploy/alertmanager.yml"))
	file := filepath.Join(t.TempDir(), "alertmanager.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address = freeAddress(t)
	c := exec.CommandContext(t.Context(), program, "--config.file="+file, "--storage.path="+t.TempDir(), "--web.listen-address="+address, "--cluster.listen-address=")
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return address
}

// send tells Alertmanager of alarms that last until a time.
func send(t *testing.T, address string, all []rule, ends time.Time) bool {
	t.Helper()
	var alerts []map[string]any
	for _, r := range all {
		alerts = append(alerts, map[string]any{"labels": map[string]string{"alertname": r.Alert, "severity": r.Labels["severity"]}, "endsAt": ends})
	}
	body, err := json.Marshal(alerts)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/v2/alerts", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	require.NoError(t, res.Body.Close())
	return res.StatusCode == http.StatusOK
}

// Every alarm goes through a real Alertmanager with our routes to the receiver of its
// severity, and its end is told too. Those that keep others silent go last.
func TestAlertmanagerDelivers(t *testing.T) {
	t.Parallel()

	all := rules(t)
	last := slices.Clone(all)
	silences := func(r rule) bool {
		return slices.Contains([]string{"MetadataUnreadable", "WorkersGone", "CaptureSilent"}, r.Alert)
	}
	all = slices.DeleteFunc(all, silences)
	last = slices.DeleteFunc(last, func(r rule) bool { return !silences(r) })
	require.Len(t, last, 3)
	got := &told{seen: map[string]string{}}
	receivers := httptest.NewServer(got)
	t.Cleanup(receivers.Close)
	address := startAlertmanager(t, receivers.URL)
	for _, round := range [][]rule{all, last} {
		require.Eventually(t, func() bool { return send(t, address, round, time.Now().Add(time.Hour)) }, 30*time.Second, 50*time.Millisecond)
		got.await(t, "firing", round)
		require.True(t, send(t, address, round, time.Now()))
		got.await(t, "resolved", round)
	}
}

// What Alertmanager itself adds to the end of an alarm leaves rules four of the five
// minutes.
func TestEndsAreToldWithinAMinute(t *testing.T) {
	t.Parallel()

	var config struct {
		Route struct {
			Interval string `yaml:"group_interval"`
			Routes   []struct {
				Interval string `yaml:"group_interval"`
			} `yaml:"routes"`
		} `yaml:"route"`
		Receivers []struct {
			Name  string `yaml:"name"`
			Hooks []struct {
				Resolved bool `yaml:"send_resolved"`
			} `yaml:"webhook_configs"`
		} `yaml:"receivers"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "deploy/alertmanager.yml")), &config))
	d, err := time.ParseDuration(config.Route.Interval)
	require.NoError(t, err)
	require.LessOrEqual(t, d, time.Minute)
	for _, r := range config.Route.Routes {
		require.Empty(t, r.Interval, "a route of its own pace")
	}
	require.NotEmpty(t, config.Receivers)
	for _, r := range config.Receivers {
		for _, h := range r.Hooks {
			require.True(t, h.Resolved, "%s is not told of ends", r.Name)
		}
	}
}
