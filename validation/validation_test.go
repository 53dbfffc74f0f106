package validation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/validation"
)

// docs gives n documents with _ids of several types.
func docs(n int) []bson.Raw {
	out := make([]bson.Raw, n)
	for i := range out {
		var id any = i
		switch i % 4 {
		case 1:
			id = fmt.Sprintf("s%d", i)
		case 2:
			id = bson.D{{Key: "x", Value: i}}
		case 3:
			id = bson.ObjectID{byte(i), byte(i >> 8)}
		}
		out[i] = raw(bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i}, {Key: "s", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}}})
	}
	return out
}

// Each kind of fault, planted in one document of many, is found as what it is;
// the documents around it are not.
func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	base := bson.D{
		{Key: "_id", Value: 5000},
		{Key: "n", Value: int32(5)},
		{Key: "m", Value: int64(7)},
		{Key: "z", Value: 0.0},
		{Key: "s", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}},
		{Key: "l", Value: bson.A{1, bson.D{{Key: "k", Value: 1}}}},
	}
	with := func(path int, value any) bson.D {
		d := slices.Clone(base)
		d[path].Value = value
		return d
	}
	for name, tc := range map[string]struct {
		target bson.D // nil: absent
		want   validation.Difference
	}{
		"missing":             {nil, validation.Difference{Kind: validation.MissingDocument}},
		"byte":                {with(1, int32(4)), validation.Difference{Path: "n", Kind: validation.DifferentValue}},
		"int for long":        {with(2, int32(7)), validation.Difference{Path: "m", Kind: validation.DifferentType}},
		"lengths cancel out":  {append(with(1, int64(5))[:2:2], append(bson.D{{Key: "m", Value: int32(7)}}, base[3:]...)...), validation.Difference{Path: "n", Kind: validation.DifferentType}},
		"negative zero":       {with(3, negativeZero()), validation.Difference{Path: "z", Kind: validation.DifferentValue}},
		"order at the top":    {append(bson.D{base[0], base[2], base[1]}, base[3:]...), validation.Difference{Kind: validation.DifferentOrder}},
		"order below":         {with(4, bson.D{{Key: "b", Value: 2}, {Key: "a", Value: 1}}), validation.Difference{Path: "s", Kind: validation.DifferentOrder}},
		"order and value":     {append(bson.D{base[0], base[2], {Key: "n", Value: int32(6)}}, base[3:]...), validation.Difference{Path: "n", Kind: validation.DifferentValue}},
		"field missing":       {base[:5], validation.Difference{Path: "l", Kind: validation.MissingField}},
		"field extra":         {append(slices.Clone(base), bson.E{Key: "q", Value: nil}), validation.Difference{Path: "q", Kind: validation.ExtraField}},
		"inner field missing": {with(4, bson.D{{Key: "a", Value: 1}}), validation.Difference{Path: "s.b", Kind: validation.MissingField}},
		"array element":       {with(5, bson.A{1, bson.D{{Key: "k", Value: 2}}}), validation.Difference{Path: "l.1.k", Kind: validation.DifferentValue}},
		"array longer":        {with(5, bson.A{1, bson.D{{Key: "k", Value: 1}}, 3}), validation.Difference{Path: "l.2", Kind: validation.ExtraField}},
		"array for object":    {with(5, bson.D{{Key: "0", Value: 1}}), validation.Difference{Path: "l", Kind: validation.DifferentType}},
		"type of _id":         {with(0, int64(5000)), validation.Difference{Path: "_id", Kind: validation.DifferentType}},
		"duplicate field":     {append(slices.Clone(base), bson.E{Key: "n", Value: int32(5)}), validation.Difference{Path: "n", Kind: validation.DuplicateField}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.both("c", docs(55)...)
			w.source.put("c", raw(base))
			if tc.target != nil {
				w.target.put("c", raw(tc.target))
			}
			result := w.run(t, w.validator(), "c")
			require.Equal(t, int64(1), result.Mismatched, "%v", result)
			require.False(t, result.Clean())
			require.Equal(t, tc.want, result.Mismatches[0].Difference)
			require.Equal(t, raw(bson.D{{Key: "_id", Value: 5000}}).Lookup("_id").AsInt64(), result.Mismatches[0].ID.Lookup("_id").AsInt64())
			require.NotEmpty(t, result.Mismatches[0].SourceHash)
			require.Equal(t, int64(56), result.Documents)
			require.Equal(t, int64(1), result.Reread, "only what differed is read again, until it is sure")

			requireTurned(t, w, tc.target == nil)
		})
	}
}

// requireTurned compares with the sides swapped: what is missing is one too many
// then.
func requireTurned(t *testing.T, w *world, extra bool) {
	t.Helper()
	turned := w.validator()
	turned.Source, turned.Target = turned.Target, turned.Source
	result, err := turned.Run(t.Context(), []string{"c"})
	require.NoError(t, err)
	require.Equal(t, int64(1), result.Mismatched)
	if extra {
		require.Equal(t, validation.ExtraDocument, result.Mismatches[0].Kind)
	}
}

// negativeZero is a value that compares equal to zero.
func negativeZero() float64 {
	zero := 0.0
	return -zero * 1
}

// Two documents whose _ids are documents with their fields in another order are
// two documents.
func TestEmbeddedIDsAreOrdered(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.source.put("c", raw(bson.D{{Key: "_id", Value: bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 2}}}}))
	w.target.put("c", raw(bson.D{{Key: "_id", Value: bson.D{{Key: "y", Value: 2}, {Key: "x", Value: 1}}}}))
	result := w.run(t, w.validator(), "c")
	require.Equal(t, map[validation.Kind]int64{validation.MissingDocument: 1, validation.ExtraDocument: 1}, result.Kinds)
}

// While writers work and lanes follow with all delays there can be, nothing is
// reported; and when the writers stop nothing is busy.
func TestNoFalseAlarmUnderLiveWrites(t *testing.T) {
	t.Parallel()
	w := newWorld()
	all := docs(400)
	w.both("c", all...)
	w.both("d", docs(33)...)
	w.follow(t)

	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for n := range 3 {
		group.Go(func() {
			r := random(uint64(n))
			for version := 0; ctx.Err() == nil; version++ {
				doc := all[r.IntN(len(all))]
				if r.IntN(3) == 0 {
					doc = all[r.IntN(5)] // some are hot
				}
				if r.IntN(4) == 0 {
					w.write(event.Delete, doc)
					continue
				}
				w.write(event.Replace, raw(bson.D{{Key: "_id", Value: doc.Lookup("_id")}, {Key: "v", Value: version}, {Key: "w", Value: n}}))
			}
		})
	}
	sorted := slices.SortedFunc(slices.Values(all), func(a, b bson.Raw) int { return cmp.Compare(keyOf(a), keyOf(b)) })
	for n := range 20 {
		v := w.validator()
		v.Settings.Few, v.Settings.Rounds = 400, 5
		if n%2 == 1 { // two slices are read at once
			v.Settings.Slice = 70
			v.Cuts = cuts{{At: sorted[60].Lookup("_id"), Documents: 61}, {At: sorted[120].Lookup("_id"), Documents: 60}, {At: sorted[300].Lookup("_id"), Documents: 180}}
		}
		result, err := v.Run(t.Context(), []string{"c", "d"})
		require.NoError(t, err)
		require.True(t, result.Clean(), "%v %v", result, result.Mismatches)
	}
	cancel()
	group.Wait()
	result, err := w.validator().Run(t.Context(), []string{"c", "d"})
	require.NoError(t, err)
	require.True(t, result.Clean())
	require.Empty(t, result.Busy)
	require.Equal(t, result.Documents, result.Target)
}

// A lane swallows an update of a document that is written all the time: it is
// busy in every round, and only the comparison under the fence can tell.
func TestLostUpdateOfABusyDocument(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(55)...)
	hot := raw(bson.D{{Key: "_id", Value: 0}, {Key: "n", Value: 99}})
	lose := false
	w.apply = func(target store, e *event.Event) {
		if !lose {
			applyEvent(target, e)
		}
	}
	w.onWrite = func() { w.write(event.Replace, hot) }
	v := w.validator()
	result := w.run(t, v, "c")
	require.True(t, result.Clean())
	require.Len(t, result.Busy, 1)
	require.Equal(t, "c", result.Busy[0].Collection)
	ids := []bson.RawValue{result.Busy[0].ID.Lookup("_id")}

	mark, err := w.Write(t.Context())
	require.NoError(t, err)
	require.NoError(t, w.Passed(t.Context(), mark))
	mismatches, err := v.CompareIDs(t.Context(), "c", ids)
	require.NoError(t, err)
	require.Empty(t, mismatches)

	w.mu.Lock()
	lose = true
	w.mu.Unlock()
	w.write(event.Delete, hot)
	w.onWrite = nil
	mark, err = w.Write(t.Context())
	require.NoError(t, err)
	require.NoError(t, w.Passed(t.Context(), mark))
	mismatches, err = v.CompareIDs(t.Context(), "c", ids)
	require.NoError(t, err)
	require.Len(t, mismatches, 1)
	require.Equal(t, validation.ExtraDocument, mismatches[0].Kind)
}

// A document that looks right only because both sides were read at an unlucky
// moment is read again.
func TestLostUpdateOfATouchedDocument(t *testing.T) {
	t.Parallel()
	w := newWorld()
	all := docs(55)
	w.both("c", all...)
	writes := 0
	w.apply = func(store, *event.Event) {}
	w.onWrite = func() {
		if writes++; writes == 2 { // after the first slice was read, before its second marker
			w.write(event.Replace, raw(bson.D{{Key: "_id", Value: all[0].Lookup("_id")}, {Key: "lost", Value: true}}))
		}
	}
	result := w.run(t, w.validator(), "c")
	require.Equal(t, int64(1), result.Mismatched)
}

// The second slice is read while the first one's marker is on its way, or beside the first
// one where it is known where that ends: what changes behind that read and before that
// marker is read again as well.
func TestLostUpdateBehindAReadAhead(t *testing.T) {
	t.Parallel()
	for _, beside := range []bool{false, true} {
		w := newWorld()
		all := docs(25)
		slices.SortFunc(all, func(a, b bson.Raw) int { return cmp.Compare(keyOf(a), keyOf(b)) })
		w.both("c", all...)
		w.apply = func(store, *event.Event) {}
		v := w.validator()
		if beside {
			v.Cuts = cuts{{At: all[9].Lookup("_id"), Documents: 10}, {At: all[19].Lookup("_id"), Documents: 10}}
		}
		var second sync.WaitGroup
		for _, end := range []*validation.Side{&v.Source, &v.Target} {
			second.Add(1)
			s := (*end).(*side)
			var reads atomic.Int64
			s.break_ = func(docs []bson.Raw) []bson.Raw {
				if reads.Add(1) == 2 {
					second.Done()
				}
				return docs
			}
		}
		writes := 0
		w.onWrite = func() {
			if writes++; writes == 2 { // the first slice's second marker
				second.Wait()
				w.write(event.Replace, raw(bson.D{{Key: "_id", Value: all[12].Lookup("_id")}, {Key: "lost", Value: true}}))
			}
		}
		result := w.run(t, v, "c")
		require.Equal(t, int64(1), result.Mismatched, "beside %t", beside)
	}
}

// What differs at first is right a moment later: pending, then clean.
func TestDifferenceMustOutliveARecheck(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(5)...)
	late := raw(bson.D{{Key: "_id", Value: 700}})
	w.source.put("c", late)
	v := w.validator()
	var pending int
	v.Progress = func(_ context.Context, p validation.Progress) {
		if p.Round == 0 {
			pending = p.Pending
			w.mu.Lock()
			w.target.put("c", late)
			w.mu.Unlock()
		}
	}
	result := w.run(t, v, "c")
	require.Equal(t, 1, pending)
	require.True(t, result.Clean())
	require.Equal(t, int64(1), result.Reread)
}

// The same for a document that was busy at first: one look in which it differs is
// not enough either.
func TestDifferenceOfABusyDocumentMustOutliveARecheck(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(5)...)
	late := raw(bson.D{{Key: "_id", Value: 0}, {Key: "late", Value: true}})
	writes := 0
	w.apply = func(store, *event.Event) {}
	w.onWrite = func() {
		if writes++; writes == 2 {
			w.write(event.Replace, late)
		}
	}
	v := w.validator()
	var pending []int
	v.Progress = func(_ context.Context, p validation.Progress) {
		pending = append(pending, p.Pending)
		if p.Pending == 1 {
			w.mu.Lock()
			w.target.put("c", late)
			w.mu.Unlock()
		}
	}
	result := w.run(t, v, "c")
	require.Equal(t, []int{0, 1, 0}, pending)
	require.True(t, result.Clean(), "%v", result.Mismatches)
}

func TestMismatchesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for n := range 3000 {
		w.source.put("c", raw(bson.D{{Key: "_id", Value: n}}))
	}
	v := w.validator()
	v.Settings = validation.Settings{Slice: 500, Suspects: 1000, Reports: 10}
	result := w.run(t, v, "c")
	require.Equal(t, int64(3000), result.Mismatched)
	require.Equal(t, int64(2000), result.Unfinished)
	require.Len(t, result.Mismatches, 10)
	require.Equal(t, int64(3000), result.Kinds[validation.MissingDocument])
}

func TestTooManyBusyDocumentsAreNotClean(t *testing.T) {
	t.Parallel()
	w := newWorld()
	all := docs(40)
	w.both("c", all...)
	w.onWrite = func() {
		for _, doc := range all {
			w.write(event.Replace, doc)
		}
	}
	result := w.run(t, w.validator(), "c")
	require.Zero(t, result.Mismatched)
	require.Equal(t, int64(40), result.TooBusy)
	require.Empty(t, result.Busy)
	require.False(t, result.Clean())

	v := w.validator()
	v.Settings.Suspects = 30
	_, err := v.Run(t.Context(), []string{"c"})
	require.True(t, failure.HasCode(err, "validation.overflow"), "%v", err)
}

func TestParkedDocumentsCountAsPresent(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(25)...)
	waiting := raw(bson.D{{Key: "_id", Value: 800}, {Key: "u", Value: 1}})
	w.source.put("c", waiting)
	w.parked = []validation.ParkedDocument{{Collection: "c", Image: waiting}, {Collection: "other", Image: waiting}}
	v := w.validator()
	result := w.run(t, v, "c")
	require.True(t, result.Clean(), "%v", result.Mismatches)

	w.parked[0].Image = raw(bson.D{{Key: "_id", Value: 800}, {Key: "u", Value: 2}})
	w.parked = append(w.parked, validation.ParkedDocument{Collection: "c", Image: raw(bson.D{{Key: "_id", Value: 801}})})
	result, err := v.Run(t.Context(), []string{"c"})
	require.NoError(t, err)
	require.Equal(t, map[validation.Kind]int64{validation.DifferentValue: 1, validation.ExtraDocument: 1}, result.Kinds)
}

// catalog is a port with fixed answers.
type catalog struct {
	differences []validation.CatalogDifference
	err         error
}

// CompareCatalog implements [validation.Catalog].
func (c catalog) CompareCatalog(context.Context) ([]validation.CatalogDifference, error) {
	return c.differences, c.err
}

// A difference of an index makes no document be read again.
func TestCatalogDifference(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(25)...)
	v := w.validator()
	v.Catalog = catalog{differences: []validation.CatalogDifference{{Collection: "c", What: "index a_1: only on the source"}}}
	result := w.run(t, v, "c")
	require.False(t, result.Clean())
	require.Zero(t, result.Mismatched)
	require.Zero(t, result.Reread)
	require.Equal(t, int64(25), result.Documents)
}

// slowCatalog answers once it may.
type slowCatalog struct {
	catalog
	may chan struct{}
}

// CompareCatalog implements [validation.Catalog].
func (c slowCatalog) CompareCatalog(ctx context.Context) ([]validation.CatalogDifference, error) {
	select {
	case <-c.may:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return c.catalog.CompareCatalog(ctx)
}

// Documents are not waited for while the catalogs are compared, and are while they are not.
func TestCatalogIsComparedBesideDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(25)...)
	v := w.validator()
	slow := slowCatalog{catalog{differences: []validation.CatalogDifference{{Collection: "c", What: "options"}}}, make(chan struct{})}
	v.Catalog = slow
	var once sync.Once
	v.Progress = func(_ context.Context, p validation.Progress) {
		if p.Documents == 25 {
			once.Do(func() { close(slow.may) })
		}
	}
	result := w.run(t, v, "c")
	require.Len(t, result.Catalog, 1)
	require.Equal(t, int64(25), result.Documents)
}

// What could not be compared is never clean: a read, a marker or the log fails,
// a side does not keep the order, a collection changes.
func TestUnfinishedComparisonIsAnError(t *testing.T) {
	t.Parallel()
	errBroken := errors.New("broken")
	for name, prepare := range map[string]func(w *world, v *validation.Validator) error{
		"catalog": func(_ *world, v *validation.Validator) error {
			v.Catalog = catalog{err: errBroken}
			return errBroken
		},
		"order": func(_ *world, v *validation.Validator) error {
			v.Target.(*side).break_ = func(docs []bson.Raw) []bson.Raw { slices.Reverse(docs); return docs }
			return nil
		},
		"twice": func(_ *world, v *validation.Validator) error {
			v.Source.(*side).break_ = func(docs []bson.Raw) []bson.Raw { return append(docs[:1:1], docs...) }
			return nil
		},
		"DDL": func(w *world, _ *validation.Validator) error {
			w.onWrite = func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.log = append(w.log, &event.Event{Seq: int64(len(w.log) + 1), Op: "drop", Database: database, Collection: "c"})
			}
			w.apply = func(store, *event.Event) {}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.both("c", docs(25)...)
			v := w.validator()
			want := prepare(w, v)
			w.follow(t)
			_, err := v.Run(t.Context(), []string{"c"})
			require.Error(t, err)
			if want != nil {
				require.ErrorIs(t, err, want)
			}
		})
	}
}

// A side that has another order of its own is asked once more, with the order, and
// nothing is counted twice.
func TestOrderIsAskedForWhereItIsNotKept(t *testing.T) {
	t.Parallel()
	for _, lax := range []func(v *validation.Validator) *side{
		func(v *validation.Validator) *side { return v.Source.(*side) },
		func(v *validation.Validator) *side { return v.Target.(*side) },
	} {
		w := newWorld()
		w.both("c", docs(55)...)
		w.source.put("c", raw(bson.D{{Key: "_id", Value: 5000}}))
		waiting := raw(bson.D{{Key: "_id", Value: 6000}})
		w.source.put("c", waiting)
		w.parked = []validation.ParkedDocument{{Collection: "c", Image: waiting}}
		v := w.validator()
		v.Cuts = cutAt(7000, 8)
		v.Settings.Slice = 100
		lax(v).lax = slices.Reverse[[]chunk.Key]
		result := w.run(t, v, "c")
		require.Equal(t, map[validation.Kind]int64{validation.MissingDocument: 1}, result.Kinds)
		require.Equal(t, int64(57), result.Documents)
		require.Equal(t, int64(56), result.Target)
	}
}

// cuts are cuts as somebody remembers them.
type cuts []validation.Cut

// Cuts implements [validation.Cuts].
func (c cuts) Cuts(context.Context, string) ([]validation.Cut, error) { return c, nil }

// Whatever the sizes of slices, and wherever they are said to end, by whoever knows
// little of what is there, all is compared: no document lies between two.
func TestSlicesLeaveNoGaps(t *testing.T) {
	t.Parallel()
	for n := range 90 {
		size, known := 1+n/3, n%3
		w := newWorld()
		r := random(uint64(n))
		want := map[chunk.Key]bool{}
		var places cuts
		for _, doc := range docs(60) {
			if known > 0 && r.IntN(5) == 0 {
				places = append(places, validation.Cut{At: doc.Lookup("_id"), Documents: r.Int64N(12)})
			}
			switch r.IntN(4) {
			case 0:
				w.source.put("c", doc)
				want[keyOf(doc)] = true
			case 1:
				w.target.put("c", doc)
				want[keyOf(doc)] = true
			default:
				w.both("c", doc)
			}
		}
		v := w.validator()
		v.Settings.Slice, v.Cuts = size, places
		v.Source = &side{w: w, store: w.source, exact: known == 2}
		v.Target = &side{w: w, store: w.target, exact: known == 2}
		result := w.run(t, v, "c")
		got := map[chunk.Key]bool{}
		for _, m := range result.Mismatches {
			got[keyOf(m.ID)] = true
		}
		require.Equal(t, want, got, "slices of %d, cuts %v", size, places)
	}
}
