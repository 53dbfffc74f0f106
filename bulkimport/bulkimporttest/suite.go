package bulkimporttest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/chunk"
)

// Run checks the implementation that open returns; each call must give an empty
// one that knows the migration.
func Run(t *testing.T, m chunk.MigrationID, open func(*testing.T) bulkimport.Slices) {
	t.Helper()
	bounds := func(t *testing.T, values ...any) []bson.Raw {
		t.Helper()
		out := make([]bson.Raw, len(values))
		for i, v := range values {
			b, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
			require.NoError(t, err)
			out[i] = b
		}
		return out
	}
	object := bulkimport.Object{
		Key: "k", Documents: 3, Bytes: 99, Hash: []byte{1, 2}, From: bson.Timestamp{T: 5, I: 1}, To: bson.Timestamp{T: 5, I: 7},
	}
	planned := func(t *testing.T) []bulkimport.Slice {
		t.Helper()
		at := bounds(t, "x", int64(5))
		return []bulkimport.Slice{
			{Migration: m, Collection: "c", Number: 0, Hi: at[1], State: bulkimport.Planned},
			{Migration: m, Collection: "c", Number: 1, Lo: at[1], State: bulkimport.Planned},
		}
	}

	t.Run("FirstPlanStays", func(t *testing.T) {
		t.Parallel()
		s, ctx := open(t), t.Context()
		got, err := s.Plan(ctx, m, "c", planned(t))
		require.NoError(t, err)
		require.Equal(t, planned(t), got)
		got, err = s.Plan(ctx, m, "c", planned(t)[:1])
		require.NoError(t, err)
		require.Equal(t, planned(t), got)
		got, err = s.List(ctx, m)
		require.NoError(t, err)
		require.Equal(t, planned(t), got)
	})

	t.Run("CutSliceLeavesARest", func(t *testing.T) {
		t.Parallel()
		s, ctx := open(t), t.Context()
		_, err := s.Plan(ctx, m, "c", planned(t))
		require.NoError(t, err)
		cut := bounds(t, int64(3))[0]
		done, rest := planned(t)[0], planned(t)[0]
		done.Hi, rest.Lo, done.State, done.Object = cut, cut, bulkimport.Stored, object
		require.NoError(t, s.Stored(ctx, done, &rest))
		got, err := s.List(ctx, m)
		require.NoError(t, err)
		require.Len(t, got, 3)
		require.Equal(t, done, got[0])
		rest.Number = 2
		require.Equal(t, rest, got[2])
	})

	t.Run("SecondObjectIsRefused", func(t *testing.T) {
		t.Parallel()
		s, ctx := open(t), t.Context()
		_, err := s.Plan(ctx, m, "c", planned(t))
		require.NoError(t, err)
		done := planned(t)[1]
		done.State, done.Object = bulkimport.Stored, object
		require.NoError(t, s.Stored(ctx, done, nil))
		other := done
		other.Object.Key = "other"
		require.Error(t, s.Stored(ctx, other, &other))
		got, err := s.List(ctx, m)
		require.NoError(t, err)
		require.Equal(t, []bulkimport.Slice{planned(t)[0], done}, got, "a refused call must change nothing")
	})

	t.Run("LoadedOnlyWhenAllAreStored", func(t *testing.T) {
		t.Parallel()
		s, ctx := open(t), t.Context()
		_, err := s.Plan(ctx, m, "c", planned(t))
		require.NoError(t, err)
		for n, one := range planned(t) {
			require.Error(t, s.Loaded(ctx, m, "c"), "slice %d is not stored", n)
			one.State, one.Object = bulkimport.Stored, object
			require.NoError(t, s.Stored(ctx, one, nil))
		}
		require.NoError(t, s.Loaded(ctx, m, "c"))
		require.NoError(t, s.Loaded(ctx, m, "c"))
		got, err := s.List(ctx, m)
		require.NoError(t, err)
		for _, one := range got {
			require.Equal(t, bulkimport.Loaded, one.State)
			require.Equal(t, object, one.Object)
		}
	})
}
