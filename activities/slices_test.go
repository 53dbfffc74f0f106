package activities

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/bulkimport/bulkimporttest"
	"drover/chunk"
	"drover/metadata"
	"drover/metadata/metadatatest"
)

// TestSlicesPort: the metadata keeps slices as the importer wants them kept.
func TestSlicesPort(t *testing.T) {
	t.Parallel()

	bulkimporttest.Run(t, 1, func(t *testing.T) bulkimport.Slices {
		t.Helper()
		s, _ := metadatatest.OpenDSN(t)
		for _, name := range []string{"a", "b"} {
			require.NoError(t, s.AddShard(t.Context(), chunk.Shard{Name: name, URI: "mongodb://" + name}))
		}
		db := chunk.Database{Name: "d", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
		_, err := s.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: "a"}})
		require.NoError(t, err)
		require.NoError(t, s.Activate(t.Context(), "d"))
		m, err := s.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: "d/0001", Target: "b"})
		require.NoError(t, err)
		require.EqualValues(t, 1, m.ID)
		return slicesPort{s}
	})
}

// TestLegsDivideTheDocuments gives each leg of a split, a merge and both in one
// its filters, and wants every document to be copied by exactly one leg.
func TestLegsDivideTheDocuments(t *testing.T) {
	t.Parallel()

	point := func(v any) chunk.Key {
		raw, err := bson.Marshal(bson.D{{Key: "k", Value: v}})
		require.NoError(t, err)
		k, err := chunk.Ranged.DocumentPoint(raw, "k")
		require.NoError(t, err)
		return k
	}
	db := chunk.Database{Name: "d", KeySpace: chunk.Ranged, Collections: []chunk.Collection{{Name: "c", ShardKey: "k"}}}
	for name, c := range map[string]struct{ old, fresh []any }{
		"split":        {nil, []any{10, 20}},
		"merge":        {[]any{10, 20}, nil},
		"both":         {[]any{10, 30}, []any{20}},
		"shared bound": {[]any{10, 20}, []any{20, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ranges := func(cuts []any) []chunk.Range {
				var keys []chunk.Key
				for _, v := range cuts {
					keys = append(keys, point(v))
				}
				out, err := chunk.RangesAt(keys)
				require.NoError(t, err)
				return out
			}
			old, fresh := ranges(c.old), ranges(c.fresh)
			pairs, err := chunk.Reshape(old, fresh)
			require.NoError(t, err)
			var all []leg
			for _, p := range pairs {
				l := leg{fromRange: old[p.Source], toRange: fresh[p.Target]}
				l.From.ID, l.To.ID = chunk.PlacementID(p.Source+1), chunk.PlacementID(100+p.Target)
				all = append(all, l)
			}
			for _, v := range []any{nil, -5, 9, 10, 10.0, 10.5, 19, 20, 25, 30, 31, "x", bson.MaxKey{}} {
				raw, err := bson.Marshal(bson.D{{Key: "k", Value: v}})
				require.NoError(t, err)
				copied := 0
				for _, l := range divide(db, nil, all) {
					if !l.fromRange.Contains(point(v)) {
						continue // its source does not have it
					}
					kept := true
					if l.copies != nil {
						kept, err = l.copies.Has("c", raw)
						require.NoError(t, err)
					}
					if kept {
						copied++
						require.True(t, l.toRange.Contains(point(v)))
						for _, k := range []*chunk.Keep{l.own, l.sole} { // and it is its own on the target
							if k != nil {
								mine, err := k.Has("c", raw)
								require.NoError(t, err)
								require.True(t, mine)
							}
						}
					}
				}
				require.Equal(t, 1, copied, "%v", v)
			}
		})
	}
}
