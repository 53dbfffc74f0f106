package workers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/types/known/durationpb"

	"drover/activities"
	"drover/chunk"
	"drover/contract"
	"drover/internal/stoppoint"
	"drover/internal/testkit"
	"drover/metadata"
	"drover/remediation"
	"drover/shard"
	"drover/shard/replset"
	"drover/shard/shardsim"
	"drover/starter"
)

// patience bounds every wait; it is no expectation.
const patience = 2 * time.Minute

// wardShard is the shard of these tests.
const wardShard = "s1"

// ward is a simulated replica set, with metadata, Temporal and a worker that are real.
type ward struct {
	sim      *shardsim.Set
	store    *metadata.Store
	temporal client.Client
	starter  *starter.Starter
	mu       sync.Mutex
	rebuilt  []string
	dieAfter int // the next operations whose answer is lost
	died     int
	between  func() // after each operation, before anybody has looked
}

// Rebuild implements [replset.Nodes].
func (w *ward) Rebuild(_ context.Context, n replset.Node) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rebuilt = append(w.rebuilt, n.Host)
	return w.sim.Wipe(n.Host, n.OplogMB)
}

// Provision implements [replset.Nodes].
func (*ward) Provision(context.Context, replset.Node) error {
	return errors.New("no spare in this test")
}

// Release implements [replset.Nodes].
func (*ward) Release(context.Context, replset.Node) error { return errors.New("no spare in this test") }

// stop loses the answers of operations, as a worker that dies would.
func (w *ward) stop(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == remediation.StopAfter && w.between != nil {
		w.between()
	}
	if name == remediation.StopAfter && w.dieAfter > 0 {
		w.dieAfter--
		w.died++
		return errors.New("the worker dies")
	}
	return nil
}

// newWard starts everything.
func newWard(t *testing.T) *ward {
	t.Helper()

	const secret = "the fleet's secret"
	w := &ward{}
	layout := remediation.Layout{Name: "three"}
	o := shardsim.Options{Auto: true}
	for i, zone := range []string{"a", "b", "c"} {
		layout.Slots = append(layout.Slots, remediation.Slot{Zone: zone, Votes: 1, Priority: []float64{2, 1, 1}[i]})
		o.Members = append(o.Members, shardsim.Member{Votes: 1, Priority: layout.Slots[i].Priority, OplogMB: 2000})
	}
	var err error
	w.sim, err = shardsim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.sim.Close()) })
	cluster := bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{
		"replSetGetStatus", "replSetGetConfig", "replSetConfigure", "replSetStateChange", "replSetResizeOplog",
	}}}
	oplog := bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: "local"}, {Key: "collection", Value: "oplog.rs"}}}, {Key: "actions", Value: bson.A{"collStats"}}}
	w.sim.AddUser(chunk.RemediatorUser, shard.Password(secret, wardShard, chunk.RemediatorUser), cluster, oplog)
	w.sim.Advance(3 * time.Minute)

	w.store, err = metadata.Open(t.Context(), testkit.Postgres(t))
	require.NoError(t, err)
	t.Cleanup(w.store.Close)
	require.NoError(t, w.store.Migrate(t.Context()))
	require.NoError(t, w.store.AddShard(t.Context(), chunk.Shard{Name: wardShard, URI: w.sim.URI(), Capabilities: chunk.Capabilities{SetName: "rs"}}))
	var machines []remediation.Machine
	for i, host := range w.sim.Hosts() {
		machines = append(machines, remediation.Machine{Host: host, Zone: layout.Slots[i].Zone})
	}
	d := metadata.Declared{Shard: wardShard, Domain: "cell-1", SetBy: "test"}
	d.Layout, err = json.Marshal(layout)
	require.NoError(t, err)
	d.Machines, err = json.Marshal(machines)
	require.NoError(t, err)
	require.NoError(t, w.store.DeclareLayout(t.Context(), d, false))
	w.serve(t, secret)
	return w
}

// serve runs a worker for remediation alone, in a namespace of the test's own.
func (w *ward) serve(t *testing.T, secret string) {
	t.Helper()

	c := wardNamespace(t, testkit.Temporal(t))
	w.temporal, w.starter = c, starter.New(c)
	m := &activities.Remedier{
		Ledger: w.store, Costs: remediation.DefaultCosts, Metrics: activities.NewRemedyMetrics(nil),
		Stops: stoppoint.New(w.stop), Logger: slog.New(slog.DiscardHandler),
		Open: func(s chunk.Shard, machines []remediation.Machine) (activities.RemedyShard, error) {
			return replset.Open(s, secret, replset.Options{
				Machines: func(context.Context) ([]remediation.Machine, error) { return machines, nil },
				Nodes:    w, Answer: 500 * time.Millisecond, Confirm: 10 * time.Second,
				Pause: func(ctx context.Context, d time.Duration) error { w.sim.Advance(d); return ctx.Err() },
			})
		},
	}
	all := queues("test", time.Second)
	for _, q := range []string{contract.ControlQueue, contract.BulkQueue} {
		x := worker.New(c, q, all[q])
		if q == contract.ControlQueue {
			RegisterWorkflows(x)
		}
		m.Register(registry{x}, q)
		require.NoError(t, x.Start())
		t.Cleanup(x.Stop)
	}
}

// wardNamespace makes a Temporal namespace of the test's own.
func wardNamespace(t *testing.T, address string) client.Client {
	t.Helper()

	name := "test-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + time.Now().Format("150405")
	c, err := client.DialContext(t.Context(), client.Options{HostPort: address, Namespace: name, Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler))})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	_, err = c.WorkflowService().RegisterNamespace(t.Context(), &workflowservice.RegisterNamespaceRequest{
		Namespace: name, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	})
	require.NoError(t, err)
	attributes := map[string]enumspb.IndexedValueType{
		"ShardName": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "NeedsAttention": enumspb.INDEXED_VALUE_TYPE_BOOL,
		"ChunkID": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "SourceShard": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		"TargetShard": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "MigrationStep": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		"StepStartedAt": enumspb.INDEXED_VALUE_TYPE_DATETIME,
	}
	require.Eventually(t, func() bool { // a new namespace takes a moment to be seen everywhere
		_, err = c.OperatorService().AddSearchAttributes(t.Context(), &operatorservice.AddSearchAttributesRequest{Namespace: name, SearchAttributes: attributes})
		return err == nil || strings.Contains(err.Error(), "already exist")
	}, patience, 100*time.Millisecond)
	require.Eventually(t, func() bool {
		l, err := c.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: name})
		return err == nil && len(l.GetCustomAttributes()) >= len(attributes)
	}, patience, 100*time.Millisecond)
	return c
}

// full wants the shard to be as its layout has it.
func (w *ward) full(t *testing.T) {
	t.Helper()

	var run starter.Run
	require.Eventually(t, func() bool { // a new namespace's search attributes take a moment
		var err error
		run, err = w.starter.Remediate(t.Context(), contract.RemediateInput{Shard: wardShard})
		return err == nil
	}, patience, 100*time.Millisecond)
	r, err := w.starter.RemediationResult(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, remediation.Finished, r.Verdict, "%+v", r)
}

// waiting reports whether somebody waits for the shard's exclusive lease.
func (w *ward) waiting() bool {
	all, err := w.store.Leases(context.Background())
	if err != nil {
		return false
	}
	for _, l := range all {
		if l.Waiting {
			return true
		}
	}
	return false
}

// TestRemediationOnTemporal: a broken set of three is mended by the real workflow:
// it waits for the switch that holds the lease, loses the answers of two
// operations, and ends healthy; then the watch finds the next fault by itself.
func TestRemediationOnTemporal(t *testing.T) {
	w := newWard(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.full(t)

	broken := w.sim.Hosts()[1]
	w.sim.Kill(broken)
	w.sim.Advance(time.Minute)
	held, err := w.store.AcquireLease(ctx, wardShard, "attempt/7", metadata.SharedLease, patience)
	require.NoError(t, err)
	w.mu.Lock()
	w.dieAfter = 2
	w.mu.Unlock()
	run, err := w.starter.Remediate(ctx, contract.RemediateInput{Shard: wardShard, Execute: true, RequestedBy: "test"})
	require.NoError(t, err)
	require.Eventually(t, w.waiting, patience, 50*time.Millisecond, "the remediation waits for the switch")
	_, err = w.store.AcquireLease(ctx, wardShard, "attempt/8", metadata.SharedLease, patience)
	require.Error(t, err, "no new switch begins meanwhile")
	_, err = w.starter.Remediate(ctx, contract.RemediateInput{Shard: wardShard, Execute: true})
	require.ErrorContains(t, err, "remediation.running")
	require.NoError(t, w.store.ReleaseLease(ctx, held))

	r, err := w.starter.RemediationResult(ctx, run)
	require.NoError(t, err)
	require.Equal(t, remediation.Finished, r.Verdict, "%+v", r)
	w.mu.Lock()
	require.Equal(t, 2, w.died)
	require.Equal(t, []string{broken}, w.rebuilt, "once, although answers were lost")
	w.mu.Unlock()
	leases, err := w.store.Leases(ctx)
	require.NoError(t, err)
	require.Empty(t, leases)
	runs, err := w.store.Remediations(ctx, time.Hour)
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.Equal(t, string(remediation.Finished), runs[0].Verdict)
	w.full(t)

	next := w.sim.Hosts()[2]
	w.sim.Kill(next)
	w.sim.Advance(time.Minute)
	rates := remediation.DefaultRates
	rates.Settle = 0
	require.NoError(t, w.starter.Watch(ctx, time.Hour, contract.WatchInput{Execute: true, Rates: rates}))
	require.Eventually(t, func() bool {
		runs, err := w.store.Remediations(ctx, time.Hour)
		return err == nil && len(runs) == 2 && runs[0].EndedAt != nil
	}, patience, 100*time.Millisecond)
	last, err := w.starter.LastWatch(ctx)
	require.NoError(t, err)
	require.NotNil(t, last)
	require.Equal(t, []string{wardShard}, last.Admitted)
	require.NoError(t, w.starter.Unwatch(ctx))
	w.full(t)
}
