package validation_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/validation"
)

// asked answers an audit from a store.
type asked struct {
	w       *world
	store   store
	onSums  func()
	listing map[string][]string // nil: that of the store
}

// Listing implements [validation.Questions].
func (a *asked) Listing(context.Context) (map[string][]string, error) {
	if a.listing != nil {
		return a.listing, nil
	}
	out := map[string][]string{}
	for c := range a.store {
		out[c] = []string{"collection"}
	}
	return out, nil
}

// Sums implements [validation.Questions].
func (a *asked) Sums(_ context.Context, collection string, _ bson.Timestamp, without []bson.RawValue) (map[string]validation.Sum, error) {
	if a.onSums != nil {
		a.onSums()
	}
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	out := map[string]validation.Sum{}
	for _, doc := range a.store[collection] {
		id := doc.Lookup("_id")
		if slices.ContainsFunc(without, id.Equal) {
			continue
		}
		for _, field := range []string{"_id", "v"} {
			v := doc.Lookup(field)
			way := field + "_/" + v.Type.String()
			n, _ := v.AsInt64OK()
			s := out[way]
			out[way] = validation.Sum{Documents: s.Documents + 1, Bytes: s.Bytes + int64(len(v.Value)), Total: s.Total + n}
		}
	}
	return out, nil
}

// Hash implements [validation.Questions].
func (a *asked) Hash(context.Context) (map[string]string, error) {
	out := map[string]string{}
	for c, docs := range a.store {
		var all []string
		for _, d := range docs {
			all = append(all, string(d))
		}
		slices.Sort(all)
		out[c] = strings.Join(all, "")
	}
	return out, nil
}

// auditor audits w.
func (w *world) auditor(expected ...string) *validation.Auditor {
	return &validation.Auditor{
		Sources: []validation.Questions{&asked{w: w, store: w.source}}, Targets: []validation.Questions{&asked{w: w, store: w.target}},
		Feeds: []validation.Feed{{Markers: w, Log: w, Database: database}}, Expected: expected, HashUpTo: 1000,
	}
}

// chunkOf is the part of a source that a move takes: half of the key space.
func chunkOf(key string) func(bson.Raw) bool {
	return func(doc bson.Raw) bool {
		v, ok := doc.Lookup(key).AsInt64OK()
		return ok && v < 100
	}
}

// copied gives a world whose target was filled by a copy that may have a fault.
func copied(source map[string][]bson.Raw, takes func(collection string, doc bson.Raw) bool) *world {
	w := newWorld()
	for c, docs := range source {
		for _, d := range docs {
			w.source.put(c, d)
			if takes(c, d) {
				w.target.put(c, d)
			}
		}
	}
	return w
}

// TestMutationsAreCaught puts a fault into the copy, and the same fault into the
// validation where both could share it. Each is found by the validation or by the
// audit; without a fault neither finds anything.
func TestMutationsAreCaught(t *testing.T) {
	t.Parallel()
	source := map[string][]bson.Raw{"c": docs(60), "d": nil}
	for i := range 100 { // all in the chunk, the last one at its border
		source["d"] = append(source["d"], raw(bson.D{{Key: "_id", Value: i}, {Key: "v", Value: i}, {Key: "w", Value: 99 - i}}))
	}
	in := chunkOf("v")
	objectID := func(doc bson.Raw) bool { return doc.Lookup("_id").Type == bson.TypeObjectID }
	without := func(drop func(bson.Raw) bool) func([]bson.Raw) []bson.Raw {
		return func(all []bson.Raw) []bson.Raw { return slices.DeleteFunc(all, drop) }
	}
	for name, tc := range map[string]struct {
		takes       func(collection string, doc bson.Raw) bool
		reads       func([]bson.Raw) []bson.Raw // of the validation, with the same fault
		collections []string
		sourceTwice bool
		by          string
	}{
		"none":                         {takes: func(c string, d bson.Raw) bool { return c == "c" || in(d) }},
		"range filter off by one":      {takes: func(c string, d bson.Raw) bool { return c == "c" || d.Lookup("v").AsInt64() < 99 }, by: "validation"},
		"the same in the validation":   {takes: func(c string, d bson.Raw) bool { return c == "c" || d.Lookup("v").AsInt64() < 99 }, reads: without(func(d bson.Raw) bool { v, ok := d.Lookup("v").AsInt64OK(); return ok && v >= 99 }), by: "audit"},
		"collection left out":          {takes: func(c string, _ bson.Raw) bool { return c == "c" }, collections: []string{"c"}, by: "audit"},
		"BSON type dropped":            {takes: func(_ string, d bson.Raw) bool { return !objectID(d) }, by: "validation"},
		"BSON type dropped everywhere": {takes: func(_ string, d bson.Raw) bool { return !objectID(d) }, reads: without(objectID), by: "audit"},
		"wrong key function":           {takes: func(c string, d bson.Raw) bool { return c == "c" || d.Lookup("w").AsInt64() < 50 }, by: "validation"},
		"wrong key function in both":   {takes: func(c string, d bson.Raw) bool { return c == "c" || d.Lookup("w").AsInt64() < 50 }, reads: without(func(d bson.Raw) bool { v, ok := d.Lookup("w").AsInt64OK(); return ok && v >= 50 }), by: "audit"},
		"both sides read the source":   {takes: func(string, bson.Raw) bool { return false }, sourceTwice: true, by: "audit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := copied(source, tc.takes)
			v := w.validator()
			v.Source.(*side).break_, v.Target.(*side).break_ = tc.reads, tc.reads
			if tc.sourceTwice {
				v.Target = v.Source
			}
			if tc.collections == nil {
				tc.collections = []string{"c", "d"}
			}
			result := w.run(t, v, tc.collections...)
			audit, err := w.auditor("c", "d").Run(t.Context())
			require.NoError(t, err)
			found := ""
			switch {
			case !result.Clean():
				found = "validation"
			case len(audit.Differences) > 0:
				found = "audit"
			}
			require.Equal(t, tc.by, found, "%v, %v", result, audit)
			require.True(t, audit.Hashed, "nothing changes here")
		})
	}
}

// TestAuditCountsTheWholeOfASplit: a filter that is off by one is the same in the import
// and in the validation of every part, as all of them place documents by it. What a border
// loses, or gives to both sides, shows where the parts are counted together.
func TestAuditCountsTheWholeOfASplit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		left, right func(v int) bool
		busy, wrong bool
	}{
		"exact":                {func(v int) bool { return v < 50 }, func(v int) bool { return v >= 50 }, false, false},
		"exact, under writes":  {func(v int) bool { return v < 50 }, func(v int) bool { return v >= 50 }, true, false},
		"the border is lost":   {func(v int) bool { return v < 50 }, func(v int) bool { return v > 50 }, false, true},
		"lost, under writes":   {func(v int) bool { return v < 50 }, func(v int) bool { return v > 50 }, true, true},
		"the border on both":   {func(v int) bool { return v <= 50 }, func(v int) bool { return v >= 50 }, false, true},
		"another one is there": {func(v int) bool { return v < 49 }, func(v int) bool { return v >= 50 }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			right := store{}
			for v := range 100 {
				w.source.put("c", doc(v, v))
				if tc.left(v) {
					w.target.put("c", doc(v, v))
				}
				if tc.right(v) {
					right.put("c", doc(v, v))
				}
			}
			w.follow(t)
			a := w.auditor("c")
			a.Targets = append(a.Targets, &asked{w: w, store: right})
			a.Feeds = append(a.Feeds, a.Feeds[0])
			n := 0
			if tc.busy {
				a.Targets[1].(*asked).onSums = func() {
					n++
					w.write(event.Replace, doc(n%5, 1000+n))
				}
			}
			r, err := a.Run(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 100-r.LeftOut, r.Documents)
			require.Empty(t, r.Approximate)
			require.Equal(t, tc.wrong, len(r.Differences) > 0, "%v", r)
		})
	}
}

// TestAuditCountsTheWholeOfAMerge: each source has a log and a clock of its own.
func TestAuditCountsTheWholeOfAMerge(t *testing.T) {
	t.Parallel()
	for _, wrong := range []bool{false, true} {
		t.Run(fmt.Sprint(wrong), func(t *testing.T) {
			t.Parallel()
			w, other := newWorld(), newWorld()
			for i := range 30 {
				w.both("c", doc(i, i))
				other.source.put("c", doc(1000+i, i))
				if !wrong || i != 7 {
					other.target.put("c", doc(1000+i, i))
				}
			}
			w.follow(t)
			other.follow(t)
			for range 5 { // its log is longer
				other.write(event.Replace, doc(1001, 1))
			}
			a := w.auditor("c")
			seen := &since{asked: asked{w: other, store: other.source}}
			a.Sources = append(a.Sources, seen)
			a.Targets = append(a.Targets, &asked{w: other, store: other.target})
			a.Feeds = append(a.Feeds, validation.Feed{Markers: other, Log: other, Database: database, Source: 1})
			n := 0
			a.Targets[0].(*asked).onSums = func() {
				n++
				other.write(event.Replace, doc(1000+n%3, 2000+n))
			}
			r, err := a.Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, 3, r.LeftOut)
			require.Equal(t, wrong, len(r.Differences) > 0, "%v", r)
			require.Greater(t, seen.at.I, uint32(5), "a time of its own log")
		})
	}
}

// since notes what sums must have seen.
type since struct {
	asked
	at bson.Timestamp
}

// Sums implements [validation.Questions].
func (s *since) Sums(ctx context.Context, collection string, at bson.Timestamp, without []bson.RawValue) (map[string]validation.Sum, error) {
	s.at = at
	return s.asked.Sums(ctx, collection, at, without)
}

// TestAuditUnderWrites: what changes is left out until the rest stands still; what
// is wrong in the rest is seen all the same.
func TestAuditUnderWrites(t *testing.T) {
	t.Parallel()
	for _, wrong := range []bool{false, true} {
		t.Run(fmt.Sprint(wrong), func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for i := range 50 {
				w.both("c", doc(i, i))
			}
			if wrong {
				w.target.put("c", doc(40, 41))
			}
			w.follow(t)
			a := w.auditor("c")
			n := 0
			a.Targets[0].(*asked).onSums = func() { // between the two sides' sums
				n++
				w.write(event.Replace, doc(n%5, 1000+n))
			}
			r, err := a.Run(t.Context())
			require.NoError(t, err)
			require.Empty(t, r.Approximate)
			require.Equal(t, 5, r.LeftOut)
			require.Equal(t, wrong, len(r.Differences) > 0, "%v", r)
		})
	}
}

// TestAuditThatNeverStandsStill still sees what cannot come from what changes.
func TestAuditThatNeverStandsStill(t *testing.T) {
	t.Parallel()
	for _, missing := range []int{0, 20} {
		t.Run(fmt.Sprint(missing), func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for i := range 500 {
				w.both("c", doc(i, i))
			}
			for i := range missing {
				delete(w.target["c"], keyOf(doc(400+i, 0)))
			}
			w.follow(t)
			a := w.auditor("c")
			n := 0
			a.Targets[0].(*asked).onSums = func() { n++; w.write(event.Replace, doc(n, 1000+n)) }
			r, err := a.Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"c"}, r.Approximate)
			require.Equal(t, missing > 0, len(r.Differences) > 0, "%v", r)
		})
	}
}

// TestAuditComparesDefinitions finds what only one side has.
func TestAuditComparesDefinitions(t *testing.T) {
	t.Parallel()
	same := map[string][]string{"c": {"collection", "index a"}}
	for name, target := range map[string]map[string][]string{
		"":                    same,
		"on the target only":  {"c": same["c"], "x": {"collection"}},
		"has no collection c": {},
		"is defined as":       {"c": {"collection"}},
	} {
		w := newWorld()
		w.follow(t)
		a := w.auditor("c")
		a.Sources[0].(*asked).listing, a.Targets[0].(*asked).listing = same, maps.Clone(target)
		r, err := a.Run(t.Context())
		require.NoError(t, err)
		if name == "" {
			require.Empty(t, r.Differences)
			continue
		}
		require.Contains(t, strings.Join(r.Differences, "\n"), name)
	}
}
