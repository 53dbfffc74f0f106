package replication

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// js reads extended JSON into BSON, keeping order.
func js(t testing.TB, s string) bson.Raw {
	t.Helper()
	var d bson.D
	require.NoError(t, bson.UnmarshalExtJSON([]byte(s), false, &d), s)
	raw, err := bson.Marshal(d)
	require.NoError(t, err)
	return raw
}

// foldTests are updates as a change stream describes them, with their effect.
var foldTests = []struct{ name, doc, change, want string }{
	{
		name: "nested sets and removals (B029)", doc: `{"_id":1,"old":1,"n":1,"A":{"x":0,"B":{"y":1,"k":2}}}`,
		change: `{"updatedFields":{"n":2,"z":1,"A.x":9},"removedFields":["old","A.B.y"],"truncatedArrays":[]}`,
		want:   `{"_id":1,"n":2,"A":{"x":9,"B":{"k":2}},"z":1}`,
	},
	{
		name: "truncation before sets, null is a value, padding (B030)", doc: `{"arr":[0,1,{"k":1},3,4,5],"obj":{"m":[0]}}`,
		change: `{"updatedFields":{"arr.1":null,"arr.2.k":5,"arr.3":"d","obj.m.7":1},"removedFields":[],"truncatedArrays":[{"field":"arr","newSize":4}]}`,
		want:   `{"arr":[0,null,{"k":5},"d"],"obj":{"m":[0,null,null,null,null,null,null,1]}}`,
	},
	{
		name: "values are opaque (B031)", doc: `{"_id":1}`,
		change: `{"updatedFields":{"foo":{"bar":[1,2,3],"a.b":1,"$c":[]}}}`, want: `{"_id":1,"foo":{"bar":[1,2,3],"a.b":1,"$c":[]}}`,
	},
	{
		name: "numeric names by the image (B032)", doc: `{"_id":1,"arr":[{"10":"x","0":"y"}],"o":{"0":{"1":[7]}}}`,
		change: `{"updatedFields":{"arr.0.10":"z","o.0.1.0":8}}`, want: `{"_id":1,"arr":[{"10":"z","0":"y"}],"o":{"0":{"1":[8]}}}`,
	},
	{
		name: "numeric names by the server's word (B032)", doc: `{"_id":1,"arr":[{"10":"x","0":"y"}],"o":{"0":{"1":[7]}}}`,
		change: `{"updatedFields":{"arr.0.10":"z","o.0.1.0":8},"disambiguatedPaths":{"arr.0.10":["arr",0,"10"],"o.0.1.0":["o","0","1",0]}}`,
		want:   `{"_id":1,"arr":[{"10":"z","0":"y"}],"o":{"0":{"1":[8]}}}`,
	},
	{
		name: "fields named like operators (B033)", doc: `{"_id":1,"a":{"a":true,"l":1,"u0":2,"d":3},"s":{"u":{"i":1}}}`,
		change: `{"updatedFields":{"a.u0":5,"a.a":false,"s.u.i":2,"s.d":1}}`, want: `{"_id":1,"a":{"a":false,"l":1,"u0":5,"d":3},"s":{"u":{"i":2},"d":1}}`,
	},
	{
		name: "only a truncation (B034)", doc: `{"_id":1,"arr":["a","b"],"keep":1}`,
		change: `{"updatedFields":{},"removedFields":[],"truncatedArrays":[{"field":"arr","newSize":1}]}`, want: `{"_id":1,"arr":["a"],"keep":1}`,
	},
	{name: "nothing at all (B034)", doc: `{"_id":1,"keep":1}`, change: `{}`, want: `{"_id":1,"keep":1}`},
	{
		name: "empty parts (B034)", doc: `{"_id":1,"keep":1}`,
		change: `{"updatedFields":{},"removedFields":[],"truncatedArrays":[],"disambiguatedPaths":{}}`, want: `{"_id":1,"keep":1}`,
	},
	{
		name: "path components, not prefixes (B035)", doc: `{"_id":1,"items":[1,2,3],"items_count":3}`,
		change: `{"updatedFields":{"items_count":2},"truncatedArrays":[{"field":"items","newSize":2}]}`, want: `{"_id":1,"items":[1,2],"items_count":2}`,
	},
	{
		name: "a field called $v (B039)", doc: `{"_id":1,"$v":1,"$set":{"a":1}}`,
		change: `{"updatedFields":{"$set.a":2,"$v":3},"removedFields":[]}`, want: `{"_id":1,"$v":3,"$set":{"a":2}}`,
	},
	{
		name: "a name with a dot, by the server's word", doc: `{"_id":1,"a.b":1,"a":{"b":1}}`,
		change: `{"updatedFields":{"a.b":2},"disambiguatedPaths":{"a.b":["a.b"]}}`, want: `{"_id":1,"a.b":2,"a":{"b":1}}`,
	},
	{
		name: "a name with a dot, by the image", doc: `{"_id":1,"a.b":1,"c":{"x.y":[0]}}`,
		change: `{"updatedFields":{"a.b":2,"c.x.y.1":3}}`, want: `{"_id":1,"a.b":2,"c":{"x.y":[0,3]}}`,
	},
	{name: "a field without a name", doc: `{"":{"":1}}`, change: `{"updatedFields":{".":2}}`, want: `{"":{"":2}}`},
	{
		name: "new fields come in the order listed", doc: `{"_id":1,"n":{"q":1}}`,
		change: `{"updatedFields":{"z":1,"n.y":1,"n.b":2,"a":3}}`, want: `{"_id":1,"n":{"q":1,"y":1,"b":2},"z":1,"a":3}`,
	},
	{
		name: "a removed field that is set anew stands last", doc: `{"_id":1,"a":1,"b":2}`,
		change: `{"updatedFields":{"a":3},"removedFields":["a"]}`, want: `{"_id":1,"b":2,"a":3}`,
	},
	{
		name: "an unchanged value listed has moved to the end, and what follows it too", doc: `{"_id":1,"a":1,"b":2,"c":3}`,
		change: `{"updatedFields":{"c":3,"b":4,"z":1}}`, want: `{"_id":1,"a":1,"c":3,"b":4,"z":1}`,
	},
	{
		name: "a rename onto an equal value keeps its place", doc: `{"_id":1,"c":1,"b":2,"a":1}`,
		change: `{"updatedFields":{"c":1},"removedFields":["a"]}`, want: `{"_id":1,"c":1,"b":2}`,
	},
	{
		name: "NaN plus one keeps its place", doc: `{"_id":1,"c":{"$numberDouble":"NaN"},"b":2}`,
		change: `{"updatedFields":{"c":{"$numberDouble":"NaN"}}}`, want: `{"_id":1,"c":{"$numberDouble":"NaN"},"b":2}`,
	},
}

func TestFold(t *testing.T) {
	t.Parallel()
	for _, tt := range foldTests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			doc, change := js(t, tt.doc), js(t, tt.change)
			before := append(bson.Raw(nil), doc...)
			got, err := Fold(doc, change, FoldOptions{})
			require.NoError(t, err)
			require.Equal(t, js(t, tt.want).String(), got.String())
			require.Equal(t, js(t, tt.want), got)
			require.Equal(t, before, doc, "the image was changed in its place")
		})
	}
}

func TestFoldRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, doc, change string
		want              FoldReason
		lenient           string // the result in lenient mode; empty when it is refused there too
	}{
		{"through null (B037)", `{"h":null}`, `{"updatedFields":{"h.3.odt":1}}`, ThroughScalar, `{"h":null}`},
		{"through a number", `{"h":5,"k":1}`, `{"updatedFields":{"h.a":1,"k":2}}`, ThroughScalar, `{"h":5,"k":2}`},
		{"no parent", `{"k":1}`, `{"updatedFields":{"h.a":1,"k":2}}`, MissingParent, `{"k":2}`},
		{"past an array's end, deeper", `{"a":[1]}`, `{"updatedFields":{"a.1.x":1}}`, MissingParent, `{"a":[1]}`},
		{"name below an array", `{"a":[1]}`, `{"updatedFields":{"a.x":1}}`, NotAnIndex, `{"a":[1]}`},
		{"index with a leading zero", `{"a":[1]}`, `{"updatedFields":{"a.00":1}}`, NotAnIndex, `{"a":[1]}`},
		{"removal of what is not there", `{"a":1}`, `{"removedFields":["b"]}`, MissingField, `{"a":1}`},
		{"removal of an element", `{"a":[1]}`, `{"removedFields":["a.0"]}`, NotAnIndex, `{"a":[1]}`},
		{"truncation of what is not there", `{"a":1}`, `{"truncatedArrays":[{"field":"b","newSize":0}]}`, MissingField, `{"a":1}`},
		{"truncation of a document", `{"a":{}}`, `{"truncatedArrays":[{"field":"a","newSize":0}]}`, ThroughScalar, `{"a":{}}`},
		{"the server says index, the image says field", `{"a":{"0":1}}`, `{"updatedFields":{"a.0":2},"disambiguatedPaths":{"a.0":["a",0]}}`, NotAnIndex, `{"a":{"0":1}}`},
		{"the server says field, the image says index", `{"a":[1]}`, `{"updatedFields":{"a.0":2},"disambiguatedPaths":{"a.0":["a","0"]}}`, NotAnIndex, `{"a":[1]}`},
		{"two readings", `{"a.b":1,"a":{"b":1}}`, `{"updatedFields":{"a.b":2}}`, Ambiguous, ""},
		{"two readings, one of them new", `{"a.b":1,"a":{}}`, `{"updatedFields":{"a.b":2}}`, Ambiguous, ""},
		{"unknown part", `{"a":1}`, `{"updatedFields":{},"resizedArrays":[]}`, UnknownDescription, ""},
		{"part of a wrong type", `{"a":1}`, `{"updatedFields":[]}`, UnknownDescription, ""},
		{"removed field that is no string", `{"a":1}`, `{"removedFields":[1]}`, UnknownDescription, ""},
		{"negative size", `{"a":[1]}`, `{"truncatedArrays":[{"field":"a","newSize":-1}]}`, UnknownDescription, ""},
		{"far past the end", `{"a":[1]}`, `{"updatedFields":{"a.99999999":1}}`, PastTheEnd, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Fold(js(t, tt.doc), js(t, tt.change), FoldOptions{})
			var fe *FoldError
			require.ErrorAs(t, err, &fe)
			require.Equal(t, tt.want, fe.Reason)
			got, err := Fold(js(t, tt.doc), js(t, tt.change), FoldOptions{Lenient: true})
			if tt.lenient == "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, js(t, tt.lenient).String(), got.String())
		})
	}
}

// A document with two fields of one name came from an old client. Which of them
// the server changed is not in the event.
func TestFoldRefusesDuplicateNames(t *testing.T) {
	t.Parallel()
	for _, others := range []int{0, 100} {
		doc := bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}, {Key: "a", Value: 2}}
		for i := range others {
			doc = append(doc, bson.E{Key: fmt.Sprintf("f%d", i), Value: i})
		}
		raw, err := bson.Marshal(doc)
		require.NoError(t, err)
		_, err = Fold(raw, js(t, `{"updatedFields":{"a":3}}`), FoldOptions{})
		var fe *FoldError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, DuplicateField, fe.Reason)

		_, err = Fold(raw, js(t, `{"updatedFields":{"a.x":3}}`), FoldOptions{Lenient: true})
		require.ErrorAs(t, err, &fe)
		require.Equal(t, DuplicateField, fe.Reason)

		doc[1].Value = 7
		want, err := bson.Marshal(doc)
		require.NoError(t, err)
		got, err := Fold(raw, js(t, `{"updatedFields":{"b":7}}`), FoldOptions{})
		require.NoError(t, err, "a name that is there once is not in doubt")
		require.Equal(t, bson.Raw(want), got)
	}
}

func TestFoldSortsNewFieldsWhereTheServerDoes(t *testing.T) {
	t.Parallel()
	got, err := Fold(js(t, `{"_id":1,"n":{"q":1},"m":0}`), js(t, `{"updatedFields":{"z":1,"m":1,"n.y":1,"n.b":2,"10":1,"9":1}}`), FoldOptions{SortNewFields: true})
	require.NoError(t, err)
	require.Equal(t, js(t, `{"_id":1,"n":{"q":1,"b":2,"y":1},"m":1,"10":1,"9":1,"z":1}`).String(), got.String())

	got, err = Fold(js(t, `{"_id":1,"c":1,"d":1,"keep":1}`), js(t, `{"updatedFields":{"d":1,"c":2,"z":1,"n":1}}`), FoldOptions{SortNewFields: true})
	require.NoError(t, err)
	require.Equal(t, js(t, `{"_id":1,"keep":1,"d":1,"c":2,"z":1,"n":1}`).String(), got.String(), "an update made from a diff lists its fields in order")
}

func TestFoldManyFieldsAtOnce(t *testing.T) {
	t.Parallel()
	doc := bson.D{{Key: "items", Value: make(bson.A, 50)}, {Key: "items_count", Value: 50}}
	set := bson.D{{Key: "items_count", Value: 3}}
	want := bson.D{{Key: "items", Value: make(bson.A, 3)}, {Key: "items_count", Value: 3}}
	for i := range 20_000 {
		k := fmt.Sprintf("f%d", i)
		doc, set, want = append(doc, bson.E{Key: k, Value: i}), append(set, bson.E{Key: k, Value: -i}), append(want, bson.E{Key: k, Value: -i})
	}
	marshal := func(v any) bson.Raw {
		raw, err := bson.Marshal(v)
		require.NoError(t, err)
		return raw
	}
	got, err := Fold(marshal(doc), marshal(bson.D{
		{Key: "updatedFields", Value: set},
		{Key: "truncatedArrays", Value: bson.A{bson.D{{Key: "field", Value: "items"}, {Key: "newSize", Value: int64(3)}}}},
	}), FoldOptions{})
	require.NoError(t, err)
	require.Equal(t, marshal(want), got)
}

// Several events folded onto one image give what folding them one by one gives.
func TestImageTakesManyEvents(t *testing.T) {
	t.Parallel()
	doc := js(t, `{"_id":1,"a":[{"x":1}],"b":{"c":1}}`)
	img, err := NewImage(doc)
	require.NoError(t, err)
	for _, change := range []string{
		`{"updatedFields":{"n":{"p":1}}}`,
		`{"updatedFields":{"n.q":[1,2,3],"a.0.y":2},"removedFields":["b.c"]}`,
		`{"truncatedArrays":[{"field":"n.q","newSize":1}],"updatedFields":{"b.d":1}}`,
		`{"updatedFields":{"n.q.2":9},"removedFields":["n.p"]}`,
		`{"updatedFields":{"b.c":1},"removedFields":["a"]}`,
	} {
		require.NoError(t, img.Apply(js(t, change), FoldOptions{}))
		doc, err = Fold(doc, js(t, change), FoldOptions{})
		require.NoError(t, err)
	}
	got, err := img.Raw()
	require.NoError(t, err)
	require.Equal(t, doc, got)
	require.Equal(t, js(t, `{"_id":1,"b":{"d":1,"c":1},"n":{"q":[1,null,9]}}`).String(), got.String())
}

// FuzzFold: whatever bytes come, no panic; what is accepted is valid BSON; an
// empty description changes nothing.
func FuzzFold(f *testing.F) {
	f.Add([]byte(js(f, `{"_id":1,"a":[{"x":1}],"b":{"c":1}}`)), []byte(js(f, `{"updatedFields":{"a.0.x":2,"b.d":1},"removedFields":["b.c"],"truncatedArrays":[{"field":"a","newSize":1}],"disambiguatedPaths":{"a.0.x":["a",0,"x"]}}`)), false)
	f.Add([]byte(js(f, `{"a.b":1,"a":{}}`)), []byte(js(f, `{"updatedFields":{"a.b":2}}`)), true)
	f.Fuzz(func(t *testing.T, doc, change []byte, lenient bool) {
		if len(doc) > 1<<16 || len(change) > 1<<16 {
			return
		}
		valid := bson.Raw(doc).Validate() == nil && bson.Raw(change).Validate() == nil
		got, err := Fold(doc, change, FoldOptions{Lenient: lenient, SortNewFields: len(doc)%2 == 0})
		if err == nil && valid {
			require.NoError(t, got.Validate())
		}
		if same, err := Fold(doc, js(t, `{"updatedFields":{}}`), FoldOptions{}); err == nil {
			require.Equal(t, bson.Raw(doc), same)
		}
	})
}
