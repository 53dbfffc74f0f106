package bulkimport_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bulkimport"
	"drover/chunk"
)

// BenchmarkImport copies 50,000 documents of about 360 bytes with one secondary
// index, _ids in random order, from one database of a shard to another one.
func BenchmarkImport(b *testing.B) {
	shared := setup(b)
	const n = 50_000
	docs := make([]any, n)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: fmt.Sprintf("%08x", uint32(i)*2654435761)}, {Key: "a", Value: i % 997}, {Key: "pad", Value: strings.Repeat("z", 300)}}
	}
	shared.insert(b, "c", docs...)
	for b.Loop() {
		f := shared.fresh(b)
		f.importer.Source.Database = shared.source.Name()
		f.importer.Limits = bulkimport.Limits{}
		_, err := f.target.Collection("c").Indexes().CreateOne(b.Context(), mongo.IndexModel{Keys: bson.D{{Key: "a", Value: 1}}})
		require.NoError(b, err)
		result, err := f.importer.Run(b.Context(), []chunk.Collection{collection(b, "c", bson.D{{Key: "a", Value: 1}})})
		require.NoError(b, err)
		require.Equal(b, bulkimport.Documents(n), result.Documents)
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "docs/s")
}
