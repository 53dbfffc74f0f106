package scenario_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
	"drover/metadata"
)

// TestLiveMoveRollbackAndForth is the demonstration in small, with one proxy
// that hears no announcement.
func TestLiveMoveRollbackAndForth(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.startProxy("deaf", "--deaf")
	f.startWorker("worker")
	f.startWork(false)
	f.migrate(contract.Automatic)
	f.await("burn-in", inBurnIn)
	f.burnInIsKept()
	f.ask(contract.RollbackUpdate)
	f.await("the way back", func(st contract.Status) bool {
		return st.Phase == chunk.BurnIn && st.Serving.ID == st.Source.ID && st.WaitingFor != ""
	})
	f.ask(contract.ApproveUpdate)
	f.await("burn-in again", inBurnIn)
	r := f.complete()
	f.check(false)

	published := 0
	for _, s := range r.Switches {
		if s.Published {
			published++
		}
	}
	require.Equal(t, 3, published)
	placements, err := f.store.Placements(t.Context(), f.hot.Placement.Shard)
	require.NoError(t, err)
	for _, p := range placements {
		require.NotEqual(t, f.hot.Placement.ID, p.ID, "the old placement is still there")
	}
	f.checkClone()
}

// burnInIsKept sees that the metadata says how long the burn-in is to last.
func (f *fleet) burnInIsKept() {
	f.t.Helper()
	figures, err := f.store.Figures(f.t.Context())
	require.NoError(f.t, err)
	require.Len(f.t, figures.Moves, 1)
	var step contract.BurnInStep
	require.NoError(f.t, json.Unmarshal(figures.Moves[0].Step, &step))
	require.Equal(f.t, contract.Duration(24*time.Hour), step.BurnIn)
}

// TestAbortLeavesNothing gives up in the middle.
func TestAbortLeavesNothing(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.startWorker("worker", "--gate-lag", "1ns") // the gate refuses for ever
	f.startWork(false)
	f.planChangesNothing()
	f.migrate(contract.Automatic, func(in *contract.MigrateInput) { in.OnMismatch = contract.RestartOnMismatch })
	st := f.await("the gate", func(st contract.Status) bool { return st.Gate != nil && !st.Gate.Go && st.WaitingFor != "" })
	f.slicesRestart(st.Target)
	f.ask(contract.AbortUpdate)
	_, err := f.starter.Result(t.Context(), f.hot.Chunk.ID)
	require.ErrorContains(t, err, "aborted by an operator")
	f.check(false)
	placements, err := f.store.Placements(t.Context(), f.target())
	require.NoError(t, err)
	require.Empty(t, placements)
}

// slicesRestart changes the target behind everybody's back: the part of the import
// that it is in is copied anew, beside writers, and nobody is asked.
func (f *fleet) slicesRestart(target chunk.Placement) {
	f.t.Helper()
	c := f.connect(f.shards[target.Shard].AdminURI()).Database(target.Database).Collection(workload.Collection)
	stranger := bson.D{{Key: "_id", Value: "stranger"}, {Key: "origin", Value: "X"}, {Key: "ref", Value: "stranger"}}
	_, err := c.InsertOne(f.t.Context(), stranger)
	require.NoError(f.t, err)
	require.True(f.t, eventually(f.t, func() bool {
		n, err := c.CountDocuments(f.t.Context(), stranger)
		return err == nil && n == 0
	}), "the slice is not copied anew")
	f.await("the gate again", func(st contract.Status) bool {
		return st.Attention == "" && st.Gate != nil && !st.Gate.Go && st.WaitingFor != ""
	})
	out, code := f.cli("validate", string(f.hot.Chunk.ID))
	require.Zero(f.t, code, out)
}

// planChangesNothing asks what the move would meet, with everything there and with
// one part out of reach, and sees that nothing was made.
func (f *fleet) planChangesNothing() {
	f.t.Helper()
	plan := func(more ...string) (p contract.MovePlan, status int) {
		args := append([]string{"migrate", "start", string(f.hot.Chunk.ID), "--to", f.target(), "--dry-run", "-o", "json"}, more...)
		status, out, errs := f.drover(args...)
		require.NoError(f.t, json.Unmarshal([]byte(out), &p), "%s %s", out, errs)
		return p, status
	}
	var p contract.MovePlan
	var status int
	eventually(f.t, func() bool { // both shards are captured soon
		p, status = plan()
		return p.Go
	})
	require.Zero(f.t, status, "%+v", p.Checks)
	require.NotEmpty(f.t, p.Collections)
	require.True(f.t, slices.ContainsFunc(p.Collections, func(c contract.PlannedCollection) bool { return c.Documents > 0 && c.Sampled > 0 && c.Order != "" }))

	p, status = plan("--s3-endpoint", "http://127.0.0.1:1")
	require.Equal(f.t, 3, status)
	for _, c := range p.Checks {
		require.Equal(f.t, c.Name == "bucket "+bucketOf(f.env), c.Verdict == contract.PlanUnknown, "%+v", c)
	}
	p, status = plan("--to", f.hot.Placement.Shard)
	require.Equal(f.t, 3, status)
	require.Equal(f.t, contract.PlanRefused, p.Checks[0].Verdict, "it is there already")

	made, err := f.store.Placements(f.t.Context(), f.target())
	require.NoError(f.t, err)
	require.Empty(f.t, made)
	moves, err := f.store.Migrations(f.t.Context(), metadata.MigrationFilter{})
	require.NoError(f.t, err)
	require.Empty(f.t, moves)
}

// bucketOf is the bucket that an environment names.
func bucketOf(env []string) string {
	for _, v := range env {
		if name, ok := strings.CutPrefix(v, "DROVER_S3_BUCKET="); ok {
			return name
		}
	}
	return ""
}
