package replication

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// B045: commands are cut by number and by bytes, below what a server takes in one
// message, and one document always fits.
func TestCommandsAreCut(t *testing.T) {
	t.Parallel()
	of := func(n, size int) []*document {
		docs := make([]*document, n)
		shared := make(bson.Raw, size)
		for i := range docs {
			docs[i] = &document{now: shared}
		}
		return docs
	}
	cut := func(docs []*document) (lengths []int) {
		for len(docs) > 0 {
			n := commandLength(docs)
			size := 0
			for _, d := range docs[:n] {
				size += len(d.now)
			}
			require.Positive(t, n)
			require.True(t, n == 1 || n <= commandDocs && size < 48_000_000, "%d documents of %d bytes", n, size)
			lengths, docs = append(lengths, n), docs[n:]
		}
		return lengths
	}
	require.Equal(t, []int{1, 1, 1, 1}, cut(of(4, 13<<20)))
	require.Equal(t, []int{1}, cut(of(1, 16<<20)))
	many := cut(of(100_001, 10))
	require.Len(t, many, 101)
	require.Equal(t, 1, many[100])
}

// B035: a document of 12 MB of which one update shortens an array and changes
// 2,000 fields is folded whole; no statement of the server's is made of it.
func TestFoldLargeDocument(t *testing.T) {
	t.Parallel()
	items := make(bson.A, 50)
	for i := range items {
		items[i] = strings.Repeat(fmt.Sprint(i%10), 240<<10)
	}
	doc := bson.D{{Key: "_id", Value: 1}, {Key: "items", Value: items}, {Key: "items_count", Value: 50}}
	set := bson.D{{Key: "items_count", Value: 2}}
	want := bson.D{{Key: "_id", Value: 1}, {Key: "items", Value: items[:2]}, {Key: "items_count", Value: 2}}
	for i := range 2000 {
		k := fmt.Sprintf("f%d", i)
		doc, set, want = append(doc, bson.E{Key: k, Value: i}), append(set, bson.E{Key: k, Value: -i}), append(want, bson.E{Key: k, Value: -i})
	}
	before := raw(t, doc)
	require.Greater(t, len(before), 11<<20)
	got, err := Fold(before, raw(t, bson.D{
		{Key: "updatedFields", Value: set}, {Key: "removedFields", Value: bson.A{}},
		{Key: "truncatedArrays", Value: bson.A{bson.D{{Key: "field", Value: "items"}, {Key: "newSize", Value: int32(2)}}}},
	}), FoldOptions{})
	require.NoError(t, err)
	require.True(t, bytes.Equal(raw(t, want), got))
}

// B037 and B041, where the copy is newer than the log: an old update that no longer
// fits its document is left out, one of a document that is gone brings nothing back,
// and the newer event that makes it right follows.
func TestOldUpdatesOnANewerCopy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		copied  string // the copy's image, "" for none
		changes []string
		want    string
	}{
		"through a scalar by now": {`{"_id":1,"h":null}`, []string{`{"updatedFields":{"h.3.odt":1}}`, `{"updatedFields":{"h":null}}`}, `{"_id":1,"h":null}`},
		"another shape by now":    {`{"_id":1,"h":[1,2]}`, []string{`{"updatedFields":{"h.x.y":1}}`, `{"updatedFields":{"h":[1,2]}}`}, `{"_id":1,"h":[1,2]}`},
		"removed by now":          {`{"_id":1}`, []string{`{"updatedFields":{"a":{"b":1}}}`, `{"updatedFields":{"a.b":2}}`, `{"removedFields":["a"]}`}, `{"_id":1}`},
		"gone by now":             {"", []string{`{"updatedFields":{"a":1}}`}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &document{collection: "c"}
			if tt.copied != "" {
				d.was = js(t, tt.copied)
			}
			for i, c := range tt.changes {
				e := newFakeEvent()
				e.Op, e.Collection, e.Key, e.Change = "update", "c", key(t, 1), js(t, c)
				d.changes = append(d.changes, change{event: e, at: i, lenient: true})
			}
			require.NoError(t, d.resolve(FoldOptions{}))
			if tt.want == "" {
				require.Nil(t, d.now, "a delta was made into a document")
				return
			}
			require.Equal(t, js(t, tt.want).String(), d.now.String())
		})
	}
}
