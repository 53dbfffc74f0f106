package chunk_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"drover/chunk"
)

// TestAfterHoldsOnePoint: no other point lies between a point and what is after it.
func TestAfterHoldsOnePoint(t *testing.T) {
	t.Parallel()

	point := func(t *rapid.T, s chunk.KeySpace, name string) chunk.Key {
		kind, value, err := bson.MarshalValue(rapid.OneOf(rapid.StringN(0, 3, 6).AsAny(), rapid.Int64Range(-3, 3).AsAny()).Draw(t, name))
		require.NoError(t, err)
		k, err := s.Point(bson.RawValue{Type: kind, Value: value})
		require.NoError(t, err)
		return k
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom([]chunk.KeySpace{chunk.Hashed, chunk.Ranged}).Draw(t, "space")
		k, other := point(t, s, "key"), point(t, s, "other")
		only := chunk.Range{Lo: k, Hi: s.After(k)}
		require.True(t, only.Contains(k))
		require.Equal(t, k == other, only.Contains(other))
	})
	// The greatest hash is followed by the end of the key space.
	halves := chunk.Hashed.Split(2)
	last := halves[1].Lo[:1] + "\xff\xff\xff\xff\xff\xff\xff\xff"
	require.Equal(t, chunk.KeyMax, chunk.Hashed.After(last))
}
