package proxy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
)

func TestDriver(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	keys := f.keysOf(50)
	one, two := keys[chunk.NewID(testDatabase, 1)], keys[chunk.NewID(testDatabase, 2)]

	t.Run("CRUD", func(t *testing.T) {
		ctx := t.Context()
		c := f.dial(p).Database(testDatabase).Collection("legs")
		docs := []any{}
		for i := range 40 {
			docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprintf("crud-%d", i)}, {Key: "origin", Value: pick(one, two, i)}, {Key: "n", Value: i}})
		}
		res, err := c.InsertMany(ctx, docs)
		require.NoError(t, err)
		require.Len(t, res.InsertedIDs, 40)
		require.Equal(t, int64(20), f.physical(f.routes[chunk.NewID(testDatabase, 1)].Placement, "legs"))
		require.Equal(t, int64(20), f.physical(f.routes[chunk.NewID(testDatabase, 2)].Placement, "legs"))

		n, err := c.CountDocuments(ctx, bson.D{})
		require.NoError(t, err)
		require.Equal(t, int64(40), n)
		n, err = c.CountDocuments(ctx, bson.D{}, options.Count().SetSkip(5).SetLimit(10))
		require.NoError(t, err)
		require.Equal(t, int64(10), n)
		n, err = c.EstimatedDocumentCount(ctx)
		require.NoError(t, err)
		require.Equal(t, int64(40), n)

		var got []struct{ N int }
		cur, err := c.Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "n", Value: -1}}).SetSkip(3).SetLimit(30).SetBatchSize(7))
		require.NoError(t, err)
		require.NoError(t, cur.All(ctx, &got))
		require.Len(t, got, 30)
		for i := range got {
			require.Equal(t, 36-i, got[i].N)
		}

		up, err := c.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 100}}}})
		require.NoError(t, err)
		require.Equal(t, int64(40), up.ModifiedCount)
		up, err = c.UpdateOne(ctx, bson.D{{Key: "_id", Value: "crud-3"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}})
		require.NoError(t, err)
		require.Equal(t, int64(1), up.ModifiedCount)

		var doc bson.D
		require.NoError(t, c.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: "crud-4"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}).Decode(&doc))
		require.NoError(t, c.FindOne(ctx, bson.D{{Key: "_id", Value: "crud-4"}}).Decode(&doc))
		require.Equal(t, int32(105), lookup(t, doc, "n"))

		var names []string
		require.NoError(t, c.Distinct(ctx, "origin", bson.D{}).Decode(&names))
		require.Len(t, names, 40)

		del, err := c.DeleteMany(ctx, bson.D{})
		require.NoError(t, err)
		require.Equal(t, int64(40), del.DeletedCount)
	})
}

// pick takes keys of both chunks in turn.
func pick(one, two []string, i int) string {
	if i%2 == 0 {
		return one[i/2]
	}
	return two[i/2]
}

// lookup gives a field of a document.
func lookup(t *testing.T, doc bson.D, key string) any {
	t.Helper()
	for _, e := range doc {
		if e.Key == key {
			return e.Value
		}
	}
	require.FailNow(t, "no field", key)
	return nil
}

// batchOf asks for small batches.
func batchOf(n int32) *options.FindOptionsBuilder { return options.Find().SetBatchSize(n) }
