package cdc_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/cdc"
	"drover/event"
	"drover/internal/testkit"
)

// BenchmarkCaptureLatency tells how long after its acknowledgement a write is
// with a reader of the log, one write at a time.
func BenchmarkCaptureLatency(b *testing.B) {
	w := setup(b, testkit.Kafka(b))
	c := w.capture(nil)
	c.Settings = cdc.CaptureSettings{}
	start(b, c)
	seams := w.seam(b)
	seen := make(chan time.Time, 1000)
	for p, s := range seams {
		go func() {
			_ = w.log.Read(b.Context(), w.name, int32(p), s.Offset, func(_ int64, e *event.Event) error {
				if e != nil && e.Op == event.Insert {
					seen <- time.Now()
				}
				return nil
			})
		}()
	}
	coll := w.client.Database(database).Collection("c")
	var took []time.Duration
	for b.Loop() {
		_, err := coll.InsertOne(b.Context(), bson.D{{Key: "v", Value: 1}})
		require.NoError(b, err)
		acknowledged := time.Now()
		took = append(took, (<-seen).Sub(acknowledged))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkCaptureThroughput tells how many changes a second go into the log
// when capture has fallen behind.
func BenchmarkCaptureThroughput(b *testing.B) {
	const docs = 100_000
	w := setup(b, testkit.Kafka(b))
	first := start(b, w.capture(nil))
	w.seam(b)
	require.Error(b, first.stop())
	coll := w.client.Database(database).Collection("c")
	padding := bson.Binary{Data: make([]byte, 500)}
	for range docs / 1000 {
		batch := make([]any, 1000)
		for i := range batch {
			batch[i] = bson.D{{Key: "p", Value: padding}}
		}
		_, err := coll.InsertMany(b.Context(), batch)
		require.NoError(b, err)
	}
	for b.Loop() {
		began := time.Now()
		c := w.capture(nil)
		c.Settings = cdc.CaptureSettings{}
		start(b, c)
		w.seam(b)
		b.ReportMetric(docs/time.Since(began).Seconds(), "changes/s")
	}
}
