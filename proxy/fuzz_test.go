package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/proxy/wire"
)

// FuzzPlans checks that whatever document a client sends where a command, a
// filter, an update, a pipeline or a sort belongs,
//   - nothing panics: a panic costs a client its connection;
//   - a filter is sent somewhere, and an insert to the chunk of its key;
//   - a command that is passed on is framed as one document and names the
//     placement's database last.
func FuzzPlans(f *testing.F) {
	for _, doc := range []bson.D{
		{{Key: "q", Value: bson.D{{Key: "origin", Value: "x"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "a.b", Value: 1}}}}}},
		{{Key: "q", Value: bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "origin", Value: bson.D{{Key: "$in", Value: bson.A{1, "x"}}}}}}}}}, {Key: "u", Value: bson.D{{Key: "origin", Value: 1}}}, {Key: "upsert", Value: true}},
		{{Key: "0", Value: stageOf("$match", bson.D{})}, {Key: "1", Value: stageOf("$group", bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: stageOf("$avg", "$x")}})}, {Key: "2", Value: stageOf("$sort", bson.D{{Key: "n", Value: -1}})}},
		{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin.x", Value: bson.D{{Key: "$gt", Value: 1}}}}}, {Key: "$db", Value: "flights"}},
		{{Key: "origin", Value: bson.A{1}}, {Key: "", Value: nil}},
	} {
		f.Add([]byte(raw(f, doc)))
	}
	db := &database{name: testDatabase, space: chunk.Ranged}
	for i, r := range []chunk.Range{{Lo: chunk.KeyMin, Hi: "\x30"}, {Lo: "\x30", Hi: chunk.KeyMax}} {
		db.entries = append(db.entries, newEntry(chunk.NewID(testDatabase, i+1), r))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if !wire.Whole(doc) {
			return
		}
		for _, key := range []string{"origin", "_id", "a.b", "origin,a.b", "a.b,_id"} {
			c := &collection{name: "legs", shardKey: key, simple: true}
			fuzzWrites(t, db, c, doc)
			require.NotEmpty(t, targetOf(db, c, doc, wire.Element{}))
		}
		if plan, err := planPipeline(doc); err == nil {
			e, ok := wire.Find(document(plan.appendShardPipeline), "pipeline")
			require.True(t, ok)
			_ = checkPipeline(e.Document())
		}
		_, _ = countPipeline(doc)
		if o, err := parseSort(doc); err == nil && o != nil {
			_, _ = o.key(doc)
			_, _, _ = o.project(doc)
			o.strip(doc)
		}
		g := &groups{plan: &groupPlan{fields: []accumulator{{op: opAvg}, {op: opMin}}}, byKey: map[chunk.Key]*group{}}
		if g.add(doc) == nil {
			require.True(t, wire.Whole(g.document(g.all[0])))
		}
		fuzzBody(t, doc)
	})
}

// fuzzWrites plans a document as each of the writes.
func fuzzWrites(t *testing.T, db *database, c *collection, doc []byte) {
	t.Helper()
	for _, plan := range []planner{planInsert, planUpdate, planDelete} {
		s := plan(db, c, doc)
		require.True(t, s.err != nil || len(s.entries) > 0)
	}
	if s := planInsert(db, c, doc); s.err == nil {
		k, err := db.space.DocumentPoint(s.doc, c.shardKey)
		require.NoError(t, err)
		require.True(t, s.entries[0].rng.Contains(k))
	}
}

// fuzzBody passes a document on as a command.
func fuzzBody(t *testing.T, doc []byte) {
	t.Helper()
	var cmd wire.Command
	if wire.ParseCommand(doc, &cmd) != nil {
		return
	}
	r := &route{}
	r.Placement.Database = "physical"
	r.comment = stamp(r.Route)
	q := &request{cmd: &cmd}
	out := q.appendBody(nil, envelope{route: r}, &edit{})
	require.True(t, wire.Whole(out))
	var last wire.Element
	w := wire.Walk(out)
	for w.Next() {
		last = w.Element
	}
	require.NoError(t, w.Err())
	require.Equal(t, "$db", string(last.Key))
	require.Equal(t, "physical", string(last.Text()))
	_ = bareCommand(doc)
	appendExplainedFields(nil, doc, r)
}
