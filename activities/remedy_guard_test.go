package activities

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/metadata"
	"drover/remediation"
)

// inState tells how a plan's reading shows a member.
func inState(t *testing.T, p contract.ShardPlan, host string) remediation.State {
	t.Helper()

	for _, m := range p.Before.Members {
		if m.Host == host {
			return m.State
		}
	}
	require.Fail(t, "no such member", host)
	return 0
}

// TestStallsAreNoticedAcrossWorkers: what one worker has seen counts for the next,
// which has been started since.
func TestStallsAreNoticedAcrossWorkers(t *testing.T) {
	t.Parallel()

	m, _, sim, _ := clinic(t)
	host := sim.Hosts()[2]
	plan := func(m *Remedier) contract.ShardPlan {
		p, err := call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
		require.NoError(t, err)
		return p
	}
	another := func() *Remedier {
		return &Remedier{Ledger: m.Ledger, Open: m.Open, Costs: m.Costs, Metrics: m.Metrics, Logger: m.Logger}
	}
	sim.Stall(host)
	sim.Advance(20 * time.Second)
	require.Equal(t, remediation.Lagging, inState(t, plan(another()), host))
	sim.Advance(50 * time.Second)
	require.Equal(t, remediation.Lagging, inState(t, plan(another()), host), "50 s are no minute")
	sim.Advance(20 * time.Second)
	require.Equal(t, remediation.Stalled, inState(t, plan(another()), host))
}

// operation is the first step for a shard whose second member is down.
func operation(t *testing.T, m *Remedier) contract.OperationInput {
	t.Helper()

	p, err := call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
	require.NoError(t, err)
	return contract.OperationInput{Lease: contract.ShardLease{Shard: "s1", Holder: "x", Epoch: 7}, Before: p.Before, Step: p.Steps[0]}
}

// TestLeaseLostOnTheWayToTheChange: the lease is lost, or the switch thrown, after
// the operation has begun and before it changes anything.
func TestLeaseLostOnTheWayToTheChange(t *testing.T) {
	t.Parallel()

	for want, strike := range map[string]func(l *ledger){
		"lease.lost":          func(l *ledger) { l.lost = true },
		"remediation.stopped": func(l *ledger) { l.stop = &metadata.Stop{By: "ann", Reason: "incident"} },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()

			m, l, sim, _ := clinic(t)
			sim.Kill(sim.Hosts()[1])
			sim.Advance(time.Minute)
			in := operation(t, m)
			m.Stops = stoppoint.New(func(_ context.Context, name string) error {
				if name == remediation.StopBefore {
					l.mu.Lock()
					defer l.mu.Unlock()
					strike(l)
				}
				return nil
			})
			_, err := call(t, m, contract.PerformOperation, in)
			require.ErrorContains(t, err, want)
			l.stop = nil
			again, err := call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
			require.NoError(t, err)
			require.Equal(t, in.Before, again.Before, "nothing was touched")
		})
	}
}

// TestSwitchesAreKeptOutBeforeAnOperation: the shard itself learns of the epoch
// first; one that knows a newer one ends the operation.
func TestSwitchesAreKeptOutBeforeAnOperation(t *testing.T) {
	t.Parallel()

	m, _, sim, _ := clinic(t)
	sim.Kill(sim.Hosts()[1])
	sim.Advance(time.Minute)
	in := operation(t, m)
	var raised []int64
	var answer error
	m.Raise = func(_ context.Context, s chunk.Shard, epoch int64) error {
		require.Equal(t, "s1", s.Name)
		raised = append(raised, epoch)
		return answer
	}
	answer = failure.New(failure.Lost, "shard.lease_overtaken", "a newer one has acted on it")
	_, err := call(t, m, contract.PerformOperation, in)
	require.ErrorContains(t, err, "lease.lost")
	answer = failure.New(failure.Transient, "shard.unreachable", "no answer")
	_, err = call(t, m, contract.PerformOperation, in)
	require.ErrorContains(t, err, "shard.unreachable", "a primary that is well must have taken the word")
	again := operation(t, m)
	require.Equal(t, in.Before, again.Before, "nothing was touched")

	leaderless := in
	leaderless.Before.Members = append([]remediation.Member(nil), in.Before.Members...)
	leaderless.Before.Members[0].Primary = false
	out, err := call(t, m, contract.PerformOperation, leaderless)
	require.NoError(t, err, "a set without a primary takes no fence either")
	require.NotEmpty(t, out.Deviates)

	answer = nil
	out, err = call(t, m, contract.PerformOperation, in)
	require.NoError(t, err)
	require.Empty(t, out.Deviates)
	require.Equal(t, []int64{7, 7, 7, 7}, raised)
}

// TestRunsWhoseWorkflowIsGone: they end in the record, and so no longer count for
// the rates.
func TestRunsWhoseWorkflowIsGone(t *testing.T) {
	t.Parallel()

	m, l, _, _ := clinic(t)
	l.runs = []metadata.Remediation{
		{WorkflowID: "remediate/a", Shard: "a", StartedAt: time.Now(), Waiting: true}, {WorkflowID: "remediate/b", Shard: "b", StartedAt: time.Now()},
	}
	m.Running = func(_ context.Context, id string) (bool, error) { return id == "remediate/b", nil }
	s, err := call(t, m, contract.SurveyFleet, contract.WatchInput{Rates: remediation.DefaultRates})
	require.NoError(t, err)
	require.True(t, s.Started[0].Ended)
	require.False(t, s.Started[0].Waiting)
	require.False(t, s.Started[1].Ended)
	require.Len(t, l.runs, 3)
	require.Equal(t, string(remediation.Failed), l.runs[2].Verdict)
	require.Contains(t, l.runs[2].Attention, "from outside")
}

// TestLayoutsThatCannotBeUsed: each is named with shard, field and reason; one that
// is right is not.
func TestLayoutsThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	m, l, _, _ := clinic(t)
	l.rows = append(l.rows,
		metadata.Declared{Shard: "s2", Layout: []byte(`{"Name": 7}`), Machines: []byte(`[]`)},
		metadata.Declared{Shard: "s3", Layout: []byte(`{"Name": "n", "Slots": [{"Zone": "z", "Votes": 3, "Priority": 1}]}`), Machines: []byte(`[]`)},
		metadata.Declared{Shard: "s4", Layout: l.rows[0].Layout, Machines: []byte(`[]`)})
	found, err := m.Unusable(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.ErrorContains(t, found[0], "layout of shard s2")
	require.ErrorContains(t, found[1], "shard s3: layout n: slots[0].votes: must be 0 or 1")
	require.ErrorContains(t, found[2], `shard s4: layout three: slots[0].zone: no machine of kind "" in zone "a" is left for it`)
}
