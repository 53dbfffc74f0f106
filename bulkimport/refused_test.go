package bulkimport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/testkit"
)

// TestBatchRefusedAsAWhole loads a batch to a server that answers a duplicate by an
// error of the whole command: all but the one document arrive, and that one is parked.
func TestBatchRefusedAsAWhole(t *testing.T) {
	refused := bson.D{
		{Key: "ok", Value: 0}, {Key: "code", Value: 11000}, {Key: "codeName", Value: "DuplicateKey"}, {Key: "errmsg", Value: "E11000"},
		{Key: "keyPattern", Value: bson.D{{Key: "ref", Value: 1}}}, {Key: "keyValue", Value: bson.D{{Key: "ref", Value: "x"}}},
	}
	inserted := bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}}
	absent := bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.c"}, {Key: "firstBatch", Value: bson.A{}},
	}}}
	parked := bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, {Key: "nModified", Value: 0}}
	client := testkit.Replying(t, refused, inserted, refused, absent, parked)
	var docs []bson.Raw
	for _, ref := range []string{"w", "x"} {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: ref}, {Key: "ref", Value: ref}})
		require.NoError(t, err)
		docs = append(docs, doc)
	}
	n, err := Target{Client: client, Database: "db", KeepsEmptyTimestamps: true}.insert(t.Context(), 1, "c", docs)
	require.NoError(t, err)
	require.Equal(t, Documents(1), n)
}
