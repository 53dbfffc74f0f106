package activities

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.temporal.io/sdk/testsuite"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/remediation"
	"drover/shard"
	"drover/shard/replset"
	"drover/shard/shardsim"
)

// ledger is the metadata as far as remediation needs it.
type ledger struct {
	RemedyLedger // for what a test does not use

	mu      sync.Mutex
	rows    []metadata.Declared
	shards  map[string]chunk.Shard
	refuse  int // leases refused first
	epoch   int64
	lost    bool // the lease is not renewed
	stop    *metadata.Stop
	waiting int // waits that were withdrawn
	seen    map[string]metadata.Sighting
	runs    []metadata.Remediation
	moves   []metadata.Migration
	silent  []string
	renewed int
	moved   map[string]json.RawMessage
}

func (l *ledger) Observation(_ context.Context, shard string) (json.RawMessage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved[shard], nil
}

func (l *ledger) KeepObservation(_ context.Context, shard string, moved json.RawMessage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.moved == nil {
		l.moved = map[string]json.RawMessage{}
	}
	l.moved[shard] = moved
	return nil
}

func (l *ledger) Shard(_ context.Context, name string) (chunk.Shard, error) {
	return l.shards[name], nil
}

func (l *ledger) DeclaredLayout(_ context.Context, name string) (metadata.Declared, error) {
	for _, d := range l.rows {
		if d.Shard == name {
			return d, nil
		}
	}
	return metadata.Declared{}, failure.New(failure.Invalid, "layout.undeclared", "shard %s has no layout", name)
}

func (l *ledger) DeclaredLayouts(context.Context) ([]metadata.Declared, error) { return l.rows, nil }

func (l *ledger) SeeHealth(_ context.Context, x metadata.Sighting) (metadata.ShardHealth, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[x.Shard] = x
	h := metadata.ShardHealth{Shard: x.Shard, Cost: x.Cost}
	if x.Unhealthy {
		since := time.Now()
		h.UnhealthySince = &since
	}
	return h, nil
}

func (l *ledger) Silent(context.Context, time.Duration) ([]string, error) { return l.silent, nil }

func (l *ledger) TakeLease(_ context.Context, r metadata.LeaseRequest) (metadata.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != 0 {
		l.refuse--
		return metadata.Lease{}, failure.New(failure.Transient, "lease.held_shared", "attempt/7 holds it")
	}
	l.epoch++
	return metadata.Lease{Shard: r.Shard, Holder: r.Holder, Mode: r.Mode, Epoch: l.epoch}, nil
}

func (l *ledger) RenewLease(_ context.Context, x metadata.Lease, _ time.Duration) (metadata.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed++
	if l.lost {
		return x, failure.New(failure.Lost, "lease.lost", "it is over")
	}
	return x, nil
}

func (l *ledger) ReleaseLease(context.Context, metadata.Lease) error { return nil }

func (l *ledger) StopWaiting(context.Context, string, string) error {
	l.waiting++
	return nil
}

func (l *ledger) Migrations(context.Context, metadata.MigrationFilter) ([]metadata.Migration, error) {
	return l.moves, nil
}

func (l *ledger) RecordRemediation(_ context.Context, r metadata.Remediation) error {
	l.runs = append(l.runs, r)
	return nil
}

func (l *ledger) Remediations(context.Context, time.Duration) ([]metadata.Remediation, error) {
	return l.runs, nil
}

func (l *ledger) RemediationStop(context.Context) (*metadata.Stop, error) { return l.stop, nil }

// hook makes nodes of the simulator anew.
type hook struct {
	sim   *shardsim.Set
	mu    sync.Mutex
	calls []string
}

func (h *hook) note(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call)
}

func (h *hook) Rebuild(_ context.Context, n replset.Node) error {
	h.note("rebuild " + n.Host)
	return h.sim.Wipe(n.Host, n.OplogMB)
}

func (h *hook) Provision(_ context.Context, n replset.Node) error {
	h.note("provision " + n.Host)
	return h.sim.Wipe(n.Host, n.OplogMB)
}

func (h *hook) Release(_ context.Context, n replset.Node) error {
	h.note("release " + n.Host)
	return nil
}

// clinic is a simulated set of three and what remediates it.
func clinic(t *testing.T) (*Remedier, *ledger, *shardsim.Set, *hook) {
	t.Helper()

	const secret = "the fleet's secret"
	layout := remediation.Layout{Name: "three"}
	o := shardsim.Options{Auto: true}
	for i, zone := range []string{"a", "b", "c"} {
		priority := []float64{2, 1, 1}[i]
		layout.Slots = append(layout.Slots, remediation.Slot{Zone: zone, Votes: 1, Priority: priority})
		o.Members = append(o.Members, shardsim.Member{Votes: 1, Priority: priority, OplogMB: 2000})
	}
	sim, err := shardsim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close()) })
	cluster := bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{
		"replSetGetStatus", "replSetGetConfig", "replSetConfigure", "replSetStateChange", "replSetResizeOplog",
	}}}
	oplog := bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "local"}, {Key: "collection", Value: "oplog.rs"}}}, {Key: "actions", Value: bson.A{"collStats"}}}
	sim.AddUser(chunk.RemediatorUser, shard.Password(secret, "s1", chunk.RemediatorUser), cluster, oplog)
	sim.Advance(3 * time.Minute)
	var machines []remediation.Machine
	for i, host := range sim.Hosts() {
		machines = append(machines, remediation.Machine{Host: host, Zone: layout.Slots[i].Zone})
	}
	l := &ledger{shards: map[string]chunk.Shard{"s1": {Name: "s1", URI: sim.URI(), Capabilities: chunk.Capabilities{SetName: "rs"}}}, seen: map[string]metadata.Sighting{}}
	d := metadata.Declared{Shard: "s1", Domain: "cell-1"}
	d.Layout, err = json.Marshal(layout)
	require.NoError(t, err)
	d.Machines, err = json.Marshal(machines)
	require.NoError(t, err)
	l.rows = []metadata.Declared{d}
	h := &hook{sim: sim}
	m := &Remedier{
		Ledger: l, Costs: remediation.DefaultCosts, Metrics: NewRemedyMetrics(nil), Logger: slog.New(slog.DiscardHandler),
		Open: func(s chunk.Shard, machines []remediation.Machine) (RemedyShard, error) {
			return replset.Open(s, secret, replset.Options{
				Machines: func(context.Context) ([]remediation.Machine, error) { return machines, nil },
				Nodes:    h, Answer: 500 * time.Millisecond, Confirm: 10 * time.Second,
				Pause: func(ctx context.Context, d time.Duration) error { sim.Advance(d); return ctx.Err() },
			})
		},
	}
	return m, l, sim, h
}

// call runs one activity as a worker does.
func call[In, Out any](t *testing.T, m *Remedier, a contract.Activity[In, Out], in In) (Out, error) {
	t.Helper()

	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	m.Register(env, contract.ControlQueue)
	m.Register(env, contract.BulkQueue)
	var out Out
	v, err := env.ExecuteActivity(a.Name, in)
	if err != nil {
		return out, err
	}
	require.NoError(t, v.Get(&out))
	return out, nil
}

// TestActivitiesMendASimulatedSet: leased, planned, each operation performed by
// MongoDB's own commands, read again, until nothing is left to do.
func TestActivitiesMendASimulatedSet(t *testing.T) {
	t.Parallel()

	m, l, sim, h := clinic(t)
	l.refuse = 2
	l.moves = []metadata.Migration{
		{WorkflowID: "migrate/d/1", Phase: chunk.Importing, Target: chunk.Placement{Shard: "s1"}},
		{WorkflowID: "migrate/d/2", Phase: chunk.BurnIn, Source: chunk.Placement{Shard: "s1"}},
		{WorkflowID: "migrate/d/3", Phase: chunk.Replicating, Source: chunk.Placement{Shard: "s2"}},
	}
	sim.Kill(sim.Hosts()[1])
	sim.Advance(time.Minute)
	leased, err := call(t, m, contract.LeaseShard, contract.LeaseInput{Shard: "s1", Holder: "remediate/s1", Wait: contract.Duration(time.Minute)})
	require.NoError(t, err)
	require.Equal(t, []string{"migrate/d/1"}, leased.Moves, "those that copy from or to the shard are told")
	p, err := call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
	require.NoError(t, err)
	require.Len(t, p.Steps, 5)
	require.True(t, p.Full)
	before := p.Before
	for _, s := range p.Steps {
		out, err := call(t, m, contract.PerformOperation, contract.OperationInput{Lease: leased.Lease, Before: before, Step: s})
		require.NoError(t, err)
		require.Empty(t, out.Deviates, s.Text)
		before = out.After
	}
	require.Equal(t, []string{"rebuild " + sim.Hosts()[1]}, h.calls)
	p, err = call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
	require.NoError(t, err)
	require.Empty(t, p.Steps)
	require.True(t, p.Full)
}

// TestOperationsNeedLeaseAndSwitch: neither a lost lease nor the stop switch lets
// an operation touch the shard.
func TestOperationsNeedLeaseAndSwitch(t *testing.T) {
	t.Parallel()

	m, l, sim, h := clinic(t)
	sim.Kill(sim.Hosts()[1])
	sim.Advance(time.Minute)
	p, err := call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
	require.NoError(t, err)
	in := contract.OperationInput{Lease: contract.ShardLease{Shard: "s1", Holder: "x", Epoch: 1}, Before: p.Before, Step: p.Steps[0]}
	l.lost = true
	_, err = call(t, m, contract.PerformOperation, in)
	require.ErrorContains(t, err, "lease.lost")
	l.lost, l.stop = false, &metadata.Stop{By: "ann", Reason: "incident"}
	_, err = call(t, m, contract.PerformOperation, in)
	require.ErrorContains(t, err, "by ann: incident")
	again, err := call(t, m, contract.PlanShard, contract.PlanInput{Shard: "s1"})
	require.NoError(t, err)
	require.Equal(t, "by ann: incident", again.Stopped)
	require.Equal(t, p.Before, again.Before, "nothing was touched")
	require.Empty(t, h.calls)
}

// TestLeaseThatNobodyGivesBack: the wait ends by itself, is withdrawn, and says who
// holds the shard.
func TestLeaseThatNobodyGivesBack(t *testing.T) {
	t.Parallel()

	m, l, _, _ := clinic(t)
	l.refuse = -1
	_, err := call(t, m, contract.LeaseShard, contract.LeaseInput{Shard: "s1", Holder: "x", Wait: contract.Duration(time.Millisecond)})
	require.ErrorContains(t, err, "attempt/7 holds it")
	require.Equal(t, 1, l.waiting)
	require.True(t, l.runs[0].Waiting)
}

// TestSurveySeesAndKeepsSilence: a shard that cannot be read is no candidate and is
// not called healthy.
func TestSurveySeesAndKeepsSilence(t *testing.T) {
	t.Parallel()

	m, l, sim, _ := clinic(t)
	broken := l.rows[0]
	broken.Shard = "s2"
	l.rows = append(l.rows, broken)
	l.shards["s2"] = chunk.Shard{Name: "s2", URI: sim.URI(), Capabilities: chunk.Capabilities{SetName: "other"}}
	l.silent = []string{"s2"}
	l.runs = []metadata.Remediation{{Shard: "s9", Domain: "cell-9", Cost: 5, StartedAt: time.Now()}}
	s, err := call(t, m, contract.SurveyFleet, contract.WatchInput{Rates: remediation.DefaultRates})
	require.NoError(t, err)
	require.Equal(t, 2, s.Shards)
	require.Equal(t, 1, s.Healthy)
	require.Empty(t, s.Candidates)
	require.Equal(t, []string{"s2"}, s.Silent)
	require.False(t, s.Started[0].Ended)
	require.NotContains(t, l.seen, "s2", "what was not read was not seen")

	sim.Kill(sim.Hosts()[2])
	sim.Advance(time.Minute)
	s, err = call(t, m, contract.SurveyFleet, contract.WatchInput{Rates: remediation.DefaultRates})
	require.NoError(t, err)
	require.Zero(t, s.Healthy)
	require.Equal(t, "cell-1", s.Candidates[0].Domain)
	require.Equal(t, 37, s.Candidates[0].Cost)
	require.True(t, slices.Contains([]string{"s1"}, s.Candidates[0].Shard))
}
