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
		"one":                           {`{"find":"c","filter":{"_id":1},"limit":1,"batchSize":7,"tailable":true}`, `{"find":"c","filter":{"_id":1},"limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"a part of any":                 {`{"find":"c","skip":5,"limit":3}`, `{"find":"c","limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"a part of ties":                {`{"find":"c","sort":{"a":1},"limit":3}`, `{"find":"c","sort":{"a":1},"limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"a part in order":               {`{"find":"c","sort":{"a":1,"_id":1},"skip":5,"limit":3}`, `{"find":"c","sort":{"a":1,"_id":1},"skip":5,"limit":3,"singleBatch":true,"batchSize":3,"maxTimeMS":10000}`},
		"alike":                         {`{"find":"c","sort":{"_id":1},"collation":{"locale":"de"},"limit":3}`, `{"find":"c","sort":{"_id":1},"collation":{"locale":"de"},"limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
		"negative":                      {`{"find":"c","sort":{"_id":1},"limit":-3}`, `{"find":"c","sort":{"_id":1},"limit":3,"singleBatch":true,"batchSize":3,"maxTimeMS":10000}`},
		"count":                         {`{"count":"c","query":{"a":1},"limit":3}`, `{"count":"c","query":{"a":1},"limit":3,"maxTimeMS":10000}`},
		"distinct":                      {`{"distinct":"c","key":"a","query":{"b":1},"maxTimeMS":5}`, `{"distinct":"c","key":"a","query":{"b":1},"maxTimeMS":10000}`},
		"a count":                       {`{"aggregate":"c","pipeline":[{"$match":{"a":1}},{"$count":"n"}],"cursor":{"batchSize":3},"allowDiskUse":true}`, `{"aggregate":"c","pipeline":[{"$match":{"a":1}},{"$count":"n"},{"$limit":1001}],"cursor":{"batchSize":1002},"maxTimeMS":10000}`},
		"a part of any in a pipeline":   {`{"aggregate":"c","pipeline":[{"$sort":{"a":1}},{"$skip":2},{"$limit":5}]}`, `{"aggregate":"c","pipeline":[{"$sort":{"a":1}},{"$limit":1001}],"cursor":{"batchSize":1002},"maxTimeMS":10000}`},
		"a part in order in a pipeline": {`{"aggregate":"c","pipeline":[{"$sort":{"a":1,"_id":1}},{"$limit":5},{"$project":{"_id":0}}]}`, `{"aggregate":"c","pipeline":[{"$sort":{"a":1,"_id":1}},{"$limit":5},{"$project":{"_id":0}},{"$limit":1001}],"cursor":{"batchSize":1002},"maxTimeMS":10000}`},
		"the largest groups":            {`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":1.0}}},{"$sort":{"n":-1}},{"$limit":3}]}`, `{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":1.0}}},{"$sort":{"n":-1,"_id":1}},{"$limit":3},{"$limit":1001}],"cursor":{"batchSize":1002},"maxTimeMS":10000}`},
		"the largest sums": {
			`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","s":{"$sum":"$x"},"m":{"$avg":"$y"}}},{"$sort":{"s":-1}},{"$limit":3}]}`,
			`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","s":{"$sum":"$x"},"drover_0":{"$sum":{"$cond":[{"$isNumber":"$x"},{"$abs":"$x"},null]}},"m":{"$avg":"$y"},"drover_1":{"$avg":{"$cond":[{"$isNumber":"$y"},{"$abs":"$y"},null]}},"drover_n":{"$sum":1}}},{"$sort":{"s":-1}},{"$limit":1001}],"cursor":{"batchSize":1002},"maxTimeMS":10000}`,
		},
		"concerns are ours": {`{"find":"c","readConcern":{"level":"local"},"comment":"x"}`, `{"find":"c","limit":1001,"singleBatch":true,"batchSize":1001,"maxTimeMS":10000}`},
	} {
		var sent bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(tc.sent), false, &sent), name)
		p, ok := probeOf(sent, false)
		require.True(t, ok, name)
		got, err := bson.MarshalExtJSON(p.Command, false, false)
		require.NoError(t, err, name)
		require.JSONEq(t, tc.asked, string(got), name)
	}
}

// TestReadsThatDecide: what is compared is what both sides must answer alike.
func TestReadsThatDecide(t *testing.T) {
	t.Parallel()
	const no, open, ordered = 0, 1, 2
	for text, want := range map[string]int{
		`{"find":"c","filter":{"a":{"$in":[1,{"b":"$$ROOT"}]}}}`:                                                             open,
		`{"find":"c","sort":{"a":1,"_id":-1}}`:                                                                               ordered,
		`{"find":"c","sort":{"_id":1},"collation":{"locale":"de"}}`:                                                          open,
		`{"find":"c","sort":{"_id":1},"collation":{"locale":"simple"}}`:                                                      ordered,
		`{"find":"c","projection":{"at":{"$meta":"recordId"}}}`:                                                              no,
		`{"find":"c","filter":{"$expr":{"$lt":["$t","$$NOW"]}}}`:                                                             no,
		`{"find":"c","filter":{"$expr":{"$lt":["$t","$$n"]}},"let":{"n":"$$NOW"}}`:                                           no,
		`{"count":"c","query":{"$expr":{"$lt":[{"$rand":{}},0.5]}}}`:                                                         no,
		`{"aggregate":"c","pipeline":[]}`:                                                                                    open,
		`{"aggregate":"c","pipeline":[{"$match":{"a":1}}]}`:                                                                  open,
		`{"aggregate":"c","pipeline":[{"$match":{"a":1}},{"$match":{"b":1}},{"$count":"n"}]}`:                                open,
		`{"aggregate":"c","pipeline":[{"$match":{"$sampleRate":0.1}},{"$count":"n"}]}`:                                       no,
		`{"aggregate":"c","pipeline":[{"$count":"n"},{"$match":{"n":1}}]}`:                                                   no,
		`{"aggregate":"c","pipeline":[{"$sample":{"size":3}}]}`:                                                              no,
		`{"aggregate":"c","pipeline":[{"$lookup":{"from":"d"}}]}`:                                                            no,
		`{"aggregate":"c","pipeline":[{"$sort":{"a":1}}]}`:                                                                   open,
		`{"aggregate":"c","pipeline":[{"$sort":{"a":1,"_id":1}},{"$match":{"b":1}},{"$limit":3},{"$project":{"b":1}}]}`:      ordered,
		`{"aggregate":"c","pipeline":[{"$sort":{"_id":1}}],"collation":{"locale":"de"}}`:                                     open,
		`{"aggregate":"c","pipeline":[{"$unwind":"$l"},{"$sort":{"_id":1}}]}`:                                                open,
		`{"aggregate":"c","pipeline":[{"$limit":5}]}`:                                                                        open,
		`{"aggregate":"c","pipeline":[{"$limit":5},{"$match":{"a":1}}]}`:                                                     no,
		`{"aggregate":"c","pipeline":[{"$limit":5},{"$count":"n"}]}`:                                                         no,
		`{"aggregate":"c","pipeline":[{"$sort":{"_id":1}},{"$limit":5},{"$count":"n"}]}`:                                     ordered,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":1},"lo":{"$min":"$b"},"hi":{"$max":"$b"}}}]}`:        open,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$count":{}}}}],"collation":{"locale":"de"}}`:               no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":"$x"},"m":{"$avg":{"$add":["$x",1]}}}}]}`:            open,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":["$x","$y"]}}}]}`:                                    no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","drover_1":{"$sum":"$x"}}}]}`:                                    no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$first":"$x"}}}]}`:                                         no,
		`{"aggregate":"c","pipeline":[{"$sort":{"_id":1}},{"$group":{"_id":"$a","n":{"$first":"$x"}}}]}`:                     open,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$addToSet":"$x"}}}]}`:                                      no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$stdDevPop":"$x"}}}]}`:                                     no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a"}},{"$group":{"_id":null,"n":{"$sum":1}}}]}`:                      no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a"}},{"$project":{"t":{"$type":"$_id"}}}]}`:                         no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a"}},{"$sort":{"_id":1}}]}`:                                         ordered,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":1}}},{"$match":{"n":{"$gt":1}}},{"$sort":{"n":1}}]}`: ordered,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a"}},{"$match":{"_id":{"$not":{"$type":"int"}}}}]}`:                 no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":"$x"}}},{"$match":{"n":{"$gt":1}}}]}`:                no,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":"$x"}}},{"$sort":{"n":1,"_id":1}}]}`:                 open,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":"$x"}}},{"$sort":{"_id":1}}]}`:                       ordered,
	} {
		var command bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &command), text)
		p, ok := probeOf(command, false)
		require.Equal(t, want != no, ok, text)
		require.Equal(t, want == ordered, ok && p.Ordered, text)
	}
}

// TestOwnCollationCounts where a read names none: of spellings that are alike a server gives
// any, first in any order.
func TestOwnCollationCounts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Probe{
		`{"find":"c","sort":{"_id":1}}`:                                 {},
		`{"find":"c","sort":{"_id":1},"collation":{"locale":"simple"}}`: {Ordered: true},
		`{"distinct":"c","key":"a"}`:                                    {Alike: true, Number: true},
		`{"distinct":"c","key":"a","collation":{"locale":"simple"}}`:    {Alike: true},
		`{"aggregate":"c","pipeline":[{"$sort":{"_id":1}}]}`:            {},
		`{"aggregate":"c","pipeline":[{"$count":"n"}]}`:                 {Alike: true},
	} {
		var command bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &command), text)
		p, ok := probeOf(command, true)
		require.True(t, ok, text)
		require.Equal(t, want, Probe{Ordered: p.Ordered, Alike: p.Alike, Number: p.Number}, text)
	}
	var groups bson.Raw
	require.NoError(t, bson.UnmarshalExtJSON([]byte(`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a"}}]}`), false, &groups))
	_, ok := probeOf(groups, true)
	require.False(t, ok, "a group is named by any of several spellings")
}

// TestRepliesAreRead of each kind; of equal values it does not matter which a server gives, and
// sums of fractions may differ by what their additions round.
func TestRepliesAreRead(t *testing.T) {
	t.Parallel()
	reply := func(text string) (r bson.Raw) {
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &r))
		return r
	}
	const group, sums = `{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","n":{"$sum":1}}}]}`, `{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","s":{"$sum":"$x"}}}]}`
	totals := func(value, scale string) string {
		return `{"cursor":{"firstBatch":[{"_id":1,"s":` + value + `,"drover_0":` + scale + `,"drover_n":10}]}}`
	}
	for name, tc := range map[string]struct {
		command, one, other string
		same                bool
	}{
		"documents":         {`{"find":"c"}`, `{"cursor":{"firstBatch":[{"_id":1},{"_id":2}]}}`, `{"cursor":{"firstBatch":[{"_id":2},{"_id":1}]}}`, true},
		"an order":          {`{"find":"c","sort":{"_id":1}}`, `{"cursor":{"firstBatch":[{"_id":1},{"_id":2}]}}`, `{"cursor":{"firstBatch":[{"_id":2},{"_id":1}]}}`, false},
		"another number":    {`{"find":"c"}`, `{"cursor":{"firstBatch":[{"_id":1}]}}`, `{"cursor":{"firstBatch":[{"_id":1.0}]}}`, false},
		"counts":            {`{"count":"c"}`, `{"n":7}`, `{"n":8}`, false},
		"equal values":      {`{"distinct":"c","key":"a"}`, `{"values":["a",{"b":1},2]}`, `{"values":[2.0,"a",{"b":1.0}]}`, true},
		"other values":      {`{"distinct":"c","key":"a"}`, `{"values":["a",2]}`, `{"values":["a",3]}`, false},
		"spellings":         {`{"distinct":"c","key":"a","collation":{"locale":"de","strength":2}}`, `{"values":["a","b"]}`, `{"values":["B","A"]}`, true},
		"a value too many":  {`{"distinct":"c","key":"a","collation":{"locale":"de","strength":2}}`, `{"values":["a","b"]}`, `{"values":["B"]}`, false},
		"filtered":          {`{"aggregate":"c","pipeline":[{"$match":{"a":1}}]}`, `{"cursor":{"firstBatch":[{"_id":1}]}}`, `{"cursor":{"firstBatch":[{"_id":1.0}]}}`, false},
		"groups":            {group, `{"cursor":{"firstBatch":[{"_id":1,"n":3},{"_id":"x","n":1}]}}`, `{"cursor":{"firstBatch":[{"_id":"x","n":1},{"_id":1.0,"n":3}]}}`, true},
		"a group's number":  {group, `{"cursor":{"firstBatch":[{"_id":1,"n":3}]}}`, `{"cursor":{"firstBatch":[{"_id":1,"n":4}]}}`, false},
		"a group too many":  {group, `{"cursor":{"firstBatch":[{"_id":1,"n":3}]}}`, `{"cursor":{"firstBatch":[{"_id":1,"n":3},{"_id":2,"n":1}]}}`, false},
		"rounded":           {sums, totals("0.6", "0.6"), totals("0.6000000000000001", "0.6"), true},
		"rounded to naught": {sums, totals("0.0", "2.4"), totals("5.551115123125783e-17", "2.4"), true},
		"another sum":       {sums, totals("0.6", "0.6"), totals("0.60000001", "0.6"), false},
		"whole":             {sums, totals(`9007199254740993`, `9007199254740993`), totals(`9007199254740994`, `9007199254740994`), false},
		"decimals":          {sums, totals(`{"$numberDecimal":"0.30"}`, `{"$numberDecimal":"0.30"}`), totals(`{"$numberDecimal":"0.3"}`, `{"$numberDecimal":"0.3"}`), true},
		"other decimals":    {sums, totals(`{"$numberDecimal":"0.31"}`, `{"$numberDecimal":"0.31"}`), totals(`{"$numberDecimal":"0.3"}`, `{"$numberDecimal":"0.3"}`), false},
		"no number":         {sums, totals(`{"$numberDouble":"NaN"}`, `{"$numberDouble":"NaN"}`), totals(`{"$numberDouble":"NaN"}`, `{"$numberDouble":"NaN"}`), true},
		"no number on one":  {sums, totals(`{"$numberDouble":"NaN"}`, `{"$numberDouble":"NaN"}`), totals(`1.0`, `1.0`), false},
		"out of range":      {sums, totals(`{"$numberDouble":"Infinity"}`, `{"$numberDouble":"Infinity"}`), totals(`1e308`, `1e308`), true},
		"nothing to add up": {sums, totals(`null`, `null`), totals(`null`, `null`), true},
		"nothing on one":    {sums, totals(`null`, `null`), totals(`0.0`, `0.0`), false},
	} {
		p, ok := probeOf(reply(tc.command), false)
		require.True(t, ok, name)
		var one, other Answer
		require.NoError(t, p.take(&one, reply(tc.one)), name)
		require.NoError(t, p.take(&other, reply(tc.other)), name)
		require.NotEmpty(t, one.Documents, name)
		require.Equal(t, tc.same, p.unlike(one, other) == "", name)
	}
}
