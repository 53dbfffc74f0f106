package bulkimport_test

import (
	"bytes"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/chunk"
	"drover/internal/failure"
)

// What an import has stored is restored into another database byte for byte, again
// without harm, and not at all where an object is not what was stored.
func testStoredSlicesAreRestoredElsewhere(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	var docs []any
	for n, v := range values() {
		docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "v", Value: v}, {Key: "t", Value: bson.Timestamp{}}})
	}
	b.insert(t, "c", docs...)
	b.importer.Limits.Documents = 5
	_, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "c")})
	require.NoError(t, err)
	all, err := b.slices.List(t.Context(), b.importer.Migration)
	require.NoError(t, err)
	require.Greater(t, len(all), 3)

	target := b.importer.Target
	target.Database = b.target.Name() + "_clone"
	for range 2 {
		seen := 0
		require.NoError(t, target.Restore(t.Context(), b.importer.Bucket, b.importer.Migration+1000, all, func(bulkimport.Slice) { seen++ }))
		require.Equal(t, len(all), seen)
		require.Equal(t, contents(t, b.source, "c"), contents(t, b.client.Database(target.Database), "c"))
	}
	require.Error(t, target.Restore(t.Context(), b.importer.Bucket, 1, all[1:], nil), "a part is no import")

	bucket, key := b.importer.Bucket, all[1].Object.Key
	put := func(body []byte) {
		_, err := bucket.Client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket.Name, Key: &key, Body: bytes.NewReader(body)})
		require.NoError(t, err)
	}
	put([]byte("not zstd"))
	err = target.Restore(t.Context(), bucket, 1, all, nil)
	require.True(t, failure.HasCode(err, "import.object_damaged"), "%v", err)
	_, err = bucket.Client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket.Name, Key: &key})
	require.NoError(t, err)
	err = target.Restore(t.Context(), bucket, 1, all, nil)
	require.True(t, failure.HasCode(err, "import.object_missing"), "%v", err)
}
