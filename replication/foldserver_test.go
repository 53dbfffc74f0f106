package replication

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/internal/testkit"
)

// editor changes documents on a real server and sees what its change stream
// says about it.
type editor struct {
	t      testing.TB
	coll   *mongo.Collection
	stream *mongo.ChangeStream
	opts   FoldOptions
}

func newEditor(t testing.TB) *editor {
	t.Helper()
	ctx := context.Background()
	client := connect(t, testkit.Shard(t))
	db := client.Database("fold")
	require.NoError(t, db.CreateCollection(ctx, "c"))
	stream, err := client.Watch(ctx, mongo.Pipeline{}, options.ChangeStream().SetShowExpandedEvents(true))
	require.NoError(t, err)
	t.Cleanup(func() { _ = stream.Close(ctx) })
	e := &editor{t: t, coll: db.Collection("c"), stream: stream}
	e.opts.SortNewFields = e.sortsNewFields()
	return e
}

// sortsNewFields tries whether the server lists new fields in another order
// than it stores them in.
func (e *editor) sortsNewFields() bool {
	e.t.Helper()
	e.insert(bson.D{{Key: "_id", Value: "probe"}})
	change, post := e.update("probe", bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}}}})
	require.NotNil(e.t, change)
	listed, err := bson.Raw(change.Lookup("updatedFields").Value).Elements()
	require.NoError(e.t, err)
	stored, err := post.Elements()
	require.NoError(e.t, err)
	return listed[0].Key() != stored[1].Key()
}

// insert adds a document and gives it as the server has it.
func (e *editor) insert(doc bson.D) bson.Raw {
	e.t.Helper()
	_, err := e.coll.InsertOne(context.Background(), doc)
	require.NoError(e.t, err)
	return bytes.Clone(e.next("insert").Lookup("fullDocument").Value)
}

// next gives the stream's next event on a document.
func (e *editor) next(ops ...string) bson.Raw {
	e.t.Helper()
	for e.stream.Next(context.Background()) {
		op := e.stream.Current.Lookup("operationType").StringValue()
		if slices.Contains(ops, op) {
			return bytes.Clone(e.stream.Current)
		}
	}
	require.NoError(e.t, e.stream.Err())
	require.Fail(e.t, "the stream ended")
	return nil
}

// update changes a document; the change is nil when the server refused it, saw
// nothing to do or told of a replacement.
func (e *editor) update(id, update any) (change, post bson.Raw) {
	e.t.Helper()
	ctx := context.Background()
	r, err := e.coll.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, update)
	if err != nil || r.ModifiedCount == 0 {
		return nil, nil
	}
	ev := e.next("update", "replace")
	post, err = e.coll.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Raw()
	require.NoError(e.t, err)
	if ev.Lookup("operationType").StringValue() == "replace" {
		require.Equal(e.t, post, bson.Raw(ev.Lookup("fullDocument").Value))
		return nil, post
	}
	return ev.Lookup("updateDescription").Document(), post
}

// fieldNames are few, so that updates meet; some look like indexes or operators.
var fieldNames = []string{"a", "b", "c", "0", "1", "10", "x", "u", "items", "items_count", "s0"}

func anyName(r *rand.Rand) string { return fieldNames[r.IntN(len(fieldNames))] }

func anyValue(r *rand.Rand, depth int) any {
	n := 12
	if depth <= 0 {
		n = 8
	}
	switch r.IntN(n) {
	case 0:
		return int32(r.IntN(3))
	case 1:
		return int64(r.IntN(3))
	case 2:
		return float64(r.IntN(3))
	case 3:
		return nil
	case 4:
		return fmt.Sprintf("text %d", r.IntN(5))
	case 5:
		return r.IntN(2) == 0
	case 6:
		return bson.Timestamp{T: 1, I: uint32(r.IntN(5))}
	case 7:
		return bson.Regex{Pattern: "a", Options: "i"}
	case 8, 9:
		return anyDocument(r, depth-1)
	default:
		return anyArray(r, depth-1)
	}
}

func anyDocument(r *rand.Rand, depth int) bson.D {
	d := bson.D{}
	for _, i := range r.Perm(len(fieldNames))[:r.IntN(5)] {
		d = append(d, bson.E{Key: fieldNames[i], Value: anyValue(r, depth)})
	}
	return d
}

func anyArray(r *rand.Rand, depth int) bson.A {
	a := bson.A{}
	for range r.IntN(6) {
		a = append(a, anyValue(r, depth))
	}
	return a
}

// anyPath mostly leads to something that exists.
func anyPath(r *rand.Rand, v any) string {
	switch v := v.(type) {
	case bson.D:
		if len(v) == 0 || r.IntN(5) == 0 {
			return anyName(r)
		}
		f := v[r.IntN(len(v))]
		if f.Key == "_id" {
			return anyName(r)
		}
		if rest := anyPath(r, f.Value); rest != "" && r.IntN(3) > 0 {
			return f.Key + "." + rest
		}
		return f.Key
	case bson.A:
		i := r.IntN(len(v) + 2)
		if i < len(v) {
			if rest := anyPath(r, v[i]); rest != "" && r.IntN(2) > 0 {
				return fmt.Sprintf("%d.%s", i, rest)
			}
		}
		return fmt.Sprint(i)
	default:
		return ""
	}
}

// anyUpdate makes an update that the server may well refuse.
func anyUpdate(r *rand.Rand, doc bson.D) any {
	if r.IntN(4) == 0 {
		return anyPipeline(r, doc)
	}
	update := bson.D{}
	add := func(op, path string, v any) {
		for i := range update {
			if update[i].Key == op {
				fields, _ := update[i].Value.(bson.D)
				update[i].Value = append(fields, bson.E{Key: path, Value: v})
				return
			}
		}
		update = append(update, bson.E{Key: op, Value: bson.D{{Key: path, Value: v}}})
	}
	for range 1 + r.IntN(3) {
		path := anyPath(r, doc)
		switch r.IntN(13) {
		case 0, 1, 2, 3:
			add("$set", path, anyValue(r, 2))
		case 4, 5:
			add("$unset", path, "")
		case 6:
			add("$inc", path, r.IntN(5))
		case 7:
			add("$max", path, anyValue(r, 1))
		case 8:
			add("$rename", path, anyName(r))
		case 9:
			each := bson.D{{Key: "$each", Value: anyArray(r, 1)}}
			switch r.IntN(4) {
			case 0:
				each = append(each, bson.E{Key: "$position", Value: r.IntN(3)})
			case 1:
				each = append(each, bson.E{Key: "$slice", Value: r.IntN(5) - 2})
			}
			add("$push", path, each)
		case 10:
			add("$addToSet", path, anyValue(r, 0))
		case 11:
			add("$pop", path, r.IntN(2)*2-1)
		default:
			add("$pull", path, anyValue(r, 0))
		}
	}
	return update
}

// anyPipeline makes updates whose description comes from a comparison of two
// documents. It adds one field at most: see [FoldOptions.SortNewFields].
func anyPipeline(r *rand.Rand, doc bson.D) any {
	name := anyName(r)
	stage := func(op string, v any) bson.D { return bson.D{{Key: op, Value: v}} }
	set := func(v any) bson.D { return stage("$set", bson.D{{Key: name, Value: v}}) }
	switch r.IntN(6) {
	case 0:
		return mongo.Pipeline{set(bson.D{{Key: "$literal", Value: anyValue(r, 2)}})}
	case 1:
		return mongo.Pipeline{stage("$unset", name)}
	case 2: // moves a field to the end
		for _, f := range doc {
			if f.Key == name {
				return mongo.Pipeline{stage("$unset", name), set(bson.D{{Key: "$literal", Value: f.Value}})}
			}
		}
		return mongo.Pipeline{stage("$unset", name)}
	case 3:
		return mongo.Pipeline{set(bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$isArray", Value: "$" + name}}, bson.D{{Key: "$slice", Value: bson.A{"$" + name, 1 + r.IntN(3)}}}, "$" + name,
		}}})}
	case 4:
		return mongo.Pipeline{set(bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$isArray", Value: "$" + name}},
			bson.D{{Key: "$concatArrays", Value: bson.A{bson.D{{Key: "$slice", Value: bson.A{"$" + name, 2}}}, bson.A{1, bson.D{{Key: "k", Value: 1}}}}}}, 5,
		}}})}
	default:
		return mongo.Pipeline{set(bson.D{{Key: "$mergeObjects", Value: bson.A{
			bson.D{{Key: "$cond", Value: bson.A{bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$" + name}}, "object"}}}, "$" + name, bson.D{}}}},
			bson.D{{Key: "k", Value: r.IntN(9)}},
		}}})}
	}
}

// Whatever an application does to a document, the fold of what the change
// stream says about it is the document, byte for byte.
func TestFoldGivesWhatTheServerHas(t *testing.T) {
	t.Parallel()
	e := newEditor(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	folded, unlisted := 0, 0
	for id := range 200 {
		doc := append(bson.D{{Key: "_id", Value: id}}, anyDocument(r, 3)...)
		// A long field makes the server describe pipelines by their difference.
		doc = slices.Insert(doc, 1+r.IntN(len(doc)), bson.E{Key: "long", Value: fmt.Sprintf("%0300d", 0)})
		image := e.insert(doc)
		for range 8 {
			require.NoError(t, bson.Unmarshal(image, &doc))
			update := anyUpdate(r, doc)
			if e.opts.SortNewFields && growsElement(update) {
				continue
			}
			change, post := e.update(id, update)
			if change == nil {
				if post != nil {
					image = post
				}
				continue
			}
			got, err := Fold(image, change, e.opts)
			require.NoError(t, err, "seed %d: %v of %s: %s", seed, update, image, change)
			if e.unlisted(image, post, got, change) {
				unlisted++
			} else {
				require.Equal(t, post.String(), got.String(), "seed %d: %v of %s: %s", seed, update, image, change)
				require.Equal(t, post, got)
				folded++
			}
			image = post
		}
	}
	t.Logf("%d updates folded, %d not listed in full by the server", folded, unlisted)
	require.Greater(t, folded, 300)
	require.Less(t, unlisted, folded/20)
}

// growsElement reports whether an update of several paths may add an element to
// an array by way of an array within it. The dev server leaves that element out
// of its event when another path leads into the same array; a stock mongod
// lists it.
func growsElement(update any) bool {
	d, ok := update.(bson.D)
	if !ok {
		return false
	}
	paths, grows := 0, false
	for _, op := range d {
		fields, _ := op.Value.(bson.D)
		paths += len(fields)
		for _, f := range fields {
			grows = grows || slices.Contains([]string{"$push", "$addToSet", "$rename"}, op.Key) && strings.ContainsAny(f.Key, "0123456789")
		}
	}
	return grows && paths > 1
}

// unlisted reports whether the dev server, which compares documents without
// regard to the order of their fields, kept a change of the order alone to
// itself. A stock mongod lists it.
func (e *editor) unlisted(pre, post, got, change bson.Raw) bool {
	if !e.opts.SortNewFields || bytes.Equal(got, post) {
		return false
	}
	return sameButOrder(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: post}, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: got})
}

// sameButOrder compares values without regard to the order of fields.
func sameButOrder(a, b bson.RawValue) bool {
	if a.Type != b.Type {
		return false
	}
	switch a.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		x, _ := bson.Raw(a.Value).Elements()
		y, _ := bson.Raw(b.Value).Elements()
		if len(x) != len(y) {
			return false
		}
		for _, f := range x {
			v, err := bson.Raw(b.Value).LookupErr(f.Key())
			if err != nil || !sameButOrder(f.Value(), v) {
				return false
			}
		}
		return true
	default:
		return bytes.Equal(a.Value, b.Value)
	}
}
