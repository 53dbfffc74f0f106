package bulkimport_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"

	"drover/bulkimport"
	"drover/bulkimport/bulkimporttest"
	"drover/chunk"
	"drover/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is one source and one target on a shard, and a bucket.
type bundle struct {
	client         *mongo.Client
	source, target *mongo.Database
	slices         *bulkimporttest.Memory
	importer       *bulkimport.Importer
	last           *atomic.Int64 // migration that was made on the shard
}

// setup starts the servers and gives an importer with small slices.
func setup(tb testing.TB) *bundle {
	tb.Helper()
	bucket := testkit.S3(tb)
	transport := &http.Transport{}
	tb.Cleanup(transport.CloseIdleConnections)
	storage := s3.New(s3.Options{
		BaseEndpoint: aws.String(bucket.Endpoint), Region: bucket.Region, UsePathStyle: true, HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider(bucket.AccessKey, bucket.SecretKey, ""),
	})
	client, err := mongo.Connect(options.Client().ApplyURI(testkit.Shard(tb).AdminURI()))
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(tb, client.Disconnect(ctx))
	})
	b := &bundle{client: client, last: new(atomic.Int64), importer: &bulkimport.Importer{Bucket: bulkimport.Bucket{Client: storage, Name: bucket.Bucket}}}
	return b.fresh(tb)
}

// fresh gives a migration of a test's own on the same servers.
func (b *bundle) fresh(tb testing.TB) *bundle {
	tb.Helper()
	m := chunk.MigrationID(b.last.Add(1))
	f := &bundle{
		client: b.client, last: b.last, slices: &bulkimporttest.Memory{},
		source: b.client.Database(chunk.PhysicalName(chunk.NewID("app", int(m)), 1)),
		target: b.client.Database(chunk.PhysicalName(chunk.NewID("app", int(m)), 2)),
	}
	f.importer = &bulkimport.Importer{
		Migration: m,
		Source:    bulkimport.Source{Client: b.client, Database: f.source.Name(), Start: b.mark(tb)},
		Target:    bulkimport.Target{Client: b.client, Database: f.target.Name(), KeepsEmptyTimestamps: true},
		Bucket:    b.importer.Bucket,
		Slices:    f.slices,
		Limits:    bulkimport.Limits{Documents: 40, Bytes: 64 * bulkimport.KiB},
	}
	return f
}

// again gives an importer as another process would make it.
func (b *bundle) again() *bulkimport.Importer {
	return &bulkimport.Importer{
		Migration: b.importer.Migration, Source: b.importer.Source, Target: b.importer.Target, Bucket: b.importer.Bucket,
		Slices: b.slices, Limits: b.importer.Limits,
	}
}

// mark writes a marker and gives the cluster time at which it comes out of a
// change stream.
func (b *bundle) mark(tb testing.TB) bson.Timestamp {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	markers := b.client.Database(chunk.SystemDatabase).Collection(chunk.MarkersCollection)
	stream, err := markers.Watch(ctx, mongo.Pipeline{})
	require.NoError(tb, err)
	defer func() { require.NoError(tb, stream.Close(ctx)) }()
	_, err = markers.InsertOne(ctx, bson.D{{Key: "_id", Value: bson.NewObjectID()}})
	require.NoError(tb, err)
	require.True(tb, stream.Next(ctx), "the marker's event: %v", stream.Err())
	sec, inc := stream.Current.Lookup("clusterTime").Timestamp()
	return bson.Timestamp{T: sec, I: inc}
}

// contents gives the raw documents of a collection by the encoding of _id.
func contents(t *testing.T, db *mongo.Database, name string) map[chunk.Key]bson.Raw {
	t.Helper()
	cursor, err := db.Collection(name).Find(t.Context(), bson.D{})
	require.NoError(t, err)
	all := map[chunk.Key]bson.Raw{}
	for cursor.Next(t.Context()) {
		key, err := chunk.EncodeValue(cursor.Current.Lookup("_id"))
		require.NoError(t, err)
		require.NotContains(t, all, key)
		all[key] = append(bson.Raw(nil), cursor.Current...)
	}
	require.NoError(t, cursor.Err())
	return all
}

// requireCopied wants the target's collection to be the source's, byte for byte.
func (b *bundle) requireCopied(t *testing.T, name string) {
	t.Helper()
	want, have := contents(t, b.source, name), contents(t, b.target, name)
	require.Len(t, have, len(want))
	for key, doc := range want {
		require.Equal(t, []byte(doc), []byte(have[key]), "%v", doc)
	}
}

// insert puts documents into the source, empty timestamps as they are.
func (b *bundle) insert(tb testing.TB, name string, docs ...any) {
	tb.Helper()
	for len(docs) > 0 {
		n := min(len(docs), 1000)
		reply := b.source.RunCommand(tb.Context(), bson.D{
			{Key: "insert", Value: name}, {Key: "documents", Value: bson.A(docs[:n])}, {Key: "bypassEmptyTsReplacement", Value: true},
		})
		raw, err := reply.Raw()
		require.NoError(tb, err)
		require.Equal(tb, int64(n), raw.Lookup("n").AsInt64(), "%v", raw)
		docs = docs[n:]
	}
}

// collection describes a collection to the importer.
func collection(tb testing.TB, name string, indexes ...bson.D) chunk.Collection {
	tb.Helper()
	c := chunk.Collection{Name: name, ShardKey: "_id"}
	for _, key := range indexes {
		spec, err := bson.Marshal(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: key}, {Key: "name", Value: fmt.Sprint(key)}})
		require.NoError(tb, err)
		c.Indexes = append(c.Indexes, spec)
	}
	return c
}

// decimal gives a decimal from its text.
func decimal(text string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(text)
	if err != nil {
		panic(err)
	}
	return d
}

// ids has values of every type that both kinds of server take as _id, in the
// order of BSON, with no two equal.
func ids() []any {
	return []any{
		bson.MinKey{},
		nil,
		math.NaN(), math.Inf(-1), decimal("-1E+30"), math.Copysign(0, -1), int32(1), 1.5, int64(2), decimal("3.25"),
		int64(math.MaxInt64), 9.3e18, math.Inf(1),
		"", "507f1f77bcf86cd799439011", "B", "a", "a\x00b", "é",
		bson.D{},
		bson.D{{Key: "a", Value: 1}},
		bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 2}},
		bson.D{{Key: "y", Value: 2}, {Key: "x", Value: 1}},
		bson.Binary{Data: []byte{1}},
		bson.Binary{Data: []byte{255}},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.ObjectID{},
		bson.ObjectID{11: 1},
		false, true,
		bson.DateTime(-5), bson.DateTime(0), bson.DateTime(1e12),
		bson.Timestamp{},
		bson.Timestamp{T: 1, I: 2},
		bson.JavaScript("x"),
		bson.CodeWithScope{Code: "y", Scope: bson.D{}},
		bson.MaxKey{},
	}
}

// values has values of every type, and those that other tools of this kind were
// seen to break.
func values() []any {
	return append(ids(),
		bson.A{1, "two", bson.A{}, bson.D{}}, bson.Regex{Pattern: "^a", Options: "im"}, bson.Symbol("symbol"), bson.Undefined{},
		bson.DBPointer{DB: "a.b", Pointer: bson.ObjectID{1}}, decimal("NaN"), decimal("Infinity"), decimal("1.00"),
		bson.Binary{Subtype: 3, Data: make([]byte, 16)}, bson.Binary{Subtype: 128, Data: nil}, bson.D{{Key: "t", Value: bson.Timestamp{}}},
		bson.D{{Key: "op", Value: "d"}, {Key: "$v", Value: 2}, {Key: "a.b", Value: 1}, {Key: "", Value: 5}},
	)
}
