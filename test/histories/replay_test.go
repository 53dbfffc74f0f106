// Package histories replays the recorded histories of moves, captures and a
// remediation, which are files beside it: code that decides otherwise than the code that wrote them
// would break moves in flight. `make histories` records them; a release adds its
// own and keeps those of the releases that it can follow.
package histories_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"drover/workers"
)

// load reads one recorded history.
func load(t *testing.T, path string) *historypb.History {
	t.Helper()
	f, err := os.Open(path) //nolint:gosec // a file of this folder
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	h, err := client.HistoryFromJSON(bytes.NewReader(b), client.HistoryJSONOptions{})
	require.NoError(t, err)
	return h
}

func replay(h *historypb.History) error {
	r := worker.NewWorkflowReplayer()
	workers.RegisterWorkflows(r)
	return r.ReplayWorkflowHistory(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), h)
}

func recorded(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.json.gz")
	require.NoError(t, err)
	require.NotEmpty(t, files, "no history is recorded: make histories")
	return files
}

func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()

	for _, path := range recorded(t) {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, replay(load(t, path)))
		})
	}
}

// TestReplayNoticesAnotherDecision sees that the replay can fail: a history in
// which one activity has another name is not that of this code.
func TestReplayNoticesAnotherDecision(t *testing.T) {
	t.Parallel()

	tried := map[string]int{}
	for _, path := range recorded(t) {
		kind, _, _ := strings.Cut(path, "-")
		h := load(t, path)
		for _, e := range h.Events {
			if a := e.GetActivityTaskScheduledEventAttributes(); a != nil && e.EventType == enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED {
				a.ActivityType.Name += "Other"
				break
			}
		}
		require.Error(t, replay(h), path)
		tried[kind]++
	}
	require.Positive(t, tried["move"])
	require.Positive(t, tried["capture"])
	require.Positive(t, tried["remediation"])
}
