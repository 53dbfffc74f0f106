package validation

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestMirroredReadsAreBounded: what is asked is what the application asked, of a
// thousand documents at most, and never a part of what has no order.
func TestMirroredReadsAreBounded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ sent, asked string }{
		"one":               {`{"find":"c","filter":{"_id":1},"limit":1,"batchSize":7,"tailable":true}`, `{"find":"c","filter":{"_id":1},"limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"a part of any":     {`{"find":"c","skip":5,"limit":3}`, `{"find":"c","limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"a part of ties":    {`{"find":"c","sort":{"a":1},"limit":3}`, `{"find":"c","sort":{"a":1},"limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"a part in order":   {`{"find":"c","sort":{"a":1,"_id":1},"skip":5,"limit":3}`, `{"find":"c","sort":{"a":1,"_id":1},"skip":5,"limit":3,"singleBatch":true,"batchSize":3,"maxTimeMS":10000}`},
		"alike":             {`{"find":"c","sort":{"_id":1},"collation":{"locale":"de"},"limit":3}`, `{"find":"c","sort":{"_id":1},"collation":{"locale":"de"},"limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"negative":          {`{"find":"c","sort":{"_id":1},"limit":-3}`, `{"find":"c","sort":{"_id":1},"limit":3,"singleBatch":true,"batchSize":3,"maxTimeMS":10000}`},
		"count":             {`{"count":"c","query":{"a":1},"limit":3}`, `{"count":"c","query":{"a":1},"limit":3,"maxTimeMS":10000}`},
		"distinct":          {`{"distinct":"c","key":"a","query":{"b":1},"maxTimeMS":5}`, `{"distinct":"c","key":"a","query":{"b":1},"maxTimeMS":10000}`},
		"concerns are ours": {`{"find":"c","readConcern":{"level":"local"},"comment":"x"}`, `{"find":"c","limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
	} {
		var sent bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(tc.sent), false, &sent), name)
		cmd, err := bounded(sent)
		require.NoError(t, err, name)
		got, err := bson.MarshalExtJSON(cmd, false, false)
		require.NoError(t, err, name)
		require.JSONEq(t, tc.asked, string(got), name)
	}
}

// TestRepliesAreRead of each kind.
func TestRepliesAreRead(t *testing.T) {
	t.Parallel()
	reply := func(text string) (r bson.Raw) {
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &r))
		return r
	}
	for name, tc := range map[string]struct {
		reply string
		want  []string
	}{
		"find":     {`{"cursor":{"firstBatch":[{"_id":1},{"_id":2}]}}`, []string{`{"_id":1}`, `{"_id":2}`}},
		"count":    {`{"n":7}`, []string{`{"v":7}`}},
		"distinct": {`{"values":["a",{"b":1}]}`, []string{`{"v":"a"}`, `{"v":{"b":1}}`}},
	} {
		var a Answer
		require.NoError(t, a.take(name, reply(tc.reply)), name)
		require.Len(t, a.Documents, len(tc.want), name)
		for i, d := range a.Documents {
			text, err := bson.MarshalExtJSON(d, false, false)
			require.NoError(t, err)
			require.JSONEq(t, tc.want[i], string(text), name)
		}
	}
}
