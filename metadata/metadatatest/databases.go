package metadatatest

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// databaseCases is what shards, databases, chunks and routes must do.
var databaseCases = map[string]func(*testing.T, *fleet){
	"ShardKeepsWhatItCan": func(t *testing.T, f *fleet) {
		caps := chunk.Capabilities{Version: "8.2.11", Members: 3, PinsSnapshots: true}
		require.NoError(t, f.SetCapabilities(t.Context(), "a", caps))
		sh, err := f.Shard(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, caps, sh.Capabilities)
		require.False(t, sh.AddedAt.IsZero())
		all, err := f.Shards(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 3)

		requireFailure(t, f.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://elsewhere"}), failure.Invalid, "shard.exists")
		require.NoError(t, f.AddShard(t.Context(), chunk.Shard{Name: "a", URI: "mongodb://a"}), "registering again is a retry")
		requireFailure(t, f.SetCapabilities(t.Context(), "x", caps), failure.Invalid, "shard.unknown")
		_, err = f.Shard(t.Context(), "x")
		requireFailure(t, err, failure.Invalid, "shard.unknown")
	},

	"RoutesCoverTheKeySpace": func(t *testing.T, f *fleet) {
		routes, err := f.Routes(t.Context(), "flights")
		require.NoError(t, err)
		require.Len(t, routes, 4)
		at, token := chunk.KeyMin, chunk.Token(0)
		for i, r := range routes {
			require.Equal(t, chunk.NewID("flights", i+1), r.Chunk.ID)
			require.Equal(t, at, r.Chunk.Range.Lo)
			require.Equal(t, chunk.Live, r.Placement.State)
			require.Equal(t, chunk.PhysicalName(r.Chunk.ID, r.Placement.ID), r.Placement.Database)
			require.Greater(t, r.Token, token)
			at, token = r.Chunk.Range.Hi, r.Token
			one, err := f.Route(t.Context(), r.Chunk.ID)
			require.NoError(t, err)
			require.Equal(t, r, one)
		}
		require.Equal(t, chunk.KeyMax, at)
		_, err = f.Route(t.Context(), "flights/9999")
		requireFailure(t, err, failure.Invalid, "chunk.unknown")
	},

	"CollectionsComeBackByteForByte": func(t *testing.T, f *fleet) {
		options, err := bson.Marshal(bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}})
		require.NoError(t, err)
		index, err := bson.Marshal(bson.D{{Key: "key", Value: bson.D{{Key: "b", Value: 1}, {Key: "a", Value: -1}}}, {Key: "name", Value: "b_1_a_-1"}})
		require.NoError(t, err)
		db := chunk.Database{Name: "typed", KeySpace: chunk.Ranged, Collections: []chunk.Collection{
			{Name: "c", ShardKey: "k.x", Options: options, Indexes: []bson.Raw{index}},
		}}
		_, err = f.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "a"}})
		require.NoError(t, err)
		got, err := f.Database(t.Context(), "typed")
		require.NoError(t, err)
		db.CatalogVersion = 1
		require.Equal(t, db, got)
	},

	"NobodySeesADatabaseBeforeItIsActive": func(t *testing.T, f *fleet) {
		db := chunk.Database{Name: "late", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
		whole := []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "a"}}
		made, err := f.CreateDatabase(t.Context(), db, whole)
		require.NoError(t, err)
		require.Len(t, made, 1)

		seen, err := f.Routes(t.Context(), "")
		require.NoError(t, err)
		require.False(t, slices.ContainsFunc(seen, func(r chunk.Route) bool { return r.Chunk.Database == "late" }))
		_, err = f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: "late/0001", Target: "b"})
		requireFailure(t, err, failure.Invalid, "migration.database_inactive")
		pending, err := f.PendingDatabases(t.Context())
		require.NoError(t, err)
		require.Len(t, pending, 1)

		again, err := f.CreateDatabase(t.Context(), db, whole)
		require.NoError(t, err)
		require.Equal(t, made, again, "a creation that died is taken up where it was")
		_, err = f.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "b"}})
		requireFailure(t, err, failure.Invalid, "database.differs")

		require.NoError(t, f.Activate(t.Context(), "late"))
		require.NoError(t, f.Activate(t.Context(), "late"))
		seen, err = f.Routes(t.Context(), "late")
		require.NoError(t, err)
		require.Equal(t, made, seen)
		_, err = f.CreateDatabase(t.Context(), db, whole)
		requireFailure(t, err, failure.Invalid, "database.exists")
		requireFailure(t, f.ForgetDatabase(t.Context(), "late"), failure.Invalid, "database.exists")
		requireFailure(t, f.Activate(t.Context(), "never"), failure.Invalid, "database.unknown")
	},

	"ForgottenDatabaseLeavesNothing": func(t *testing.T, f *fleet) {
		db := chunk.Database{Name: "oops", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
		_, err := f.CreateDatabase(t.Context(), db, []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "a"}})
		require.NoError(t, err)
		require.NoError(t, f.ForgetDatabase(t.Context(), "oops"))
		require.NoError(t, f.ForgetDatabase(t.Context(), "oops"))
		var left int
		const q = `select (select count(*) from chunks where database = 'oops') + (select count(*) from placements where chunk like 'oops/%')
			+ (select count(*) from routes where chunk like 'oops/%') + (select count(*) from collections where database = 'oops')`
		require.NoError(t, f.raw.QueryRow(t.Context(), q).Scan(&left))
		require.Zero(t, left)
	},

	"BadDatabasesAreRefusedWhole": func(t *testing.T, f *fleet) {
		ok := chunk.Database{Name: "bad", KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "c", ShardKey: "_id"}}}
		whole := []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "a"}}
		named := func(name string) chunk.Database { d := ok; d.Name = name; return d }
		for _, c := range []struct {
			db     chunk.Database
			chunks []metadata.NewChunk
			code   string
		}{
			{named("admin"), whole, "database.name"},
			{named("drover"), whole, "database.name"},
			{named("a/b"), whole, "database.name"},
			{named("a.b"), whole, "database.name"},
			{named(""), whole, "database.name"},
			{chunk.Database{Name: "bad", KeySpace: "round", Collections: ok.Collections}, whole, "database.key_space"},
			{chunk.Database{Name: "bad", KeySpace: chunk.Hashed}, whole, "database.collections"},
			{ok, nil, "database.ranges"},
			{ok, []metadata.NewChunk{{Range: chunk.Range{Lo: "\x01", Hi: chunk.KeyMax}, Shard: "a"}}, "database.ranges"},
			{ok, []metadata.NewChunk{{Range: chunk.Range{Hi: "\x01"}, Shard: "a"}}, "database.ranges"},
			{ok, []metadata.NewChunk{{Range: chunk.Range{Hi: "\x02"}, Shard: "a"}, {Range: chunk.Range{Lo: "\x01", Hi: chunk.KeyMax}, Shard: "a"}}, "database.ranges"},
			{ok, []metadata.NewChunk{{Range: chunk.Range{Hi: chunk.KeyMax}, Shard: "nowhere"}}, "shard.unknown"},
		} {
			_, err := f.CreateDatabase(t.Context(), c.db, c.chunks)
			requireFailure(t, err, failure.Invalid, c.code)
			_, err = f.Database(t.Context(), "bad")
			requireFailure(t, err, failure.Invalid, "database.unknown")
		}
	},

	"ChunksNeverOverlapNorLeaveGaps":   chunksAreAChain,
	"RouteAndLivePlacementAreOne":      liveMeansRouted,
	"TokensRiseAboveWhatShardsHave":    tokensRise,
	"CatalogChangesOneAfterTheOther":   catalogIsCompareAndSet,
	"MirrorsAreAskedFor":               mirrorsAreAskedFor,
	"SynchronousStandbyIsNamed":        durabilityIsTold,
	"WriteCheckWritesAndLeavesNothing": func(t *testing.T, f *fleet) { require.NoError(t, f.CheckWritable(t.Context())) },
}

// chunksAreAChain splits and merges at random with plain SQL: what keeps the
// chain is accepted, every damage to it is refused.
func chunksAreAChain(t *testing.T, f *fleet) {
	for name, sql := range map[string]string{
		"gap at an end":     `update chunks set lo = '\x01' where id = 'flights/0001'`,
		"gap inside":        `update chunks set hi = '\x7f' where id = 'flights/0002'`,
		"overlap":           `update chunks set hi = '\x90' where id = 'flights/0002'`,
		"chunk taken out":   `delete from chunks where id = 'flights/0002'`,
		"last taken out":    `delete from chunks where id = 'flights/0004'`,
		"all taken out":     `delete from chunks where database = 'flights'`,
		"second chain":      `insert into chunks (id, database, lo, hi) values ('flights/0009', 'flights', '', '\xff')`,
		"inside another":    `insert into chunks (id, database, lo, hi) values ('flights/0009', 'flights', '\x41', '\x42')`,
		"empty":             `insert into chunks (id, database, lo, hi) values ('flights/0009', 'flights', '\x40', '\x40')`,
		"past the end":      `update chunks set hi = '\xffff' where id = 'flights/0004'`,
		"no chunk at all":   `insert into databases (name, key_space) values ('empty', 'hashed')`,
		"a range changed":   `update chunks set hi = '\x41' where id = 'flights/0001'`,
		"begun twice":       `update chunks set state = 'planned' where id = 'flights/0001'`,
		"ended alone":       `update chunks set state = 'ended' where id = 'flights/0001'`,
		"of another's name": `insert into chunks (id, database, lo, hi) values ('other/0001', 'flights', '\x40', '\x80')`,
	} {
		require.Error(t, f.exec(t, sql), name)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	bounds := []byte{0x40, 0x80, 0xc0}
	const add = `insert into chunks (id, database, lo, hi) values ($1, 'flights', $2, $3)`
	for range 40 {
		at := byte(1 + rng.IntN(254))
		i, there := slices.BinarySearch(bounds, at)
		if there {
			continue
		}
		hi := []byte{0xff}
		if i < len(bounds) {
			hi = []byte{bounds[i]}
		}
		lo := []byte{}
		if i > 0 {
			lo = []byte{bounds[i-1]}
		}
		tx, err := f.raw.Begin(t.Context())
		require.NoError(t, err)
		half := rng.IntN(3) == 0 // the second half forgotten: a gap
		_, err = tx.Exec(t.Context(), `update chunks set state = 'ended' where database = 'flights' and state = 'current' and hi = $1`, hi)
		if err == nil {
			_, err = tx.Exec(t.Context(), add, string(chunk.NewID("flights", 1000+2*int(at))), lo, []byte{at})
		}
		if err == nil && !half {
			_, err = tx.Exec(t.Context(), add, string(chunk.NewID("flights", 1001+2*int(at))), []byte{at}, hi)
		}
		require.NoError(t, err)
		err = tx.Commit(t.Context())
		require.Equal(t, half, err != nil, "half %v, error %v", half, err)
		if !half {
			bounds = slices.Insert(bounds, i, at)
		}
	}
}

// liveMeansRouted checks that neither side of a route can be changed alone.
func liveMeansRouted(t *testing.T, f *fleet) {
	m := f.switching(t)
	for name, sql := range map[string]string{
		"route to a mirror":          `update routes set placement = $2, token = next_token() where chunk = $1`,
		"second live placement":      `update placements set state = 'live' where id = $2 and chunk = $1`,
		"route without a new token":  `update routes set placement = $2 where chunk = $1`,
		"live one stepping down":     `update placements set state = 'mirror' where chunk = $1 and state = 'live' and $2 > 0`,
		"route taken away":           `delete from routes where chunk = $1 and $2 > 0`,
		"placement of another chunk": `update placements set chunk = 'flights/0002' where chunk = $1 and id = $2`,
		"placement born a mirror":    `insert into placements (chunk, shard, state) select $1, 'b', 'mirror' where $2 > 0`,
		"placement moved":            `update placements set shard = 'b' where chunk = $1 and id = $2`,
	} {
		before := f.picture(t)
		require.Error(t, f.exec(t, sql, string(first), int64(m.Target.ID)), name)
		require.Equal(t, before, f.picture(t), name)
	}
	// The whole exchange by hand stands or falls with its token.
	const swap = `update placements set state = 'mirror' where chunk = $1 and state = 'live';
		update placements set state = 'live' where id = $2;
		update routes set placement = $2, token = $3 where chunk = $1`
	before := f.picture(t)
	err := f.exec(t, swap, pgx.QueryExecModeSimpleProtocol, string(first), int64(m.Target.ID), int64(-5))
	require.ErrorContains(t, err, "route.token")
	require.Equal(t, before, f.picture(t))
	require.NoError(t, f.exec(t, swap, pgx.QueryExecModeSimpleProtocol, string(first), int64(m.Target.ID), int64(1000)))
}

// tokensRise checks what a restore from a backup needs.
func tokensRise(t *testing.T, f *fleet) {
	const far = 1_000_000
	require.NoError(t, f.RaiseAbove(t.Context(), metadata.Seen{Token: far, Placement: far, Attempt: far, Migration: far}))
	require.NoError(t, f.RaiseAbove(t.Context(), metadata.Seen{Token: 5, Placement: 5}), "and never sets back")
	m := f.switching(t)
	require.Greater(t, m.ID, chunk.MigrationID(far))
	require.Greater(t, m.Target.ID, chunk.PlacementID(far))
	a := f.switchOver(t, m)
	require.Greater(t, a.ID, chunk.AttemptID(far))
	require.Greater(t, a.Token, chunk.Token(far))
	require.NoError(t, f.RaiseAbove(t.Context(), metadata.Seen{Token: a.Token + 10}), "a short gap is walked")
	var next int64
	require.NoError(t, f.raw.QueryRow(t.Context(), `select next_token()`).Scan(&next))
	require.Greater(t, next, int64(a.Token)+10)
}

// catalogIsCompareAndSet checks DDL's version.
func catalogIsCompareAndSet(t *testing.T, f *fleet) {
	v, err := f.FollowCatalog(t.Context(), "flights", 1, chunk.Collection{Name: "legs", ShardKey: "origin", Options: bson.Raw{5, 0, 0, 0, 0}})
	require.NoError(t, err)
	require.Equal(t, int64(2), v)
	_, err = f.FollowCatalog(t.Context(), "flights", 1, chunk.Collection{Name: "late", ShardKey: "x"})
	requireFailure(t, err, failure.Lost, "catalog.changed")
	all, err := f.Collections(t.Context(), "flights")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, bson.Raw{5, 0, 0, 0, 0}, all[1].Options)
	_, err = f.FollowCatalog(t.Context(), "never", 1, chunk.Collection{Name: "c", ShardKey: "x"})
	requireFailure(t, err, failure.Invalid, "database.unknown")
	dbs, err := f.Databases(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(2), dbs[0].CatalogVersion)
}

// durabilityIsTold checks a server without replicas, and that the store's
// connections wait for the disk even where the server's default does not.
func durabilityIsTold(t *testing.T, f *fleet) {
	var name string
	require.NoError(t, f.raw.QueryRow(t.Context(), `select current_database()`).Scan(&name))
	require.NoError(t, f.exec(t, `alter database `+name+` set synchronous_commit = 'off'`))
	require.NoError(t, f.exec(t, `alter database `+name+` set default_transaction_isolation = 'repeatable read'`))
	s, err := metadata.Open(t.Context(), f.dsn)
	require.NoError(t, err)
	defer s.Close()
	d, err := s.SynchronousStandby(t.Context())
	require.NoError(t, err)
	require.Equal(t, "on", d.SynchronousCommit)
	if d.Fsync && d.Replicas == 0 {
		require.Empty(t, d.Warning)
	}
	// One who waited for a lock must see what was committed meanwhile.
	errs := f.raceBehind(t, `select from chunks where id = 'flights/0001' for update`, 6, func(ctx context.Context, _ int) error {
		_, err := s.RegisterMigration(ctx, metadata.MigrationRequest{Chunk: first, Target: "c", WorkflowID: "w"})
		return err
	})
	require.Equal(t, 6, countNil(errs), "%v", errs)
}
