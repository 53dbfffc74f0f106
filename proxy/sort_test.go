package proxy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestSortKey(t *testing.T) {
	t.Parallel()

	o, err := parseSort(raw(t, bson.D{{Key: "a.b", Value: 1}}))
	require.NoError(t, err)
	// Each is below the next one in MongoDB's order.
	ascending := []bson.D{
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.MinKey{}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{}}}}},
		{},
		{{Key: "a", Value: bson.D{{Key: "b", Value: -1.5}}}},
		{{Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 9}}, bson.D{{Key: "b", Value: 0}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.A{5, 1, 7}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: int64(2)}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: "a"}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: "aa"}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.D{{Key: "x", Value: 1}}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.Binary{Data: []byte{1}}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.NewObjectID()}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: false}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.DateTime(1)}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.Timestamp{T: 1}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.Regex{Pattern: "a"}}}}},
		{{Key: "a", Value: bson.D{{Key: "b", Value: bson.MaxKey{}}}}},
	}
	var last string
	for i, doc := range ascending {
		k, err := o.key(raw(t, doc))
		require.NoError(t, err)
		require.Less(t, last, k, "%d: %v", i, doc)
		last = k
	}
	same := func(a, b bson.D) {
		t.Helper()
		x, err := o.key(raw(t, a))
		require.NoError(t, err)
		y, err := o.key(raw(t, b))
		require.NoError(t, err)
		require.Equal(t, x, y)
	}
	same(bson.D{}, bson.D{{Key: "a", Value: nil}})
	same(bson.D{}, bson.D{{Key: "a", Value: 5}})
	same(bson.D{}, bson.D{{Key: "a", Value: bson.A{}}})
	// An element that is no document has no field b either.
	same(bson.D{}, bson.D{{Key: "a", Value: bson.A{7, bson.D{{Key: "b", Value: 5}}}}})
	same(bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 1}}}}, bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 1.0}}}})
}

func TestSortKeyDescendingTakesGreatest(t *testing.T) {
	t.Parallel()

	o, err := parseSort(raw(t, bson.D{{Key: "a", Value: -1}, {Key: "b", Value: 1}}))
	require.NoError(t, err)
	docs := []bson.D{
		{{Key: "a", Value: bson.A{1, 9}}, {Key: "b", Value: 5}},
		{{Key: "a", Value: 9}, {Key: "b", Value: 6}},
		{{Key: "a", Value: 8}, {Key: "b", Value: nil}},
		{{Key: "a", Value: 8}, {Key: "b", Value: "x"}},
		{{Key: "b", Value: 1}},
		{{Key: "a", Value: bson.A{}}, {Key: "b", Value: 0}},
	}
	shuffled := slices.Clone(docs)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	slices.SortFunc(shuffled, func(x, y bson.D) int {
		a, err := o.key(raw(t, x))
		require.NoError(t, err)
		b, err := o.key(raw(t, y))
		require.NoError(t, err)
		return strings.Compare(a, b)
	})
	require.Equal(t, docs, shuffled)
}

func TestSortRefused(t *testing.T) {
	t.Parallel()

	for _, sort := range []bson.D{
		{{Key: "score", Value: bson.D{{Key: "$meta", Value: "textScore"}}}}, {{Key: "a", Value: 2}}, {{Key: "a", Value: "x"}},
	} {
		_, err := parseSort(raw(t, sort))
		require.Equal(t, codeNotSupported, refusalOf(t, err).code)
	}
	for _, sort := range []bson.D{{}, {{Key: "$natural", Value: 1}}} {
		o, err := parseSort(raw(t, sort))
		require.NoError(t, err)
		require.Nil(t, o)
	}
}

func TestProjectionForSort(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		name       string
		sort       bson.D
		projection bson.D
		sent       string // empty: as it came
		from, to   string
	}{
		{
			name: "none", sort: bson.D{{Key: "a", Value: 1}}, projection: bson.D{},
			from: `{"a":1,"b":2}`, to: `{"a":1,"b":2}`,
		},
		{
			name: "inclusion", sort: bson.D{{Key: "a.b", Value: 1}}, projection: bson.D{{Key: "x", Value: 1}, {Key: "_id", Value: 0}},
			sent: `{"x":1,"_id":0,"__drover_sort0":"$a"}`,
			from: `{"x":1,"__drover_sort0":{"b":5}}`, to: `{"x":1}`,
		},
		{
			name: "only computed", sort: bson.D{{Key: "a", Value: 1}},
			projection: bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: bson.D{{Key: "$add", Value: bson.A{"$a", 1}}}}},
			sent:       `{"_id":1,"x":{"$add":["$a",1]},"__drover_sort0":"$a"}`, from: `{"x":2,"__drover_sort0":1}`, to: `{"x":2}`,
		},
		{
			name: "only $elemMatch", sort: bson.D{{Key: "a", Value: 1}}, projection: bson.D{{Key: "x", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "y", Value: 1}}}}}},
			sent: `{"x":{"$elemMatch":{"y":1}},"__drover_sort0":"$a"}`, from: `{"__drover_sort0":1}`, to: `{}`,
		},
		{
			name: "nested inclusion", sort: bson.D{{Key: "a.b", Value: 1}}, projection: bson.D{{Key: "a", Value: bson.D{{Key: "c", Value: 1}}}},
			sent: `{"a":{"c":1},"__drover_sort0":"$a"}`, from: `{"a":{"c":2},"__drover_sort0":{"b":1,"c":2}}`, to: `{"a":{"c":2}}`,
		},
		{
			name: "nested exclusion", sort: bson.D{{Key: "a.b", Value: 1}}, projection: bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 0}, {Key: "x", Value: 0}}}},
			sent: `{"a.x":0}`, from: `{"a":{"b":1,"c":2}}`, to: `{"a":{"c":2}}`,
		},
		{
			name: "only $slice", sort: bson.D{{Key: "a", Value: 1}}, projection: bson.D{{Key: "x", Value: bson.D{{Key: "$slice", Value: 1}}}},
			from: `{"a":1,"x":[1]}`, to: `{"a":1,"x":[1]}`,
		},
		{
			name: "$slice beside what is cut", sort: bson.D{{Key: "a", Value: 1}}, projection: bson.D{{Key: "x", Value: bson.D{{Key: "$slice", Value: 1}}}, {Key: "a", Value: 0}},
			sent: `{"x":{"$slice":1}}`, from: `{"a":1,"x":[1]}`, to: `{"x":[1]}`,
		},
		{
			name: "exclusion of another", sort: bson.D{{Key: "a", Value: 1}}, projection: bson.D{{Key: "x", Value: 0}},
			from: `{"a":1}`, to: `{"a":1}`,
		},
		{
			name: "exclusion of the sort's", sort: bson.D{{Key: "a.b", Value: 1}}, projection: bson.D{{Key: "x", Value: 0}, {Key: "a.b", Value: 0}},
			sent: `{"x":0}`,
			from: `{"a":{"b":1,"c":2},"z":3}`, to: `{"a":{"c":2},"z":3}`,
		},
		{
			name: "exclusion through an array", sort: bson.D{{Key: "a.b", Value: 1}}, projection: bson.D{{Key: "a.b", Value: false}},
			sent: `{}`,
			from: `{"a":[{"b":1,"c":2},7,[{"b":2}]]}`, to: `{"a":[{"c":2},7,[{}]]}`,
		},
		{
			name: "exclusion of _id, sorted by it", sort: bson.D{{Key: "_id", Value: 1}}, projection: bson.D{{Key: "_id", Value: 0}},
			sent: `{}`, from: `{"_id":1,"x":2}`, to: `{"x":2}`,
		},
	} {
		o, err := parseSort(raw(t, tc.sort))
		require.NoError(t, err)
		out, changed, refused := o.project(raw(t, tc.projection))
		require.Nil(t, refused)
		require.Equal(t, tc.sent != "", changed, tc.name)
		if changed {
			require.JSONEq(t, tc.sent, relaxed(t, out), tc.name)
		}
		var doc bson.D
		require.NoError(t, bson.UnmarshalExtJSON([]byte(tc.from), false, &doc))
		got := bson.Raw(o.strip(raw(t, doc)))
		require.NoError(t, got.Validate())
		require.JSONEq(t, tc.to, relaxed(t, got), tc.name)
	}
}

// A part of an array says nothing about where its document belongs.
func TestSliceOfWhatIsSortedIsRefused(t *testing.T) {
	t.Parallel()

	o, err := parseSort(raw(t, bson.D{{Key: "a.b", Value: 1}}))
	require.NoError(t, err)
	_, _, refused := o.project(raw(t, bson.D{{Key: "a", Value: bson.D{{Key: "$slice", Value: 1}}}}))
	require.NotNil(t, refused)
	require.Equal(t, codeNotSupported, refused.code)
}

// relaxed gives a document as JSON with plain numbers.
func relaxed(t *testing.T, doc bson.Raw) string {
	t.Helper()
	b, err := bson.MarshalExtJSON(doc, false, false)
	require.NoError(t, err)
	return string(b)
}

// refusalOf gives the refusal that an error is.
func refusalOf(t *testing.T, err error) *refusal {
	t.Helper()
	var r *refusal
	require.ErrorAs(t, err, &r)
	return r
}
