package workers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/internal/testkit"
	"drover/metadata"
	"drover/remediation"
)

// opened brings a move away from the ward's shard into its window, and gives what
// will publish it.
func (w *ward) opened(ctx context.Context, t *testing.T) metadata.PublishRequest {
	t.Helper()

	require.NoError(t, w.store.AddShard(ctx, chunk.Shard{Name: "s2", URI: "mongodb://s2"}))
	flights := chunk.Database{Name: "flights", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}}}
	whole := []metadata.NewChunk{{Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: wardShard}}
	_, err := w.store.CreateDatabase(ctx, flights, whole)
	require.NoError(t, err)
	require.NoError(t, w.store.Activate(ctx, flights.Name))
	m, err := w.store.RegisterMigration(ctx, metadata.MigrationRequest{Chunk: "flights/0001", Target: "s2", WorkflowID: "migrate/flights/0001"})
	require.NoError(t, err)
	phases := []chunk.Phase{chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching}
	for i := range len(phases) - 1 {
		require.NoError(t, w.store.SetPhase(ctx, m.ID, phases[i], phases[i+1]))
	}
	require.NoError(t, w.store.SetPlacementState(ctx, m.Target.ID, chunk.Loading, chunk.Mirror))
	a, err := w.store.BeginAttempt(ctx, m.ID, "first", patience)
	require.NoError(t, err)
	r := metadata.PublishRequest{Attempt: a.ID, CatalogVersion: 1}
	for _, shard := range []string{wardShard, "s2"} {
		l, err := w.store.AcquireLease(ctx, shard, "attempt/1", metadata.SharedLease, patience)
		require.NoError(t, err)
		r.Leases = append(r.Leases, l)
	}
	_, err = w.store.AdvanceAttempt(ctx, a.ID, chunk.Preparing, chunk.Fencing, metadata.AdvanceOptions{Deadline: patience})
	require.NoError(t, err)
	return r
}

// moment is one line of what happened.
type moment struct {
	at   time.Time
	what string
}

// TestRemediationNextToASwitch: a window is open on a shard when a node of it dies.
// The remediation waits until the window has ended, keeps the next switch away
// while it works, and then lets it come. Its history is replayed by test/histories.
func TestRemediationNextToASwitch(t *testing.T) {
	w := newWard(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.full(t)
	r := w.opened(ctx, t)
	refused := map[string]int{}
	w.between = func() {
		_, err := w.store.AcquireLease(ctx, wardShard, "attempt/2", metadata.SharedLease, patience)
		refused[fmt.Sprint(failure.HasCode(err, "lease.held_exclusive"))]++
	}

	w.sim.Kill(w.sim.Hosts()[1])
	w.sim.Advance(time.Minute)
	run, err := w.starter.Remediate(ctx, contract.RemediateInput{Shard: wardShard, Execute: true, RequestedBy: "test", Reason: "beside a switch"})
	require.NoError(t, err)
	require.Eventually(t, w.waiting, patience, 50*time.Millisecond, "the remediation waits for the switch")
	_, err = w.store.AdvanceAttempt(ctx, r.Attempt, chunk.Fencing, chunk.Closing, metadata.AdvanceOptions{})
	require.NoError(t, err, "the switch that was there first goes on")
	_, err = w.store.Publish(ctx, r)
	require.NoError(t, err)
	require.NoError(t, w.store.ReleaseLease(ctx, r.Leases[0]))
	require.True(t, w.waiting(), "the attempt is open still, whoever holds a lease")
	_, err = w.store.AdvanceAttempt(ctx, r.Attempt, chunk.Published, chunk.Open, metadata.AdvanceOptions{})
	require.NoError(t, err)

	result, err := w.starter.RemediationResult(ctx, run)
	require.NoError(t, err)
	require.Equal(t, remediation.Finished, result.Verdict, "%+v", result)
	require.Equal(t, map[string]int{"true": 5}, refused, "no switch between two operations")
	_, err = w.store.AcquireLease(ctx, wardShard, "attempt/2", metadata.SharedLease, patience)
	require.NoError(t, err, "the next switch may come")
	w.chronicle(ctx, t, r.Attempt)
	testkit.Record(t, w.temporal, "remediation", contract.RemediateID(wardShard))
}

// chronicle shows the attempt and the remediation by time, and wants that no
// operation began before the attempt was open.
func (w *ward) chronicle(ctx context.Context, t *testing.T, id chunk.AttemptID) {
	t.Helper()

	a, err := w.store.Attempt(ctx, id)
	require.NoError(t, err)
	var all []moment
	var open time.Time
	for _, m := range a.Timeline {
		all = append(all, moment{m.At, fmt.Sprintf("switch        attempt %d is %s", id, m.State)})
		if m.State == chunk.Open {
			open = m.At
		}
	}
	require.False(t, open.IsZero())
	names := map[int64]string{}
	for _, e := range testkit.History(t, w.temporal, contract.RemediateID(wardShard)).GetEvents() {
		at := e.GetEventTime().AsTime()
		switch e.GetEventType() {
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
			all = append(all, moment{at, "remediation   begins"})
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
			s := e.GetActivityTaskScheduledEventAttributes()
			names[e.GetEventId()] = s.GetActivityType().GetName()
		case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
			c := e.GetActivityTaskCompletedEventAttributes()
			all = append(all, moment{at, "remediation   " + names[c.GetScheduledEventId()] + " is done"})
			if names[c.GetScheduledEventId()] == contract.PerformOperation.Name {
				require.True(t, at.After(open), "an operation beside an open attempt")
			}
		case enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
			all = append(all, moment{at, "remediation   ends"})
		default:
		}
	}
	slices.SortStableFunc(all, func(x, y moment) int { return cmp.Compare(x.at.UnixNano(), y.at.UnixNano()) })
	for _, m := range all {
		t.Logf("%8.3fs  %s", m.at.Sub(all[0].at).Seconds(), m.what)
	}
}
