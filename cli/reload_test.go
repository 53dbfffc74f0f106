package cli

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"drover/internal/config"
	"drover/internal/logging"
	"drover/proxy"
)

// reloading is a proxy command whose settings come from a file.
func reloading(t *testing.T, args ...string) (f *follower, take func(file string) string, p *proxy.Proxy) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "drover.yaml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(file, []byte("postgres-dsn: postgres://x\nsecret: s3cret\nkafka-brokers: k:9092\n"+text), 0o600))
	}
	write("switch-wait: 1s\n")
	a := &app{file: file, env: Env{LookupEnv: func(string) (string, bool) { return "", false }}}
	t.Chdir(t.TempDir()) // no dev stack
	cmd := newProxyCommand(a)
	require.NoError(t, cmd.ParseFlags(args))
	require.NoError(t, a.load(cmd, config.Proxy))
	p = proxy.New(proxy.Config{SwitchWait: a.cfg.SwitchWait, Linger: a.linger(cmd, &a.cfg)}, proxy.Ports{})
	var log bytes.Buffer
	logger, err := logging.NewVar(&log, &a.level, a.cfg.LogLevel)
	require.NoError(t, err)
	f = a.newFollower(cmd, p, logger)
	return f, func(text string) string {
		write(text)
		log.Reset()
		if err := f.takeOver(t.Context()); err != nil {
			return err.Error()
		}
		return log.String()
	}, p
}

// What may change while a proxy runs changes, what may not is named, what is wrong
// changes nothing, and what was said on the command line stays.
func TestSettingsAreTakenOver(t *testing.T) {
	f, take, p := reloading(t, "--linger", "3s")
	require.Equal(t, proxy.Live{SwitchWait: time.Second, SlowAfter: 500 * time.Millisecond, Linger: 3 * time.Second}, p.Settings())

	log := take("switch-wait: 2s\nslow-request: 1m\nlinger: 9s\nlog-level: debug\n")
	require.Equal(t, proxy.Live{SwitchWait: 2 * time.Second, SlowAfter: time.Minute, Linger: 3 * time.Second}, p.Settings())
	require.Equal(t, slog.LevelDebug, f.a.level.Level())
	require.Contains(t, log, `"setting":"switch-wait","value":"2s"`)
	require.NotContains(t, log, "linger")

	require.Contains(t, take("switch-wait: soon\n"), "invalid")
	require.Contains(t, take("switch-wait: 0s\n"), "positive")
	require.Contains(t, take("swich-wait: 1s\n"), "unknown setting")
	require.Equal(t, 2*time.Second, p.Settings().SwitchWait)

	log = take("switch-wait: 2s\nslow-request: 1m\nlog-level: debug\nlisten: 127.0.0.1:1\n")
	require.Contains(t, log, `needs a restart","setting":"listen"`)
	require.NotContains(t, log, "s3cret")
	require.NotContains(t, log, `"setting":"switch-wait"`)
	require.NotContains(t, take("slow-request: 1m\nlog-level: error\nlisten: 127.0.0.1:1\n"), "restart", "it was said once")
	require.Equal(t, 1500*time.Millisecond, p.Settings().SwitchWait, "a line that is gone counts too")
	require.Equal(t, slog.LevelError, f.a.level.Level())
}

func TestAChildDoesNotLinger(t *testing.T) {
	_, _, p := reloading(t, "--child")
	require.Zero(t, p.Settings().Linger)
}

func TestAdminPort(t *testing.T) {
	t.Parallel()

	var m admin
	h := m.handler(prometheus.NewRegistry())
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK, "/debug/pprof/": http.StatusOK, "/shapes": http.StatusNotFound,
	} {
		require.Equal(t, want, get(path).Code, path)
	}
	m.show(proxy.New(proxy.Config{}, proxy.Ports{}))
	require.Equal(t, http.StatusOK, get("/healthz").Code)
	w := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "does not listen yet")
	require.JSONEq(t, "[]", get("/shapes?n=5").Body.String())
	require.Equal(t, http.StatusBadRequest, get("/shapes?n=0").Code)
}
