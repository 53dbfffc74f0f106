package scenario_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// connect makes a client that is closed after the test.
func (f *fleet) connect(uri string) *mongo.Client {
	f.t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(time.Minute))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// TestLiveAdoption adopts a database that an application writes to directly, takes
// the adoption back, adopts it again, and moves it away once nobody may write beside
// the proxies: no document is lost on the way.
func TestLiveAdoption(t *testing.T) {
	t.Parallel()

	f := newFleet(t)
	f.startWorker("worker")
	ctx := t.Context()
	a, c := f.names[0], f.names[2]
	root := f.connect(f.shards[a].AdminURI())
	old := root.Database("legacy")
	var docs []any
	for i := range 300 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "customer", Value: fmt.Sprintf("c-%d", i%17)}, {Key: "ref", Value: i}})
	}
	_, err := old.Collection("orders").InsertMany(ctx, docs)
	require.NoError(t, err)
	_, err = old.Collection("orders").Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys: bson.D{{Key: "customer", Value: 1}, {Key: "ref", Value: 1}}, Options: options.Index().SetUnique(true).SetName("customer_ref"),
	})
	require.NoError(t, err)
	require.NoError(t, old.RunCommand(ctx, bson.D{
		{Key: "createUser", Value: "app"}, {Key: "pwd", Value: "app"}, {Key: "roles", Value: bson.A{"readWrite"}},
	}).Err())
	direct := f.connect(strings.Replace(f.shards[a].URI(), "mongodb://", "mongodb://app:app@", 1) + "&authSource=legacy").Database("legacy").Collection("orders")
	through := f.connect("mongodb://" + strings.Join(f.proxies, ",") + "/").Database("shop").Collection("orders")
	insert := func(coll *mongo.Collection, id int) error {
		_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "customer", Value: "c-1"}, {Key: "ref", Value: id}})
		return err
	}
	count := func(coll *mongo.Collection) int64 {
		n, err := coll.CountDocuments(ctx, bson.D{})
		require.NoError(t, err)
		return n
	}

	from := a + "/legacy"
	status, out, _ := f.drover("db", "adopt", "shop", "--from", from)
	require.Equal(t, 1, status)
	require.Contains(t, out, "collection.unique_not_prefixed", "the default shard key does not fit its unique index")
	status, out, errs := f.drover("db", "adopt", "shop", "--from", from, "--shard-key", "customer")
	require.Equal(t, 3, status, errs)
	require.Contains(t, out, "user app@legacy may write")
	require.Contains(t, out, "revokeRolesFromUser")
	status, out, errs = f.drover("db", "adopt", "shop", "--from", from, "--shard-key", "customer", "--yes")
	require.Zero(t, status, errs+out)
	known := func() bool { // reads of what is not there are empty, writes are refused
		_, err := through.UpdateOne(ctx, bson.D{{Key: "customer", Value: "c-0"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "seen", Value: 1}}}})
		return err == nil
	}
	require.True(t, eventually(t, known), "the proxies serve it")
	require.NoError(t, insert(through, 1000))
	require.NoError(t, insert(direct, 1001))
	require.EqualValues(t, 302, count(through), "both ways reach the same documents")

	status, _, errs = f.drover("db", "adopt", "shop", "--undo", "--force", "--yes")
	require.Zero(t, status, errs)
	require.True(t, eventually(t, func() bool { return !known() }), "the proxies no longer know it")
	require.EqualValues(t, 302, count(direct), "it is as it was")

	status, out, errs = f.drover("db", "adopt", "shop", "--from", from, "--shard-key", "customer", "--yes")
	require.Zero(t, status, errs+out)
	require.True(t, eventually(t, known), "the proxies serve it again")
	status, _, errs = f.drover("migrate", "start", "shop/0001", "--to", c)
	require.Equal(t, 1, status, "the application may still write beside the proxies")
	require.Contains(t, errs, "adoption.writers")
	status, out, _ = f.drover("db", "adopt", "shop", "--check")
	require.Equal(t, 3, status)
	require.Contains(t, out, "app@legacy")
	require.NoError(t, old.RunCommand(ctx, bson.D{
		{Key: "revokeRolesFromUser", Value: "app"}, {Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: "legacy"}}}},
	}).Err())
	status, out, errs = f.drover("db", "adopt", "shop", "--check")
	require.Zero(t, status, errs+out)
	f.movesAsDefined(old)
	f.moveAdopted(through, insert, a, c)
	require.Error(t, insert(direct, 1003))
	names, err := root.ListDatabaseNames(ctx, bson.D{})
	require.NoError(t, err)
	require.NotContains(t, names, "legacy", "the old placement is dropped at the end, as any other")
	status, _, errs = f.drover("db", "adopt", "shop", "--undo", "--yes")
	require.Equal(t, 1, status)
	require.Contains(t, errs, "adoption.moved")
}

// movesAsDefined sees that a chunk whose collections somebody changed on the shard
// itself is not copied before it is found to be so.
func (f *fleet) movesAsDefined(old *mongo.Database) {
	f.t.Helper()
	indexes := old.Collection("orders").Indexes()
	name, err := indexes.CreateOne(f.t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "seen", Value: 1}}})
	require.NoError(f.t, err)
	status, _, errs := f.drover("migrate", "start", "shop/0001", "--to", f.target())
	require.Equal(f.t, 1, status)
	require.Contains(f.t, errs, "migration.catalog_differs")
	require.Contains(f.t, errs, "orders index "+name+": missing in the catalog")
	require.NoError(f.t, indexes.DropOne(f.t.Context(), name))
}

// moveAdopted moves the one chunk of the adopted database while it is written to
// through the proxies, and counts afterwards.
func (f *fleet) moveAdopted(through *mongo.Collection, insert func(*mongo.Collection, int) error, from, to string) {
	f.t.Helper()
	var stop atomic.Bool
	written := make(chan int, 1)
	go func() {
		n := 0
		for !stop.Load() {
			if insert(through, 2000+n) != nil {
				break
			}
			n++
		}
		written <- n
	}()
	status, out, errs := f.drover("migrate", "start", "shop/0001", "--to", to, "--burn-in", "1s")
	require.Zero(f.t, status, errs+out)
	moved := eventually(f.t, func() bool { return f.on(from) == 0 && f.on(to) == 1 })
	stop.Store(true)
	n := <-written
	require.True(f.t, moved, "the move does not end")
	require.Positive(f.t, n)
	got, err := through.CountDocuments(f.t.Context(), bson.D{})
	require.NoError(f.t, err)
	require.EqualValues(f.t, 302+n, got)
	require.NoError(f.t, insert(through, 2000+n), "writes went on to the end")
	status, out, errs = f.drover("migrate", "start", "shop/0001", "--to", from, "--dry-run")
	require.Contains(f.t, out, "as the catalog says", "the next move would be refused: %s", errs)
	require.NotEqual(f.t, 1, status, errs)
	stragglers, err := f.store.Stragglers(f.t.Context())
	require.NoError(f.t, err)
	require.Empty(f.t, stragglers)
}
