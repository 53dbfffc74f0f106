package event_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
)

// raw encodes a document that must encode.
func raw(t *testing.T, d any) bson.Raw {
	t.Helper()

	b, err := bson.Marshal(d)
	require.NoError(t, err)
	return b
}

// Faults B001, B007, B009, B013: documents pass as bytes, whatever is in them.
func TestDocumentsPassUntouched(t *testing.T) {
	t.Parallel()

	nan, err := bson.ParseDecimal128("NaN")
	require.NoError(t, err)
	invalid := bson.Raw{18, 0, 0, 0, byte(bson.TypeString), 's', 0, 3, 0, 0, 0, 0x41, 0xff, 0, byte(bson.TypeNull), 'n', 0, 0}
	require.NoError(t, invalid.Validate())
	for name, doc := range map[string]bson.Raw{
		"non-finite":    raw(t, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: math.NaN()}, {Key: "b", Value: math.Inf(-1)}, {Key: "c", Value: nan}}),
		"negative zero": raw(t, bson.D{{Key: "_id", Value: math.Copysign(0, -1)}, {Key: "z", Value: math.Copysign(0, -1)}}),
		"invalid UTF-8": invalid,
		"envelope names": raw(t, bson.D{
			{Key: "_id", Value: 1}, {Key: "op", Value: "d"}, {Key: "ns", Value: "x"}, {Key: "seq", Value: 5}, {Key: "doc", Value: bson.D{{Key: "_id", Value: 2}}},
			{Key: "o", Value: bson.D{{Key: "$_dummy", Value: 1}}}, {Key: "ts", Value: 5}, {Key: "$v", Value: 2}, {Key: "applyOps", Value: bson.A{}},
		}),
		"types": raw(t, bson.D{
			{Key: "min", Value: bson.MinKey{}}, {Key: "ts", Value: bson.Timestamp{}}, {Key: "re", Value: bson.Regex{Pattern: "a", Options: "xi"}},
			{Key: "bin", Value: bson.Binary{Subtype: 3, Data: make([]byte, 16)}}, {Key: "sym", Value: bson.Symbol("s")}, {Key: "u", Value: bson.Undefined{}},
			{Key: "", Value: bson.D{{Key: "a.b", Value: 1}, {Key: "a.b", Value: 2}}}, {Key: "js", Value: bson.CodeWithScope{Code: "x", Scope: bson.D{}}},
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := &event.Event{
				Seq: 3, Prev: 2, Op: event.Insert, Database: "d", Collection: "c", Wall: time.UnixMilli(5).UTC(),
				Key: doc, Document: doc, Change: doc, Description: doc, Session: doc,
			}
			b, err := in.Encode()
			require.NoError(t, err)
			out, err := event.Decode(b)
			require.NoError(t, err)
			for _, field := range [][]byte{out.Key, out.Document, out.Change, out.Description, out.Session} {
				require.Equal(t, []byte(doc), field)
			}
			in.Wall = out.Wall
			require.Equal(t, in, out)
		})
	}
}

// Fault B015: equal numbers of different types are one _id for the server.
func TestEqualIDsShareAPartition(t *testing.T) {
	t.Parallel()

	one, err := bson.ParseDecimal128("1")
	require.NoError(t, err)
	oneZero, err := bson.ParseDecimal128("1.0")
	require.NoError(t, err)
	partition := func(id any) int32 {
		e := &event.Event{Op: event.Delete, Database: "d", Collection: "c", Key: raw(t, bson.D{{Key: "_id", Value: id}})}
		p, err := e.Partition(64, event.ByDocument)
		require.NoError(t, err)
		return p
	}
	for _, id := range []any{int64(1), 1.0, one, oneZero} {
		require.Equal(t, partition(int32(1)), partition(id), "%T", id)
	}
	require.Equal(t, partition(int32(0)), partition(math.Copysign(0, -1)))
	require.Equal(t, partition(bson.D{{Key: "a", Value: int32(1)}}), partition(bson.D{{Key: "a", Value: 1.0}}))
	spread := map[int32]bool{}
	for i := range 1000 {
		spread[partition(i)] = true
	}
	require.Len(t, spread, 64)
}

func TestWhatIsBroadcast(t *testing.T) {
	t.Parallel()

	for op, want := range map[event.Op]bool{
		event.Insert: false, event.Update: false, event.Replace: false, event.Delete: false,
		event.Mark: true, "createIndexes": true, "dropDatabase": true, "of a later version": true,
	} {
		require.Equal(t, want, (&event.Event{Op: op}).Broadcast(), op)
	}
	require.Equal(t, "final/m7/a6/p42/r1", chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: 6, Placement: 42, Round: 1}.Key())
}
