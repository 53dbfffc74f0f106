package scenario_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
	"drover/internal/failure"
	"drover/metadata"
)

// drover runs one command and gives its status and what it printed.
func (f *fleet) drover(args ...string) (status int, stdout, stderr string) {
	f.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(f.t.Context(), binary, args...) //nolint:gosec // our own binary
	cmd.Env, cmd.Stdout, cmd.Stderr = f.env, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out.String(), errs.String()
	}
	require.NoError(f.t, err)
	return 0, out.String(), errs.String()
}

// on counts the placements on a shard, in whatever state.
func (f *fleet) on(shard string) int {
	f.t.Helper()
	all, err := f.store.Placements(f.t.Context(), shard)
	require.NoError(f.t, err)
	return len(all)
}

// TestLiveFleetUnderControl applies a fleet file that pins a chunk elsewhere, asks
// where a key belongs, refuses what would lose something or fights, and empties a
// shard: by the commands that an operator types, under live traffic.
func TestLiveFleetUnderControl(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.startWorker("worker")
	f.settingsAndBack()
	f.startWork(false)
	a, b, c := f.names[0], f.names[1], f.names[2]
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	content := fmt.Sprintf(`shards: [{name: %s}, {name: %s}, {name: %s}]
databases:
  - name: app
    quota: {opsPerSecond: 100000}
    collections: [{name: %s, shardKey: origin}]
placement:
  pins: [{chunk: %s, shard: %s}]
`, a, b, c, f.collection(), f.hot.Chunk.ID, c)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))

	status, out, errs := f.drover("diff", "-f", file)
	require.Equal(t, 3, status, errs)
	require.Contains(t, out, "quota.set")
	require.Contains(t, out, "pin of "+string(f.hot.Chunk.ID)+" (line 7) wants it on shard "+c)
	require.Zero(t, f.on(c), "a diff changes nothing")

	f.appliesAndFights(file, c)
	status, out, _ = f.drover("diff", "-f", file)
	require.Zero(t, status, out)
	status, out, errs = f.drover("placement", "explain", `"`+f.hotOrigin()+`"`, "--db", "app")
	require.Zero(t, status, errs)
	require.Contains(t, out, "pin of "+string(f.hot.Chunk.ID))
	require.Contains(t, out, "in place    yes")

	f.reconciles()
	f.upgradesAndBack(a, c)

	rules, _, _ := strings.Cut(content, "placement:")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(rules, "name: app", "name: other", 1)), 0o600))
	status, _, errs = f.drover("apply", "-f", file, "--yes")
	require.Equal(t, 1, status)
	require.Contains(t, errs, "database app is not in the file: its 4 chunks would be orphaned")

	status, out, errs = f.drover("shard", "drain", a)
	require.Equal(t, 3, status, errs)
	require.Contains(t, out, a+" is drained")
	status, out, errs = f.drover("shard", "drain", a, "--yes", "--burn-in", "1s", "-o", "json")
	require.Zero(t, status, errs+out)
	var plan struct {
		Moves []contract.PlannedMove `json:"moves"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &plan))
	require.Len(t, plan.Moves, 1)
	require.Positive(t, plan.Moves[0].Bytes)
	f.ends("rebalance/drain/" + a)
	require.Zero(t, f.on(a), "it is empty")
	f.check(false)
	f.removes(a)
}

// appliesAndFights lets a file move a chunk to a shard, refuses meanwhile to empty that
// shard, and ends the move.
func (f *fleet) appliesAndFights(file, to string) {
	f.t.Helper()
	status, out, errs := f.drover("apply", "-f", file, "--yes", "--burn-in", "1h") // nothing ends before it is told to
	require.Zero(f.t, status, errs+out)
	require.Contains(f.t, out, "started as rebalance/reconcile")
	status, _, errs = f.drover("shard", "drain", to, "--yes")
	require.Equal(f.t, 1, status)
	require.Contains(f.t, errs, "rebalance/reconcile moves chunks to it", "the intent that it fights is named")
	f.await("burn-in", inBurnIn)
	f.ask(contract.CompleteUpdate)
	f.ends("rebalance/reconcile")
}

// settingsAndBack lets one proxy try settings, then both, and rolls back: two processes,
// as nobody uses them yet.
func (f *fleet) settingsAndBack() {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "settings.yaml")
	require.NoError(f.t, os.WriteFile(file, []byte("proxy:\n  slow-request: 2s\n"), 0o600))
	run := func(version int64) func() bool {
		return func() bool {
			live, err := f.store.LiveProxies(f.t.Context())
			return err == nil && len(live) == 2 && live[0].Settings == version && live[1].Settings == version
		}
	}
	require.True(f.t, eventually(f.t, run(0)), "the proxies do not live")
	status, out, errs := f.drover("config", "diff", "-f", file)
	require.Equal(f.t, 3, status, errs)
	require.Contains(f.t, out, "proxy.slow-request")
	require.True(f.t, eventually(f.t, func() bool { // on a slow machine a proxy may seem to be gone
		status, out, errs = f.drover("config", "apply", "-f", file, "--on", "proxy-2", "--watch", "1s", "--yes")
		return status == 0
	}), "%s%s", out, errs)
	all, err := f.store.AllSettings(f.t.Context(), 1)
	require.NoError(f.t, err)
	require.Equal(f.t, "proxy-2", all[0].Canary)
	require.Contains(f.t, all[0].Outcome, "proxy-2 is as healthy as before")
	require.True(f.t, eventually(f.t, run(all[0].Version)), "it is not on both")
	status, _, errs = f.drover("config", "rollback", "--reason", "drill")
	require.Zero(f.t, status, errs)
	require.True(f.t, eventually(f.t, run(all[0].Version+1)), "it did not go back on both")
}

// reconciles sees that a quota that somebody has taken away comes back by a schedule.
func (f *fleet) reconciles() {
	f.t.Helper()
	ctx := f.t.Context()
	quota := func() string {
		all, err := f.store.Policies(ctx)
		require.NoError(f.t, err)
		return string(all["app"])
	}
	was := quota()
	require.NotEmpty(f.t, was)
	require.NoError(f.t, f.store.SetPolicy(ctx, "app", []byte(`{}`)))
	status, _, errs := f.drover("fleet", "reconcile", "start", "--execute")
	require.Zero(f.t, status, errs)
	require.True(f.t, eventually(f.t, func() bool { return quota() == was }), "the quota does not come back")
	var out string
	require.True(f.t, eventually(f.t, func() bool {
		_, out, _ = f.drover("fleet", "reconcile", "status")
		return strings.Contains(out, "made quota.set")
	}), "%s", out)
	require.Contains(f.t, out, "nothing has to move")
	status, _, errs = f.drover("fleet", "reconcile", "stop")
	require.Zero(f.t, status, errs)
}

// upgradesAndBack moves what is on a shard to one that is said to be newer, goes back,
// and removes the copies.
func (f *fleet) upgradesAndBack(from, to string) {
	f.t.Helper()
	ctx := f.t.Context()
	sh, err := f.store.Shard(ctx, from)
	require.NoError(f.t, err)
	status, _, errs := f.drover("shard", "upgrade", from, "--to", to)
	require.Equal(f.t, 1, status)
	require.Contains(f.t, errs, "upgrade.not_newer")
	old := sh.Capabilities
	old.Version = "6.0.4"
	require.NoError(f.t, f.store.SetCapabilities(ctx, from, old))
	status, out, errs := f.drover("fleet", "upgrade", "--to", "8.0")
	require.Zero(f.t, status, errs)
	require.Contains(f.t, out, "no empty shard outside of all zones runs 8.0 or newer", "the target holds a chunk")
	status, out, errs = f.drover("shard", "upgrade", from, "--to", to, "--yes")
	require.Zero(f.t, status, errs+out)
	id := "rebalance/upgrade/" + from
	served := func(on string) bool {
		routes, err := f.store.Routes(ctx, "app")
		n := 0
		for _, r := range routes {
			if r.Placement.Shard == on {
				n++
			}
		}
		return err == nil && n == 2 && on == to || n == 1 && on == from
	}
	require.True(f.t, eventually(f.t, func() bool { return served(to) }), "the upgrade does not switch")
	back := func() bool {
		status, _, _ := f.drover("rebalance", "rollback", id, "--reason", "drill", "--yes")
		return status == 0
	}
	require.True(f.t, eventually(f.t, func() bool { return back() && served(from) }), "it does not go back")
	require.True(f.t, eventually(f.t, func() bool {
		back() // what went back is given up
		all, err := f.store.Intents(ctx, 10)
		return err == nil && slices.ContainsFunc(all, func(i metadata.Intent) bool { return i.WorkflowID == id && i.EndedAt != nil })
	}), "its copies are not removed")
	require.NoError(f.t, f.store.SetCapabilities(ctx, from, sh.Capabilities))
	require.Equal(f.t, 1, f.on(from))
	require.Equal(f.t, 1, f.on(to))
}

// removes takes an empty shard out of the fleet.
func (f *fleet) removes(name string) {
	f.t.Helper()
	status, out, _ := f.drover("shard", "remove", f.names[1])
	require.Equal(f.t, 1, status)
	require.Contains(f.t, out, "chunk app/", "what uses it is named")
	status, out, errs := f.drover("shard", "remove", name)
	require.Equal(f.t, 3, status, errs)
	require.Contains(f.t, out, "topic drover.log."+name)
	status, out, errs = f.drover("shard", "remove", name, "--yes", "--uri", f.shards[name].AdminURI())
	require.Zero(f.t, status, errs+out)
	_, err := f.store.Shard(f.t.Context(), name)
	require.True(f.t, failure.HasCode(err, "shard.unknown"), "%v", err)
	databases, err := f.connect(f.shards[name].AdminURI()).ListDatabaseNames(f.t.Context(), bson.D{})
	require.NoError(f.t, err)
	require.NotContains(f.t, databases, chunk.SystemDatabase)
	status, _, errs = f.drover("shard", "remove", name, "--yes", "--gone")
	require.Equal(f.t, 1, status)
	require.Contains(f.t, errs, "shard.unknown")
}

// ends waits until an intent has ended with all of its moves done.
func (f *fleet) ends(id string) {
	f.t.Helper()
	var outcome contract.RebalanceResult
	require.True(f.t, eventually(f.t, func() bool {
		all, err := f.store.Intents(f.t.Context(), 10)
		for _, i := range all {
			if i.WorkflowID == id && i.EndedAt != nil {
				return err == nil && json.Unmarshal(i.Outcome, &outcome) == nil
			}
		}
		return false
	}), "%s does not end", id)
	require.Zero(f.t, outcome.Failed, "%+v", outcome)
	require.Positive(f.t, outcome.Done)
}

// collection is the application's.
func (f *fleet) collection() string { return workload.Collection }

// hotOrigin is a value of the shard key that lives in the busiest chunk.
func (f *fleet) hotOrigin() string {
	f.t.Helper()
	for _, o := range origins() {
		raw, err := bson.Marshal(bson.D{{Key: "origin", Value: o}})
		require.NoError(f.t, err)
		p, err := chunk.Hashed.DocumentPoint(raw, "origin")
		require.NoError(f.t, err)
		if f.hot.Chunk.Range.Contains(p) {
			return o
		}
	}
	f.t.Fatal("no value lives there")
	return ""
}
