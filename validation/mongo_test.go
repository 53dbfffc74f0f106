package validation_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/event"
	"drover/internal/testkit"
	"drover/validation"
)

// connect starts a shard of the test's own.
func connect(t *testing.T) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(testkit.Shard(t).AdminURI()))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, client.Disconnect(ctx))
	})
	return client
}

// decimal gives a decimal from its text.
func decimal(text string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(text)
	if err != nil {
		panic(err)
	}
	return d
}

// everyID has values of every type that a server takes as _id, in MongoDB's order.
func everyID() []any {
	return []any{
		bson.MinKey{},
		nil,
		math.NaN(), math.Inf(-1), decimal("-1E+30"), negativeZero(), int32(1), 1.5, int64(2), decimal("3.25"), int64(math.MaxInt64), 9.3e18, math.Inf(1),
		"", "507f1f77bcf86cd799439011", "B", "a", "a\x00b", "é",
		bson.D{},
		bson.D{{Key: "a", Value: 1}},
		bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 2}},
		bson.D{{Key: "y", Value: 2}, {Key: "x", Value: 1}},
		bson.Binary{Data: []byte{}},
		bson.Binary{Data: []byte{1}},
		bson.Binary{Data: []byte{255}},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.Binary{Subtype: 4, Data: append([]byte{9}, make([]byte, 15)...)},
		bson.Binary{Data: make([]byte, 17)},
		bson.ObjectID{},
		bson.ObjectID{11: 1},
		false, true,
		bson.DateTime(-5), bson.DateTime(0), bson.DateTime(1e12),
		bson.Timestamp{},
		bson.Timestamp{T: 1, I: 2},
		bson.JavaScript("x"),
		bson.CodeWithScope{Code: "y", Scope: bson.D{}},
		bson.MaxKey{},
	}
}

// fill puts one document for each _id into a collection.
func fill(t *testing.T, db *mongo.Database, name string, ids []any) {
	t.Helper()
	batch := make([]any, len(ids))
	for n, id := range ids {
		batch[n] = bson.D{{Key: "_id", Value: id}, {Key: "n", Value: n}, {Key: "m", Value: 1}}
	}
	_, err := db.Collection(name).InsertMany(t.Context(), batch)
	require.NoError(t, err)
}

// pages reads a collection in pages of limit documents.
func pages(t *testing.T, side *validation.Mongo, name string, limit int) []chunk.Key {
	t.Helper()
	var keys []chunk.Key
	var after bson.RawValue
	for {
		n := 0
		for doc, err := range side.Scan(t.Context(), validation.Read{Collection: name}, after, limit) {
			require.NoError(t, err)
			keys = append(keys, keyOf(doc))
			after = doc.Lookup("_id")
			n++
		}
		require.LessOrEqual(t, n, limit)
		if n < limit {
			return keys
		}
	}
}

// Wherever a page ends, the next one begins right behind it, whatever the types
// on both sides of the seam.
func TestScanSeesEveryTypeOfID(t *testing.T) {
	t.Parallel()
	client := connect(t)
	db := client.Database(database)
	require.NoError(t, db.CreateCollection(t.Context(), "clustered",
		options.CreateCollection().SetClusteredIndex(bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}})))
	require.NoError(t, db.CreateCollection(t.Context(), "french",
		options.CreateCollection().SetCollation(&options.Collation{Locale: "fr", Strength: 2})))
	uuids := make([]any, 20)
	for n := range uuids {
		uuids[n] = bson.Binary{Subtype: 4, Data: append([]byte{byte(n * 77)}, make([]byte, 15)...)}
	}
	for name, ids := range map[string][]any{
		"plain": everyID(), "clustered": everyID(), "french": {"a", "B", "é", "c", "Z", 5, bson.D{{Key: "x", Value: "q"}}}, "uuids": uuids,
	} {
		fill(t, db, name, ids)
		var want []chunk.Key
		for _, id := range ids {
			want = append(want, keyOf(raw(bson.D{{Key: "_id", Value: id}})))
		}
		slices.Sort(want)
		for _, limit := range []int{1, 2, 3, 7, len(ids), len(ids) + 1} {
			require.Equal(t, want, pages(t, &validation.Mongo{Client: client, Database: database}, name, limit), "%s by %d", name, limit)
		}
	}
}

// A scan that has an end gives all that lies before it, whatever the types on both
// sides and of the places where it asks anew, and where one comparison says so nothing
// behind it.
func TestScanUntil(t *testing.T) {
	t.Parallel()
	client := connect(t)
	ids := everyID()
	fill(t, client.Database(database), "c", ids)
	side := &validation.Mongo{Client: client, Database: database}
	values := make([]bson.RawValue, len(ids))
	for n, id := range ids {
		values[n] = raw(bson.D{{Key: "_id", Value: id}}).Lookup("_id")
	}
	for from := -1; from < len(ids)-1; from += 4 {
		var after bson.RawValue
		if from >= 0 {
			after = values[from]
		}
		for to := from + 1; to < len(ids); to++ {
			var got, want []chunk.Key
			for doc, err := range side.Scan(t.Context(), validation.Read{Collection: "c", Until: values[to], Cuts: values[to/3 : to]}, after, len(ids)) {
				require.NoError(t, err)
				got = append(got, keyOf(doc))
			}
			for _, v := range values[from+1 : to+1] {
				want = append(want, keyOf(raw(bson.D{{Key: "_id", Value: v}})))
			}
			slices.Sort(want)
			switch ids[to].(type) {
			case int32, string, bson.ObjectID, bson.DateTime:
				require.Equal(t, want, got, "from %v to %v", after, ids[to])
			default:
				require.Equal(t, want, got[:min(len(got), len(want))], "from %v to %v", after, ids[to])
			}
		}
	}
}

func TestGetFindsEveryTypeOfID(t *testing.T) {
	t.Parallel()
	client := connect(t)
	fill(t, client.Database(database), "c", everyID())
	var ids []bson.RawValue
	for _, id := range append(everyID(), "absent") {
		ids = append(ids, raw(bson.D{{Key: "_id", Value: id}}).Lookup("_id"))
	}
	side := &validation.Mongo{Client: client, Database: database}
	found := map[chunk.Key]bool{}
	for doc, err := range side.Get(t.Context(), validation.Read{Collection: "c"}, ids) {
		require.NoError(t, err)
		found[keyOf(doc)] = true
	}
	require.Len(t, found, len(everyID()))
}

// follower stands for capture and lanes: it follows the source's change stream,
// keeps the events, and applies them to the target.
type follower struct {
	client         *mongo.Client
	source, target *mongo.Database
	mu             sync.Mutex
	changed        *sync.Cond
	events         []*event.Event
	passed         map[string]int // markers, with their place in events
	written        int
	rounds         int64
	failed         error
}

// follow starts a follower for the length of the test.
func follow(t *testing.T, client *mongo.Client) *follower {
	t.Helper()
	f := &follower{client: client, source: client.Database(database), target: client.Database("app_0001_p2"), passed: map[string]int{}}
	f.changed = sync.NewCond(&f.mu)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client.Watch(ctx, mongo.Pipeline{{{Key: "$match", Value: bson.D{
		{Key: "ns.db", Value: bson.D{{Key: "$in", Value: bson.A{database, chunk.SystemDatabase}}}},
	}}}})
	require.NoError(t, err)
	var group sync.WaitGroup
	group.Go(func() {
		defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
		for stream.Next(ctx) {
			if err := f.apply(ctx, stream.Current); err != nil {
				f.fail(err)
				return
			}
		}
		f.fail(errors.Join(stream.Err(), errEnded))
	})
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	return f
}

// errEnded says that the stream is over.
var errEnded = errors.New("the stream has ended")

// fail wakes those who wait for a marker.
func (f *follower) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
	f.changed.Broadcast()
}

// apply takes one change event.
func (f *follower) apply(ctx context.Context, change bson.Raw) error {
	op := event.Op(change.Lookup("operationType").StringValue())
	db, _ := change.Lookup("ns", "db").StringValueOK()
	name, _ := change.Lookup("ns", "coll").StringValueOK()
	e := &event.Event{Op: op, Database: db, Collection: name, Key: slices.Clone(change.Lookup("documentKey").Value)}
	if db == database && op.OnDocument() {
		var err error
		key := bson.D{{Key: "_id", Value: e.ID()}}
		switch op { //nolint:exhaustive // what changes a document
		case event.Delete:
			_, err = f.target.Collection(name).DeleteOne(ctx, key)
		case event.Insert:
			_, err = f.target.Collection(name).InsertOne(ctx, bson.Raw(change.Lookup("fullDocument").Value))
		default:
			_, err = f.target.Collection(name).ReplaceOne(ctx, key, bson.Raw(change.Lookup("fullDocument").Value))
		}
		if err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if db == chunk.SystemDatabase && name == chunk.MarkersCollection {
		f.passed[e.ID().StringValue()] = len(f.events)
		f.changed.Broadcast()
		return nil
	}
	f.events = append(f.events, e)
	if db == database && !change.Lookup("fullDocument", "version").IsZero() {
		f.written++
		f.changed.Broadcast()
	}
	return nil
}

// Write implements [validation.Markers].
func (f *follower) Write(ctx context.Context) (validation.Mark, error) {
	f.rounds++
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: 7, Placement: 1, Round: f.rounds}
	reply, err := f.client.Database(chunk.SystemDatabase).RunCommand(ctx, bson.D{
		{Key: "insert", Value: chunk.MarkersCollection},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: m.Key()}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	}).Raw()
	if err != nil {
		return validation.Mark{}, err
	}
	sec, inc := reply.Lookup("operationTime").Timestamp()
	return validation.Mark{Marker: m, At: bson.Timestamp{T: sec, I: inc}}, nil
}

// Passed implements [validation.Markers].
func (f *follower) Passed(_ context.Context, m validation.Mark) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		if _, ok := f.passed[m.Marker.Key()]; ok || f.failed != nil {
			return f.failed
		}
		f.changed.Wait()
	}
}

// Touched implements [validation.Log].
func (f *follower) Touched(_ context.Context, from, to validation.Mark, set *validation.Touched) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events[f.passed[from.Marker.Key()]:f.passed[to.Marker.Key()]] {
		if err := set.Add(e); err != nil {
			return err
		}
	}
	return nil
}

// On real servers: writers and a follower give no false alarm, and faults that
// are planted on the target are all found while they go on.
func TestValidationOnServers(t *testing.T) {
	t.Parallel()
	client := connect(t)
	f := follow(t, client)
	fill(t, f.source, "types", everyID())
	numbers := make([]any, 200)
	for n := range numbers {
		numbers[n] = n
	}
	fill(t, f.source, "c", numbers)

	stop := f.writer(t)
	v := &validation.Validator{
		Source: &validation.Mongo{Client: client, Database: f.source.Name()}, Target: &validation.Mongo{Client: client, Database: f.target.Name()},
		Markers: f, Log: f, Database: database, Settings: validation.Settings{Slice: 60, Few: 100},
	}
	result, err := v.Run(t.Context(), []string{"types", "c"})
	require.NoError(t, err)
	require.True(t, result.Clean(), "%v %v", result, result.Mismatches)
	plant(t, f.target)
	result, err = v.Run(t.Context(), []string{"types", "c"})
	require.NoError(t, err)
	require.Equal(t, map[validation.Kind]int64{
		validation.DifferentValue: 1, validation.DifferentType: 1, validation.DifferentOrder: 1, validation.MissingDocument: 2, validation.ExtraDocument: 1,
	}, result.Kinds, "%v", result.Mismatches)
	stop()
}

// TestServersAnswerAnAudit: equal contents have equal sums through each index that can be
// walked, a type that was dropped shows, and what changes is left out. An index that is
// hidden is none that can be named: the audit of a collection with one never ended.
func TestServersAnswerAnAudit(t *testing.T) {
	t.Parallel()
	client := connect(t)
	var both []*validation.Asked
	var docs []any
	for n, id := range everyID() {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "a", Value: n % 7}, {Key: "b", Value: fmt.Sprint(n)}, {Key: "list", Value: bson.A{n, "x"}}})
	}
	for _, name := range []string{"audit_source", "audit_target"} {
		db := client.Database(name)
		_, err := db.Collection("c").InsertMany(t.Context(), docs)
		require.NoError(t, err)
		for key, more := range map[string]*options.IndexOptionsBuilder{
			"a": options.Index(), "b": options.Index().SetSparse(true), "list": options.Index(),
			"n": options.Index().SetPartialFilterExpression(bson.D{{Key: "a", Value: bson.D{{Key: "$gt", Value: 3}}}}),
			"h": options.Index().SetHidden(true),
		} {
			_, err := db.Collection("c").Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: key, Value: 1}}, Options: more.SetName(key)})
			require.NoError(t, err)
		}
		both = append(both, &validation.Asked{Database: db})
	}
	sums := func(without ...bson.RawValue) (out [2]map[string]validation.Sum) {
		for i, q := range both {
			var err error
			out[i], err = q.Sums(t.Context(), "c", bson.Timestamp{}, without)
			require.NoError(t, err)
		}
		return out
	}
	got := sums()
	require.Equal(t, got[0], got[1])
	ways := map[string]bool{}
	for way := range got[0] {
		name, _, _ := strings.Cut(way, "/")
		ways[name] = true
	}
	require.Equal(t, map[string]bool{"_id_": true, "a": true, "b": true, "list": true, "n": true}, ways)
	id := bson.NewObjectID()
	_, err := both[0].Database.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}})
	require.NoError(t, err)
	got = sums()
	require.NotEqual(t, got[0], got[1])
	_, value, err := bson.MarshalValue(id)
	require.NoError(t, err)
	got = sums(bson.RawValue{Type: bson.TypeObjectID, Value: value})
	require.Equal(t, got[0], got[1], "what changes is left out")
}

// writer changes documents of c, of which the upper half stays at rest, until
// stop is called. It does not get far ahead of the follower.
func (f *follower) writer(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		defer cancel()
		r := random(1)
		c := f.source.Collection("c")
		for version := 0; f.follows(ctx, version); version++ {
			n := r.IntN(100)
			id := bson.D{{Key: "_id", Value: n}}
			var err error
			if version%5 == 0 {
				_, err = c.DeleteOne(ctx, id)
			}
			if err == nil {
				_, err = c.ReplaceOne(ctx, id, bson.D{id[0], {Key: "version", Value: version}}, options.Replace().SetUpsert(true))
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	return func() {
		cancel()
		f.mu.Lock()
		f.changed.Broadcast()
		f.mu.Unlock()
		group.Wait()
	}
}

// follows waits until no more than a few of so many writes are to be followed.
func (f *follower) follows(ctx context.Context, writes int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ctx.Err() == nil && f.failed == nil && f.written < writes-3 {
		f.changed.Wait()
	}
	return ctx.Err() == nil && f.failed == nil
}

// plant spoils documents of the target that nobody writes to.
func plant(t *testing.T, target *mongo.Database) {
	t.Helper()
	c := target.Collection("c")
	id := func(v any) bson.D { return bson.D{{Key: "_id", Value: v}} }
	for n, doc := range map[int]bson.D{
		150: {{Key: "_id", Value: 150}, {Key: "n", Value: 151}, {Key: "m", Value: 1}},
		151: {{Key: "_id", Value: 151}, {Key: "n", Value: int64(151)}, {Key: "m", Value: 1}},
	} {
		_, err := c.ReplaceOne(t.Context(), id(n), doc)
		require.NoError(t, err)
	}
	_, err := c.DeleteOne(t.Context(), id(199))
	require.NoError(t, err)
	_, err = c.InsertOne(t.Context(), id("only here"))
	require.NoError(t, err)
	_, err = target.Collection("types").DeleteOne(t.Context(), id(bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 2}}))
	require.NoError(t, err)
	_, err = target.Collection("types").DeleteOne(t.Context(), id("a"))
	require.NoError(t, err)
	_, err = target.Collection("types").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "m", Value: 1}, {Key: "n", Value: 16}})
	require.NoError(t, err)
}

// TestServersAnswerMirroredReads alike, in whatever order they keep the same documents; and one
// document that differs shows in every read that looks at it.
func TestServersAnswerMirroredReads(t *testing.T) {
	t.Parallel()
	client := connect(t)
	source, target := client.Database(database), client.Database(database+"_p2")
	var docs []any
	for i := range 30 {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i % 3}, {Key: "x", Value: float64(i) / 10 * (1 - 2*float64(i%2))}, {Key: "s", Value: []string{"k", "K"}[i%2]}})
	}
	for _, db := range []*mongo.Database{source, target} {
		require.NoError(t, db.CreateCollection(t.Context(), "spelled", options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2})))
		for _, name := range []string{"c", "spelled"} {
			_, err := db.Collection(name).InsertMany(t.Context(), docs)
			require.NoError(t, err)
		}
		slices.Reverse(docs)
	}
	var commands []bson.Raw
	for _, text := range []string{
		`{"find":"c","sort":{"a":1},"limit":7}`,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$a","s":{"$sum":"$x"},"m":{"$avg":"$x"}}},{"$sort":{"s":-1}},{"$limit":2}]}`,
		`{"aggregate":"c","pipeline":[{"$sort":{"a":1,"_id":-1}},{"$limit":30},{"$project":{"x":1}}]}`,
		`{"aggregate":"c","pipeline":[{"$group":{"_id":"$x","n":{"$sum":1}}},{"$sort":{"n":-1}}]}`,
		`{"distinct":"c","key":"x"}`,
		`{"distinct":"spelled","key":"s"}`,
		`{"find":"spelled","sort":{"_id":1}}`,
	} {
		var command bson.Raw
		require.NoError(t, bson.UnmarshalExtJSON([]byte(text), false, &command))
		commands = append(commands, command)
	}
	w := newWorld()
	w.follow(t)
	m := &validation.Mirror{Source: &validation.MongoAnswers{Database: source}, Target: &validation.MongoAnswers{Database: target}, Markers: w, Log: w, Database: database}
	got, err := m.Round(t.Context(), commands)
	require.NoError(t, err)
	require.Empty(t, got.Different)
	require.Equal(t, len(commands), got.Compared)

	_, err = target.Collection("c").UpdateByID(t.Context(), 7, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: -0.7001}}}})
	require.NoError(t, err)
	got, err = m.Round(t.Context(), commands)
	require.NoError(t, err)
	require.Equal(t, []string{
		"find of c: 30 documents, not the same ones", "aggregate of c: 3 groups, of one of them another s",
		"aggregate of c: 30 documents, not the same ones", "aggregate of c: 30 documents, not the same ones", "distinct of c: 30 documents, not the same ones",
	}, got.Different)
}
