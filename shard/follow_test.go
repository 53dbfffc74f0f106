package shard_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/internal/failure"
	"drover/shard"
)

// testFollowsDefinitions makes changes of definitions in one database, reads what
// the change stream says of them, and follows it in another, each twice: both are
// defined alike after each of them.
func testFollowsDefinitions(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	const source, target = "follow", "follow_0001_p71"
	do := b.root(t, source)
	client, err := mongo.Connect(options.Client().ApplyURI(b.server.AdminURI()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Disconnect(context.WithoutCancel(ctx))) })
	collated := bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}}
	do(append(bson.D{{Key: "create", Value: "c"}}, collated...))
	infos, err := b.set.Inventory(ctx, source)
	require.NoError(t, err)
	require.NoError(t, b.set.Provision(ctx, target, shard.Collections(infos, func(string) string { return "_id" }), true))
	for i := range 3 {
		for _, db := range []string{source, target} {
			_, err := client.Database(db).Collection("c").InsertOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i}})
			require.NoError(t, err)
		}
	}
	stream, err := client.Database(source).Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetShowExpandedEvents(true))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stream.Close(context.WithoutCancel(ctx))) })

	for _, step := range []struct {
		op  string
		cmd bson.D
	}{
		{"createIndexes", index("c", bson.D{key("a", 1), {Key: "name", Value: "a"}, {Key: "unique", Value: true}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}})},
		{"createIndexes", index("c", bson.D{key("b", -1), {Key: "name", Value: "b"}, {Key: "partialFilterExpression", Value: bson.D{{Key: "b", Value: bson.D{{Key: "$gt", Value: 1}}}}}})},
		{"modify", bson.D{{Key: "collMod", Value: "c"}, {Key: "index", Value: bson.D{{Key: "name", Value: "b"}, {Key: "hidden", Value: true}}}}},
		{"modify", bson.D{{Key: "collMod", Value: "c"}, {Key: "validator", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$exists", Value: true}}}}}, {Key: "validationLevel", Value: "moderate"}}},
		{"dropIndexes", bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "a"}}},
	} {
		do(step.cmd)
		require.True(t, stream.Next(ctx), "%v", stream.Err())
		told := bson.Raw(bytes.Clone(stream.Current))
		require.Equal(t, step.op, told.Lookup("operationType").StringValue())
		description, ok := told.Lookup("operationDescription").DocumentOK()
		require.True(t, ok, "%s", told)
		if elements, err := description.Elements(); err == nil && len(elements) == 0 { // the dev server says this of indexes; lanes stop at it
			description = raw(t, step.cmd[1:])
		}
		for range 2 {
			require.NoError(t, b.set.Follow(ctx, target, "c", step.op, description))
		}
		was, err := b.set.Inventory(ctx, source)
		require.NoError(t, err)
		now, err := b.set.Inventory(ctx, target)
		require.NoError(t, err)
		require.Empty(t, shard.CompareCatalog(was, now), "%v: %s", step.cmd, told)
	}
	err = b.set.Follow(ctx, target, "c", "drop", bson.Raw{5, 0, 0, 0, 0})
	require.True(t, failure.HasCode(err, "collection.not_followed"), "%v", err)
	err = b.set.Follow(ctx, target, "absent", "createIndexes", bson.Raw{5, 0, 0, 0, 0})
	require.True(t, failure.HasCode(err, "collection.not_followed"), "%v", err)
}
