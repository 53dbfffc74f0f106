package scenario_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/contract"
	"drover/demo/workload"
)

// cli runs a command of the binary and gives its output and exit status.
func (f *fleet) cli(args ...string) (string, int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...) //nolint:gosec // our own binary
	cmd.Env, cmd.Stdout, cmd.Stderr = f.env, &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(f.t, err, out.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// TestVerificationStopsAMoveThatDiffers writes to the target behind everybody's
// back after the validation. The move must not go on until it is mended; then the
// stream of the database's changes holds each document's once, across the move.
func TestVerificationStopsAMoveThatDiffers(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.startWorker("worker", "--audit-proxy", "mongodb://"+strings.Join(f.proxies, ",")+"/")
	for _, name := range f.names { // what is written before the capture begins is in no stream
		require.True(t, eventually(t, func() bool {
			p, ok, err := f.store.Capture(t.Context(), name)
			return err == nil && ok && p.Seq > 0
		}), "%s is not captured", name)
	}
	began := time.Now()
	f.startWork(false)
	f.migrate(contract.Manual)
	st := f.await("the approval", waitsForApproval)
	out, code := f.cli("validate", string(f.hot.Chunk.ID), "--audit")
	require.Zero(t, code, out)

	out, code = f.cli("migrate", "mirror", string(f.hot.Chunk.ID), "--percent", "100", "--require", "20")
	require.Zero(t, code, out)
	require.True(t, eventually(t, func() bool {
		out, code = f.cli("migrate", "mirror", string(f.hot.Chunk.ID))
		return code == 0
	}), "both sides do not answer reads of the application alike: %s", out)

	client, err := mongo.Connect(options.Client().ApplyURI(f.shards[f.target()].AdminURI()))
	require.NoError(t, err)
	defer func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }()
	c := client.Database(st.Target.Database).Collection(workload.Collection)
	_, err = c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "stranger"}, {Key: "origin", Value: "X"}, {Key: "ref", Value: "stranger"}})
	require.NoError(t, err)
	f.await("the mismatch", func(st contract.Status) bool { return strings.Contains(st.Attention, "differ") })
	out, code = f.cli("migrate", "mismatches", string(f.hot.Chunk.ID))
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "stranger")
	require.Contains(t, out, "extra document")
	_, err = c.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "stranger"}})
	require.NoError(t, err)
	f.ask(contract.ResumeUpdate)
	f.await("the approval again", waitsForApproval)
	f.ask(contract.ApproveUpdate)
	st = f.await("burn-in", inBurnIn)
	require.Positive(t, st.Audit.Canaries, "documents are read through a proxy before the switch")
	out, code = f.cli("validate", string(f.hot.Chunk.ID)) // the other way round
	require.Zero(t, code, out)
	f.complete()
	f.check(false)
	f.checkStream(began)
}

// linesWith are the lines of a stream that tell of one document, and its last.
func linesWith(out, id string) string {
	var b strings.Builder
	last := ""
	for line := range strings.Lines(out) {
		if strings.Contains(line, id) {
			b.WriteString(line)
		}
		last = line
	}
	return b.String() + "the last: " + last
}

// checkStream compares what drover log follow tells of the database's beginning
// and end with the documents that there are.
func (f *fleet) checkStream(began time.Time) {
	f.t.Helper()
	out, code := f.cli("log", "follow", "app", "--from", began.UTC().Format(time.RFC3339Nano), "--until", "0s")
	require.Zero(f.t, code, out)
	alive, shards := map[string]int{}, map[string]bool{}
	for line := range strings.Lines(out) {
		var c struct {
			Chunk, Shard, Op string
			ID               json.RawMessage
		}
		require.NoError(f.t, json.Unmarshal([]byte(line), &c), line)
		switch c.Op {
		case "insert":
			alive[string(c.ID)]++
		case "delete":
			alive[string(c.ID)]--
		}
		if c.Chunk == string(f.hot.Chunk.ID) {
			shards[c.Shard] = true
		}
	}
	require.Len(f.t, shards, 2, "the chunk was served by two shards")
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + f.proxies[0] + "/"))
	require.NoError(f.t, err)
	defer func() { _ = client.Disconnect(context.WithoutCancel(f.t.Context())) }()
	cursor, err := client.Database("app").Collection(workload.Collection).Find(f.t.Context(), bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	require.NoError(f.t, err)
	var docs []bson.Raw
	require.NoError(f.t, cursor.All(f.t.Context(), &docs))
	for _, d := range docs {
		text, err := bson.MarshalExtJSON(bson.D{{Key: "_id", Value: d.Lookup("_id")}}, true, false)
		require.NoError(f.t, err)
		require.Equal(f.t, 1, alive[string(text)], "%s in a stream of %d bytes:\n%s", text, len(out), linesWith(out, string(text)))
		delete(alive, string(text))
	}
	for id, n := range alive {
		require.Zero(f.t, n, id)
	}
}
