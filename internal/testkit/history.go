package testkit

import (
	"compress/gzip"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/encoding/protojson"
)

// recordEnv names a folder for the histories of what the tests run: `make
// histories` sets it, test/histories replays them.
const recordEnv = "DROVER_RECORD"

// History gives the events of a workflow's newest run. It does not need the test's
// context, which has ended where a cleanup calls.
func History(t testing.TB, c client.Client, workflowID string) *historypb.History {
	t.Helper()

	h := &historypb.History{}
	events := c.GetWorkflowHistory(context.Background(), workflowID, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		require.NoError(t, err)
		h.Events = append(h.Events, e)
	}
	return h
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
