package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

func TestQuarantineIsShownInFullAndReleased(t *testing.T) {
	t.Parallel()

	store, dsn := metadatatest.OpenDSN(t)
	ctx := t.Context()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, store.AddShard(ctx, chunk.Shard{Name: name, URI: "mongodb://" + name}))
	}
	db := chunk.Database{Name: "flights", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}}}
	routes, err := store.CreateDatabase(ctx, db, []metadata.NewChunk{{Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: "a"}})
	require.NoError(t, err)
	require.NoError(t, store.Activate(ctx, "flights"))
	id := routes[0].Chunk.ID
	run := func(args ...string) (status int, shown []quarantineJSON, stderr string) {
		var out, errs bytes.Buffer
		args = append([]string{"migrate", "quarantine"}, append(args, "--postgres-dsn", dsn, "--secret", "s3cret-of-the-tests-16", "--output", "json")...)
		status = Main(ctx, Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, LookupEnv: func(string) (string, bool) { return "", false }})
		_ = json.Unmarshal(out.Bytes(), &shown)
		return status, shown, errs.String()
	}
	status, _, stderr := run(string(id))
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "migration.none")
	require.Contains(t, stderr, `"hint": "drover migrate list`)

	m, err := store.RegisterMigration(ctx, metadata.MigrationRequest{Chunk: id, Target: "b", WorkflowID: "migrate/" + string(id)})
	require.NoError(t, err)
	raw := func(d bson.D) []byte {
		b, err := bson.Marshal(d)
		require.NoError(t, err)
		return b
	}
	e := &event.Event{Seq: 41, Op: event.Update, Database: "flights_0001_p1", Collection: "legs", Wall: time.Now(),
		Key: raw(bson.D{{Key: "_id", Value: 7}}), Change: raw(bson.D{{Key: "updatedFields", Value: bson.D{{Key: "h.x", Value: 1}}}})}
	b, err := e.Encode()
	require.NoError(t, err)
	lane := chunk.Lane{Migration: m.ID, Partition: 3}
	require.NoError(t, store.Quarantine(ctx, metadata.Quarantined{Lane: lane, Seq: 41, Event: b, Reason: "lane.poison: the path leads through a scalar"}))

	status, shown, stderr := run(string(id))
	require.Equal(t, exitWaits, status, stderr)
	require.Len(t, shown, 1)
	require.Equal(t, event.Update, shown[0].Op)
	require.EqualValues(t, 41, shown[0].Seq)
	require.EqualValues(t, 3, shown[0].Partition)
	require.Contains(t, shown[0].Reason, "lane.poison")
	require.JSONEq(t, `{"_id":{"$numberInt":"7"}}`, string(shown[0].ID))
	require.JSONEq(t, `{"updatedFields":{"h.x":{"$numberInt":"1"}}}`, string(shown[0].Update))

	status, shown, stderr = run(string(id), "--release")
	require.Zero(t, status, stderr)
	require.Len(t, shown, 1)
	status, shown, _ = run(string(id))
	require.Zero(t, status)
	require.Empty(t, shown, "the gate no longer sees it")
}
