package bulkimport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/bulkimport"
	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// TestOnOneShard runs what can share a server: each test has a migration of its own.
func TestOnOneShard(t *testing.T) {
	t.Parallel()
	shared := setup(t)
	for name, test := range map[string]func(*testing.T, *bundle){
		"ImportKeepsEveryTypeOfValue":           testImportKeepsEveryTypeOfValue,
		"EmptyCollectionHasAWindow":             testEmptyCollectionHasAWindow,
		"SliceThatIsTooLargeIsCut":              testSliceThatIsTooLargeIsCut,
		"LargestDocuments":                      testLargestDocuments,
		"KilledImportResumes":                   testKilledImportResumes,
		"DocumentWithoutItsUniqueValueIsParked": testDocumentWithoutItsUniqueValueIsParked,
		"EmptyTimestampsStay":                   testEmptyTimestampsStay,
		"CollectionsOfOtherKinds":               testCollectionsOfOtherKinds,
		"SliceReadAnewReplacesItsRange":         testSliceReadAnewReplacesItsRange,
		"DamagedObjectIsRefused":                testDamagedObjectIsRefused,
		"Refusals":                              testRefusals,
		"StoredSlicesAreRestoredElsewhere":      testStoredSlicesAreRestoredElsewhere,
		"WindowsHoldUnderWriters":               testWindowsHoldUnderWriters,
		"WindowsHoldUnderCuts":                  testWindowsHoldUnderCuts,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, shared)
		})
	}
}

func testImportKeepsEveryTypeOfValue(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	var docs []any
	for n, id := range ids() {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "n", Value: n}})
	}
	b.insert(t, "ids", docs...)
	docs = nil
	for n, v := range values() {
		docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "v", Value: v}, {Key: "sub", Value: bson.D{{Key: "v", Value: v}}}, {Key: "a", Value: bson.A{v}}})
	}
	docs = append(docs, bson.D{ // names that mean something in an envelope or a log
		{Key: "_id", Value: "envelope"},
		{Key: "op", Value: "d"},
		{Key: "ns", Value: "x"},
		{Key: "o", Value: bson.D{{Key: "$_dummy", Value: 1}}},
		{Key: "ts", Value: 5},
		{Key: "$v", Value: 2},
		{Key: "diff", Value: bson.D{{Key: "d", Value: bson.D{{Key: "a", Value: false}}}}},
		{Key: "applyOps", Value: bson.A{}},
		{Key: "fromMigrate", Value: true},
		{Key: "version", Value: "v"},
	})
	b.insert(t, "values", docs...)
	b.importer.Limits.Documents = 4

	result, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "ids"), collection(t, "values", bson.D{{Key: "v", Value: -1}})})
	require.NoError(t, err)
	b.requireCopied(t, "ids")
	b.requireCopied(t, "values")
	require.Equal(t, bulkimport.Documents(len(ids())+len(values())+1), result.Documents)
	require.Greater(t, result.Slices, 20)
	require.Equal(t, "v desc, _id", result.Orders["values"].String())
	requireWindows(t, b, ids())
}

// requireWindows wants every value to have the window of the slice it was read with.
func requireWindows(t *testing.T, b *bundle, ids []any) {
	t.Helper()
	windows, err := b.importer.Windows(t.Context())
	require.NoError(t, err)
	encoded, err := bson.Marshal(windows)
	require.NoError(t, err)
	var decoded bulkimport.Windows
	require.NoError(t, bson.Unmarshal(encoded, &decoded))
	require.Equal(t, windows, decoded)
	for _, id := range ids {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		require.NoError(t, err)
		lo, hi, err := windows.Window("ids", bson.Raw(doc).Lookup("_id"))
		require.NoError(t, err)
		require.False(t, lo.Before(b.importer.Source.Start))
		require.False(t, hi.Before(lo))
		require.False(t, windows.Latest().Before(hi))
	}
	lo, hi, err := windows.Window("unknown", bson.RawValue{Type: bson.TypeNull})
	require.NoError(t, err)
	require.True(t, lo.IsZero() && hi.IsZero())
}

func testEmptyCollectionHasAWindow(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	require.NoError(t, b.source.CreateCollection(t.Context(), "empty"))
	result, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "empty", bson.D{{Key: "a", Value: 1}})})
	require.NoError(t, err)
	require.Equal(t, 1, result.Slices)
	require.Zero(t, result.Documents)
	windows, err := b.importer.Windows(t.Context())
	require.NoError(t, err)
	require.False(t, windows.Latest().IsZero())
}

// A few large documents behind many small ones: a plan by numbers alone would
// give a slice of them all.
func testSliceThatIsTooLargeIsCut(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	var docs []any
	for n := range 2000 {
		docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "pad", Value: strings.Repeat("x", 100)}})
	}
	b.insert(t, "skewed", docs...)
	for n := range 10 {
		b.insert(t, "skewed", bson.D{{Key: "_id", Value: 10_000 + n}, {Key: "pad", Value: strings.Repeat(fmt.Sprint(n), 1<<20)}})
	}
	b.importer.Limits = bulkimport.Limits{Documents: 500, Bytes: 2 * bulkimport.MiB}
	_, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "skewed")})
	require.NoError(t, err)
	b.requireCopied(t, "skewed")
	all, err := b.slices.List(t.Context(), b.importer.Migration)
	require.NoError(t, err)
	for _, s := range all {
		require.LessOrEqual(t, s.Object.Documents, bulkimport.Documents(500), "%v", s)
		require.True(t, s.Object.Bytes <= 2*bulkimport.MiB || s.Object.Documents == 1, "%v: %d bytes", s, s.Object.Bytes)
	}
}

func testLargestDocuments(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	for n := range 3 {
		b.insert(t, "large", bson.D{{Key: "_id", Value: n}, {Key: "pad", Value: strings.Repeat(fmt.Sprint(n), 13<<20)}})
	}
	_, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "large")})
	require.NoError(t, err)
	b.requireCopied(t, "large")
}

// errKilled stands for the death of the process.
var errKilled = errors.New("killed")

// A process dies at each place where that matters, at the first pass and at a
// later one; another one goes on. Nothing is missing, nothing is twice, and what
// was stored is not stored again.
func testKilledImportResumes(t *testing.T, shared *bundle) {
	t.Helper()
	for _, point := range []string{
		"import.planned", "import.object-stored", "import.stored", "import.inserted", "import.stretch-loaded", "import.before-loaded",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := shared.fresh(t)
			var docs []any
			for n := range 1000 {
				docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprintf("%x", n*7919)}, {Key: "a", Value: n % 13}, {Key: "pad", Value: strings.Repeat("y", 300)}})
			}
			b.insert(t, "c", docs...)
			c := []chunk.Collection{collection(t, "c", bson.D{{Key: "a", Value: 1}})}
			for pass := 0; ; pass++ {
				i := b.again()
				i.Readers, i.Loaders = 1, 1
				hits, killed := 0, false
				i.Stops = stoppoint.New(func(_ context.Context, name string) error {
					if name == point {
						if hits++; hits == pass+1 && pass < 3 {
							killed = true
							return errKilled
						}
					}
					return nil
				})
				before, err := b.slices.List(t.Context(), b.importer.Migration)
				require.NoError(t, err)
				_, err = i.Run(t.Context(), c)
				after, listErr := b.slices.List(t.Context(), b.importer.Migration)
				require.NoError(t, listErr)
				requireStoredStays(t, before, after)
				if !killed {
					require.NoError(t, err)
					break
				}
				require.ErrorIs(t, err, errKilled)
			}
			b.requireCopied(t, "c")
			_, err := b.again().Run(t.Context(), c)
			require.NoError(t, err, "once more changes nothing")
			b.requireCopied(t, "c")
		})
	}
}

// requireStoredStays wants the objects that were recorded before to be the same after.
func requireStoredStays(t *testing.T, before, after []bulkimport.Slice) {
	t.Helper()
	for _, s := range before {
		if s.State != bulkimport.Planned {
			require.Equal(t, s.Object, after[s.Number].Object)
		}
	}
}

// Two documents held one unique value one after the other, and two slices saw
// both of them.
func testDocumentWithoutItsUniqueValueIsParked(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	b.insert(t, "c", bson.D{{Key: "_id", Value: 1}, {Key: "u", Value: "x"}}, bson.D{{Key: "_id", Value: "one"}, {Key: "u", Value: "x"}},
		bson.D{{Key: "_id", Value: 2}, {Key: "u", Value: "y"}})
	_, err := b.target.Collection("c").Indexes().CreateOne(t.Context(),
		mongo.IndexModel{Keys: bson.D{{Key: "u", Value: 1}}, Options: options.Index().SetUnique(true)})
	require.NoError(t, err)

	// Killed after the first insert, so that the second run meets all of them.
	killed := b.again()
	killed.Stops = stoppoint.New(func(_ context.Context, name string) error {
		if name == "import.inserted" {
			return errKilled
		}
		return nil
	})
	_, err = killed.Run(t.Context(), []chunk.Collection{collection(t, "c")})
	require.ErrorIs(t, err, errKilled)
	result, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "c")})
	require.NoError(t, err)
	require.Equal(t, bulkimport.Documents(1), result.Parked)
	require.Len(t, contents(t, b.target, "c"), 2)

	parked := contents(t, b.client.Database(chunk.SystemDatabase), chunk.ParkedCollection)
	maps.DeleteFunc(parked, func(_ chunk.Key, p bson.Raw) bool { // other tests park beside this one
		return p.Lookup("_id", "m").AsInt64() != int64(b.importer.Migration)
	})
	require.Equal(t, bulkimport.Documents(len(parked)), result.Parked)
	for _, p := range parked {
		require.Equal(t, int64(b.importer.Migration), p.Lookup("migration").AsInt64())
		require.Equal(t, "c", p.Lookup("_id", "c").StringValue())
		_, image := p.Lookup("doc").Binary()
		require.Equal(t, p.Lookup("_id", "id"), bson.Raw(image).Lookup("_id"))
		require.Equal(t, "x", p.Lookup("key", "u").StringValue())
	}
}

func testEmptyTimestampsStay(t *testing.T, shared *bundle) {
	t.Helper()
	for _, keeps := range []bool{true, false} {
		t.Run(fmt.Sprintf("keeps=%v", keeps), func(t *testing.T) {
			t.Parallel()
			b := shared.fresh(t)
			b.insert(t, "c", bson.D{{Key: "_id", Value: 1}, {Key: "t", Value: bson.Timestamp{}}, {Key: "sub", Value: bson.D{{Key: "t", Value: bson.Timestamp{}}}}},
				bson.D{{Key: "_id", Value: bson.Timestamp{}}, {Key: "a", Value: 1}, {Key: "t", Value: bson.Timestamp{}}}, bson.D{{Key: "_id", Value: 2}})
			b.importer.Target.KeepsEmptyTimestamps = keeps
			killed := b.again()
			killed.Stops = stoppoint.New(func(_ context.Context, name string) error {
				if name == "import.inserted" {
					return errKilled
				}
				return nil
			})
			_, err := killed.Run(t.Context(), []chunk.Collection{collection(t, "c")})
			require.ErrorIs(t, err, errKilled)
			_, err = b.importer.Run(t.Context(), []chunk.Collection{collection(t, "c")})
			require.NoError(t, err)
			b.requireCopied(t, "c")
		})
	}
}

func testCollectionsOfOtherKinds(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	french := options.CreateCollection().SetCollation(&options.Collation{Locale: "fr", Strength: 2})
	clustered := options.CreateCollection().SetClusteredIndex(bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}})
	strict := options.CreateCollection().SetValidator(bson.D{{Key: "missing", Value: bson.D{{Key: "$exists", Value: true}}}})
	for _, db := range []*mongo.Database{b.source, b.target} {
		require.NoError(t, db.CreateCollection(t.Context(), "french", french))
		require.NoError(t, db.CreateCollection(t.Context(), "clustered", clustered))
	}
	require.NoError(t, b.target.CreateCollection(t.Context(), "strict", strict))
	for _, id := range []any{"a", "B", "é", "c", "Z", 5, bson.D{{Key: "x", Value: "q"}}} {
		for _, name := range []string{"french", "clustered", "strict"} {
			b.insert(t, name, bson.D{{Key: "_id", Value: id}})
		}
	}
	b.importer.Limits.Documents = 2
	_, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, "french"), collection(t, "clustered"), collection(t, "strict")})
	require.NoError(t, err)
	for _, name := range []string{"french", "clustered", "strict"} {
		b.requireCopied(t, name)
	}
}

// A slice is read anew after its first object was loaded: what the first one had
// and the second one has not is gone from the target.
func testSliceReadAnewReplacesItsRange(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	var docs []any
	for n := range 120 {
		docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "v", Value: 1}})
	}
	b.insert(t, "c", docs...)
	c := []chunk.Collection{collection(t, "c")}
	_, err := b.importer.Run(t.Context(), c)
	require.NoError(t, err)
	before, err := b.slices.List(t.Context(), b.importer.Migration)
	require.NoError(t, err)
	require.Greater(t, len(before), 2)

	source := b.source.Collection("c")
	within := bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: before[1].Lo.Lookup("_id")}, {Key: "$lt", Value: before[1].Hi.Lookup("_id")}}}}
	_, err = source.DeleteOne(t.Context(), within)
	require.NoError(t, err)
	_, err = source.UpdateOne(t.Context(), within, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 2}}}})
	require.NoError(t, err)
	// What lanes have made of another slice meanwhile stays as it is.
	byLane := bson.D{{Key: "_id", Value: before[0].Hi.Lookup("_id").AsInt64() - 1}}
	_, err = b.target.Collection("c").UpdateOne(t.Context(), byLane, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 3}}}})
	require.NoError(t, err)
	parked := b.client.Database(chunk.SystemDatabase).Collection(chunk.ParkedCollection)
	park := func(id bson.RawValue) bson.D {
		return bson.D{{Key: "_id", Value: bson.D{{Key: "m", Value: int64(b.importer.Migration)}, {Key: "c", Value: "c"}, {Key: "id", Value: id}}}}
	}
	ours, others := park(before[1].Lo.Lookup("_id")), park(before[2].Lo.Lookup("_id"))
	_, err = parked.InsertMany(t.Context(), []any{ours, others})
	require.NoError(t, err)
	b.slices.Replan(b.importer.Migration, "c", 1)
	_, err = b.again().Run(t.Context(), c)
	require.NoError(t, err)
	for n, filter := range []bson.D{ours, others} {
		left, err := parked.CountDocuments(t.Context(), filter)
		require.NoError(t, err)
		require.EqualValues(t, n, left)
	}
	var kept struct{ V int }
	require.NoError(t, b.target.Collection("c").FindOne(t.Context(), byLane).Decode(&kept))
	require.Equal(t, 3, kept.V)
	_, err = source.UpdateOne(t.Context(), byLane, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 3}}}})
	require.NoError(t, err)
	b.requireCopied(t, "c")
	after, err := b.slices.List(t.Context(), b.importer.Migration)
	require.NoError(t, err)
	require.Equal(t, before[0].Object, after[0].Object, "only one slice was read again")
	require.NotEqual(t, before[1].Object, after[1].Object)
}

// Whoever changes the bucket under an import does not get his documents in.
func testDamagedObjectIsRefused(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	b.insert(t, "c", bson.D{{Key: "_id", Value: 1}})
	c := collection(t, "c")
	require.NoError(t, b.importer.Store(t.Context(), c))
	all, err := b.slices.List(t.Context(), b.importer.Migration)
	require.NoError(t, err)
	for key, code := range map[string]string{
		all[0].Object.Key: "import.object_damaged", bulkimport.ManifestKey(all[0].Object.Key): "import.object_damaged",
	} {
		bucket := b.importer.Bucket
		get, err := bucket.Client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket.Name, Key: &key})
		require.NoError(t, err)
		content, err := io.ReadAll(get.Body)
		require.NoError(t, err)
		spoilt := bytes.ReplaceAll(content, []byte(`"documents":1`), []byte(`"documents":2`))
		if bytes.Equal(spoilt, content) {
			spoilt[len(spoilt)-1] ^= 1
		}
		for _, body := range [][]byte{spoilt, content} {
			_, err = bucket.Client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket.Name, Key: &key, Body: bytes.NewReader(body)})
			require.NoError(t, err)
			if bytes.Equal(body, content) {
				continue
			}
			_, err = b.again().Load(t.Context(), "c")
			require.True(t, failure.HasCode(err, code), "%s: %v", key, err)
		}
		_, err = bucket.Client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket.Name, Key: &key})
		require.NoError(t, err)
		_, err = b.again().Load(t.Context(), "c")
		require.True(t, failure.HasCode(err, "import.object_missing"), "%v", err)
		_, err = bucket.Client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket.Name, Key: &key, Body: bytes.NewReader(content)})
		require.NoError(t, err)
	}
	_, err = b.importer.Load(t.Context(), "c")
	require.NoError(t, err)
	b.requireCopied(t, "c")
}

// Slices that are cut and runs that are cancelled leave no cursor behind.
func TestNoCursorStaysOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var docs []any
	for n := range 3000 {
		docs = append(docs, bson.D{{Key: "_id", Value: n}, {Key: "pad", Value: strings.Repeat("x", 50)}})
	}
	b.insert(t, "c", docs...)
	open := func() int64 {
		reply, err := b.client.Database("admin").RunCommand(t.Context(), bson.D{{Key: "serverStatus", Value: 1}}).Raw()
		require.NoError(t, err)
		return reply.Lookup("metrics", "cursor", "open", "total").AsInt64()
	}
	base := open()
	c := collection(t, "c")
	require.NoError(t, b.importer.Store(t.Context(), c), "limits are far below the plan")
	require.Equal(t, base, open())
	b.slices.Replan(b.importer.Migration, "c", 0)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		i := b.again()
		i.Limits.Bytes = bulkimport.KiB
		i.Stops = stoppoint.New(func(context.Context, string) error { cancel(); return nil })
		require.Error(t, i.Store(ctx, c))
		cancel()
		require.Equal(t, base, open())
	}
}

func testRefusals(t *testing.T, shared *bundle) {
	t.Helper()
	b := shared.fresh(t)
	require.NoError(t, b.source.CreateView(t.Context(), "view", "c", mongo.Pipeline{}))
	b.insert(t, "c", bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: 1}})
	for name, code := range map[string]string{"view": "import.not_a_collection", "absent": "import.no_collection"} {
		_, err := b.importer.Run(t.Context(), []chunk.Collection{collection(t, name)})
		require.True(t, failure.HasCode(err, code), "%s: %v", name, err)
	}
	_, err := b.importer.Load(t.Context(), "c")
	require.True(t, failure.HasCode(err, "import.no_plan"), "%v", err)
	_, err = b.slices.Plan(t.Context(), b.importer.Migration, "c", []bulkimport.Slice{{Migration: b.importer.Migration, Collection: "c", State: bulkimport.Planned}})
	require.NoError(t, err)
	_, err = b.importer.Load(t.Context(), "c")
	require.True(t, failure.HasCode(err, "import.unfinished"), "%v", err)

	_, err = b.target.Collection("c").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: 2}})
	require.NoError(t, err)
	_, err = b.importer.Run(t.Context(), []chunk.Collection{collection(t, "c")})
	require.True(t, failure.HasCode(err, "import.foreign_document"), "%v", err)
	require.True(t, failure.Is(err, failure.Mismatch))
}
