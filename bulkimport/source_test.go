package bulkimport

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/testkit"
)

// heard connects to a shard of the test's own and tells of every find.
func heard(t *testing.T, find func(bson.Raw)) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(testkit.Shard(t).AdminURI()).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "find" {
				find(e.Command)
			}
		},
	}))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, client.Disconnect(ctx))
	})
	return client
}

// TestReadsHaveSeenTheStart: a member that lags must not answer with documents that are
// older than the beginning of the log that is applied on top of them.
func TestReadsHaveSeenTheStart(t *testing.T) {
	t.Parallel()
	var seen []bson.Timestamp // by each find, what it must have seen
	client := heard(t, func(find bson.Raw) {
		var at bson.Timestamp
		at.T, at.I, _ = find.Lookup("readConcern", "afterClusterTime").TimestampOK()
		seen = append(seen, at)
	})
	db := client.Database("app_0001_p1")
	_, err := db.Collection("c").InsertMany(t.Context(), []any{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}})
	require.NoError(t, err)
	reply, err := db.RunCommand(t.Context(), bson.D{{Key: "ping", Value: 1}}).Raw()
	require.NoError(t, err)
	source := Source{Client: client, Database: db.Name()}
	source.Start.T, source.Start.I = reply.Lookup("operationTime").Timestamp()
	c, err := source.inspect(t.Context(), "c")
	require.NoError(t, err)
	read, err := source.read(t.Context(), turns{}, c, Slice{Collection: "c"}, Limits{}.withDefaults())
	require.NoError(t, err)
	require.Len(t, read.docs, 2)
	require.Len(t, seen, 2, "the slice, and the operation time behind it")
	for _, at := range seen {
		require.False(t, at.Before(source.Start), "a read that need only have seen %v", at)
	}
}

// Wherever a collection may be cut, the two sides together are the whole, and
// each is in order: for every pair of boundaries, of equal types and of others.
func TestEveryRangeOfIDs(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	client := heard(t, func(find bson.Raw) {
		if _, err := find.LookupErr("singleBatch"); err == nil {
			asked.Add(1)
			_, err := find.LookupErr("filter", "_id")
			assert.NoError(t, err, "a question for the operation time that walks the collection")
		}
	})
	nan, err := bson.ParseDecimal128("-1E+30")
	require.NoError(t, err)
	ids := []any{
		bson.MinKey{},
		nil, math.NaN(), math.Inf(-1), nan, 0, 1.5, int64(math.MaxInt64), math.Inf(1), "", "a", "a\x00b", "é",
		bson.D{},
		bson.D{{Key: "x", Value: 1}},
		bson.Binary{Data: []byte{}},
		bson.Binary{Data: []byte{255}},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.Binary{Data: make([]byte, 17)},
		bson.ObjectID{},
		bson.ObjectID{11: 1},
		false, true,
		bson.DateTime(-5), bson.DateTime(0),
		bson.Timestamp{},
		bson.Timestamp{T: 1},
		bson.JavaScript("x"),
		bson.CodeWithScope{Code: "y", Scope: bson.D{}},
		bson.MaxKey{},
	}
	batch := make([]any, len(ids))
	for n, id := range ids {
		batch[n] = bson.D{{Key: "_id", Value: id}}
	}
	source := Source{Client: client, Database: "app_0001_p1"}
	_, err = client.Database(source.Database).Collection("c").InsertMany(t.Context(), batch)
	require.NoError(t, err)
	c, err := source.inspect(t.Context(), "c")
	require.NoError(t, err)

	whole, err := source.read(t.Context(), turns{}, c, Slice{Collection: "c"}, Limits{}.withDefaults())
	require.NoError(t, err)
	require.Len(t, whole.docs, len(ids))
	bounds := []bson.Raw{nil}
	for _, doc := range whole.docs {
		if c.divides(doc.Lookup("_id")) {
			bounds = append(bounds, doc)
		}
	}
	bounds = append(bounds, nil)
	for i, lo := range bounds[:len(bounds)-1] {
		for j := i + 1; j < len(bounds); j++ {
			requireRange(t, source, c, whole.docs, lo, bounds[j])
		}
	}
	require.Positive(t, asked.Load())
}

// requireRange reads one range and wants all of it and nothing else.
func requireRange(t *testing.T, source Source, c collection, whole []bson.Raw, lo, hi bson.Raw) {
	t.Helper()
	if hi != nil && slices.EqualFunc(whole[:1], []bson.Raw{hi}, func(a, b bson.Raw) bool { return string(a) == string(b) }) {
		return // nothing lies below the first one
	}
	s := Slice{Collection: "c", Lo: lo, Hi: hi}
	within, err := s.keyRange()
	require.NoError(t, err)
	var want []chunk.Key
	for _, doc := range whole {
		key, err := chunk.EncodeValue(doc.Lookup("_id"))
		require.NoError(t, err)
		if within.Contains(key) {
			want = append(want, key)
		}
	}
	read, err := source.read(t.Context(), turns{}, c, s, Limits{}.withDefaults())
	require.NoError(t, err, "[%v, %v)", lo, hi)
	var got []chunk.Key
	for _, doc := range read.docs {
		key, err := chunk.EncodeValue(doc.Lookup("_id"))
		require.NoError(t, err)
		got = append(got, key)
	}
	require.Equal(t, want, got, "[%v, %v)", lo, hi)
}
