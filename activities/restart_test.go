package activities

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// TestSlicesOfMismatches: a document belongs to the slice whose range has its _id,
// of whatever type, and to one of its own collection.
func TestSlicesOfMismatches(t *testing.T) {
	t.Parallel()
	id := func(v any) bson.Raw {
		b, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
		require.NoError(t, err)
		return b
	}
	rows := []metadata.Slice{
		{Collection: "a"},
		{Collection: "c", No: 0, Hi: id(10)},
		{Collection: "c", No: 1, Lo: id(10), Hi: id("m")},
		{Collection: "c", No: 2, Lo: id("m")},
	}
	for name, tc := range map[string]struct {
		differ []metadata.Mismatch
		want   map[int]bool
	}{
		"none":                 {nil, map[int]bool{}},
		"below a border":       {[]metadata.Mismatch{{Collection: "c", ID: id(9.99)}}, map[int]bool{1: true}},
		"on a border":          {[]metadata.Mismatch{{Collection: "c", ID: id(int64(10))}, {Collection: "c", ID: id(11)}}, map[int]bool{2: true}},
		"of another type":      {[]metadata.Mismatch{{Collection: "c", ID: id(true)}}, map[int]bool{3: true}},
		"of two collections":   {[]metadata.Mismatch{{Collection: "a", ID: id(1)}, {Collection: "c", ID: id("a")}}, map[int]bool{0: true, 2: true}},
		"of one that is gone":  {[]metadata.Mismatch{{Collection: "x", ID: id(1)}}, map[int]bool{}},
		"an _id that is a key": {[]metadata.Mismatch{{Collection: "c", ID: id(bson.D{{Key: "k", Value: 1}})}}, map[int]bool{3: true}},
	} {
		got, err := sliceNumbers(rows, tc.differ)
		require.NoError(t, err, name)
		require.Equal(t, tc.want, got, name)
	}
}

// TestServingTargetIsLeftAlone: what applications have written to it is nowhere else.
func TestServingTargetIsLeftAlone(t *testing.T) {
	t.Parallel()
	m := metadata.Migration{Source: chunk.Placement{ID: 1}, Target: chunk.Placement{ID: 2, Shard: "b"}}
	require.NoError(t, sourceServes(m, chunk.Route{Placement: m.Source}))
	require.True(t, failure.HasCode(sourceServes(m, chunk.Route{Placement: m.Target}), "migration.source_not_serving"))
}
