package replication

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
)

// fakeWindows has one window for every document.
type fakeWindows struct{ w Window }

func (f fakeWindows) Window(collection string, _ bson.RawValue) (Window, bool) {
	return f.w, collection == "c"
}

func at(e event.Event, t uint32) event.Event {
	e.ClusterTime = bson.Timestamp{T: t}
	return e
}

// The import's copy was read somewhere between 10 and 20.
func testWindows(t *testing.T, w *world) {
	w.cfg.Windows = fakeWindows{Window{Lo: bson.Timestamp{T: 10}, Hi: bson.Timestamp{T: 20}}}
	_, err := w.target().Collection("c").InsertMany(context.Background(), []any{
		bson.D{{Key: "_id", Value: "copied"}, {Key: "n", Value: 5}, {Key: "h", Value: nil}},
		bson.D{{Key: "_id", Value: "gone"}},
		bson.D{{Key: "_id", Value: "old"}},
	})
	require.NoError(t, err)
	change := func(id any, change bson.D) event.Event {
		e := w.on(event.Update, id)
		e.Change = raw(t, change)
		return e
	}
	set := func(id any, fields bson.D) event.Event {
		return change(id, bson.D{{Key: "updatedFields", Value: fields}})
	}
	whole := func(op event.Op, doc bson.D) event.Event {
		e := w.on(op, doc[0].Value)
		e.Document = raw(t, doc)
		return e
	}
	for _, e := range []event.Event{
		at(set("old", bson.D{{Key: "removed since", Value: 1}}), 10),
		at(set("copied", bson.D{{Key: "n", Value: 1}}), 10),                                            // in the copy
		at(set("copied", bson.D{{Key: "h.3.odt", Value: 1}}), 15),                                      // h was a document then: B037
		at(change("copied", bson.D{{Key: "removedFields", Value: bson.A{"old"}}}), 15),                 // is removed already
		at(set("deleted later", bson.D{{Key: "n", Value: 1}}), 15),                                     // the copy does not have it: B041
		at(w.on(event.Delete, "deleted later"), 20),                                                    //
		at(whole(event.Insert, bson.D{{Key: "_id", Value: "copied"}, {Key: "n", Value: 6}}), 20),       // is there already
		at(whole(event.Replace, bson.D{{Key: "_id", Value: "not copied"}, {Key: "n", Value: 1}}), 20),  //
		at(w.on(event.Delete, "gone"), 21),                                                             // strict from here on
		at(set("copied", bson.D{{Key: "n", Value: 7}}), 21),                                            //
		at(whole(event.Insert, bson.D{{Key: "_id", Value: "new"}, {Key: "n", Value: 1}}), 22),          //
		at(whole(event.Replace, bson.D{{Key: "_id", Value: "not copied"}, {Key: "n", Value: 2}}), 300), //
	} {
		w.log.add(t, e)
	}
	r := w.run(w.cfg)
	w.passes(w.mark(chunk.ValidateMarker, 1))
	got := contents(t, w.target().Collection("c"))
	require.Len(t, got, 4)
	for _, doc := range got {
		switch doc.Lookup("_id").StringValue() {
		case "copied":
			require.Equal(t, raw(t, bson.D{{Key: "_id", Value: "copied"}, {Key: "n", Value: 7}}), doc)
		case "old":
			require.Equal(t, raw(t, bson.D{{Key: "_id", Value: "old"}}), doc)
		case "new":
			require.EqualValues(t, 1, doc.Lookup("n").Int32())
		case "not copied":
			require.EqualValues(t, 2, doc.Lookup("n").Int32())
		}
	}
	w.log.add(t, at(set("copied", bson.D{{Key: "n.x", Value: 7}}), 21))
	err = r.wait()
	require.True(t, failure.HasCode(err, "lane.poison"), "strict: %v", err)
}

func testMissing(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.deleted(2) // of nothing: the end is the same
	w.updated(7, bson.D{{Key: "n", Value: 1}})
	for i := range 100 { // whatever partition the next ones are in
		w.inserted(bson.D{{Key: "_id", Value: 1000 + i}})
	}
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.missing_document"), "%v", err)
	require.True(t, failure.Is(err, failure.Mismatch))
	require.Len(t, w.reports.diverged, 1)
	require.EqualValues(t, 7, w.reports.diverged[0].ID.AsInt64())
	require.Equal(t, event.Update, w.reports.diverged[0].Event.Op)
	n, err := w.target().Collection("c").CountDocuments(context.Background(), bson.D{{Key: "_id", Value: 7}})
	require.NoError(t, err)
	require.Zero(t, n, "a delta was upserted")

	err = w.run(w.cfg).wait() // it stands before the event, not behind it
	require.True(t, failure.HasCode(err, "lane.missing_document"), "%v", err)

	w2 := worldOn(t, w.server, w.client)
	w2.replaced(bson.D{{Key: "_id", Value: 7}})
	err = w2.run(w2.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.missing_document"), "%v", err)
}

func testExisting(t *testing.T, w *world) {
	_, err := w.target().Collection("c").InsertMany(context.Background(), []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 1}}, bson.D{{Key: "_id", Value: 2}, {Key: "n", Value: 1}},
	})
	require.NoError(t, err)
	r := w.run(w.cfg)
	w.inserted(bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 1}}) // the very same
	w.passes(w.mark(chunk.ValidateMarker, 1))
	w.inserted(bson.D{{Key: "_id", Value: 2}, {Key: "n", Value: 2}})
	err = r.wait()
	require.True(t, failure.HasCode(err, "lane.document_exists"), "%v", err)
	require.Len(t, w.reports.diverged, 1)
}

func testPoison(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: 1}, {Key: "h", Value: 5}})
	w.updated(1, bson.D{{Key: "n", Value: 1}})
	w.updated(1, bson.D{{Key: "h.x", Value: 1}})
	w.updated(1, bson.D{{Key: "n", Value: 2}})
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.poison"), "%v", err)
	require.Len(t, w.reports.quarantined, 1)
	require.NotEmpty(t, w.reports.quarantined[0].Event.Change, "the whole event is kept")
	for _, doc := range contents(t, w.target().Collection("c")) {
		require.EqualValues(t, 1, doc.Lookup("n").Int32(), "what came before it was applied, and nothing after it")
	}
	w2 := worldOn(t, w.server, w.client)
	e := w2.on(event.Update, 1)
	e.Change = raw(t, bson.D{{Key: "updatedFields", Value: bson.D{}}, {Key: "novelty", Value: 1}})
	w2.inserted(bson.D{{Key: "_id", Value: 1}})
	w2.log.add(t, e)
	err = w2.run(w2.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.poison"), "%v", err)
	require.NotContains(t, err.Error(), "_id:")
}

func testDDL(t *testing.T, w *world) {
	w.inserted(bson.D{{Key: "_id", Value: 1}})
	w.log.add(t, event.Event{Op: "drop", Database: w.cfg.Direction.Source.Database, Collection: "c", Description: raw(t, bson.D{{Key: "operationType", Value: "drop"}})})
	w.inserted(bson.D{{Key: "_id", Value: 2}})
	err := w.run(w.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.ddl"), "%v", err)
	require.True(t, failure.Is(err, failure.Invalid))
	require.NotContains(t, contents(t, w.target().Collection("c")), docKey("2"))

	w2 := worldOn(t, w.server, w.client)
	w2.log.add(t, event.Event{Op: "rename", Database: "elsewhere", Collection: "c", Description: raw(t, bson.D{
		{Key: "operationType", Value: "rename"}, {Key: "to", Value: bson.D{{Key: "db", Value: w2.cfg.Direction.Source.Database}, {Key: "coll", Value: "d"}}},
	})})
	err = w2.run(w2.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.ddl"), "a collection came in: %v", err)
}

// A switch parks and restores the TTL of a placement under the lanes' eyes. What somebody
// else makes of it would be lost with the switch, without a word.
func testTTL(t *testing.T, w *world) {
	modify := func(index bson.D) {
		w.log.add(t, event.Event{Op: "modify", Database: w.cfg.Direction.Source.Database, Collection: "c", Description: raw(t, bson.D{
			{Key: "operationType", Value: "modify"}, {Key: "operationDescription", Value: bson.D{{Key: "index", Value: index}}},
		})})
	}
	own := w.cfg
	own.OwnExpiry = func(collection string, index bson.Raw) bool {
		name, _ := index.Lookup("name").StringValueOK()
		return collection == "c" && name == "at_1" && index.Lookup("expireAfterSeconds").AsInt64() == 1<<30
	}
	r := w.run(own)
	modify(bson.D{{Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: 1 << 30}})
	w.log.add(t, event.Event{Op: "drop", Database: "elsewhere", Collection: "c", Description: raw(t, bson.D{})})
	w.passes(w.mark(chunk.ValidateMarker, 1))
	modify(bson.D{{Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: 60}})
	err := r.wait()
	require.True(t, failure.HasCode(err, "lane.ddl"), "%v", err)

	w2 := worldOn(t, w.server, w.client)
	w = w2
	modify(bson.D{{Key: "name", Value: "at_1"}, {Key: "prepareUnique", Value: true}})
	err = w2.run(w2.cfg).wait()
	require.True(t, failure.HasCode(err, "lane.ddl"), "%v", err)
}
