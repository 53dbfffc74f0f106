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
		"groups":            {`{"aggregate":"c","pipeline":[{"$match":{"a":1}},{"$count":"n"}],"cursor":{"batchSize":3},"allowDiskUse":true}`, `{"aggregate":"c","pipeline":[{"$match":{"a":1}},{"$count":"n"},{"$limit":1001}],"cursor":{"batchSize":1002},"maxTimeMS":10000}`},
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

// TestReadsThatDecide: what is compared is what both sides must answer alike.
func TestReadsThatDecide(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{"find":"c","filter":{"a":{"$in":[1,{"b":"$$ROOT"}]}}}`:                                                      true,
		`{"find":"c","filter":{"$expr":{"$lt":["$t","$$NOW"]}}}`:                                                      false,
		`{"find":"c","filter":{"$expr":{"$lt":["$t","$$n"]}},"let":{"n":"$$NOW"}}`:                                    false,
		`{"count":"c","query":{"$expr":{"$lt":[{"$rand":{}},0.5]}}}`:                                                  false,
		`{"aggregate":"c","pipeline":[]}`:                                                                             false,
		`{"aggregate":"c","pipeline":[{"$match":{"a":1}},{"$match":{"b":1}},{"$count":"n"}]}`:                         true,
		`{"aggregate":"c","pipeline":[{"$match":{"$sampleRate":0.1}},{"$count":"n"}]}`:                                false,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":1},"lo":{"$min":"$b"},"hi":{"$max":"$b"}}}]}`: true,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$count":{}}}}],"collation":{"locale":"de"}}`:        false,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":"$x"}}}]}`:                                    false,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$first":"$x"}}}]}`:                                  false,
		`{"aggregate":"c","pipeline":[{"$count":"n"},{"$match":{"n":1}}]}`:                                            false,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a"}},{"$sort":{"_id":1}}]}`:                                  false,
		`{"aggregate":"c","pipeline":[{"$match":{"a":1}}]}`:                                                           false,
		`{"aggregate":"c","pipeline":[{"$limit":5}]}`:                                                                 false,
	} {
		var command bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &command), text)
		require.Equal(t, want, decides(command), text)
	}
}

// TestRepliesAreRead of each kind; of equal values it does not matter which a server gives.
func TestRepliesAreRead(t *testing.T) {
	t.Parallel()
	reply := func(text string) (r bson.Raw) {
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &r))
		return r
	}
	for name, tc := range map[string]struct {
		kind, one, other string
		same             bool
	}{
		"documents":        {"find", `{"cursor":{"firstBatch":[{"_id":1},{"_id":2}]}}`, `{"cursor":{"firstBatch":[{"_id":2},{"_id":1}]}}`, true},
		"another number":   {"find", `{"cursor":{"firstBatch":[{"_id":1}]}}`, `{"cursor":{"firstBatch":[{"_id":1.0}]}}`, false},
		"counts":           {"count", `{"n":7}`, `{"n":8}`, false},
		"equal values":     {"distinct", `{"values":["a",{"b":1},2]}`, `{"values":[2.0,"a",{"b":1.0}]}`, true},
		"other values":     {"distinct", `{"values":["a",2]}`, `{"values":["a",3]}`, false},
		"groups":           {"aggregate", `{"cursor":{"firstBatch":[{"_id":1,"n":3},{"_id":"x","n":1}]}}`, `{"cursor":{"firstBatch":[{"_id":"x","n":1},{"_id":1.0,"n":3}]}}`, true},
		"a group's number": {"aggregate", `{"cursor":{"firstBatch":[{"_id":1,"n":3}]}}`, `{"cursor":{"firstBatch":[{"_id":1,"n":4}]}}`, false},
		"a group too many": {"aggregate", `{"cursor":{"firstBatch":[{"_id":1,"n":3}]}}`, `{"cursor":{"firstBatch":[{"_id":1,"n":3},{"_id":2,"n":1}]}}`, false},
	} {
		var one, other Answer
		require.NoError(t, one.take(tc.kind, reply(tc.one)), name)
		require.NoError(t, other.take(tc.kind, reply(tc.other)), name)
		require.NotEmpty(t, one.Documents, name)
		require.Equal(t, tc.same, one.unlike(other) == "", name)
	}
}
