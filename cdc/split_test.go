package cdc

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// part encodes one part of an event.
func part(t *testing.T, n, of int, fields ...bson.E) bson.Raw {
	t.Helper()
	d := bson.D{{Key: "_id", Value: bson.D{{Key: "_data", Value: n}}}}
	if of > 0 {
		d = append(d, bson.E{Key: "splitEvent", Value: bson.D{{Key: "fragment", Value: n}, {Key: "of", Value: of}}})
	}
	b, err := bson.Marshal(append(d, fields...))
	require.NoError(t, err)
	return b
}

// TestLargeEventsAreAssembled puts an event of 16 MB and more together, and lets no
// part be lost or taken for an event.
func TestLargeEventsAreAssembled(t *testing.T) {
	t.Parallel()

	big := make([]byte, 15<<20)
	head := []bson.E{
		{Key: "operationType", Value: "replace"}, {Key: "clusterTime", Value: bson.Timestamp{T: 5, I: 1}},
		{Key: "ns", Value: bson.D{{Key: "db", Value: "d"}, {Key: "coll", Value: "c"}}}, {Key: "documentKey", Value: bson.D{{Key: "_id", Value: 1}}},
	}
	var a assembler
	_, ok, err := a.add(part(t, 1, 2, head...))
	require.NoError(t, err)
	require.False(t, ok)
	require.True(t, a.pending())
	whole, ok, err := a.add(part(t, 2, 2, bson.E{Key: "fullDocument", Value: bson.D{{Key: "_id", Value: 1}, {Key: "b", Value: big}, {Key: "c", Value: big}}}))
	require.NoError(t, err)
	require.True(t, ok)
	require.False(t, a.pending())
	c, err := parseChange(whole)
	require.NoError(t, err)
	require.Equal(t, "c", c.event.Collection)
	require.Greater(t, len(c.document), 30<<20)

	plain := part(t, 0, 0, head...)
	whole, ok, err = a.add(plain)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, plain, whole)

	for name, after := range map[string]bson.Raw{"another event": plain, "part left out": part(t, 3, 3), "other count": part(t, 2, 4)} {
		var a assembler
		_, _, err := a.add(part(t, 1, 3))
		require.NoError(t, err)
		_, _, err = a.add(after)
		require.Error(t, err, name)
	}
}
