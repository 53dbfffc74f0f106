package validation_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/validation"
)

// replies answers every read with a collection of a store.
type replies struct {
	w        *world
	store    store
	on       func()
	edit     func(*validation.Answer)
	collated bool
}

var _ validation.Answers = (*replies)(nil)

// Collated implements [validation.Answers].
func (r *replies) Collated(context.Context, string) (bool, error) { return r.collated, nil }

// Answer implements [validation.Answers].
func (r *replies) Answer(_ context.Context, p validation.Probe, _ bson.Timestamp) (a validation.Answer, err error) {
	if r.on != nil {
		r.on()
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	for _, doc := range r.store[p.Collection] { // in no order
		a.Documents = append(a.Documents, doc)
	}
	if r.edit != nil {
		r.edit(&a)
	}
	return a, nil
}

// TestMirroredReadsAreCompared: at equal positions, and where that cannot be said, not.
func TestMirroredReadsAreCompared(t *testing.T) {
	t.Parallel()
	inOrder := func(a *validation.Answer) {
		slices.SortFunc(a.Documents, func(x, y bson.Raw) int { return int(x.Lookup("_id").AsInt64() - y.Lookup("_id").AsInt64()) })
	}
	type edit = func(*validation.Answer)
	for name, tc := range map[string]struct {
		change         func(w *world)
		on             func(w *world)
		source, target edit
		sorted         bool
		collated       bool
		compared       int
		differ         int
		changing       int
		unanswered     int
	}{
		"the same, in any order": {compared: 1},
		"in order":               {sorted: true, source: inOrder, target: inOrder, compared: 1},
		"in another order":       {sorted: true, source: inOrder, target: func(a *validation.Answer) { inOrder(a); slices.Reverse(a.Documents) }, compared: 1, differ: 1},
		"an order of spellings":  {sorted: true, collated: true, source: inOrder, target: func(a *validation.Answer) { inOrder(a); slices.Reverse(a.Documents) }, compared: 1},
		"one is missing":         {change: func(w *world) { delete(w.target["c"], keyOf(doc(3, 3))) }, compared: 1, differ: 1},
		"one is different":       {change: func(w *world) { w.target.put("c", doc(3, 4)) }, compared: 1, differ: 1},
		"one twice for another":  {target: func(a *validation.Answer) { a.Documents[0] = a.Documents[1] }, compared: 1, differ: 1},
		"changing meanwhile":     {on: func(w *world) { w.write(event.Replace, doc(3, 1000+len(w.log))) }, change: func(w *world) { w.target.put("c", doc(7, 8)) }, changing: 1},
		"refused by both":        {source: func(a *validation.Answer) { *a = validation.Answer{Failed: "[2]"} }, target: func(a *validation.Answer) { *a = validation.Answer{Failed: "[2]"} }, unanswered: 1},
		"refused in two ways":    {source: func(a *validation.Answer) { *a = validation.Answer{Failed: "[2]"} }, target: func(a *validation.Answer) { *a = validation.Answer{Failed: "[9]"} }, compared: 1, differ: 1},
		"spent on the source":    {source: func(a *validation.Answer) { *a = validation.Answer{Spent: true} }, unanswered: 1},
		"spent on the target":    {target: func(a *validation.Answer) { *a = validation.Answer{Spent: true} }, unanswered: 1},
		"refused by one":         {target: func(a *validation.Answer) { *a = validation.Answer{Failed: "[2]"} }, compared: 1, differ: 1},
		"cut without an order":   {change: func(w *world) { w.target.put("c", doc(3, 4)) }, source: func(a *validation.Answer) { a.Cut = true }, target: func(a *validation.Answer) { a.Cut = true }, compared: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for i := range 20 {
				w.both("c", doc(i, i))
			}
			if tc.change != nil {
				tc.change(w)
			}
			w.follow(t)
			on := func() {
				if tc.on != nil {
					tc.on(w)
				}
			}
			m := &validation.Mirror{
				Source: &replies{w: w, store: w.source, edit: tc.source, collated: tc.collated}, Target: &replies{w: w, store: w.target, on: on, edit: tc.target},
				Markers: w, Log: w, Database: database,
			}
			find := bson.D{{Key: "find", Value: "c"}}
			if tc.sorted {
				find = append(find, bson.E{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}})
			}
			got, err := m.Round(t.Context(), []bson.Raw{raw(find)})
			require.NoError(t, err)
			require.Equal(t, tc.compared, got.Compared)
			require.Len(t, got.Different, tc.differ)
			require.Len(t, got.Changing, tc.changing)
			require.Equal(t, tc.unanswered, got.Unanswered)
			require.Len(t, got.TargetTook, 1-tc.unanswered)
			require.Len(t, got.SourceTook, 1-tc.unanswered, "the figures are of the same reads")
		})
	}
}

// TestReadsThatDecideNothingAreNotAsked: chance gives each side an answer of its own.
func TestReadsThatDecideNothingAreNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.follow(t)
	asked := func() { t.Error("a side was asked") }
	m := &validation.Mirror{Source: &replies{w: w, on: asked}, Target: &replies{w: w, on: asked}, Markers: w, Log: w, Database: database}
	got, err := m.Round(t.Context(), []bson.Raw{raw(bson.D{{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: 1}}}}}}})})
	require.NoError(t, err)
	require.Zero(t, got.Compared)
}
