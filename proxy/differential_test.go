package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/proxy/wire"
)

// chance makes documents and commands as applications send them, with the odd values
// that are stored after years. The same seed makes the same ones.
type chance struct{ *rand.Rand }

// some takes one of some values.
func some[T any](c chance, values ...T) T { return values[c.IntN(len(values))] }

// sometimes gives doc more elements, or not.
func (c chance) sometimes(doc bson.D, more ...bson.E) bson.D {
	if c.IntN(2) == 0 {
		return doc
	}
	return append(doc, more...)
}

// number is a number of any type; all of them add up exactly.
func (c chance) number() any {
	n := c.IntN(20) - 5
	return some[any](c, int32(n), int64(n), float64(n)/2, bson.NewDecimal128(0x3040000000000000, uint64(n+5)))
}

// key is a value of the shard key.
func (c chance) key() any {
	n := c.IntN(30)
	return some[any](c, fmt.Sprintf("key-%d", n), fmt.Sprintf("key-%d", n), n, float64(n), int64(n), nil, n%2 == 0,
		bson.DateTime(n), bson.ObjectID{11: byte(n)}, bson.D{{Key: "x", Value: n % 3}})
}

// document is one of the collection.
func (c chance) document(id int) bson.D {
	doc := bson.D{{Key: "_id", Value: id}, {Key: "g", Value: some[any](c, int32(1), 1.0, int64(2), "x", nil, bson.D{{Key: "y", Value: 1}})}}
	doc = append(doc, some(c, bson.D{{Key: "origin", Value: c.key()}}, bson.D{{Key: "origin", Value: c.key()}}, bson.D{{Key: "origin", Value: c.key()}}, nil)...)
	doc = append(doc, some(c, bson.D{{Key: "n", Value: c.number()}}, bson.D{{Key: "n", Value: c.number()}}, bson.D{{Key: "n", Value: some[any](c, nil, "7", true)}}, nil)...)
	doc = append(doc, some(c, bson.D{{Key: "tags", Value: some(c, bson.A{}, bson.A{1, 2.5}, bson.A{"a", 3, nil}, bson.A{c.IntN(9), c.IntN(9)}, bson.A{bson.A{1}, 2})}},
		bson.D{{Key: "tags", Value: c.IntN(9)}}, nil)...)
	return append(doc, some(c,
		bson.D{{Key: "sub", Value: bson.D{{Key: "a", Value: c.IntN(6)}, {Key: "b", Value: c.number()}}}},
		bson.D{{Key: "sub", Value: bson.A{bson.D{{Key: "a", Value: c.IntN(6)}}, bson.D{{Key: "a", Value: c.IntN(6)}, {Key: "b", Value: 1}}}}},
		bson.D{{Key: "sub", Value: "none"}}, nil)...)
}

// filter is a filter.
func (c chance) filter() bson.D {
	keys := bson.A{c.key(), c.key(), c.key()}
	return some(c,
		bson.D{}, bson.D{},
		bson.D{{Key: "origin", Value: c.key()}},
		bson.D{{Key: "origin", Value: bson.D{{Key: "$in", Value: keys}}}},
		bson.D{{Key: "origin", Value: bson.D{{Key: some(c, "$gt", "$gte", "$lt", "$lte"), Value: some[any](c, c.IntN(30), "key-2")}}}},
		bson.D{{Key: "origin", Value: bson.D{{Key: "$exists", Value: c.IntN(2) == 0}}}},
		bson.D{{Key: "$or", Value: bson.A{bson.D{{Key: "origin", Value: c.key()}}, bson.D{{Key: "_id", Value: c.IntN(60)}}}}},
		bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: "origin", Value: bson.D{{Key: "$in", Value: keys}}}}, bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 90}}}}}}},
		bson.D{{Key: "n", Value: bson.D{{Key: some(c, "$gt", "$lte", "$ne"), Value: c.IntN(8)}}}},
		bson.D{{Key: "tags", Value: c.IntN(9)}},
		bson.D{{Key: "_id", Value: bson.D{{Key: some(c, "$gt", "$lte"), Value: c.IntN(120)}}}},
	)
}

// order is a sort that leaves no two documents alike.
func (c chance) order() bson.D {
	way := func() int { return some(c, 1, -1) }
	return append(some(c, bson.D{}, bson.D{{Key: "n", Value: way()}}, bson.D{{Key: "tags", Value: way()}}, bson.D{{Key: "sub.a", Value: way()}},
		bson.D{{Key: "g", Value: way()}, {Key: "n", Value: way()}}, bson.D{{Key: "origin", Value: way()}}), bson.E{Key: "_id", Value: way()})
}

// projection is what a find shows.
func (c chance) projection() bson.D {
	return some(c, bson.D{}, bson.D{{Key: "n", Value: 1}}, bson.D{{Key: "_id", Value: 0}}, bson.D{{Key: "_id", Value: 0}, {Key: "g", Value: 1}},
		bson.D{{Key: "n", Value: 0}, {Key: "sub.a", Value: 0}}, bson.D{{Key: "tags", Value: 0}}, bson.D{{Key: "sub.b", Value: 1}},
		bson.D{{Key: "_id", Value: 1}, {Key: "twice", Value: bson.D{{Key: "$isArray", Value: "$tags"}}}})
}

// find is a find whose result is defined to the byte.
func (c chance) find() bson.D {
	cmd := bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: c.filter()}, {Key: "sort", Value: c.order()}, {Key: "projection", Value: c.projection()}}
	cmd = c.sometimes(cmd, bson.E{Key: "skip", Value: c.IntN(20)})
	cmd = c.sometimes(cmd, bson.E{Key: "limit", Value: c.IntN(30)})
	return c.sometimes(cmd, bson.E{Key: "batchSize", Value: c.IntN(9)})
}

// group is an aggregate that groups.
func (c chance) group() bson.D {
	field := some(c, "$n", "$tags", "$sub.a", "$g")
	group := bson.D{{Key: "_id", Value: some[any](c, "$g", nil, "$sub.a", bson.D{{Key: "g", Value: "$g"}})}}
	for i, op := range []string{"$sum", "$avg", "$min", "$max"} {
		group = c.sometimes(group, bson.E{Key: "f" + strconv.Itoa(i), Value: bson.D{{Key: op, Value: some(c, field, "$n")}}})
	}
	group = append(group, bson.E{Key: "k", Value: bson.D{{Key: "$sum", Value: 1}}})
	stages := some(c,
		bson.A{bson.D{{Key: "$group", Value: group}}},
		bson.A{bson.D{{Key: "$unwind", Value: "$tags"}}, bson.D{{Key: "$group", Value: group}}},
		bson.A{bson.D{{Key: "$sortByCount", Value: "$g"}}},
		bson.A{bson.D{{Key: "$count", Value: "k"}}},
		bson.A{bson.D{{Key: "$skip", Value: c.IntN(9)}}, bson.D{{Key: "$limit", Value: 1 + c.IntN(30)}}, bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: bson.D{{Key: "$sum", Value: some[any](c, 1, int64(1), 1.0)}}}}}}},
	)
	return bson.D{{Key: "aggregate", Value: "legs"}, {Key: "pipeline", Value: append(bson.A{bson.D{{Key: "$match", Value: c.filter()}}}, stages...)}, {Key: "cursor", Value: bson.D{}}}
}

// sorted is an aggregate whose result is defined to the byte.
func (c chance) sorted() bson.D {
	stages := bson.A{bson.D{{Key: "$match", Value: c.filter()}}}
	if c.IntN(2) == 0 {
		stages = append(stages, bson.D{{Key: "$addFields", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$type", Value: "$n"}}}}}})
	}
	stages = append(stages, bson.D{{Key: "$sort", Value: c.order()}})
	if c.IntN(2) == 0 {
		stages = append(stages, bson.D{{Key: "$skip", Value: c.IntN(20)}})
	}
	if c.IntN(2) == 0 {
		stages = append(stages, bson.D{{Key: "$limit", Value: 1 + c.IntN(30)}})
	}
	return bson.D{{Key: "aggregate", Value: "legs"}, {Key: "pipeline", Value: stages}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: c.IntN(9)}}}}
}

// batch is a batch of writes, of which some fail.
func (c chance) batch() bson.D {
	ordered := bson.E{Key: "ordered", Value: c.IntN(2) == 0}
	switch c.IntN(3) {
	case 0:
		docs := bson.A{}
		for range 1 + c.IntN(8) {
			// One _id has one key: what is unique within the key is unique in all.
			id := 1000 + c.IntN(30)
			docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "origin", Value: fmt.Sprintf("key-%d", id%30)}, {Key: "n", Value: c.number()}})
		}
		return bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: docs}, ordered}
	case 1:
		updates := bson.A{}
		for i := range 1 + c.IntN(6) {
			if ordered.Value == true {
				updates = append(updates, c.update())
			} else {
				updates = append(updates, c.apart(i))
			}
		}
		return bson.D{{Key: "update", Value: "legs"}, {Key: "updates", Value: updates}, ordered}
	default:
		deletes := bson.A{}
		for range 1 + c.IntN(4) {
			deletes = append(deletes, some(c,
				bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: c.IntN(150)}}}, {Key: "limit", Value: 1}},
				bson.D{{Key: "q", Value: bson.D{{Key: "origin", Value: "key-1"}, {Key: "_id", Value: bson.D{{Key: "$gte", Value: 1000}}}}}, {Key: "limit", Value: 0}},
				bson.D{{Key: "q", Value: bson.D{{Key: "n", Value: 3}, {Key: "g", Value: "x"}}}, {Key: "limit", Value: 0}}))
		}
		return bson.D{{Key: "delete", Value: "legs"}, {Key: "deletes", Value: deletes}, ordered}
	}
}

// apart is a statement of an update that touches no document of another place's: those of
// an unordered batch may be done in any order.
func (c chance) apart(place int) bson.D {
	id := 2000 + 6*place + c.IntN(6)
	return some(c,
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 20*place + c.IntN(20)}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}, {Key: "origin", Value: fmt.Sprintf("key-%d", id%30)}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "mark", Value: 1}}}}}, {Key: "upsert", Value: true}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 20 * place}, {Key: "origin", Value: "key-2"}}}, {Key: "u", Value: bson.D{{Key: "$nonsense", Value: bson.D{{Key: "n", Value: 1}}}}}},
	)
}

// update is a statement of an update.
func (c chance) update() bson.D {
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}} // fails where n is no number
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "mark", Value: c.IntN(3)}}}}
	id := 2000 + c.IntN(40)
	return some(c,
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: c.IntN(150)}}}, {Key: "u", Value: some(c, inc, set)}},
		bson.D{{Key: "q", Value: c.filter()}, {Key: "u", Value: set}, {Key: "multi", Value: true}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}, {Key: "origin", Value: fmt.Sprintf("key-%d", id%30)}}}, {Key: "u", Value: inc}, {Key: "upsert", Value: true}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}, {Key: "origin", Value: fmt.Sprintf("key-%d", id%30)}}}, {Key: "u", Value: bson.D{{Key: "origin", Value: fmt.Sprintf("key-%d", id%30)}, {Key: "n", Value: c.number()}}}, {Key: "upsert", Value: true}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: c.IntN(150)}}}, {Key: "u", Value: bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "mark", Value: "$g"}}}}}}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 3}}}, {Key: "u", Value: bson.D{{Key: "$nonsense", Value: bson.D{{Key: "n", Value: 1}}}}}},
	)
}

// sides is the same documents twice: split over chunks behind a proxy, and in one
// collection of one server.
type sides struct {
	t                *testing.T
	scattered, whole *mongo.Database
}

// all gives every document of a command's cursor.
func (s *sides) all(db *mongo.Database, cmd bson.D) []bson.Raw {
	s.t.Helper()
	cur, err := db.RunCommandCursor(s.t.Context(), cmd)
	require.NoError(s.t, err, "%s: %v", db.Name(), cmd)
	cur.SetBatchSize(5)
	out := []bson.Raw{}
	for cur.Next(s.t.Context()) {
		out = append(out, slices.Clone(cur.Current))
	}
	require.NoError(s.t, cur.Err(), "%s: %v", db.Name(), cmd)
	return out
}

// same wants the same documents from both, in the same order.
func (s *sides) same(cmd bson.D) {
	s.t.Helper()
	want, got := s.all(s.whole, cmd), s.all(s.scattered, cmd)
	require.Len(s.t, got, len(want), "%v", cmd)
	for i := range want {
		require.Equal(s.t, want[i].String(), got[i].String(), "%d of %v", i, cmd)
	}
}

// sameSet wants documents from both that are the same up to their order, and to which of
// several equal values stands for all of them.
func (s *sides) sameSet(cmd bson.D) {
	s.t.Helper()
	require.Equal(s.t, s.canonical(s.all(s.whole, cmd)), s.canonical(s.all(s.scattered, cmd)), "%v", cmd)
}

// canonical gives documents by their values, in order. The type of a number does not count:
// the dev shards make whole numbers of sums of doubles where they can, see TestTotal.
func (s *sides) canonical(docs []bson.Raw) []string {
	s.t.Helper()
	out := make([]string, len(docs))
	for i, doc := range docs {
		for w := wire.Walk(doc); w.Next(); {
			k, err := chunk.EncodeValue(w.RawValue())
			require.NoError(s.t, err)
			out[i] += fmt.Sprintf("%s:%x ", w.Key, k)
		}
	}
	slices.Sort(out)
	return out
}

// reply runs a command that has no cursor; statements of it may fail.
func (s *sides) reply(db *mongo.Database, cmd bson.D) bson.Raw {
	s.t.Helper()
	raw, err := db.RunCommand(s.t.Context(), cmd).Raw()
	if failed, ok := errors.AsType[mongo.WriteException](err); ok {
		return failed.Raw
	}
	require.NoError(s.t, err, "%s: %v", db.Name(), cmd)
	return raw
}

// outcome is what an application is told about a batch.
func outcome(raw bson.Raw) string {
	out := fmt.Sprint("n ", numberAt(raw, "n"), " modified ", numberAt(raw, "nModified"))
	for _, list := range []string{"upserted", "writeErrors"} {
		e, _ := wire.Find(raw, list)
		var all []string
		for w := wire.Walk(e.Document()); w.Next(); {
			id, _ := wire.Find(w.Document(), "_id")
			all = append(all, fmt.Sprint(numberAt(w.Document(), "index"), " code ", numberAt(w.Document(), "code"), " _id ", id.RawValue()))
		}
		slices.SortFunc(all, cmp.Compare[string])
		out += fmt.Sprint(" ", list, " ", all)
	}
	return out
}

// What several chunks answer together is what one server would answer that has all
// documents: over random documents, queries and batches.
func TestScatteredIsUnsharded(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 1, 5)
	s := &sides{t: t, scattered: f.dial(f.start(Config{})).Database(testDatabase), whole: f.roots["shard-a"].Database("reference")}
	for _, seed := range []uint64{1, 2, 3} {
		c := chance{rand.New(rand.NewPCG(seed, 0))}
		docs := bson.A{}
		for id := range 150 {
			docs = append(docs, c.document(id))
		}
		for _, db := range []*mongo.Database{s.whole, s.scattered} {
			s.reply(db, bson.D{{Key: "delete", Value: "legs"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
			s.reply(db, bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: docs}})
		}
		for range 60 {
			s.same(c.find())
			s.same(c.sorted())
			s.sameSet(c.group())
			s.counts(c)
			batch := c.batch()
			require.Equal(t, outcome(s.reply(s.whole, batch)), outcome(s.reply(s.scattered, batch)), "seed %d: %v", seed, batch)
		}
		s.same(bson.D{{Key: "find", Value: "legs"}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}})
	}
}

// counts compares count and distinct.
func (s *sides) counts(c chance) {
	s.t.Helper()
	count := bson.D{{Key: "count", Value: "legs"}, {Key: "query", Value: c.filter()}}
	count = c.sometimes(count, bson.E{Key: "skip", Value: c.IntN(20)})
	count = c.sometimes(count, bson.E{Key: "limit", Value: c.IntN(20)})
	require.Equal(s.t, numberAt(s.reply(s.whole, count), "n"), numberAt(s.reply(s.scattered, count), "n"), "%v", count)

	distinct := bson.D{{Key: "distinct", Value: "legs"}, {Key: "key", Value: some(c, "origin", "n", "tags", "g", "sub.a")}, {Key: "query", Value: c.filter()}}
	values := func(db *mongo.Database) []string {
		e, _ := wire.Find(s.reply(db, distinct), "values")
		out := []string{}
		for w := wire.Walk(e.Document()); w.Next(); {
			k, err := chunk.EncodeValue(w.RawValue())
			require.NoError(s.t, err)
			out = append(out, fmt.Sprintf("%x", k))
		}
		slices.Sort(out)
		return out
	}
	require.Equal(s.t, values(s.whole), values(s.scattered), "%v", distinct)
}
