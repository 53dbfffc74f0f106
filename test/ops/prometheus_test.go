package ops_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/internal/testkit"
)

// trouble is what parts show while much is wrong at once, and calm the same when it is over.
const (
	trouble = `drover_fleet_metadata_up 1
drover_fleet_attempt_overdue_seconds 9
drover_gate_check_ok{chunk_id="f/1",check="lag"} 0
drover_move_lanes_silence_seconds{chunk_id="f/1",migration="4"} 90
drover_move_not_converging{chunk_id="f/1",migration="4"} 1
drover_move_backlog_events{chunk_id="f/1",migration="4"} 5000
drover_move_apply_events_per_second{chunk_id="f/1",migration="4"} 150
drover_move_write_events_per_second{chunk_id="f/1",migration="4"} 100
drover_move_burn_in_over_seconds{chunk_id="f/2",migration="5"} 60
drover_capture_log_short{shard="a"} 1
drover_capture_position_age_seconds{shard="a"} 2
drover_fleet_open_stragglers{shard="a"} 1
drover_remediation_held_shards{reason="per-hour"} 1
drover_remediation_look_timestamp_seconds 60
drover_proxy_held_requests 3
`
	calm = `drover_fleet_metadata_up 1
drover_fleet_attempt_overdue_seconds 0
drover_gate_check_ok{chunk_id="f/1",check="lag"} 1
drover_move_lanes_silence_seconds{chunk_id="f/1",migration="4"} 1
drover_move_not_converging{chunk_id="f/1",migration="4"} 0
drover_move_backlog_events{chunk_id="f/1",migration="4"} 0
drover_move_apply_events_per_second{chunk_id="f/1",migration="4"} 150
drover_move_write_events_per_second{chunk_id="f/1",migration="4"} 100
drover_capture_log_short{shard="a"} 0
drover_capture_position_age_seconds{shard="a"} 2
drover_fleet_open_stragglers{shard="a"} 0
drover_remediation_held_shards{reason="per-hour"} 0
drover_remediation_look_timestamp_seconds 120
drover_proxy_held_requests 0
`
)

// startPrometheus runs one with our configuration, sooner: it reads one part, and its
// alarms need not last before they are told.
func startPrometheus(t *testing.T, part, alertmanager string) {
	t.Helper()
	program := testkit.Program(t, "prometheus", "prometheus")
	dir := t.TempDir()
	files, err := filepath.Glob(deploy + "/alerts/*.yml")
	require.NoError(t, err)
	lasts := regexp.MustCompile(`(?m)^ +for: .*\n`)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "alerts"), 0o700))
	for _, f := range files {
		alarms := strings.SplitAfter(read(t, "deploy/alerts/"+filepath.Base(f)), "- alert: ")
		for i, alarm := range alarms {
			if !strings.HasPrefix(alarm, "WorkersGone") { // nothing is there before the first look
				alarms[i] = lasts.ReplaceAllString(alarm, "")
			}
		}
		text := strings.Join(alarms, "")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts", filepath.Base(f)), []byte(text), 0o600))
	}
	config := strings.NewReplacer("_interval: 5s", "_interval: 500ms", "127.0.0.1:9093", alertmanager, "127.0.0.1:9101", part).Replace(read(t, "deploy/prometheus.yml"))
	file := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	c := exec.CommandContext(t.Context(), program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+freeAddress(t))
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// What a part shows goes by a real Prometheus with our rules and a real Alertmanager
// with our routes to the receivers, and so does the end of it.
func TestFromMetricsToReceivers(t *testing.T) {
	t.Parallel()

	names := []string{
		"FencePastDeadline", "GateRefusesLong", "MoveLanesSilent", "MoveNotConverging", "MoveSpareApplyLow", "MoveBurnInForgotten", "LogWindowShort",
		"Stragglers", "RemediationNotPermitted", "ProxyHoldsRequests",
	}
	all := slices.DeleteFunc(rules(t), func(r rule) bool { return !slices.Contains(names, r.Alert) })
	require.Len(t, all, len(names))
	var over atomic.Bool
	part := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, map[bool]string{false: trouble, true: calm}[over.Load()])
	}))
	t.Cleanup(part.Close)
	got := &told{seen: map[string]string{}}
	receivers := httptest.NewServer(got)
	t.Cleanup(receivers.Close)
	startPrometheus(t, part.Listener.Addr().String(), startAlertmanager(t, receivers.URL))
	got.await(t, "firing", all)
	over.Store(true)
	got.await(t, "resolved", all)
	got.mu.Lock()
	defer got.mu.Unlock()
	require.Len(t, got.seen, 2*len(names), "others were told too: %v", got.seen)
}
