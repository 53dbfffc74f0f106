package ops_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/testkit"
)

// notice is what Alertmanager tells a receiver.
type notice struct {
	path   string
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

// An alarm goes through a real Alertmanager with our routes to the receiver of its
// severity, and its end is told too.
func TestAlertmanagerDelivers(t *testing.T) {
	t.Parallel()

	program := testkit.Program(t, "prometheus-alertmanager", "prometheus-alertmanager")
	got := make(chan notice, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := notice{path: r.URL.Path}
		if json.NewDecoder(r.Body).Decode(&n) == nil {
			got <- n
		}
	}))
	t.Cleanup(receiver.Close)
	// The same routes, sooner, to receivers of this test.
	config := strings.NewReplacer("http://127.0.0.1:9099", receiver.URL, "group_wait: 10s", "group_wait: 100ms", "group_interval: 1m", "group_interval: 200ms").
		Replace(read(t, "deploy/alertmanager.yml"))
	file := filepath.Join(t.TempDir(), "alertmanager.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address := freeAddress(t)
	c := exec.CommandContext(t.Context(), program, "--config.file="+file, "--storage.path="+t.TempDir(), "--web.listen-address="+address, "--cluster.listen-address=")
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})

	send := func(name, severity string, ends time.Time) bool {
		body := fmt.Sprintf(`[{"labels":{"alertname":%q,"severity":%q},"endsAt":%q}]`, name, severity, ends.Format(time.RFC3339Nano))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/v2/alerts", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}
	await := func(name, path, status string) {
		for {
			select {
			case n := <-got:
				for _, a := range n.Alerts {
					if a.Labels["alertname"] == name && a.Status == status {
						require.Equal(t, path, n.path, name)
						return
					}
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s was not told as %s", name, status)
			}
		}
	}
	for name, severity := range map[string]string{"FencePastDeadline": "page", "GateRefusesLong": "ticket"} {
		require.Eventually(t, func() bool { return send(name, severity, time.Now().Add(time.Hour)) }, 30*time.Second, 50*time.Millisecond)
		await(name, "/"+severity+"s", "firing")
		require.True(t, send(name, severity, time.Now()))
		await(name, "/"+severity+"s", "resolved")
	}
}
