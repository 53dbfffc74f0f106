package activities

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/shard"
)

// keptCatalog is a catalog, and a lock that is held or not.
type keptCatalog struct {
	db     chunk.Database
	routes []chunk.Route
	locked bool
	err    error // of the next change
}

var _ catalogStore = (*keptCatalog)(nil)

// LockCatalog implements [catalogStore].
func (k *keptCatalog) LockCatalog(context.Context, string) (func(), error) {
	k.locked = true
	return func() { k.locked = false }, nil
}

// Database implements [catalogStore].
func (k *keptCatalog) Database(context.Context, string) (chunk.Database, error) { return k.db, nil }

// Routes implements [catalogStore].
func (k *keptCatalog) Routes(context.Context, string) ([]chunk.Route, error) { return k.routes, nil }

// FollowCatalog implements [catalogStore].
func (k *keptCatalog) FollowCatalog(_ context.Context, _ string, from int64, changed chunk.Collection) (int64, error) {
	if !k.locked {
		return 0, errors.New("changed without the lock")
	}
	if from != k.db.CatalogVersion {
		return 0, errors.New("changed from another version")
	}
	if k.err != nil {
		return 0, k.err
	}
	k.db.CatalogVersion++
	k.db.Collections[0] = changed
	return k.db.CatalogVersion, nil
}

// specified is an index by its name, with one more field.
func specified(t *testing.T, name string, more ...bson.E) bson.Raw {
	t.Helper()
	b, err := bson.Marshal(append(bson.D{{Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}, more...))
	require.NoError(t, err)
	return b
}

// TestFollowedDDLReachesTheCatalog: DDL that lanes had followed was in no catalog, so
// that the next move made a target without it and found that out after its import.
// With several chunks the catalog waits until all of them have it.
func TestFollowedDDLReachesTheCatalog(t *testing.T) {
	t.Parallel()
	expiry := func(n int32) bson.E { return bson.E{Key: "expireAfterSeconds", Value: n} }
	was := []bson.Raw{specified(t, "a"), specified(t, "at", expiry(60))}
	parked := specified(t, "at", expiry(shard.ParkedTTL))
	now := []bson.Raw{parked, specified(t, "b")}
	place := func(id chunk.PlacementID) chunk.Placement { return chunk.Placement{ID: id, Chunk: "app/0001"} }
	for name, tc := range map[string]struct {
		target []bson.Raw
		others map[chunk.PlacementID][]bson.Raw
		err    error
		kept   bool
	}{
		"the only chunk":              {target: now, kept: true},
		"the others have it too":      {target: now, others: map[chunk.PlacementID][]bson.Raw{3: {specified(t, "b"), was[1]}, 4: now}, kept: true},
		"one is as it was":            {target: now, others: map[chunk.PlacementID][]bson.Raw{3: now, 4: was}},
		"one has no such collection":  {target: now, others: map[chunk.PlacementID][]bson.Raw{3: nil}},
		"nothing new":                 {target: []bson.Raw{was[0], parked}},
		"the catalog is out of reach": {target: now, err: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &keptCatalog{err: tc.err, db: chunk.Database{Name: "app", CatalogVersion: 7, Collections: []chunk.Collection{{Name: "c", ShardKey: "k", Indexes: was}}}}
			has := map[chunk.PlacementID][]bson.Raw{2: tc.target}
			for _, id := range []chunk.PlacementID{1, 3, 4} {
				if indexes, ok := tc.others[id]; ok || id == 1 {
					k.routes, has[id] = append(k.routes, chunk.Route{Placement: place(id)}), indexes
				}
			}
			p := definitionsPort{from: place(1), to: place(2), store: k, log: slog.New(slog.DiscardHandler), inventory: func(_ context.Context, p chunk.Placement) ([]shard.CollectionInfo, error) {
				if has[p.ID] == nil {
					return nil, nil
				}
				return []shard.CollectionInfo{{Name: "another"}, {Name: "c", Indexes: has[p.ID]}}, nil
			}}
			require.ErrorIs(t, p.keep(t.Context(), "c"), tc.err)
			require.NoError(t, p.keep(t.Context(), "absent"))
			require.False(t, k.locked)
			if !tc.kept {
				require.EqualValues(t, 7, k.db.CatalogVersion)
				require.Equal(t, was, k.db.Collections[0].Indexes)
				return
			}
			require.EqualValues(t, 8, k.db.CatalogVersion)
			require.Equal(t, chunk.Collection{Name: "c", ShardKey: "k", Indexes: []bson.Raw{was[1], specified(t, "b")}}, k.db.Collections[0], "what is parked on the target is no catalog's")
		})
	}
}

// TestCatalogDifferencesAreNamed: the refusal says where each difference is, a few of
// them, and how many more there are.
func TestCatalogDifferencesAreNamed(t *testing.T) {
	t.Parallel()
	have := []shard.CollectionInfo{{Name: "c", Indexes: []bson.Raw{specified(t, "a")}}, {Name: "d"}, {Name: "e"}}
	differ := shard.CompareDefined([]chunk.Collection{{Name: "c", Indexes: []bson.Raw{specified(t, "b")}}}, have)
	err := undefined(chunk.Placement{Chunk: "app/0001", Shard: "s", Database: "app_0001_p1"}, differ)
	require.True(t, failure.HasCode(err, "migration.catalog_differs"))
	require.True(t, failure.Is(err, failure.Invalid))
	require.EqualError(t, err, "migration.catalog_differs: database app_0001_p1 on shard s is not as app is defined: "+
		"c index a: missing in the catalog; c index b: only in the catalog; d: missing in the catalog; and 1 more")
}
