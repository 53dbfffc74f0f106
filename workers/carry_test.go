package workers

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"drover/chunk"
	"drover/contract"
	"drover/internal/pause"
	"drover/internal/testkit"
	"drover/starter"
)

// quickMove are activities of a move that find everything done.
type quickMove struct {
	source, target chunk.Placement
}

// register serves them.
func (q quickMove) register(r contract.Registry, queue string) {
	ref := contract.Ref{Migration: 1, Chunk: q.source.Chunk}
	switch queue {
	case contract.ControlQueue:
		contract.RegisterMigration.Register(r, func(context.Context, contract.RegisterInput) (contract.Plan, error) {
			return contract.Plan{Ref: ref, Source: q.source, Target: q.target}, nil
		})
		contract.RecordPhase.Register(r, answer[contract.PhaseInput](contract.PhaseResult{}))
		contract.AdmitMove.Register(r, answer[contract.AdmitInput](contract.Admission{Admitted: true}))
		contract.CheckGate.Register(r, answer[contract.GateInput](contract.GateReport{Go: true}))
		contract.PrepareSwitch.Register(r, answer[contract.DirectionInput](contract.AttemptRef{Ref: ref, Attempt: 1}))
		contract.ConcludeSwitch.Register(r, answer[contract.AttemptRef](contract.None{}))
		contract.ReconcileSwitch.Register(r, answer[contract.Ref](contract.ReconcileResult{Serving: q.target, Spare: q.source, Direction: 1}))
	case contract.BulkQueue:
		contract.ImportChunk.Register(r, answer[contract.ImportInput](contract.ImportResult{Documents: 7}))
		contract.ReplicateUntilInSync.Register(r, answer[contract.DirectionInput](contract.SyncResult{}))
		contract.ValidateChunk.Register(r, answer[contract.DirectionInput](contract.ValidateResult{}))
		contract.AuditChunk.Register(r, answer[contract.DirectionInput](contract.AuditResult{}))
		contract.DropSource.Register(r, answer[contract.DropInput](contract.None{}))
		contract.ReplicateChanges.Register(r, untilTold[contract.DirectionInput, contract.None])
		contract.VerifyChanges.Register(r, untilTold[contract.VerifyInput, contract.Verification])
		contract.WatchSwitch.Register(r, untilTold[contract.AftermathInput, contract.AftermathResult])
	case contract.FenceQueue:
		contract.SwitchRoute.Register(r, answer[contract.AttemptRef](contract.SwitchResult{Attempt: 1, Published: true}))
	}
}

// answer is an activity that says the same each time.
func answer[In, Out any](out Out) func(context.Context, In) (Out, error) {
	return func(context.Context, In) (Out, error) { return out, nil }
}

// untilTold is an activity that goes on until it is cancelled.
func untilTold[In, Out any](ctx context.Context, _ In) (out Out, err error) {
	for pause.For(ctx, 50*time.Millisecond) == nil {
		activity.RecordHeartbeat(ctx)
	}
	return out, ctx.Err()
}

// TestMoveIsHandedOverOnAServer: a move that operators pause and resume over and over
// goes on in a second run, which knows all that the first one knew; both have short
// histories, and that of the second one replays.
func TestMoveIsHandedOverOnAServer(t *testing.T) {
	c := wardNamespace(t, testkit.Temporal(t))
	move := quickMove{
		source: chunk.Placement{ID: 1, Chunk: "d/0001", Shard: "a", Database: "d_0001_p1"},
		target: chunk.Placement{ID: 2, Chunk: "d/0001", Shard: "b", Database: "d_0001_p2"},
	}
	all := queues("test", time.Second)
	for _, q := range []string{contract.ControlQueue, contract.BulkQueue, contract.FenceQueue} {
		x := worker.New(c, q, all[q])
		if q == contract.ControlQueue {
			RegisterWorkflows(x)
		}
		move.register(registry{x}, q)
		require.NoError(t, x.Start())
		t.Cleanup(x.Stop)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := starter.New(c)
	var first starter.Run
	require.Eventually(t, func() bool { // a new namespace's search attributes take a moment
		var err error
		first, err = s.Migrate(ctx, contract.MigrateInput{Chunk: "d/0001", To: "b", Approval: contract.Manual, Complete: contract.Manual, RequestedBy: "test"})
		return err == nil
	}, patience, 100*time.Millisecond)
	await := func(what string, is func(contract.Status) bool) contract.Status {
		t.Helper()
		var st contract.Status
		require.Eventually(t, func() bool {
			var err error
			st, err = s.Status(ctx, "d/0001")
			return err == nil && is(st)
		}, patience, 20*time.Millisecond, what)
		return st
	}
	ask := func(update string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := s.Ask(ctx, "d/0001", update, contract.UpdateInput{By: "test"})
			return err == nil
		}, patience, 20*time.Millisecond, update)
	}
	waits := func(st contract.Status) bool { return st.WaitingFor == "an operator's approve" }
	await("the approval", waits)
	require.NoError(t, c.SignalWorkflow(ctx, first.WorkflowID, "", contract.RepairSignal, contract.RepairNotice{Shard: "a", By: "ann"}))
	handedOver := func() bool {
		d, err := c.DescribeWorkflowExecution(ctx, first.WorkflowID, first.RunID)
		require.NoError(t, err)
		require.LessOrEqual(t, d.WorkflowExecutionInfo.HistoryLength, int64(2000))
		return d.WorkflowExecutionInfo.Status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW
	}
	for !handedOver() {
		ask(contract.PauseUpdate)
		await("the pause", func(st contract.Status) bool { return st.Paused && st.WaitingFor != "" })
		ask(contract.ResumeUpdate)
		await("the approval, once more", waits)
	}

	st := await("the second run", waits)
	require.Equal(t, chunk.Switching, st.Phase)
	require.EqualValues(t, 7, st.Import.Documents)
	require.Equal(t, "a by ann", st.UnderRepair)
	ask(contract.ApproveUpdate)
	await("burn-in", func(st contract.Status) bool { return st.Phase == chunk.BurnIn && st.WaitingFor != "" })
	ask(contract.CompleteUpdate)
	r, err := s.Result(ctx, "d/0001")
	require.NoError(t, err)
	require.Equal(t, chunk.Done, r.Phase)
	require.EqualValues(t, 7, r.Documents)
	testkit.Record(t, c, "move", first.WorkflowID)
	replayer := worker.NewWorkflowReplayer()
	RegisterWorkflows(replayer)
	require.NoError(t, replayer.ReplayWorkflowHistory(log.NewStructuredLogger(slog.New(slog.DiscardHandler)), testkit.History(t, c, first.WorkflowID)))
}
