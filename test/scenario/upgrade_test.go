package scenario_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"drover/chunk"
	"drover/contract"
	"drover/internal/testkit"
	"drover/starter"
)

// oldEnv names a binary of the version before; without it the same code does under
// another name. scripts/mixed.sh builds one from a commit.
const oldEnv = "DROVER_OLD_BINARY"

// oldBinary is the binary of the version before.
func oldBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(oldEnv); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "drover-old")
	require.NoError(t, buildDrover(path, "old"))
	return path
}

// TestUpgradeInFlight replaces the parts while a chunk moves and an application works,
// in the order of docs/operations.md: versions are mixed in the switch, and nothing
// of it is seen by the application. What the parts do is seen in their spans.
func TestUpgradeInFlight(t *testing.T) {
	t.Parallel()

	spans := newCollector(t)
	f := &fleet{t: t, binary: oldBinary(t), uri: "?heartbeatFrequencyMS=1000", env: []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + spans.url, "OTEL_BSP_SCHEDULE_DELAY=200",
	}}
	f.found(func() { f.serves(f.startWorker("worker-old")) }) // the metadata is that of the old version at first
	old := f.parts["worker-old"]
	f.startWork(false)
	f.migrate(contract.Manual)
	f.await("the approval", waitsForApproval)

	f.binary = binary
	f.serves(f.startWorker("worker-new"))
	f.leave("proxy-1")
	f.ask(contract.ApproveUpdate)
	f.await("burn-in", inBurnIn)
	f.leave("worker-old")
	old.ends(t)
	f.parts["proxy-1"].ends(t) // drivers have left it
	require.True(t, f.startListeningAt(f.proxies[0], "proxy-1", proxyArgs("proxy-1")...))

	f.readableWithPartsDown()
	f.consoleWithPartsDown()
	f.readiness()

	f.ask(contract.RollbackUpdate)
	f.await("the way back", func(st contract.Status) bool {
		return st.Phase == chunk.BurnIn && st.Serving.ID == st.Source.ID && st.WaitingFor != ""
	})
	status, _, errs := f.drover("migrate", "switch", string(f.hot.Chunk.ID), "--dry-run")
	require.Contains(t, []int{0, 3}, status, errs)
	f.ask(contract.ApproveUpdate)
	f.await("burn-in again", inBurnIn)
	f.complete()
	f.check(false)
	f.didWork(old)
	f.didWork(f.parts["worker-new"])

	try := spans.await(t, "drover-proxy", "findAndModify bookings", "findAndModify ")
	require.NotEmpty(t, try.attributes["drover.chunk"])
	plan := contract.PlanSwitchWorkflow
	spans.await(t, "drover-worker", "RunWorkflow:"+plan, "StartActivity:", "RunActivity:")
	command := spans.await(t, "drover-worker", "RunActivity:"+contract.SwitchRoute.Name, "dropRole")
	require.NotEmpty(t, command.attributes["server.address"])
}

// readableWithPartsDown asks for the state of the move with one part of the stack out
// of reach: what the other one knows is shown, and it is said who does not answer.
func (f *fleet) readableWithPartsDown() {
	f.t.Helper()
	for _, down := range []struct{ flag, to, says string }{
		{"--temporal-address", "127.0.0.1:1", "this is what the metadata holds (temporal.unreachable: connect to Temporal at 127.0.0.1:1"},
		{"--postgres-dsn", "postgres://127.0.0.1:1/x", "this is the workflow's word, without progress and verification (metadata.unreachable: reach the metadata at 127.0.0.1:1/x"},
	} {
		status, out, errs := f.drover("migrate", "status", string(f.hot.Chunk.ID), down.flag, down.to)
		require.Zero(f.t, status, errs)
		require.Contains(f.t, out, "burn-in")
		require.Contains(f.t, out, "published")
		require.Contains(f.t, errs, down.says)
	}
	status, _, errs := f.drover("chunk", "list", "--postgres-dsn", "postgres://127.0.0.1:1/x")
	require.Equal(f.t, 1, status)
	require.Contains(f.t, errs, "reach the metadata at 127.0.0.1:1/x")
}

// readiness asks what a switch would meet: the shards themselves are asked who has a
// hand in them, and of what is not known it is said how it becomes known.
func (f *fleet) readiness() {
	f.t.Helper()
	status, out, errs := f.drover("readiness", "-o", "json")
	require.Contains(f.t, []int{0, 3}, status, errs)
	var answers []struct{ Question, Verdict, Measured, Advice string }
	require.NoError(f.t, json.Unmarshal([]byte(out), &answers))
	measured := map[string]string{}
	for _, x := range answers {
		f.t.Logf("%s: %s: %s (%s)", x.Question, x.Verdict, x.Measured, x.Advice)
		measured[x.Question] = x.Verdict
		require.True(f.t, x.Verdict == "good" || x.Advice != "", "%+v", x)
	}
	for _, question := range []string{"writers beside the proxies", "other controllers", "proxies hold requests past a fence", "attempts that went back"} {
		require.NotEqual(f.t, "unknown", measured[question], question)
	}
}

// serves waits until a worker says that it serves its queues.
func (f *fleet) serves(p *process) {
	f.t.Helper()
	require.True(f.t, eventually(f.t, func() bool {
		b, err := os.ReadFile(p.log)
		return p.ended() || err == nil && strings.Contains(string(b), "Worker serves")
	}))
	require.False(f.t, p.ended(), "the worker ends")
}

// leave tells a part to go, as an operator does.
func (f *fleet) leave(name string) {
	f.t.Helper()
	require.NoError(f.t, f.parts[name].cmd.Process.Signal(syscall.SIGTERM))
}

// didWork sees that a worker took decisions of the move, and did some of its work.
func (f *fleet) didWork(p *process) {
	f.t.Helper()
	by := fmt.Sprintf("%d@", p.cmd.Process.Pid)
	decisions, work := 0, 0
	for _, e := range testkit.History(f.t, f.temporal, starter.MigrateID(f.hot.Chunk.ID)).GetEvents() {
		switch e.GetEventType() { //nolint:exhaustive // those that workers answer
		case enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
			if strings.Contains(e.GetWorkflowTaskCompletedEventAttributes().GetIdentity(), by) {
				decisions++
			}
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_STARTED:
			if strings.Contains(e.GetActivityTaskStartedEventAttributes().GetIdentity(), by) {
				work++
			}
		}
	}
	f.t.Logf("%s took %d decisions and %d pieces of work", by, decisions, work)
	require.Positive(f.t, decisions)
	require.Positive(f.t, work)
}
