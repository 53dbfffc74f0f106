package validation

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// B103: a member that lags must not answer with what it had before the time that
// is asked about, and without such a time only the primary is read.
func TestReadsAreNoOlderThanAsked(t *testing.T) {
	t.Parallel()
	since := bson.Timestamp{T: 7, I: 3}
	level := bson.E{Key: "level", Value: "majority"}

	concern, where := Read{Since: since}.freshness(readpref.SecondaryPreferred())
	require.Equal(t, bson.D{level, {Key: "afterClusterTime", Value: since}}, concern)
	require.Equal(t, readpref.SecondaryPreferredMode, where.Mode())

	concern, where = Read{}.freshness(readpref.SecondaryPreferred())
	require.Equal(t, bson.D{level}, concern)
	require.Equal(t, readpref.PrimaryMode, where.Mode())

	concern, where = Read{Since: since}.freshness(nil)
	require.Equal(t, bson.D{level, {Key: "afterClusterTime", Value: since}}, concern)
	require.Equal(t, readpref.PrimaryMode, where.Mode())
}
