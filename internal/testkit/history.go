package testkit

import (
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/encoding/protojson"
)

// recordEnv names a folder for the histories of what the tests run: `make
// histories` sets it, test/histories replays them.
const recordEnv = "DROVER_RECORD"

// historyTime is how long a Temporal may take to give a history. Cleanups ask for one too, which
// have processes to stop behind that.
const historyTime = 30 * time.Second

// History gives the events of a workflow's newest run. It does not need the test's
// context, which has ended where a cleanup calls.
func History(t testing.TB, c client.Client, workflowID string) *historypb.History {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), historyTime)
	defer cancel()
	h, err := ReadHistory(ctx, c, workflowID)
	require.NoError(t, err)
	return h
}

// ReadHistory is [History] for who goes on without it; beside an error it gives the events
// before it.
func ReadHistory(ctx context.Context, c client.Client, workflowID string) (*historypb.History, error) {
	h := &historypb.History{}
	events := c.GetWorkflowHistory(ctx, workflowID, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return h, fmt.Errorf("read the history of %s: %w", workflowID, err)
		}
		h.Events = append(h.Events, e)
	}
	return h, nil
}

// Record keeps a workflow's history where DROVER_RECORD says, as kind-TestName; a
// test that failed keeps none.
func Record(t testing.TB, c client.Client, kind, workflowID string) {
	t.Helper()

	dir := os.Getenv(recordEnv)
	if dir == "" || t.Failed() {
		return
	}
	b, err := protojson.Marshal(History(t, c, workflowID))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o750))
	out, err := os.Create(filepath.Join(dir, kind+"-"+t.Name()+".json.gz")) //nolint:gosec // the caller names it
	require.NoError(t, err)
	z := gzip.NewWriter(out)
	_, err = z.Write(b)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.NoError(t, out.Close())
}
