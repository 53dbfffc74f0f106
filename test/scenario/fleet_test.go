// Package scenario moves chunks on real servers under live traffic, kills what
// can die, and checks the invariants at the end.
package scenario_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
	"drover/internal/testkit"
	"drover/metadata"
	"drover/shard"
	"drover/starter"
	"drover/workers"
)

// patience bounds every wait; it is no expectation.
const patience = 4 * time.Minute

// binary is built once for all tests of the package.
var binary string //nolint:gochecknoglobals // TestMain sets it

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "drover-scenario")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "drover")
	if err := buildDrover(binary, "new"); err != nil {
		panic(err)
	}
	return m.Run()
}

// buildDrover makes a binary that says it is of a version.
func buildDrover(path, version string) error {
	build := exec.Command("go", "build", "-ldflags", "-X drover/cli.Version="+version, "-o", path, "drover/cmd/drover") //nolint:gosec,noctx // our own words
	build.Stderr = os.Stderr
	return build.Run()
}

// fleet is three shards of a test's own, with workers and proxies as processes.
type fleet struct {
	t        *testing.T
	began    time.Time
	env      []string
	binary   string // of what is started next
	store    *metadata.Store
	secret   string
	starter  *starter.Starter
	temporal client.Client
	shards   map[string]*testkit.ShardServer
	names    []string
	proxies  []string
	parts    map[string]*process // by name
	started  []*process
	uri      string // options of the application's connection string
	work     *workload.Workload
	hot      chunk.Route
}

// newFleet starts everything but the workers.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, binary: binary}
	f.found(func() {})
	return f
}

// found makes the fleet; first runs while the metadata is still empty.
func (f *fleet) found(first func()) {
	t := f.t
	t.Helper()
	f.began = time.Now()
	bucket := testkit.S3(t)
	f.secret, f.shards, f.parts = "scenario", map[string]*testkit.ShardServer{}, map[string]*process{}
	dsn := testkit.Postgres(t)
	id := strconv.FormatInt(time.Now().UnixNano(), 36)
	namespace := "scenario-" + id
	address := testkit.Temporal(t)
	f.env = append(append(f.env, os.Environ()...),
		"DROVER_STACK=none", "DROVER_POSTGRES_DSN="+dsn, "DROVER_KAFKA_BROKERS="+strings.Join(testkit.Kafka(t), ","),
		"DROVER_S3_ENDPOINT="+bucket.Endpoint, "DROVER_S3_REGION="+bucket.Region, "DROVER_S3_BUCKET="+bucket.Bucket,
		"DROVER_S3_ACCESS_KEY="+bucket.AccessKey, "DROVER_S3_SECRET_KEY="+bucket.SecretKey,
		"DROVER_TEMPORAL_ADDRESS="+address, "DROVER_TEMPORAL_NAMESPACE="+namespace, "DROVER_SECRET="+f.secret,
		"DROVER_AUTH=false",
		"DROVER_FENCE_DEADLINE=3s", "DROVER_SWITCH_WAIT=5s", "DROVER_GATE_LAG=1s", "DROVER_GATE_LATENCY=1m", "DROVER_GATE_ELECTION_QUIET=0s",
		"DROVER_IMPORT_LATENCY=0") // the machine may be busy: no test is about speed
	ctx := t.Context()
	var err error
	f.store, err = metadata.Open(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(f.store.Close)
	f.temporal = testkit.Namespace(t, address, namespace)
	f.starter = starter.New(f.temporal)
	shards := testkit.Shards(t, 3)
	t.Cleanup(f.stop)
	first()
	require.NoError(t, f.store.Migrate(ctx))
	f.register(id, shards)
	for i := range 2 {
		f.startProxy(fmt.Sprintf("proxy-%d", i+1))
	}
	f.reached("the fleet serves")
}

// register makes the servers shards of the fleet, which are captured.
func (f *fleet) register(id string, servers []*testkit.ShardServer) {
	t, ctx := f.t, f.t.Context()
	t.Helper()
	made := make([]chunk.Shard, len(servers))
	var all errgroup.Group
	for i, s := range servers {
		name := string(rune('a'+i)) + "-" + id
		f.names, f.shards[name] = append(f.names, name), s
		all.Go(func() (err error) {
			made[i], err = shard.Bootstrap(ctx, s.AdminURI(), name, f.secret, shard.BootstrapOptions{AllowOtherWriters: true})
			return err
		})
	}
	require.NoError(t, all.Wait())
	for _, s := range made {
		require.NoError(t, f.store.AddShard(ctx, s))
		require.NoError(t, f.starter.EnsureCapture(ctx, s.Name))
	}
}

// index makes an index specification.
func index(t *testing.T, name string, unique bool, fields ...string) bson.Raw {
	t.Helper()
	key := bson.D{}
	for _, f := range fields {
		key = append(key, bson.E{Key: f, Value: int32(1)})
	}
	raw, err := bson.Marshal(bson.D{{Key: "key", Value: key}, {Key: "name", Value: name}, {Key: "unique", Value: unique}})
	require.NoError(t, err)
	return raw
}

// origins are the shard-key values of the application.
func origins() []string {
	var out []string
	for i := range 40 {
		out = append(out, fmt.Sprintf("O%02d", i))
	}
	return out
}

// record keeps the histories of the test's workflows, see [testkit.Record].
func (f *fleet) record(moved chunk.ID) {
	testkit.Record(f.t, f.temporal, "move", starter.MigrateID(moved))
	testkit.Record(f.t, f.temporal, "capture", starter.CaptureID(f.names[0]))
}

// startWork creates the database and lets the application run.
func (f *fleet) startWork(guarded bool) {
	f.t.Helper()
	ctx := f.t.Context()
	db := chunk.Database{Name: "app", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{
		Name: workload.Collection, ShardKey: "origin",
		Indexes: []bson.Raw{index(f.t, "origin_ref", true, "origin", "ref"), index(f.t, "v", false, "v")},
	}}}
	var parts []metadata.NewChunk
	for i, r := range chunk.Hashed.Split(4) {
		parts = append(parts, metadata.NewChunk{Range: r, Shard: f.names[i%2]})
	}
	routes, err := workers.CreateDatabase(ctx, f.store, f.secret, db, parts)
	require.NoError(f.t, err)
	f.hot = routes[0]
	moved := f.hot.Chunk.ID // a split or merge ends the chunk that it is named after
	f.t.Cleanup(func() { f.record(moved) })
	var hot, cold []string
	for _, o := range origins() {
		raw, err := bson.Marshal(bson.D{{Key: "origin", Value: o}})
		require.NoError(f.t, err)
		p, err := chunk.Hashed.DocumentPoint(raw, "origin")
		require.NoError(f.t, err)
		if f.hot.Chunk.Range.Contains(p) {
			hot = append(hot, o)
		} else {
			cold = append(cold, o)
		}
	}
	require.NotEmpty(f.t, hot)
	f.work, err = workload.Start(ctx, workload.Config{
		URI: "mongodb://" + strings.Join(f.proxies, ",") + "/" + f.uri, Database: "app", Clients: 12, Rate: 150,
		Origins: cold, HotOrigins: hot, HotShare: 0.6, Documents: 60, Guarded: guarded, Seed: 7,
	})
	require.NoError(f.t, err)
	f.reached("the application works")
	f.t.Cleanup(func() {
		f.work.Stop()
		_ = f.work.Close(context.Background())
	})
}

// target is the shard that nothing lives on at first.
func (f *fleet) target() string { return f.names[2] }

// migrate starts the move of the application's busiest chunk.
func (f *fleet) migrate(approval string, more ...func(*contract.MigrateInput)) {
	f.t.Helper()
	in := contract.MigrateInput{
		Chunk: f.hot.Chunk.ID, To: f.target(), Approval: approval, Complete: contract.Manual, RequestedBy: f.t.Name(),
	}
	for _, change := range more {
		change(&in)
	}
	_, err := f.starter.Migrate(f.t.Context(), in)
	require.NoError(f.t, err)
}

// startAgain ends the move's workflow from outside, as nobody should, and starts it
// again: it goes on where it stood.
func (f *fleet) startAgain(approval string) {
	f.t.Helper()
	require.NoError(f.t, f.temporal.TerminateWorkflow(f.t.Context(), starter.MigrateID(f.hot.Chunk.ID), "", f.t.Name()))
	f.migrate(approval)
}

// await waits until the move is in a state.
func (f *fleet) await(what string, is func(contract.Status) bool) contract.Status {
	f.t.Helper()
	var st contract.Status
	ok := eventually(f.t, func() bool {
		var err error
		ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
		defer cancel()
		st, err = f.starter.Status(ctx, f.hot.Chunk.ID)
		return err == nil && is(st)
	})
	f.reached(what)
	require.True(f.t, ok, "the move does not come to %s: it is at %q, waiting for %q, attention %q", what, st.Step, st.WaitingFor, st.Attention)
	return st
}

func (f *fleet) ask(update string) {
	f.t.Helper()
	_, err := f.starter.Ask(f.t.Context(), f.hot.Chunk.ID, update, contract.UpdateInput{By: f.t.Name()})
	require.NoError(f.t, err)
}

func inBurnIn(st contract.Status) bool {
	return st.Phase == chunk.BurnIn && st.Serving.ID == st.Target.ID && strings.Contains(st.WaitingFor, "complete")
}

// waitsForApproval is in sync, validated, and held before the switch.
func waitsForApproval(st contract.Status) bool { return strings.Contains(st.WaitingFor, "approve") }

// complete ends the move and waits for it.
func (f *fleet) complete() contract.MigrateResult {
	f.t.Helper()
	f.ask(contract.CompleteUpdate)
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	r, err := f.starter.Result(ctx, f.hot.Chunk.ID)
	require.NoError(f.t, err)
	require.Equal(f.t, chunk.Done, r.Phase)
	return r
}

// check stops the application and compares every document with its memory.
// errorsAllowed is for tests in which a server is down for a while.
func (f *fleet) check(errorsAllowed bool) {
	f.t.Helper()
	f.work.Stop()
	v, err := f.work.Check(f.t.Context())
	require.NoError(f.t, err)
	n, first := f.work.Errors()
	f.t.Logf("%d operations acknowledged, %d errors, %d documents compared", f.work.Acknowledged(), n, v.Documents)
	require.Zero(f.t, v.Lost, "%v", v.Examples)
	require.Zero(f.t, v.Duplicated, "%v", v.Examples)
	require.Zero(f.t, v.StaleReads)
	require.Positive(f.t, v.Documents)
	if !errorsAllowed {
		require.Zero(f.t, n, first)
	}
	stragglers, err := f.store.Stragglers(f.t.Context())
	require.NoError(f.t, err)
	require.Empty(f.t, stragglers)
	f.checkOneOwner()
	f.reached("the end")
}

// reached notes how long it took to come somewhere: where the time goes is seen in the
// output of any run.
func (f *fleet) reached(what string) {
	f.t.Helper()
	f.t.Logf("%.1f s: %s", time.Since(f.began).Seconds(), what)
}

// checkOneOwner sees that exactly the published placement has a write grant.
func (f *fleet) checkOneOwner() {
	f.t.Helper()
	ctx := f.t.Context()
	r, err := f.store.Route(ctx, f.hot.Chunk.ID)
	require.NoError(f.t, err)
	clients := shard.NewClients(f.secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	placements, err := f.store.Placements(ctx, "")
	require.NoError(f.t, err)
	for _, p := range placements {
		if p.Chunk != f.hot.Chunk.ID {
			continue
		}
		sh, err := f.store.Shard(ctx, p.Shard)
		require.NoError(f.t, err)
		set, err := clients.Set(sh)
		require.NoError(f.t, err)
		held, err := set.HeldGrants(ctx, p.ID)
		require.NoError(f.t, err)
		writes := 0
		for _, g := range held {
			if g.Kind == shard.Writes {
				writes++
			}
		}
		require.Equal(f.t, p.ID == r.Placement.ID, writes > 0, "placement %d on %s has %d write grants, published is %d", p.ID, p.Shard, writes, r.Placement.ID)
	}
}
