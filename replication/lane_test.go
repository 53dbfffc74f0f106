package replication

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
)

func TestLanesApplyInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	for i := range 50 {
		w.inserted(bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}})
	}
	r := w.run(w.cfg)
	for round := range 20 {
		for i := range 50 {
			w.updated(i, bson.D{{Key: "n", Value: round + 1}})
		}
	}
	w.replaced(bson.D{{Key: "_id", Value: 7}, {Key: "new", Value: true}})
	w.deleted(8)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 49)
	for k, doc := range got {
		if id := doc.Lookup("_id").AsInt64(); id == 7 {
			require.Equal(t, raw(t, bson.D{{Key: "_id", Value: 7}, {Key: "new", Value: true}}), doc, k)
		} else {
			require.Equal(t, raw(t, bson.D{{Key: "_id", Value: int(id)}, {Key: "n", Value: 20}}), doc, k)
		}
	}
	require.NoError(t, CloseLanes(ctx, w.client, w.cfg.Direction.Migration, 0))
	err := r.wait()
	require.True(t, failure.HasCode(err, "lane.closed"), "%v", err)
	require.True(t, failure.Is(err, failure.Lost))

	r = w.run(w.cfg)
	err = r.wait()
	require.True(t, failure.HasCode(err, "lane.closed"), "a closed lane is never taken again: %v", err)
}
