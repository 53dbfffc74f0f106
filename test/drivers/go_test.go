package drivers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/proxy"
	"drover/shard"
)

// step is one thing that the script does and reports on.
type step struct {
	name string
	run  func(ctx context.Context, db *mongo.Database) (any, error)
}

// d makes a document of keys and values.
func d(kv ...any) bson.D {
	out := bson.D{}
	for i := 0; i < len(kv); i += 2 {
		out = append(out, bson.E{Key: kv[i].(string), Value: kv[i+1]})
	}
	return out
}

// order makes the n-th order.
func order(n int) bson.D {
	return d("_id", n, "merchant", fmt.Sprintf("m%d", n%7), "n", n, "price", float64(n)/4, "tags", bson.A{n % 3, "t"}, "in", d("x", n%5))
}

// all reads a cursor to its end.
func all(ctx context.Context, cur *mongo.Cursor, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	docs := []bson.Raw{}
	err = cur.All(ctx, &docs)
	return docs, err
}

// told is what a step came to, in a form that compares: errors by code, label
// and place in the batch.
func told(v any, err error) string {
	out := fmt.Sprintf("%+v", v)
	var bulk mongo.BulkWriteException
	var write mongo.WriteException
	var server mongo.ServerError
	switch {
	case err == nil:
	case errors.As(err, &bulk):
		for _, e := range bulk.WriteErrors {
			out += fmt.Sprintf(" error %d at %d", e.Code, e.Index)
		}
	case errors.As(err, &write):
		for _, e := range write.WriteErrors {
			out += fmt.Sprintf(" error %d at %d", e.Code, e.Index)
		}
	case errors.As(err, &server):
		out += fmt.Sprintf(" codes %v", server.ErrorCodes())
	default:
		out += " " + err.Error()
	}
	return out
}

// script is what an application does.
var script = []step{
	{"insert", func(ctx context.Context, db *mongo.Database) (any, error) {
		var docs []any
		for n := range 60 {
			docs = append(docs, order(n))
		}
		r, err := db.Collection("orders").InsertMany(ctx, docs)
		return len(r.InsertedIDs), err
	}},
	{"duplicates unordered", func(ctx context.Context, db *mongo.Database) (any, error) {
		_, err := db.Collection("orders").InsertMany(ctx, []any{order(60), order(1), order(61), order(2)}, options.InsertMany().SetOrdered(false))
		return nil, err
	}},
	{"duplicates ordered", func(ctx context.Context, db *mongo.Database) (any, error) {
		_, err := db.Collection("orders").InsertMany(ctx, []any{order(62), order(1), order(63)})
		return nil, err
	}},
	{"find one", func(ctx context.Context, db *mongo.Database) (any, error) {
		return db.Collection("orders").FindOne(ctx, d("merchant", "m3", "_id", 3)).Raw()
	}},
	{"find none", func(ctx context.Context, db *mongo.Database) (any, error) {
		return db.Collection("orders").FindOne(ctx, d("merchant", "nobody")).Raw()
	}},
	{"find sorted in small batches", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Find(ctx, d(), options.Find().SetSort(d("in.x", -1, "_id", 1)).SetBatchSize(4).SetSkip(3).SetLimit(40))
		return all(ctx, cur, err)
	}},
	{"find projected", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Find(ctx, d("n", d("$gt", 30)), options.Find().SetSort(d("n", 1)).SetProjection(d("price", 1, "_id", 0)))
		return all(ctx, cur, err)
	}},
	{"find by array", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Find(ctx, d("tags", 2), options.Find().SetSort(d("tags", 1, "_id", -1)))
		return all(ctx, cur, err)
	}},
	{"find in", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Find(ctx, d("merchant", d("$in", bson.A{"m1", "m6", "nobody"})), options.Find().SetSort(d("_id", 1)))
		return all(ctx, cur, err)
	}},
	{"single batch", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Find(ctx, d(), options.Find().SetSort(d("_id", 1)).SetLimit(-5))
		return all(ctx, cur, err)
	}},
	{"count", func(ctx context.Context, db *mongo.Database) (any, error) {
		return db.Collection("orders").CountDocuments(ctx, d("n", d("$lt", 20)), options.Count().SetSkip(2).SetLimit(15))
	}},
	{"estimate", func(ctx context.Context, db *mongo.Database) (any, error) {
		return db.Collection("orders").EstimatedDocumentCount(ctx)
	}},
	{"distinct", func(ctx context.Context, db *mongo.Database) (any, error) {
		var tags bson.A
		err := db.Collection("orders").Distinct(ctx, "tags", d()).Decode(&tags)
		return tags, err
	}},
	{"update many", func(ctx context.Context, db *mongo.Database) (any, error) {
		r, err := db.Collection("orders").UpdateMany(ctx, d("in.x", 2), d("$inc", d("n", 100), "$push", d("tags", "u")))
		return *r, err
	}},
	{"update one by key", func(ctx context.Context, db *mongo.Database) (any, error) {
		r, err := db.Collection("orders").UpdateOne(ctx, d("merchant", "m2", "_id", 9), d("$set", d("note", "x")))
		return *r, err
	}},
	{"upsert", func(ctx context.Context, db *mongo.Database) (any, error) {
		r, err := db.Collection("orders").UpdateOne(ctx, d("merchant", "m9", "_id", 900), d("$set", d("n", 1)), options.UpdateOne().SetUpsert(true))
		return *r, err
	}},
	{"replace", func(ctx context.Context, db *mongo.Database) (any, error) {
		r, err := db.Collection("orders").ReplaceOne(ctx, d("merchant", "m9", "_id", 900), d("merchant", "m9", "n", 2))
		return *r, err
	}},
	{"unknown operator", func(ctx context.Context, db *mongo.Database) (any, error) {
		_, err := db.Collection("orders").UpdateOne(ctx, d("merchant", "m9"), d("$nope", d("n", 1)))
		return nil, err
	}},
	{"find and update", func(ctx context.Context, db *mongo.Database) (any, error) {
		return db.Collection("orders").FindOneAndUpdate(ctx, d("merchant", "m4", "_id", 4), d("$inc", d("n", 1)), options.FindOneAndUpdate().SetReturnDocument(options.After)).Raw()
	}},
	{"find and delete", func(ctx context.Context, db *mongo.Database) (any, error) {
		return db.Collection("orders").FindOneAndDelete(ctx, d("_id", 5)).Raw()
	}},
	{"delete", func(ctx context.Context, db *mongo.Database) (any, error) {
		r, err := db.Collection("orders").DeleteMany(ctx, d("in.x", 4))
		return *r, err
	}},
	{"bulk", func(ctx context.Context, db *mongo.Database) (any, error) {
		r, err := db.Collection("orders").BulkWrite(ctx, []mongo.WriteModel{
			mongo.NewInsertOneModel().SetDocument(order(200)), mongo.NewInsertOneModel().SetDocument(order(201)),
			mongo.NewUpdateOneModel().SetFilter(d("merchant", "m4", "_id", 200)).SetUpdate(d("$set", d("n", -1))),
			mongo.NewUpdateOneModel().SetFilter(d("merchant", "m8", "_id", 300)).SetUpdate(d("$set", d("n", 3))).SetUpsert(true),
			mongo.NewDeleteOneModel().SetFilter(d("merchant", "m5", "_id", 201)),
		})
		return d("i", r.InsertedCount, "m", r.MatchedCount, "c", r.ModifiedCount, "d", r.DeletedCount, "u", len(r.UpsertedIDs)), err
	}},
	{"group", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Aggregate(ctx, bson.A{
			d("$match", d("n", d("$gte", 0))),
			d("$group", d("_id", "$in.x", "sum", d("$sum", "$n"), "price", d("$avg", "$price"), "least", d("$min", "$_id"), "most", d("$max", "$price"), "c", d("$count", d()))),
			d("$sort", d("_id", 1)),
		})
		return all(ctx, cur, err)
	}},
	{"unwound", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Aggregate(ctx, bson.A{d("$unwind", "$tags"), d("$project", d("t", "$tags")), d("$sort", d("t", -1, "_id", 1)), d("$skip", 3), d("$limit", 11)})
		return all(ctx, cur, err)
	}},
	{"sorted by count", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Aggregate(ctx, bson.A{d("$match", d("merchant", "m1")), d("$sortByCount", "$merchant")})
		return all(ctx, cur, err)
	}},
	{"counted stage", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Aggregate(ctx, bson.A{d("$count", "all")})
		return all(ctx, cur, err)
	}},
	{"unknown stage", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Aggregate(ctx, bson.A{d("$nope", 1)})
		return all(ctx, cur, err)
	}},
	{"transaction", func(ctx context.Context, db *mongo.Database) (any, error) {
		return nil, inTransaction(ctx, db, false)
	}},
	{"aborted transaction", func(ctx context.Context, db *mongo.Database) (any, error) {
		return nil, inTransaction(ctx, db, true)
	}},
	{"after transactions", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("orders").Find(ctx, d("merchant", "t"), options.Find().SetSort(d("_id", 1)))
		return all(ctx, cur, err)
	}},
	{"unknown collection", func(ctx context.Context, db *mongo.Database) (any, error) {
		cur, err := db.Collection("nothing").Find(ctx, d())
		return all(ctx, cur, err)
	}},
	{"unknown command", func(ctx context.Context, db *mongo.Database) (any, error) {
		return nil, db.RunCommand(ctx, d("noSuchCommand", 1)).Err()
	}},
	{"killed cursor", func(ctx context.Context, db *mongo.Database) (any, error) {
		return nil, db.RunCommand(ctx, d("getMore", int64(77), "collection", "orders")).Err()
	}},
}

// inTransaction writes two documents of one merchant.
func inTransaction(ctx context.Context, db *mongo.Database, abort bool) error {
	errAbort := errors.New("abort")
	s, err := db.Client().StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for n := range 2 {
			id := fmt.Sprintf("t%v-%d", abort, n)
			if _, err := db.Collection("orders").InsertOne(ctx, d("_id", id, "merchant", "t")); err != nil {
				return nil, err
			}
		}
		if abort {
			return nil, errAbort
		}
		return nil, nil
	})
	if errors.Is(err, errAbort) {
		return nil
	}
	return err
}

// The Go driver sees one server in both.
func TestGoDriver(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.prepare(t)
	direct, through := dial(t, f.direct).Database(database), dial(t, f.proxy).Database(database)
	for _, s := range script {
		want, wantErr := s.run(t.Context(), direct)
		got, gotErr := s.run(t.Context(), through)
		require.Equal(t, told(want, wantErr), told(got, gotErr), "%s (%v, %v)", s.name, wantErr, gotErr)
	}
}

// newClients opens shards as the control plane does.
func newClients(t *testing.T) *shard.Clients {
	t.Helper()
	c := shard.NewClients("drivers", shard.Options{})
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// startMove registers a move of a chunk to the other shard.
func (f *fleet) startMove(t *testing.T, r chunk.Route) {
	t.Helper()
	target := "a"
	if r.Placement.Shard == target {
		target = "b"
	}
	_, err := f.store.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: r.Chunk.ID, Target: target, WorkflowID: "test"})
	require.NoError(t, err)
}

// A DDL is on every chunk and in the catalog, and waits for a move.
func TestDefinitions(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	ctx := t.Context()
	db := dial(t, f.proxy).Database(database)
	name, err := db.Collection("orders").Indexes().CreateOne(ctx, mongo.IndexModel{Keys: d("n", 1)})
	require.NoError(t, err)
	require.NoError(t, db.RunCommand(ctx, d("collMod", "orders", "index", d("name", name, "hidden", true))).Err())
	require.NoError(t, db.CreateCollection(ctx, "notes", options.CreateCollection().SetValidator(d("t", d("$type", "string")))))
	require.NoError(t, dial(t, f.proxy).Database("admin").RunCommand(ctx, d("shardCollection", database+".lines", "key", d("merchant", 1))).Err())

	routes, err := f.store.Routes(ctx, database)
	require.NoError(t, err)
	clients := newClients(t)
	for _, r := range routes {
		sh, err := f.store.Shard(ctx, r.Placement.Shard)
		require.NoError(t, err)
		set, err := clients.Set(sh)
		require.NoError(t, err)
		all, err := set.Inventory(ctx, r.Placement.Database)
		require.NoError(t, err)
		found := map[string]int{}
		for _, c := range all {
			found[c.Name] = len(c.Indexes)
		}
		require.Equal(t, map[string]int{"orders": 1, "people": 0, "notes": 0, "lines": 0}, found, "%s", r.Chunk.ID)
	}
	stored, err := f.store.Database(ctx, database)
	require.NoError(t, err)
	require.Equal(t, int64(5), stored.CatalogVersion)
	keys := map[string]string{}
	for _, c := range stored.Collections {
		keys[c.Name] = c.ShardKey
	}
	require.Equal(t, map[string]string{"orders": "merchant", "people": "_id", "notes": "_id", "lines": "merchant"}, keys)
	_, err = db.Collection("notes").InsertOne(ctx, d("t", 1))
	var we mongo.WriteException
	require.ErrorAs(t, err, &we)
	require.True(t, we.HasErrorCode(121), "the validator is in force")

	require.NoError(t, db.Collection("notes").Drop(ctx))
	require.NoError(t, db.Collection("orders").Indexes().DropOne(ctx, name))
	var missing mongo.CommandError
	require.ErrorAs(t, db.Collection("orders").Indexes().DropOne(ctx, "nothing_1"), &missing)
	require.Equal(t, int32(27), missing.Code)
	list, err := db.ListCollectionNames(ctx, d())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"orders", "people", "lines"}, list)

	f.startMove(t, routes[0])
	err = db.CreateCollection(ctx, "late")
	var ce mongo.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, int32(117), ce.Code)
	require.ErrorContains(t, err, string(routes[0].Chunk.ID))
	refused, ok := errors.AsType[*failure.Error](f.store.CheckCatalogStill(ctx, database))
	require.True(t, ok)
	require.Equal(t, proxy.CatalogMoving, refused.Code, "the two sides of the border have one name for it")
}
