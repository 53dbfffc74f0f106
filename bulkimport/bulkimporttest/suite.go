package bulkimporttest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/chunk"
)

// object is what a stored slice holds.
var object = bulkimport.Object{
	Key: "k", Documents: 3, Bytes: 99, Hash: []byte{1, 2}, From: bson.Timestamp{T: 5, I: 1}, To: bson.Timestamp{T: 5, I: 7},
}

// bound makes a boundary of a value.
func bound(t *testing.T, v any) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
	require.NoError(t, err)
	return b
}

// suite is what the tests share.
type suite struct {
	m    chunk.MigrationID
	open func(*testing.T) bulkimport.Slices
}

// Run checks the implementation that open returns; each call must give an empty
// one that knows the migration.
func Run(t *testing.T, m chunk.MigrationID, open func(*testing.T) bulkimport.Slices) {
	t.Helper()
	s := suite{m, open}
	for name, test := range map[string]func(*testing.T){
		"FirstPlanStays": s.firstPlanStays, "CutSliceLeavesARest": s.cutSliceLeavesARest,
		"SecondObjectIsRefused": s.secondObjectIsRefused, "LoadedOnlyWhenAllAreStored": s.loadedOnlyWhenAllAreStored,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// planned gives a plan of two slices.
func (s suite) planned(t *testing.T) []bulkimport.Slice {
	t.Helper()
	at := bound(t, int64(5))
	return []bulkimport.Slice{
		{Migration: s.m, Collection: "c", Number: 0, Hi: at, State: bulkimport.Planned},
		{Migration: s.m, Collection: "c", Number: 1, Lo: at, State: bulkimport.Planned},
	}
}

// start gives an implementation that has the plan.
func (s suite) start(t *testing.T) bulkimport.Slices {
	t.Helper()
	slices := s.open(t)
	got, err := slices.Plan(t.Context(), s.m, "c", s.planned(t))
	require.NoError(t, err)
	require.Equal(t, s.planned(t), got)
	return slices
}

// list gives what is recorded.
func (s suite) list(t *testing.T, slices bulkimport.Slices) []bulkimport.Slice {
	t.Helper()
	got, err := slices.List(t.Context(), s.m)
	require.NoError(t, err)
	return got
}

// firstPlanStays: the plan of a second process counts for nothing.
func (s suite) firstPlanStays(t *testing.T) {
	t.Helper()
	slices := s.start(t)
	got, err := slices.Plan(t.Context(), s.m, "c", s.planned(t)[:1])
	require.NoError(t, err)
	require.Equal(t, s.planned(t), got)
	require.Equal(t, s.planned(t), s.list(t, slices))
}

// cutSliceLeavesARest: both halves are there, or none.
func (s suite) cutSliceLeavesARest(t *testing.T) {
	t.Helper()
	slices := s.start(t)
	cut := bound(t, int64(3))
	done, rest := s.planned(t)[0], s.planned(t)[0]
	done.Hi, rest.Lo, done.State, done.Object = cut, cut, bulkimport.Stored, object
	require.NoError(t, slices.Stored(t.Context(), done, &rest))
	got := s.list(t, slices)
	require.Len(t, got, 3)
	require.Equal(t, done, got[0])
	rest.Number = 2
	require.Equal(t, rest, got[2])
}

// secondObjectIsRefused: the first object of a slice is the one.
func (s suite) secondObjectIsRefused(t *testing.T) {
	t.Helper()
	slices := s.start(t)
	done := s.planned(t)[1]
	done.State, done.Object = bulkimport.Stored, object
	require.NoError(t, slices.Stored(t.Context(), done, nil))
	other := done
	other.Object.Key = "other"
	require.Error(t, slices.Stored(t.Context(), other, &other))
	require.Equal(t, []bulkimport.Slice{s.planned(t)[0], done}, s.list(t, slices), "a refused call must change nothing")
}

// loadedOnlyWhenAllAreStored: lanes start behind this.
func (s suite) loadedOnlyWhenAllAreStored(t *testing.T) {
	t.Helper()
	slices := s.start(t)
	for n, one := range s.planned(t) {
		require.Error(t, slices.Loaded(t.Context(), s.m, "c"), "slice %d is not stored", n)
		one.State, one.Object = bulkimport.Stored, object
		require.NoError(t, slices.Stored(t.Context(), one, nil))
	}
	require.NoError(t, slices.Loaded(t.Context(), s.m, "c"))
	require.NoError(t, slices.Loaded(t.Context(), s.m, "c"))
	for _, one := range s.list(t, slices) {
		require.Equal(t, bulkimport.Loaded, one.State)
		require.Equal(t, object, one.Object)
	}
}
