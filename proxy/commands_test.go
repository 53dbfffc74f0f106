package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"drover/chunk"
	"drover/proxy/wire"
)

// bench is what the tests of commands share.
type commandBench struct {
	f        *fleet
	p        *Proxy
	coll     *mongo.Collection
	client   *mongo.Client
	one, two []string // keys of the two chunks
}

// id names a document of one test.
func (b *commandBench) id(t *testing.T, n int) string { return fmt.Sprintf("%s-%d", t.Name(), n) }

// doc makes a document in the first or second chunk.
func (b *commandBench) doc(t *testing.T, second bool, n int) bson.D {
	key := b.one[0]
	if second {
		key = b.two[0]
	}
	return bson.D{{Key: "_id", Value: b.id(t, n)}, {Key: "origin", Value: key}, {Key: "n", Value: n}, {Key: "test", Value: t.Name()}}
}

// fill inserts n documents, by turns in both chunks.
func (b *commandBench) fill(t *testing.T, n int) {
	t.Helper()
	var docs []any
	for i := range n {
		docs = append(docs, b.doc(t, i%2 == 1, i))
	}
	_, err := b.coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
}

// mine selects the documents of one test.
func mine(t *testing.T) bson.D { return bson.D{{Key: "test", Value: t.Name()}} }

// count counts the documents of one test.
func (b *commandBench) count(t *testing.T) int64 {
	t.Helper()
	n, err := b.coll.CountDocuments(t.Context(), mine(t))
	require.NoError(t, err)
	return n
}

func TestCommands(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	keys := f.keysOf(20)
	b := &commandBench{f: f, p: p, client: f.dial(p), one: keys[firstChunk], two: keys[chunk.NewID(testDatabase, 2)]}
	b.coll = b.client.Database(testDatabase).Collection("legs")
	for name, fn := range map[string]func(*testing.T, *commandBench){
		"BulkOrdered": testBulkOrdered, "BulkUnordered": testBulkUnordered, "BulkUpserts": testBulkUpserts,
		"Unacknowledged": testUnacknowledged, "Namespaces": testNamespaces, "NoNames": testNoNames,
		"Dials": testDials, "Times": testTimes, "Projections": testProjections, "Upserts": testUpserts,
		"FindAndModify": testFindAndModify, "Exhaust": testExhaust, "Transactions": testTransactions,
		"Aggregate": testAggregate, "ByID": testByID, "Sorted": testSorted, "SingleBatch": testSingleBatch,
		"LargeBatch": testLargeBatch, "KillCursors": testKillCursors, "Comment": testComment, "Retry": testRetryDedupes,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, b)
		})
	}
}

func testBulkOrdered(t *testing.T, b *commandBench) {
	models := []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(b.doc(t, false, 0)), mongo.NewInsertOneModel().SetDocument(b.doc(t, true, 1)),
		mongo.NewInsertOneModel().SetDocument(b.doc(t, false, 2)), mongo.NewInsertOneModel().SetDocument(b.doc(t, false, 0)),
		mongo.NewInsertOneModel().SetDocument(b.doc(t, true, 3)),
	}
	_, err := b.coll.BulkWrite(t.Context(), models)
	var bulk mongo.BulkWriteException
	require.ErrorAs(t, err, &bulk)
	require.Len(t, bulk.WriteErrors, 1)
	require.Equal(t, 3, bulk.WriteErrors[0].Index)
	require.Equal(t, 11000, bulk.WriteErrors[0].Code)
	require.Equal(t, int64(3), b.count(t), "what follows the error is not done")
}

func testBulkUnordered(t *testing.T, b *commandBench) {
	models := []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(b.doc(t, false, 0)), mongo.NewInsertOneModel().SetDocument(b.doc(t, true, 1)),
		mongo.NewInsertOneModel().SetDocument(b.doc(t, true, 1)), mongo.NewInsertOneModel().SetDocument(b.doc(t, false, 0)),
		mongo.NewInsertOneModel().SetDocument(bson.D{{Key: "origin", Value: bson.A{1}}, {Key: "test", Value: t.Name()}}),
		mongo.NewInsertOneModel().SetDocument(b.doc(t, true, 3)),
	}
	res, err := b.coll.BulkWrite(t.Context(), models, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	require.ErrorAs(t, err, &bulk)
	var at []int
	for _, e := range bulk.WriteErrors {
		at = append(at, e.Index)
	}
	require.Equal(t, []int{2, 3, 4}, at)
	require.Equal(t, int64(3), res.InsertedCount)
	require.Equal(t, int64(3), b.count(t))
}

func testBulkUpserts(t *testing.T, b *commandBench) {
	upsert := func(second bool, n int) *mongo.UpdateOneModel {
		key := b.one[0]
		if second {
			key = b.two[0]
		}
		return mongo.NewUpdateOneModel().SetUpsert(true).SetFilter(bson.D{{Key: "_id", Value: b.id(t, n)}, {Key: "origin", Value: key}}).
			SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "test", Value: t.Name()}}}, {Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	}
	for _, ordered := range []bool{true, false} {
		models := []mongo.WriteModel{upsert(false, 0), upsert(true, 1), upsert(false, 0), upsert(false, 2), upsert(true, 3)}
		res, err := b.coll.BulkWrite(t.Context(), models, options.BulkWrite().SetOrdered(ordered))
		require.NoError(t, err)
		require.Equal(t, map[int64]any{0: b.id(t, 0), 1: b.id(t, 1), 3: b.id(t, 2), 4: b.id(t, 3)}, res.UpsertedIDs)
		require.Equal(t, int64(1), res.MatchedCount)
		require.Equal(t, int64(1), res.ModifiedCount)
		del, err := b.coll.DeleteMany(t.Context(), mine(t))
		require.NoError(t, err)
		require.Equal(t, int64(4), del.DeletedCount)
	}
}

// A proxy that answers, or waits for the answer of, an unacknowledged write
// shifts every later reply by one.
func testUnacknowledged(t *testing.T, b *commandBench) {
	c := dialRaw(t, b.p)
	for i := range 2 {
		c.send(wire.MoreToCome, bson.D{
			{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{b.doc(t, i == 1, i)}},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 0}}}, {Key: "$db", Value: testDatabase},
		})
	}
	got := c.run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	require.InDelta(t, 1, got.Lookup("ok").Double(), 0)
	require.Equal(t, int64(2), b.count(t), "they were done before the next request")

	coll := b.coll.Database().Collection("legs", options.Collection().SetWriteConcern(writeconcern.Unacknowledged()))
	_, err := coll.InsertOne(t.Context(), b.doc(t, false, 5))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.count(t) == 3 }, waitFor, tick)
}

func testNamespaces(t *testing.T, b *commandBench) {
	b.fill(t, 10)
	c := dialRaw(t, b.p)
	db := bson.E{Key: "$db", Value: testDatabase}
	zero := bson.E{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}}
	for name, tc := range map[string]struct {
		cmd  bson.D
		ns   string
		coll string
	}{
		"listCollections": {bson.D{{Key: "listCollections", Value: 1}, zero, db}, "$cmd.listCollections", "$cmd.listCollections"},
		"listIndexes":     {bson.D{{Key: "listIndexes", Value: "legs"}, zero, db}, "legs", "legs"},
		"find":            {bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin", Value: b.one[0]}}}, {Key: "batchSize", Value: 0}, db}, "legs", "legs"},
		"scatter":         {bson.D{{Key: "find", Value: "legs"}, {Key: "batchSize", Value: 0}, db}, "legs", "legs"},
		"aggregate":       {bson.D{{Key: "aggregate", Value: "legs"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "origin", Value: b.one[0]}}}}}}, zero, db}, "legs", "legs"},
	} {
		got := c.run(tc.cmd)
		ns := got.Lookup("cursor", "ns").StringValue()
		require.NotContains(t, got.String(), "_p4", name)
		id := got.Lookup("cursor", "id").Int64()
		require.Equal(t, testDatabase, strings.SplitN(ns, ".", 2)[0], name)
		coll := strings.SplitN(ns, ".", 2)[1]
		if id == 0 {
			continue // a server may give a small list at once
		}
		got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "other"}, db})
		require.InDelta(t, 0, got.Lookup("ok").Double(), 0, name)
		got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: coll}, db})
		require.InDelta(t, 1, got.Lookup("ok").Double(), 0, "%s: %v", name, got)
		require.Equal(t, ns, got.Lookup("cursor", "ns").StringValue(), name)
		batch, err := got.Lookup("cursor", "nextBatch").Array().Values()
		require.NoError(t, err)
		require.NotEmpty(t, batch, name)
	}
	names, err := b.coll.Database().ListCollectionNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"legs", "byid"}, names)
	specs, err := b.coll.Indexes().ListSpecifications(t.Context())
	require.NoError(t, err)
	require.Len(t, specs, 1)
	dbs, err := b.client.ListDatabaseNames(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Equal(t, []string{testDatabase}, dbs)
}

// Nothing that a client sees names a shard, a member or a physical database.
func testNoNames(t *testing.T, b *commandBench) {
	_, err := b.coll.InsertOne(t.Context(), b.doc(t, false, 1))
	require.NoError(t, err)
	_, err = b.coll.InsertOne(t.Context(), b.doc(t, false, 1))
	require.ErrorContains(t, err, testDatabase+".legs")
	require.NotContains(t, err.Error(), "_p41")
	_, err = b.coll.InsertMany(t.Context(), []any{b.doc(t, true, 2), b.doc(t, false, 1)})
	require.ErrorContains(t, err, testDatabase+".legs")
	require.NotContains(t, err.Error(), "_p41")
	for _, cmd := range []bson.D{
		{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "$bad", Value: 1}}}, {Key: "$db", Value: testDatabase}},
		{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin", Value: b.one[0]}, {Key: "$bad", Value: 1}}}, {Key: "$db", Value: testDatabase}},
		{{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{b.doc(t, false, 7)}}, {Key: "$db", Value: testDatabase}},
	} {
		got := dialRaw(t, b.p).run(cmd)
		for _, leak := range []string{"_p41", "_p42", "127.0.0.1", "$clusterTime", "operationTime", "electionId", "setName"} {
			require.NotContains(t, got.String(), leak)
		}
	}
}

func testDials(t *testing.T, b *commandBench) {
	d := &dialed{all: map[string]bool{}}
	c := b.f.dial(b.p, options.Client().SetDialer(d).SetReadPreference(readpref.Nearest()))
	_, err := c.Database(testDatabase).Collection("legs").CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Equal(t, map[string]bool{b.p.Addr(): true}, d.all)
}

// The clock of one replica set means nothing to another: a time from one once
// made reads on the other wait or fail.
func testTimes(t *testing.T, b *commandBench) {
	b.fill(t, 2)
	c := dialRaw(t, b.p)
	find := func(rc bson.D) bson.Raw {
		return c.run(bson.D{
			{Key: "find", Value: "legs"}, {Key: "filter", Value: mine(t)}, {Key: "readConcern", Value: rc},
			{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: bson.Timestamp{T: 4_000_000_000}}, {Key: "signature", Value: bson.D{{Key: "hash", Value: bson.Binary{Data: make([]byte, 20)}}, {Key: "keyId", Value: int64(7)}}}}},
			{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "secondary"}}}, {Key: "$db", Value: testDatabase},
		})
	}
	got := find(bson.D{{Key: "level", Value: "majority"}, {Key: "afterClusterTime", Value: bson.Timestamp{T: 4_000_000_000}}})
	require.InDelta(t, 1, got.Lookup("ok").Double(), 0, "%v", got)
	got = find(bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: bson.Timestamp{T: 1}}})
	require.Equal(t, int32(codeInvalidOptions), got.Lookup("code").Int32())
	got = find(bson.D{{Key: "level", Value: "snapshot"}})
	require.Equal(t, int32(codeInvalidOptions), got.Lookup("code").Int32())

	s, err := b.client.StartSession(options.Session().SetCausalConsistency(true))
	require.NoError(t, err)
	defer s.EndSession(t.Context())
	ctx := mongo.NewSessionContext(t.Context(), s)
	_, err = b.coll.InsertOne(ctx, b.doc(t, true, 9))
	require.NoError(t, err)
	coll := b.coll.Database().Collection("legs", options.Collection().SetReadConcern(readconcern.Majority()))
	require.NoError(t, coll.FindOne(ctx, bson.D{{Key: "_id", Value: b.id(t, 9)}}).Err())
}

func testProjections(t *testing.T, b *commandBench) {
	b.fill(t, 10)
	for name, tc := range map[string]struct{ projection, want bson.D }{
		"inclusion":      {bson.D{{Key: "origin", Value: 1}, {Key: "_id", Value: 0}}, bson.D{{Key: "origin", Value: b.two[0]}}},
		"exclusion":      {bson.D{{Key: "origin", Value: 0}, {Key: "test", Value: 0}}, bson.D{{Key: "_id", Value: b.id(t, 9)}, {Key: "n", Value: int32(9)}}},
		"of the sort's":  {bson.D{{Key: "n", Value: 0}, {Key: "test", Value: 0}, {Key: "_id", Value: 0}}, bson.D{{Key: "origin", Value: b.two[0]}}},
		"only of the id": {bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: b.id(t, 9)}}},
	} {
		var got bson.D
		err := b.coll.FindOne(t.Context(), mine(t), options.FindOne().SetSort(bson.D{{Key: "n", Value: -1}}).SetProjection(tc.projection)).Decode(&got)
		require.NoError(t, err, name)
		require.Equal(t, tc.want, got, name)
	}
}

func testUpserts(t *testing.T, b *commandBench) {
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "test", Value: t.Name()}}}}
	_, err := b.coll.UpdateOne(t.Context(), mine(t), set, options.UpdateOne().SetUpsert(true))
	var we mongo.WriteException
	require.ErrorAs(t, err, &we)
	require.Equal(t, int(codeShardKeyNotFound), we.WriteErrors[0].Code)
	res, err := b.coll.UpdateOne(t.Context(), bson.D{{Key: "origin", Value: b.two[1]}, {Key: "_id", Value: b.id(t, 1)}}, set, options.UpdateOne().SetUpsert(true))
	require.NoError(t, err)
	require.Equal(t, b.id(t, 1), res.UpsertedID)
	_, err = b.coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: b.id(t, 1)}}, bson.D{{Key: "$set", Value: bson.D{{Key: "origin", Value: "x"}}}})
	require.ErrorAs(t, err, &we)
	require.Equal(t, int(codeImmutableField), we.WriteErrors[0].Code)
	rep, err := b.coll.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: b.id(t, 1)}}, bson.D{{Key: "origin", Value: b.two[1]}, {Key: "test", Value: t.Name()}, {Key: "r", Value: 1}})
	require.NoError(t, err)
	require.Equal(t, int64(1), rep.ModifiedCount)
	rep, err = b.coll.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: b.id(t, 1)}}, bson.D{{Key: "origin", Value: b.two[2]}, {Key: "test", Value: t.Name()}})
	require.NoError(t, err)
	require.Zero(t, rep.MatchedCount, "no document with that _id has that key")
}

func testFindAndModify(t *testing.T, b *commandBench) {
	b.fill(t, 4)
	var got bson.M
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 100}}}}
	after := options.FindOneAndUpdate().SetReturnDocument(options.After)
	for i := range 4 {
		require.NoError(t, b.coll.FindOneAndUpdate(t.Context(), bson.D{{Key: "_id", Value: b.id(t, i)}}, inc, after).Decode(&got))
		require.Equal(t, int32(100+i), got["n"])
	}
	require.ErrorIs(t, b.coll.FindOneAndUpdate(t.Context(), bson.D{{Key: "_id", Value: "nobody"}}, inc).Err(), mongo.ErrNoDocuments)
	err := b.coll.FindOneAndUpdate(t.Context(), mine(t), inc, options.FindOneAndUpdate().SetSort(bson.D{{Key: "n", Value: 1}})).Err()
	require.ErrorContains(t, err, "shard key")
	require.NoError(t, b.coll.FindOneAndReplace(t.Context(), bson.D{{Key: "_id", Value: b.id(t, 1)}}, b.doc(t, true, 1)).Err())
	require.NoError(t, b.coll.FindOneAndDelete(t.Context(), bson.D{{Key: "_id", Value: b.id(t, 3)}}).Err())
	require.Equal(t, int64(3), b.count(t))
	res, err := b.coll.DeleteOne(t.Context(), mine(t))
	require.NoError(t, err)
	require.Equal(t, int64(1), res.DeletedCount)
	up, err := b.coll.UpdateOne(t.Context(), mine(t), inc)
	require.NoError(t, err)
	require.Equal(t, int64(1), up.ModifiedCount, "one document, on whichever chunk")
}

// A request that allows many replies gets one, and is asked again.
func testExhaust(t *testing.T, b *commandBench) {
	b.fill(t, 30)
	c := dialRaw(t, b.p)
	db := bson.E{Key: "$db", Value: testDatabase}
	got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: mine(t)}, {Key: "batchSize", Value: 10}, db})
	id := got.Lookup("cursor", "id").Int64()
	n := 10
	for id != 0 {
		c.send(wire.ExhaustAllowed, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "legs"}, {Key: "batchSize", Value: 7}, db})
		_, got = c.read()
		batch, err := got.Lookup("cursor", "nextBatch").Array().Values()
		require.NoError(t, err)
		n += len(batch)
		id = got.Lookup("cursor", "id").Int64()
	}
	require.Equal(t, 30, n)
}

func testTransactions(t *testing.T, b *commandBench) {
	s, err := b.client.StartSession()
	require.NoError(t, err)
	defer s.EndSession(t.Context())
	ctx := mongo.NewSessionContext(t.Context(), s)
	for _, commit := range []bool{false, true} {
		require.NoError(t, s.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority())))
		for i := range 3 {
			_, err := b.coll.InsertOne(ctx, b.doc(t, false, i))
			require.NoError(t, err)
		}
		n, err := b.coll.CountDocuments(ctx, bson.D{{Key: "origin", Value: b.one[0]}, {Key: "test", Value: t.Name()}})
		require.NoError(t, err)
		require.Equal(t, int64(3), n)
		cur, err := b.coll.Find(ctx, bson.D{{Key: "origin", Value: b.one[0]}, {Key: "test", Value: t.Name()}}, batchOf(2))
		require.NoError(t, err)
		var all []bson.D
		require.NoError(t, cur.All(ctx, &all), "getMore belongs to the transaction")
		require.Len(t, all, 3)
		require.Zero(t, b.count(t), "nobody else sees it")
		if commit {
			require.NoError(t, s.CommitTransaction(ctx))
			require.NoError(t, s.CommitTransaction(ctx), "again")
			require.Equal(t, int64(3), b.count(t))
		} else {
			require.NoError(t, s.AbortTransaction(ctx))
			require.Zero(t, b.count(t))
		}
	}
}

func testAggregate(t *testing.T, b *commandBench) {
	b.fill(t, 10)
	group := bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$origin"}, {Key: "s", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}}
	match := bson.D{{Key: "$match", Value: bson.D{{Key: "origin", Value: b.one[0]}, {Key: "test", Value: t.Name()}}}}
	cur, err := b.coll.Aggregate(t.Context(), bson.A{match, group})
	require.NoError(t, err)
	var got []bson.M
	require.NoError(t, cur.All(t.Context(), &got))
	require.Len(t, got, 1)
	require.Equal(t, int32(20), got[0]["s"])
	for name, tc := range map[string]struct {
		pipeline bson.A
		code     code
		says     string
	}{
		"several chunks": {bson.A{group, group}, codeNotSupported, "several"},
		"$out":           {bson.A{match, bson.D{{Key: "$out", Value: "x"}}}, codeNotSupported, "routes"},
		"$lookup":        {bson.A{match, bson.D{{Key: "$facet", Value: bson.D{{Key: "f", Value: bson.A{bson.D{{Key: "$lookup", Value: bson.D{}}}}}}}}}, codeNotSupported, "one chunk"},
		"$changeStream":  {bson.A{bson.D{{Key: "$changeStream", Value: bson.D{}}}}, codeNotSupported, "captured log"},
		"unknown":        {bson.A{bson.D{{Key: "$nope", Value: 1}}}, codeUnknownStage, "Unrecognized"},
	} {
		_, err := b.coll.Aggregate(t.Context(), tc.pipeline)
		var ce mongo.CommandError
		require.ErrorAs(t, err, &ce, name)
		require.Equal(t, int32(tc.code), ce.Code, name)
		require.Contains(t, ce.Message, tc.says, name)
	}
	n, err := b.coll.CountDocuments(t.Context(), bson.D{{Key: "test", Value: "nobody"}})
	require.NoError(t, err)
	require.Zero(t, n)
}

// A collection whose shard key is _id: documents are placed by it.
func testByID(t *testing.T, b *commandBench) {
	coll := b.coll.Database().Collection("byid")
	var docs []any
	for i := range 40 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i}})
	}
	_, err := coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	for i := range 40 {
		res, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: float64(i)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		require.NoError(t, err)
		require.Equal(t, int64(1), res.ModifiedCount, "1 and 1.0 are one key")
		rep, err := coll.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: int64(i)}}, bson.D{{Key: "n", Value: 7}})
		require.NoError(t, err)
		require.Equal(t, int64(1), rep.ModifiedCount)
	}
	_, err = coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "_id", Value: 2}}}})
	require.Error(t, err)
	got := dialRaw(t, b.p).run(bson.D{{Key: "insert", Value: "byid"}, {Key: "documents", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}, {Key: "$db", Value: testDatabase}})
	require.Equal(t, int32(1), got.Lookup("n").Int32())
	var doc struct {
		ID bson.ObjectID `bson:"_id"`
	}
	require.NoError(t, coll.FindOne(t.Context(), bson.D{{Key: "x", Value: 1}}).Decode(&doc))
	require.NoError(t, coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: doc.ID}}).Err(), "found where its _id places it")
}

// The merge gives the order that one server gives.
func testSorted(t *testing.T, b *commandBench) {
	values := []any{nil, 1, 2.5, int64(3), "a", "B", bson.A{5, 0}, bson.A{}, bson.D{{Key: "x", Value: 1}}, true, bson.DateTime(5), bson.MinKey{}, bson.MaxKey{}, -7}
	var docs []any
	for i, v := range values {
		doc := append(b.doc(t, i%2 == 1, i), bson.E{Key: "v", Value: v})
		docs = append(docs, doc)
	}
	_, err := b.coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	// The same documents on one server.
	direct := b.f.roots["shard-a"].Database("direct").Collection("sorted")
	_, err = direct.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	order := func(c *mongo.Collection, sort bson.D) (out []any) {
		cur, err := c.Find(t.Context(), mine(t), options.Find().SetSort(sort).SetBatchSize(3))
		require.NoError(t, err)
		var all []bson.M
		require.NoError(t, cur.All(t.Context(), &all))
		for _, d := range all {
			out = append(out, d["n"])
		}
		return out
	}
	for _, sort := range []bson.D{
		{{Key: "v", Value: 1}, {Key: "n", Value: 1}}, {{Key: "v", Value: -1}, {Key: "n", Value: -1}}, {{Key: "v.x", Value: 1}, {Key: "n", Value: 1}}, {{Key: "n", Value: -1}},
	} {
		require.Equal(t, order(direct, sort), order(b.coll, sort), "%v", sort)
	}
}

func testSingleBatch(t *testing.T, b *commandBench) {
	b.fill(t, 20)
	c := dialRaw(t, b.p)
	for name, tc := range map[string]struct {
		extra bson.D
		want  int
		open  bool
	}{
		"single of 5": {bson.D{{Key: "singleBatch", Value: true}, {Key: "batchSize", Value: 5}}, 5, false},
		"single":      {bson.D{{Key: "singleBatch", Value: true}}, 20, false},
		"limit 3":     {bson.D{{Key: "limit", Value: 3}}, 3, false},
		"skip 18":     {bson.D{{Key: "skip", Value: 18}}, 2, false},
		"batch of 4":  {bson.D{{Key: "batchSize", Value: 4}, {Key: "sort", Value: bson.D{{Key: "n", Value: 1}}}}, 4, true},
		"nothing":     {bson.D{{Key: "skip", Value: 30}}, 0, false},
	} {
		cmd := append(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: mine(t)}}, tc.extra...)
		got := c.run(append(cmd, bson.E{Key: "$db", Value: testDatabase}))
		batch, err := got.Lookup("cursor", "firstBatch").Array().Values()
		require.NoError(t, err, name)
		require.Len(t, batch, tc.want, name)
		require.Equal(t, tc.open, got.Lookup("cursor", "id").Int64() != 0, name)
	}
}

// A batch of the greatest size passes, split and merged.
func testLargeBatch(t *testing.T, b *commandBench) {
	pad := strings.Repeat("x", 1<<20)
	var docs []any
	for i := range 34 {
		docs = append(docs, append(b.doc(t, i%2 == 1, i), bson.E{Key: "pad", Value: pad}))
	}
	_, err := b.coll.InsertMany(t.Context(), docs)
	require.NoError(t, err)
	cur, err := b.coll.Find(t.Context(), mine(t), options.Find().SetSort(bson.D{{Key: "n", Value: 1}}).SetBatchSize(1000))
	require.NoError(t, err)
	n := 0
	for cur.Next(t.Context()) {
		require.Equal(t, int32(n), cur.Current.Lookup("n").Int32())
		n++
	}
	require.NoError(t, cur.Err())
	require.Equal(t, 34, n)
}

func testKillCursors(t *testing.T, b *commandBench) {
	b.fill(t, 20)
	c := dialRaw(t, b.p)
	db := bson.E{Key: "$db", Value: testDatabase}
	got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: mine(t)}, {Key: "batchSize", Value: 2}, db})
	id := got.Lookup("cursor", "id").Int64()
	got = c.run(bson.D{{Key: "killCursors", Value: "legs"}, {Key: "cursors", Value: bson.A{id, int64(77)}}, db})
	require.Equal(t, id, got.Lookup("cursorsKilled", "0").Int64())
	require.Equal(t, int64(77), got.Lookup("cursorsNotFound", "0").Int64())
	got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "legs"}, db})
	require.Equal(t, int32(codeCursorNotFound), got.Lookup("code").Int32())
}

// The envelope that a shard sees.
func testComment(t *testing.T, b *commandBench) {
	q := &request{client: &client{}, cmd: &wire.Command{}}
	body := raw(t, bson.D{
		{Key: "find", Value: "legs"}, {Key: "comment", Value: "mine"}, {Key: "$db", Value: "flights"}, {Key: "maxTimeMS", Value: 100},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}}, {Key: "hint", Value: "x"},
	})
	require.NoError(t, wire.ParseCommand(body, q.cmd))
	r := b.p.routing.entry(firstChunk).route.Load()
	got := bson.Raw(q.appendBody(nil, envelope{route: r}, &edit{}))
	require.NoError(t, got.Validate())
	require.Equal(t, string(firstChunk), got.Lookup("comment", "drover", "chunk").StringValue())
	require.Equal(t, int64(r.Token), got.Lookup("comment", "drover", "token").Int64())
	require.Equal(t, "mine", got.Lookup("comment", "app").StringValue())
	require.Equal(t, r.Placement.Database, got.Lookup("$db").StringValue())
	require.Equal(t, "x", got.Lookup("hint").StringValue())
	require.Zero(t, got.Lookup("lsid").Type)
}

// A retry with the same number is not done again.
func testRetryDedupes(t *testing.T, b *commandBench) {
	b.fill(t, 2)
	c := dialRaw(t, b.p)
	cmd := func(n int64, ordered bool) bson.D {
		inc := func(i int) bson.D {
			return bson.D{{Key: "q", Value: b.doc(t, i == 1, i)[:2]}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "c", Value: 1}}}}}}
		}
		return bson.D{
			{Key: "update", Value: "legs"}, {Key: "ordered", Value: ordered}, {Key: "updates", Value: bson.A{inc(0), inc(1), inc(0), inc(1), inc(1)}},
			{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte("retry-dedupes-00")}}}},
			{Key: "txnNumber", Value: n}, {Key: "$db", Value: testDatabase},
		}
	}
	for n, ordered := range []bool{true, false} {
		for range 3 {
			got := c.run(cmd(int64(n+1), ordered))
			require.Equal(t, int32(5), got.Lookup("n").Int32(), "%v", got)
			require.Equal(t, int32(5), got.Lookup("nModified").Int32())
		}
		for i, want := range []int{2, 3} {
			var doc struct{ C int }
			require.NoError(t, b.coll.FindOne(t.Context(), bson.D{{Key: "_id", Value: b.id(t, i)}}).Decode(&doc))
			require.Equal(t, want*(n+1), doc.C)
		}
	}
}
