package validation_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/validation"
)

// lowestLast is the order of a server that has the lowest one last.
func lowestLast(keys []chunk.Key) {
	low := keys[0]
	copy(keys, keys[1:])
	keys[len(keys)-1] = low
}

// cutAt gives a cut, and how many documents there are said to be before it.
func cutAt(id any, documents int64) cuts {
	return cuts{{At: raw(bson.D{{Key: "_id", Value: id}}).Lookup("_id"), Documents: documents}}
}

// TestALowDocumentBehindTheLimit: where nobody asks for an order, documents that ascend up to the
// limit say nothing of a lower one behind it, which no later slice reads.
func TestALowDocumentBehindTheLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cuts cuts
		part bool
	}{
		"no end is known":           {},
		"more than was known":       {cuts: cutAt(29, 5)},
		"a part of it is looked at": {cuts: cutAt(29, 5), part: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			documents := int64(0)
			for id := range 30 {
				doc := raw(bson.D{{Key: "_id", Value: id}, {Key: "k", Value: id % 3}})
				w.source.put("c", doc)
				if c.part && id%3 > 0 {
					continue
				}
				documents++
				if id > 0 {
					w.target.put("c", doc)
				}
			}
			v := w.validator()
			source := &side{w: w, store: w.source, exact: true, lax: lowestLast}
			v.Cuts, v.Source, v.Target = c.cuts, source, &side{w: w, store: w.target, exact: true, lax: lowestLast}
			if c.part {
				v.Source, v.Target = partOf(t, source, 0, 1, false), &side{w: w, store: w.target, exact: true}
			}
			result := w.run(t, v, "c")
			require.Equal(t, map[validation.Kind]int64{validation.MissingDocument: 1}, result.Kinds)
			require.Equal(t, documents, result.Documents)
			require.Equal(t, documents-1, result.Target)
		})
	}
}

// TestOrderIsLeftOutWhereNothingElseIs: a server sorts once more where it is told to. What it sorts
// anyway it is told to from the first, as nobody needs to look at more of that than is compared.
func TestOrderIsLeftOutWhereNothingElseIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cuts cuts
		want []bool
	}{
		"up to a cut":         {cutAt(5, 6), []bool{false, true}},
		"no cut":              {nil, []bool{true}},
		"as many as are read": {cutAt(5, 10), []bool{true, true}},
		"sorted anyway":       {cutAt(bson.D{{Key: "x", Value: 1}}, 6), []bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for id := range 6 {
				w.both("c", raw(bson.D{{Key: "_id", Value: id}}))
			}
			v := w.validator()
			source := &side{w: w, store: w.source, exact: true}
			v.Cuts, v.Source = c.cuts, source
			require.True(t, w.run(t, v, "c").Clean())
			require.ElementsMatch(t, c.want, source.sorts)
		})
	}
}
