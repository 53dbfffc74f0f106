package activities

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
)

// TestCutsOfSlices: a comparison's slices may end where those of the import did, of the
// same collection and with their sizes.
func TestCutsOfSlices(t *testing.T) {
	t.Parallel()
	at := func(id any) bson.Raw {
		raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
		require.NoError(t, err)
		return raw
	}
	cuts := cutsOf([]bulkimport.Slice{
		{Collection: "a", Hi: at("m"), Object: bulkimport.Object{Documents: 7}},
		{Collection: "b", Hi: at("n"), Object: bulkimport.Object{Documents: 9}},
		{Collection: "a", Lo: at("m"), Object: bulkimport.Object{Documents: 3}},
	}, "a")
	require.Len(t, cuts, 1)
	require.Equal(t, "m", cuts[0].At.StringValue())
	require.Equal(t, int64(7), cuts[0].Documents)
}
