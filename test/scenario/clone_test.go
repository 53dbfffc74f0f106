package scenario_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/contract"
	"drover/demo/workload"
)

// contents reads the application's collection in a database of a shard.
func (f *fleet) contents(shard, database string) map[string]bson.Raw {
	f.t.Helper()
	ctx := f.t.Context()
	client, err := mongo.Connect(options.Client().ApplyURI(f.shards[shard].AdminURI()))
	require.NoError(f.t, err)
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	cur, err := client.Database(database).Collection(workload.Collection).Find(ctx, bson.D{})
	require.NoError(f.t, err)
	all := map[string]bson.Raw{}
	for cur.Next(ctx) {
		all[cur.Current.Lookup("_id").String()] = bytes.Clone(cur.Current)
	}
	require.NoError(f.t, cur.Err())
	return all
}

// checkClone makes a clone of the chunk as it is now, after changes behind that, and
// wants every document as it was: across all its moves.
func (f *fleet) checkClone() {
	f.t.Helper()
	ctx := f.t.Context()
	r, err := f.store.Route(ctx, f.hot.Chunk.ID)
	require.NoError(f.t, err)
	was := f.contents(r.Placement.Shard, r.Placement.Database)
	require.NotEmpty(f.t, was)
	at := time.Now().UTC()

	client, err := mongo.Connect(options.Client().ApplyURI(f.shards[r.Placement.Shard].AdminURI()))
	require.NoError(f.t, err)
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	c := client.Database(r.Placement.Database).Collection(workload.Collection)
	require.True(f.t, eventually(f.t, func() bool { return time.Since(at) > 10*time.Millisecond }))
	changed, err := c.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "later", Value: true}}}})
	require.NoError(f.t, err)
	require.EqualValues(f.t, len(was), changed.ModifiedCount)

	args := []string{"chunk", "clone", string(f.hot.Chunk.ID), "--at", at.Format(time.RFC3339Nano), "--to", f.names[0], "--output", "json"}
	var out string
	require.True(f.t, eventually(f.t, func() bool { // its time must be over for a while
		var code int
		out, code = f.cli(append(args, "--dry-run")...)
		return code == 0
	}), out)
	before, err := f.store.Clones(ctx, false)
	require.NoError(f.t, err)
	require.Empty(f.t, before, "a dry run makes nothing")
	out, code := f.cli(args...)
	require.Zero(f.t, code, out)
	var made contract.CloneResult
	require.NoError(f.t, json.Unmarshal([]byte(out), &made), out)
	require.Positive(f.t, made.Events)
	got := f.contents(f.names[0], made.Database)
	require.Len(f.t, got, len(was))
	for id, doc := range was {
		require.Equal(f.t, doc.String(), got[id].String())
		require.Equal(f.t, doc, got[id])
	}
	f.t.Logf("clone of %d documents, %d changes replayed over %v", len(got), made.Events, made.Shards)
	open, err := f.store.Clones(ctx, true)
	require.NoError(f.t, err)
	require.Empty(f.t, open)
	out, code = f.cli("chunk", "clones", "--drop", fmt.Sprint(made.Clone))
	require.Zero(f.t, code, out)
	require.Empty(f.t, f.contents(f.names[0], made.Database))
}
