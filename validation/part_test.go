package validation_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/validation"
)

// partOf gives a side's documents whose k lies in [lo, hi), or outside of it.
func partOf(t *testing.T, s validation.Side, lo, hi int, not bool) validation.Part {
	t.Helper()
	point := func(v int) chunk.Key {
		k, err := chunk.Ranged.DocumentPoint(raw(bson.D{{Key: "v", Value: v}}), "v")
		require.NoError(t, err)
		return k
	}
	return validation.Part{Side: s, Keep: &chunk.Keep{
		Space: chunk.Ranged, ShardKeys: map[string]string{"c": "k"}, Ranges: []chunk.Range{{Lo: point(lo), Hi: point(hi)}}, Not: not,
	}}
}

// TestPartOfASplit compares one target of a split with the part of the source
// that is its own, across many slices of which some have nothing of it.
func TestPartOfASplit(t *testing.T) {
	t.Parallel()

	fill := func(w *world) {
		for id := range 300 {
			k := id % 10
			if id/50 == 2 {
				k = 0 // a whole stretch of _ids without a document of the part
			}
			doc := raw(bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}})
			w.source.put("c", doc)
			if k >= 7 {
				w.target.put("c", doc)
			}
		}
	}
	for name, c := range map[string]struct {
		lo    int // of the part that is looked at
		spoil func(*world)
		kinds map[validation.Kind]int64
	}{
		"clean":             {7, func(*world) {}, map[validation.Kind]int64{}},
		"off by one, wider": {6, func(*world) {}, map[validation.Kind]int64{validation.MissingDocument: 25}},
		"off by one, less":  {8, func(*world) {}, map[validation.Kind]int64{validation.ExtraDocument: 25}},
		"one of another target": {7, func(w *world) {
			w.target.put("c", raw(bson.D{{Key: "_id", Value: 3}, {Key: "k", Value: 3}}))
		}, map[validation.Kind]int64{validation.ExtraDocument: 1}},
		"one missing": {7, func(w *world) { delete(w.target["c"], keyOf(raw(bson.D{{Key: "_id", Value: 299}}))) }, map[validation.Kind]int64{validation.MissingDocument: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			fill(w)
			c.spoil(w)
			v := w.validator()
			v.Source = partOf(t, v.Source, c.lo, 100, false)
			got := w.run(t, v, "c")
			require.Equal(t, c.kinds, got.Kinds)
		})
	}
}

// TestPartOfAMerge looks at a target that another source fills too: what is the
// other's is not extra, and what is nobody's is.
func TestPartOfAMerge(t *testing.T) {
	t.Parallel()

	w := newWorld()
	for id := range 100 {
		doc := raw(bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 20}})
		if id%20 < 10 {
			w.source.put("c", doc)
		}
		w.target.put("c", doc)
	}
	v := w.validator()
	v.Target = partOf(t, v.Target, 10, 20, true)
	require.True(t, w.run(t, v, "c").Clean())

	w.target.put("c", raw(bson.D{{Key: "_id", Value: 1000}, {Key: "k", Value: 77}}))
	require.Equal(t, map[validation.Kind]int64{validation.ExtraDocument: 1}, w.run(t, v, "c").Kinds)
}
