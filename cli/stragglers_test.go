package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

func TestStragglersAreShownInFullAndAcknowledged(t *testing.T) {
	t.Parallel()

	store, dsn := metadatatest.OpenDSN(t)
	require.NoError(t, store.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://a"}))
	db := chunk.Database{Name: "flights", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}}}
	routes, err := store.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: "a"}})
	require.NoError(t, err)
	event, err := bson.Marshal(bson.D{{Key: "operationType", Value: "insert"}, {Key: "fullDocument", Value: bson.D{{Key: "_id", Value: 7}}}})
	require.NoError(t, err)
	require.NoError(t, store.AddStraggler(t.Context(), metadata.Straggler{Shard: "a", Placement: routes[0].Placement.ID, Seq: 5, Kind: "write", Event: event}))
	run := func(args ...string) (status int, shown []stragglerJSON, stderr string) {
		var out, errs bytes.Buffer
		args = append([]string{"migrate", "stragglers"}, append(args, "--postgres-dsn", dsn, "--secret", "s3cret-of-the-tests-16", "--output", "json")...)
		status = Main(t.Context(), Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, LookupEnv: func(name string) (string, bool) {
			return "ann", name == "USER"
		}})
		_ = json.Unmarshal(out.Bytes(), &shown)
		return status, shown, errs.String()
	}

	chunkID := string(routes[0].Chunk.ID)
	status, shown, stderr := run(chunkID)
	require.Equal(t, exitWaits, status, stderr)
	require.Len(t, shown, 1)
	require.JSONEq(t, `{"operationType": "insert", "fullDocument": {"_id": 7}}`, string(shown[0].Event))
	status, _, _ = run(chunkID, "--acknowledge", "")
	require.Equal(t, exitMisused, status)
	status, _, stderr = run(chunkID, "--acknowledge", "replayed")
	require.Zero(t, status, stderr)
	status, shown, _ = run(chunkID)
	require.Zero(t, status)
	require.Empty(t, shown)
	_, shown, _ = run(chunkID, "--all")
	require.Len(t, shown, 1, "it is kept for ever")
	require.Equal(t, "operator/ann: replayed", shown[0].HandledBy+": "+shown[0].Note)
	status, _, stderr = run("flights/9999")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "flights/9999")
}
