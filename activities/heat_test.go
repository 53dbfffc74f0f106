package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// TestHeatIsWhatWasWritten: a chunk of which one part is large and another one busy is
// cut within the busy one, whatever kind of write it was, and not by what lanes wrote,
// others, or anybody long ago.
func TestHeatIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	doc := func(id any, k int) bson.Raw {
		b, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "k", Value: k}})
		require.NoError(t, err)
		return b
	}
	key := func(id any) bson.Raw {
		b, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		require.NoError(t, err)
		return b
	}
	db := chunk.Database{Name: "app", KeySpace: chunk.Ranged, Collections: []chunk.Collection{{Name: "c", ShardKey: "k"}}}
	now := time.Now()
	h := newHeat(db, "app_0001_p1", now.Add(-time.Hour))
	add := func(e event.Event) {
		if e.Database == "" {
			e.Database = "app_0001_p1"
		}
		if e.Collection == "" {
			e.Collection = "c"
		}
		if e.Wall.IsZero() {
			e.Wall = now
		}
		require.NoError(t, h.add(&e))
	}
	for i := range 10 {
		add(event.Event{Op: event.Insert, Key: key(i), Document: doc(i, i)})
	}
	for range 30 {
		add(event.Event{Op: event.Update, Key: key("hot")})
		add(event.Event{Op: event.Update, Key: key("warm")})
		add(event.Event{Op: event.Update, Key: key("gone")})
		add(event.Event{Op: event.Insert, Key: key("x"), Document: doc("x", 1), Label: 3})
		add(event.Event{Op: event.Insert, Key: key("x"), Document: doc("x", 1), Database: "app_0002_p2"})
		add(event.Event{Op: event.Insert, Key: key("x"), Document: doc("x", 1), Collection: "d"})
		add(event.Event{Op: event.Insert, Key: key("x"), Document: doc("x", 1), Wall: now.Add(-2 * time.Hour)})
		add(event.Event{Op: "createIndexes"})
	}
	require.NoError(t, h.found("c", []bson.Raw{doc("hot", 100), doc("warm", 101), doc("stranger", 5)}))
	whole := chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}
	parts, err := whole.SplitBySize(h.weighed(), 2)
	require.NoError(t, err)
	at, err := chunk.Ranged.Border(bson.RawValue{Type: bson.TypeInt32, Value: []byte{101, 0, 0, 0}})
	require.NoError(t, err)
	require.Equal(t, at, parts[1].Lo)
	sum := int64(0)
	for _, w := range h.weighed() {
		sum += w.Bytes
	}
	require.EqualValues(t, 70, sum)
	require.InDelta(t, 30.0/70, hottest(h.weighed()), 1e-9)
	require.Zero(t, hottest(nil))
}
