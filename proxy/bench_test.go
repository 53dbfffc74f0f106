package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// BenchmarkDriver compares 16 clients of the official driver with and without a
// proxy in one run. Driver, proxy and shard share the machine, so that only the
// ratio says something.
func BenchmarkDriver(b *testing.B) {
	f := newFleet(b, 1, 1)
	p := f.start(Config{})
	r := f.routes[firstChunk].Placement
	direct := f.roots[r.Shard].Database(r.Database).Collection("legs")
	proxied := f.dial(p).Database(testDatabase).Collection("legs")
	filter := bson.D{{Key: "_id", Value: "x"}, {Key: "origin", Value: "x"}}
	_, err := proxied.InsertOne(b.Context(), append(filter, bson.E{Key: "pad", Value: make([]byte, 500)}))
	require.NoError(b, err)
	for _, way := range []struct {
		name string
		coll *mongo.Collection
	}{{"Direct", direct}, {"Proxied", proxied}} {
		b.Run("FindOne/"+way.name, func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := way.coll.FindOne(b.Context(), filter).Err(); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
		b.Run("UpdateOne/"+way.name, func(b *testing.B) {
			inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := way.coll.UpdateOne(b.Context(), filter, inc, options.UpdateOne()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}

// BenchmarkProxyOnly measures what the proxy itself allocates for one targeted
// find: the client is bare sockets.
func BenchmarkProxyOnly(b *testing.B) {
	f := newFleet(b, 1, 1)
	p := f.start(Config{})
	_, err := f.dial(p).Database(testDatabase).Collection("legs").InsertOne(b.Context(), bson.D{{Key: "_id", Value: "x"}, {Key: "origin", Value: "x"}})
	require.NoError(b, err)
	c := dialRaw(b, p)
	msg := c.encode(0, bson.D{
		{Key: "find", Value: "legs"},
		{Key: "filter", Value: bson.D{{Key: "origin", Value: "x"}}},
		{Key: "limit", Value: int64(1)},
		{Key: "singleBatch", Value: true},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		{Key: "$db", Value: testDatabase},
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.nc.Write(msg); err != nil {
			b.Fatal(err)
		}
		if _, err := c.r.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
