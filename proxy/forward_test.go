package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
)

// What a fence document says keeps a transaction from being committed on a placement
// that was left, one that is being dropped too.
func TestFenceDocumentsAreRead(t *testing.T) {
	t.Parallel()

	r := &route{Route: chunk.Route{Chunk: chunk.Chunk{ID: "flights/0001"}, Placement: chunk.Placement{ID: 42, Chunk: "flights/0001"}}}
	to := bson.D{{Key: "shard", Value: "b"}, {Key: "placement", Value: int64(43)}, {Key: "database", Value: "flights_0001_p43"}, {Key: "token", Value: int64(9)}}
	at := &chunk.Route{Chunk: r.Chunk, Token: 9, Placement: chunk.Placement{ID: 43, Chunk: "flights/0001", Shard: "b", Database: "flights_0001_p43", State: chunk.Live}}
	homes := bson.E{Key: "homes", Value: bson.A{append(bson.D{{Key: "chunk", Value: "flights/0002"}}, to...), append(bson.D{{Key: "chunk", Value: "flights/0003"}}, to...)}}
	for name, tt := range map[string]struct {
		doc  bson.D
		want fence
	}{
		"open":               {bson.D{{Key: "state", Value: "open"}}, fence{}},
		"fenced":             {bson.D{{Key: "state", Value: "fenced"}}, fence{fenced: true}},
		"left":               {bson.D{{Key: "state", Value: "fenced"}, {Key: "forward", Value: to}}, fence{fenced: true, forward: at}},
		"dropped":            {bson.D{{Key: "state", Value: "gone"}, {Key: "forward", Value: to}}, fence{fenced: true, forward: at}},
		"dropped in a split": {bson.D{{Key: "state", Value: "gone"}, homes}, fence{fenced: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			raw, err := bson.Marshal(tt.doc)
			require.NoError(t, err)
			got, err := fenceOf(raw, r)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}
