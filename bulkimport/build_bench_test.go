package bulkimport

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// BenchmarkBuildRun sorts and compresses a slice of 15,000 documents of about 360
// bytes by two random fields: what the import does between a read and S3.
func BenchmarkBuildRun(b *testing.B) {
	const n = 15_000
	order := Order{Fields: []OrderField{{Path: "a"}, {Path: "b"}}}
	var read snapshot
	for i := range n {
		r := rand.New(rand.NewPCG(7, uint64(i)))
		read.docs = append(read.docs, raw(bson.D{
			{Key: "_id", Value: fmt.Sprintf("%016x", r.Uint64())}, {Key: "a", Value: fmt.Sprintf("%08x", r.Uint32())}, {Key: "b", Value: r.Int64()},
			{Key: "pad", Value: strings.Repeat("x", 250)},
		}))
	}
	var made run
	for b.Loop() {
		var err error
		made, err = buildRun(Slice{Migration: 1, Collection: "c"}, order, read)
		require.NoError(b, err)
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "docs/s")
	decoder, err := zstd.NewReader(nil)
	require.NoError(b, err)
	defer decoder.Close()
	for _, f := range made.manifest.Frames {
		_, err := f.open(decoder, "k", order, made.content[f.Offset:f.Offset+f.Length])
		require.NoError(b, err)
	}
}
