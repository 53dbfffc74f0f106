package replication

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// A document is written whole for a change of one field, once for all its changes in a
// batch, and not at all where it is there already: what that costs is measured.
func testAmplification(t *testing.T, w *world) {
	w.cfg.Metrics = NewMetrics(prometheus.NewRegistry())
	const size = 100 << 10
	w.inserted(bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 0}, {Key: "large", Value: strings.Repeat("x", size)}})
	r := w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	changed, written := testutil.ToFloat64(w.cfg.Metrics.changed), testutil.ToFloat64(w.cfg.Metrics.written)
	require.InDelta(t, size, changed, 200)
	require.InDelta(t, size, written, 200, "an insert costs what it is")
	r.lanes.Pause()
	for n := range 10 {
		w.updated(1, bson.D{{Key: "n", Value: n + 1}})
	}
	r.lanes.Resume()
	w.passes(w.mark(chunk.ValidateMarker, 2))
	few, whole := testutil.ToFloat64(w.cfg.Metrics.changed)-changed, testutil.ToFloat64(w.cfg.Metrics.written)-written
	require.Less(t, few, 2000.0)
	require.InDelta(t, size, whole, 200, "ten changes of one field in a batch are one write of all of it")
	w.replaced(bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 10}, {Key: "large", Value: strings.Repeat("x", size)}})
	w.passes(w.mark(chunk.ValidateMarker, 3))
	require.InDelta(t, whole+written, testutil.ToFloat64(w.cfg.Metrics.written), 0, "what is there already is not written")
	require.InDelta(t, 1, testutil.ToFloat64(w.cfg.Metrics.unchanged), 0)
}
