package proxy

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// batchReply is a cursor that ends with its first batch.
func batchReply(ns string, docs ...any) bson.D {
	return bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: append(bson.A{}, docs...)}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: ns}}}}
}

// aggregateBench is a proxy over four chunks whose aggregations are answered by
// a script; it keeps the pipelines that came.
type aggregateBench struct {
	mu   sync.Mutex
	sent []string
	c    *rawClient
}

// newAggregateBench answers the n-th chunk's aggregate with the n-th list.
func newAggregateBench(t *testing.T, parts ...[]any) *aggregateBench {
	t.Helper()
	b := &aggregateBench{}
	f, _, _ := newScripted(t, len(parts), func(s *sent) bson.D {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.sent = append(b.sent, s.body.Lookup("pipeline").String())
		var n int
		_, err := fmt.Sscanf(s.db, testDatabase+"_%04d", &n)
		if err != nil {
			t.Errorf("%s: %v", s.db, err)
		}
		return batchReply(s.db+".legs", parts[n-1]...)
	})
	b.c = dialRaw(t, f.start(Config{}))
	return b
}

// run gives the reply to a pipeline.
func (b *aggregateBench) run(pipeline bson.A, more ...bson.E) bson.Raw {
	cmd := bson.D{{Key: "aggregate", Value: "legs"}, {Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: bson.D{}}}
	return b.c.run(append(append(cmd, more...), bson.E{Key: "$db", Value: testDatabase}))
}

// firstDocs gives the documents of a reply's first batch as text.
func firstDocs(t testing.TB, reply bson.Raw) (out []string) {
	t.Helper()
	require.Equal(t, int64(1), numberAt(reply, "ok"), "%v", reply)
	docs, err := reply.Lookup("cursor", "firstBatch").Array().Values()
	require.NoError(t, err)
	for _, d := range docs {
		out = append(out, d.String())
	}
	return out
}

// texts gives documents as firstDocs does.
func texts(t testing.TB, docs ...bson.D) (out []string) {
	for _, d := range docs {
		out = append(out, raw(t, d).String())
	}
	return out
}

// stageOf makes a stage.
func stageOf(name string, v any) bson.D { return bson.D{{Key: name, Value: v}} }

func TestGroupOverChunks(t *testing.T) {
	t.Parallel()

	part := func(id, sum, best, total any, count int32) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "v0", Value: sum}, {Key: "v1", Value: best}, {Key: "v2", Value: total}, {Key: "c2", Value: count}, {Key: "v3", Value: int32(1)}}
	}
	b := newAggregateBench(t,
		[]any{part("a", int32(1), int32(5), int32(4), 2), part(int32(1), int32(7), nil, 0.5, 1)},
		[]any{part("a", int32(2), "x", int32(5), 1)},
		[]any{part(1.0, int64(1), nil, int32(0), 0), part(nil, int32(0), nil, int32(0), 0)},
	)
	got := b.run(bson.A{
		stageOf("$match", bson.D{{Key: "n", Value: 1}}),
		stageOf("$group", bson.D{
			{Key: "_id", Value: "$k"}, {Key: "s", Value: stageOf("$sum", "$n")}, {Key: "least", Value: stageOf("$min", "$m")},
			{Key: "mean", Value: stageOf("$avg", "$x")}, {Key: "c", Value: stageOf("$count", bson.D{})},
		}),
		stageOf("$sort", bson.D{{Key: "_id", Value: -1}}), stageOf("$skip", 0), stageOf("$limit", 5),
	})
	group := func(id, s, least, mean any, c int32) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "s", Value: s}, {Key: "least", Value: least}, {Key: "mean", Value: mean}, {Key: "c", Value: c}}
	}
	require.Len(t, firstDocs(t, got), 3)
	last := group(int32(1), int64(8), nil, 0.5, 2)
	if got.Lookup("cursor", "firstBatch", "1", "_id").Type == bson.TypeDouble {
		last[0].Value = 1.0 // any of the equal ids stands for the group
	}
	require.Equal(t, texts(t, group("a", int32(3), int32(5), 3.0, 2), last, group(nil, int32(0), nil, nil, 1)), firstDocs(t, got))
	require.Contains(t, b.sent[0], `"$match"`)
	require.Contains(t, b.sent[0], `"c2": {"$sum": {"$cond": [{"$isNumber": ["$x"]}`)
	require.NotContains(t, b.sent[0], "$skip")
}

func TestCountStages(t *testing.T) {
	t.Parallel()

	b := newAggregateBench(t, []any{bson.D{{Key: "_id", Value: "a"}, {Key: "v0", Value: int32(3)}}},
		[]any{bson.D{{Key: "_id", Value: "b"}, {Key: "v0", Value: int32(1)}}, bson.D{{Key: "_id", Value: "a"}, {Key: "v0", Value: int32(4)}}})
	require.Equal(t, texts(t, bson.D{{Key: "_id", Value: "a"}, {Key: "count", Value: int32(7)}}, bson.D{{Key: "_id", Value: "b"}, {Key: "count", Value: int32(1)}}),
		firstDocs(t, b.run(bson.A{stageOf("$sortByCount", "$k")})))

	b = newAggregateBench(t, []any{bson.D{{Key: "_id", Value: nil}, {Key: "v0", Value: int32(3)}}}, []any{}, []any{bson.D{{Key: "_id", Value: nil}, {Key: "v0", Value: int32(4)}}})
	require.Equal(t, texts(t, bson.D{{Key: "n", Value: int32(7)}}), firstDocs(t, b.run(bson.A{stageOf("$count", "n")})))
	b = newAggregateBench(t, []any{}, []any{})
	require.Empty(t, firstDocs(t, b.run(bson.A{stageOf("$count", "n")})), "nothing is not 0")
}

// What a driver's countDocuments makes has the type of what it adds up, and a limit beside a
// skip may be as large as there are numbers.
func TestCountingPipeline(t *testing.T) {
	t.Parallel()

	counted := bson.D{{Key: "_id", Value: int32(1)}, {Key: "n", Value: int32(4)}}
	for _, tc := range []struct{ unit, want any }{{int32(1), int32(5)}, {int64(1), int64(5)}, {1.0, 5.0}} {
		b := newAggregateBench(t, []any{counted}, []any{counted})
		group := stageOf("$group", bson.D{{Key: "_id", Value: int32(1)}, {Key: "n", Value: stageOf("$sum", tc.unit)}})
		got := b.run(bson.A{stageOf("$skip", 3), stageOf("$limit", int64(math.MaxInt64)), group})
		require.Equal(t, texts(t, bson.D{{Key: "_id", Value: int32(1)}, {Key: "n", Value: tc.want}}), firstDocs(t, got))
		require.Contains(t, b.sent[0], fmt.Sprintf(`{"$limit": {"$numberLong":"%d"}}`, int64(math.MaxInt64)))
	}
}

func TestSortedPipeline(t *testing.T) {
	t.Parallel()

	doc := func(n int) bson.D { return bson.D{{Key: "n", Value: n}} }
	b := newAggregateBench(t, []any{doc(1), doc(4)}, []any{doc(2), doc(3)})
	sort := stageOf("$sort", bson.D{{Key: "n", Value: 1}})
	require.Equal(t, texts(t, doc(2), doc(3)), firstDocs(t, b.run(bson.A{stageOf("$unwind", "$a"), sort, stageOf("$skip", 1), stageOf("$limit", 2)})))
	require.Contains(t, b.sent[0], `{"$limit": {"$numberLong":"3"}}`, "no chunk gives more than can be of use")
	require.Equal(t, texts(t, doc(2)), firstDocs(t, b.run(bson.A{sort, stageOf("$limit", 2), stageOf("$skip", 1), stageOf("$limit", 5)})))
	require.Empty(t, firstDocs(t, b.run(bson.A{sort, stageOf("$limit", 2), stageOf("$skip", 2)})))
	require.Len(t, firstDocs(t, b.run(bson.A{})), 4)
	require.Len(t, firstDocs(t, b.run(bson.A{}, bson.E{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}})), 4, "the first of two equal options counts")
}

// What only one server could answer is refused with a reason, and nothing is sent.
func TestRefusedPipelines(t *testing.T) {
	t.Parallel()

	b := newAggregateBench(t, []any{}, []any{})
	group := stageOf("$group", bson.D{{Key: "_id", Value: "$k"}})
	sort := stageOf("$sort", bson.D{{Key: "n", Value: 1}})
	collation := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}
	for name, tc := range map[string]struct {
		pipeline bson.A
		more     []bson.E
		code     code
		says     string
	}{
		"accumulator":      {bson.A{stageOf("$group", bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: stageOf("$push", "$n")}})}, nil, codeNotSupported, "$push"},
		"two groups":       {bson.A{group, group}, nil, codeNotSupported, "$group"},
		"match after sort": {bson.A{sort, stageOf("$match", bson.D{})}, nil, codeNotSupported, "$match"},
		"sort after limit": {bson.A{stageOf("$limit", 1), sort}, nil, codeNotSupported, "$sort"},
		"facet":            {bson.A{stageOf("$facet", bson.D{{Key: "a", Value: bson.A{sort}}})}, nil, codeNotSupported, "$facet"},
		"sample":           {bson.A{stageOf("$sample", bson.D{{Key: "size", Value: 1}})}, nil, codeNotSupported, "$sample"},
		"sort collation":   {bson.A{sort}, []bson.E{collation}, codeNotSupported, "collation"},
		"group collation":  {bson.A{group}, []bson.E{collation}, codeNotSupported, "collation"},
		"no _id":           {bson.A{stageOf("$group", bson.D{})}, nil, codeFailedToParse, "_id"},
		"limit 0":          {bson.A{stageOf("$limit", 0)}, nil, codeBadValue, "$limit"},
		"negative skip":    {bson.A{stageOf("$skip", -1), stageOf("$group", bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: stageOf("$sum", 1)}})}, nil, codeBadValue, "$skip"},
		"sort by constant": {bson.A{stageOf("$sortByCount", "k")}, nil, codeBadValue, "$sortByCount"},
		"out":              {bson.A{stageOf("$out", "x")}, nil, codeNotSupported, "writes past the routes"},
		"merge":            {bson.A{stageOf("$merge", bson.D{})}, nil, codeNotSupported, "writes past the routes"},
		"union":            {bson.A{stageOf("$unionWith", "x")}, nil, codeNotSupported, "one chunk"},
		"change stream":    {bson.A{stageOf("$changeStream", bson.D{})}, nil, codeNotSupported, "captured log"},
	} {
		got := b.run(tc.pipeline, tc.more...)
		require.Equal(t, tc.code, codeOf(got), "%s: %v", name, got)
		require.Contains(t, got.Lookup("errmsg").StringValue(), tc.says, name)
	}
	got := b.c.run(bson.D{{Key: "count", Value: "legs"}, {Key: "skip", Value: -1}, {Key: "$db", Value: testDatabase}})
	require.Equal(t, codeBadValue, codeOf(got), "%v", got)
	require.Empty(t, b.sent)
}

// Groups are read to their end before any is given.
func TestGroupsInSeveralBatches(t *testing.T) {
	t.Parallel()

	part := func(id string) bson.D { return bson.D{{Key: "_id", Value: id}, {Key: "v0", Value: int32(1)}} }
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		if s.name == "getMore" {
			return bson.D{{Key: "cursor", Value: bson.D{{Key: "nextBatch", Value: bson.A{part("b"), part("c")}}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: s.db + ".legs"}}}}
		}
		return bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: bson.A{part("a")}}, {Key: "id", Value: int64(7)}, {Key: "ns", Value: s.db + ".legs"}}}}
	})
	c := dialRaw(t, f.start(Config{}))
	got := c.run(bson.D{
		{Key: "aggregate", Value: "legs"}, {Key: "pipeline", Value: bson.A{stageOf("$sortByCount", "$k"), stageOf("$skip", 1)}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 1}}}, {Key: "$db", Value: testDatabase},
	})
	first := firstDocs(t, got)
	require.Len(t, first, 1)
	got = c.run(bson.D{{Key: "getMore", Value: got.Lookup("cursor", "id").Int64()}, {Key: "collection", Value: "legs"}, {Key: "$db", Value: testDatabase}})
	require.Equal(t, int32(2), got.Lookup("cursor", "nextBatch", "0", "count").Int32(), "%v", got)
	require.Zero(t, got.Lookup("cursor", "id").Int64())
}

// An explained command shows a plan for each chunk and no member of a shard.
func TestExplain(t *testing.T) {
	t.Parallel()

	var mu sync.Mutex
	var sentDBs []string
	f, _, _ := newScripted(t, 2, func(s *sent) bson.D {
		mu.Lock()
		defer mu.Unlock()
		sentDBs = append(sentDBs, s.db)
		return bson.D{
			{Key: "queryPlanner", Value: bson.D{{Key: "namespace", Value: s.db + ".legs"}, {Key: "winningPlan", Value: bson.D{{Key: "stage", Value: "COLLSCAN"}}}}},
			{Key: "executionStats", Value: bson.D{{Key: "nReturned", Value: int32(2)}, {Key: "totalDocsExamined", Value: int32(3)}}},
			{Key: "serverInfo", Value: bson.D{{Key: "host", Value: "secret-host"}}}, {Key: "command", Value: bson.D{{Key: "$db", Value: s.db}}},
		}
	})
	keys := f.keysOf(1)
	c := dialRaw(t, f.start(Config{}))
	run := func(inner bson.D) bson.Raw {
		mu.Lock()
		sentDBs = nil
		mu.Unlock()
		return c.run(bson.D{{Key: "explain", Value: inner}, {Key: "verbosity", Value: "executionStats"}, {Key: "$db", Value: testDatabase}})
	}
	filter := bson.D{{Key: "origin", Value: keys[firstChunk][0]}}
	for name, inner := range map[string]bson.D{
		"find": {{Key: "find", Value: "legs"}, {Key: "filter", Value: filter}}, "count": {{Key: "count", Value: "legs"}, {Key: "query", Value: filter}},
		"update":    {{Key: "update", Value: "legs"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: stageOf("$set", bson.D{{Key: "n", Value: 1}})}}}}},
		"aggregate": {{Key: "aggregate", Value: "legs"}, {Key: "pipeline", Value: bson.A{stageOf("$match", filter)}}, {Key: "cursor", Value: bson.D{}}},
	} {
		got := run(inner)
		require.Len(t, sentDBs, 1, "%s: %v", name, got)
		require.Equal(t, "SINGLE_SHARD", got.Lookup("queryPlanner", "winningPlan", "stage").StringValue(), name)
		require.NotContains(t, got.String(), "secret-host")
		require.NotContains(t, got.String(), sentDBs[0], "no physical name")
		require.Contains(t, got.String(), testDatabase+".legs")
	}
	got := run(bson.D{{Key: "find", Value: "legs"}})
	require.Len(t, sentDBs, 2)
	require.Equal(t, "SHARD_MERGE", got.Lookup("queryPlanner", "winningPlan", "stage").StringValue())
	require.Equal(t, int64(6), numberAt(got, "executionStats", "totalDocsExamined"))
	shards, err := got.Lookup("executionStats", "executionStages", "shards").Array().Values()
	require.NoError(t, err)
	require.Len(t, shards, 2)
	require.Equal(t, string(firstChunk), shards[0].Document().Lookup("shardName").StringValue())
	require.Equal(t, codeCommandNotFound, codeOf(run(bson.D{{Key: "drop", Value: "legs"}})))
	require.Equal(t, codeFailedToParse, codeOf(c.run(bson.D{{Key: "explain", Value: 1}, {Key: "$db", Value: testDatabase}})))
}
