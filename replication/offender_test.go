package replication

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/mongocode"
)

// TestOffenderIsFoundByItsKey: inside a transaction a broken unique index fails
// the whole command without an index into it. Blaming the first document sent
// lanes into parking innocent ones for ever.
func TestOffenderIsFoundByItsKey(t *testing.T) {
	t.Parallel()

	doc := func(id int, ref string) *document {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "origin", Value: "ORD"}, {Key: "ref", Value: ref}})
		require.NoError(t, err)
		return &document{now: raw}
	}
	raw := func(d bson.D) bson.Raw {
		b, err := bson.Marshal(d)
		require.NoError(t, err)
		return b
	}
	docs := []*document{doc(1, "a"), doc(2, "b"), {}, doc(3, "c")}
	dup := mongocode.Duplicate{
		Pattern: raw(bson.D{{Key: "origin", Value: 1}, {Key: "ref", Value: 1}}),
		Value:   raw(bson.D{{Key: "origin", Value: "ORD"}, {Key: "ref", Value: "c"}}),
	}
	require.Same(t, docs[3], offender(docs, dup))
	dup.Value = raw(bson.D{{Key: "origin", Value: "ORD"}, {Key: "ref", Value: "elsewhere"}})
	require.Same(t, docs[0], offender(docs, dup), "what cannot be told is the command's own word")
	require.Same(t, docs[1], offender(docs, mongocode.Duplicate{Index: 1}))
}
