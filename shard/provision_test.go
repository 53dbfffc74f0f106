package shard_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/shard"
)

// root gives a client of the operator, and runs commands on one database with it.
func (b *bundle) root(t *testing.T, db string) func(bson.D) {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(b.server.AdminURI()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Disconnect(t.Context())) })
	return func(cmd bson.D) {
		t.Helper()
		require.NoError(t, c.Database(db).RunCommand(t.Context(), cmd).Err(), "%v", cmd)
	}
}

// index is a createIndexes command for one specification.
func index(collection string, spec bson.D) bson.D {
	return bson.D{{Key: "createIndexes", Value: collection}, {Key: "indexes", Value: bson.A{spec}}}
}

// key is a key pattern of one field.
func key(field string, direction any) bson.E {
	return bson.E{Key: "key", Value: bson.D{{Key: field, Value: direction}}}
}

// TestProvisionCarriesEveryOption moves definitions from one database to another and
// compares: B071 TTL with a partial filter, B075 unique and plain twins, B077 order
// of key fields, B079 collations.
func testProvisionCarriesEveryOption(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	do := b.root(t, "app")
	do(bson.D{{Key: "create", Value: "plain"}, {Key: "validator", Value: bson.D{{Key: "a", Value: bson.D{{Key: "$exists", Value: true}}}}}, {Key: "validationLevel", Value: "moderate"}})
	do(index("plain", bson.D{key("at", 1), {Key: "name", Value: "x"}, {Key: "expireAfterSeconds", Value: 3600},
		{Key: "partialFilterExpression", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$gt", Value: 0}}}}}}))
	do(index("plain", bson.D{key("a", 1), {Key: "name", Value: "u"}, {Key: "unique", Value: true}}))
	do(index("plain", bson.D{key("a", 1), {Key: "name", Value: "p"}, {Key: "sparse", Value: true}}))
	do(index("plain", bson.D{{Key: "key", Value: bson.D{{Key: "z", Value: 1}, {Key: "y", Value: -1.0}, {Key: "x", Value: int64(1)}}}, {Key: "name", Value: "order"}, {Key: "hidden", Value: true}}))
	do(bson.D{{Key: "create", Value: "collated"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
	do(index("collated", bson.D{key("a", 1), {Key: "name", Value: "simple"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}))
	do(index("collated", bson.D{key("b", 1), {Key: "name", Value: "default"}}))

	source, err := b.set.Inventory(ctx, "app")
	require.NoError(t, err)
	require.Len(t, source, 2)
	require.NoError(t, shard.CheckMovable("app", source))
	catalog := shard.Collections(source, func(string) string { return "_id" })

	const target = "app_0001_p7"
	require.NoError(t, b.set.Provision(ctx, target, catalog, true))
	require.NoError(t, b.set.Provision(ctx, target, catalog, true), "again, and nothing changes")
	got, err := b.set.Inventory(ctx, target)
	require.NoError(t, err)
	require.Empty(t, shard.CompareCatalog(source, got))
	defined, err := b.set.Definitions(ctx, "app")
	require.NoError(t, err)
	require.Equal(t, source, defined, "they are empty")
	ttl := func() int64 {
		infos, err := b.set.Inventory(ctx, target)
		require.NoError(t, err)
		ttls := shard.TTLs("plain", infos[1].Indexes)
		require.Len(t, ttls, 1)
		return ttls[0].Seconds
	}
	require.EqualValues(t, shard.ParkedTTL, ttl(), "parked from the start")
	require.NoError(t, b.set.RestoreTTL(ctx, target, catalog))
	require.EqualValues(t, 3600, ttl())
	parked, err := b.set.ParkTTL(ctx, target)
	require.NoError(t, err)
	require.Equal(t, []shard.TTL{{Collection: "plain", Index: "x", Seconds: 3600}}, parked)
	require.EqualValues(t, shard.ParkedTTL, ttl())
	parked, err = b.set.ParkTTL(ctx, target)
	require.NoError(t, err)
	require.Empty(t, parked)

	do(bson.D{{Key: "dropIndexes", Value: "plain"}, {Key: "index", Value: "p"}})
	do(index("plain", bson.D{key("extra", 1), {Key: "name", Value: "extra"}}))
	source, err = b.set.Inventory(ctx, "app")
	require.NoError(t, err)
	var what []string
	for _, d := range shard.CompareCatalog(source, got) {
		what = append(what, d.String())
	}
	require.Equal(t, []string{"plain index extra: missing on the target", "plain index p: only on the target"}, what)
}

func testProvisionRefusesWhatIsDefinedOtherwise(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	const db = "app_0002_p8"
	validator := raw(t, bson.D{{Key: "validator", Value: bson.D{{Key: "a", Value: 1}}}})
	require.NoError(t, b.set.Provision(ctx, db, []chunk.Collection{{Name: "c", Options: validator}}, false))
	err := b.set.Provision(ctx, db, []chunk.Collection{{Name: "c"}}, false)
	require.True(t, failure.HasCode(err, "collection.exists_differently"), "%v", err)

	unique := raw(t, bson.D{key("a", 1), {Key: "name", Value: "a_1"}, {Key: "unique", Value: true}})
	plain := raw(t, bson.D{key("a", 1), {Key: "name", Value: "a_1"}})
	require.NoError(t, b.set.Provision(ctx, db, []chunk.Collection{{Name: "c", Options: validator, Indexes: []bson.Raw{unique}}}, false))
	err = b.set.Provision(ctx, db, []chunk.Collection{{Name: "c", Options: validator, Indexes: []bson.Raw{plain}}}, false)
	require.True(t, failure.HasCode(err, "collection.index_conflict"), "%v", err)
	require.ErrorContains(t, err, "a_1")

	good := raw(t, bson.D{key("g", 1), {Key: "name", Value: "good"}})
	bad := raw(t, bson.D{key("a", "no such kind of index"), {Key: "name", Value: "broken"}})
	err = b.set.Provision(ctx, db, []chunk.Collection{{Name: "d", Indexes: []bson.Raw{bad, good}}}, false)
	require.True(t, failure.HasCode(err, "collection.index_unbuildable"), "%v", err)
	require.ErrorContains(t, err, "broken")
	infos, err := b.set.Inventory(ctx, db)
	require.NoError(t, err)
	require.Len(t, infos[1].Indexes, 1, "the other index is made all the same (B083)")
}

func testInventoryCountsAndRefuses(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	do := b.root(t, "mixed")
	do(bson.D{{Key: "create", Value: "good"}})
	do(bson.D{{Key: "insert", Value: "good"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}}}})
	do(bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "good"}, {Key: "pipeline", Value: bson.A{}}})
	do(bson.D{{Key: "create", Value: "fixed"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
	do(bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})

	infos, err := b.set.Inventory(ctx, "mixed")
	require.NoError(t, err)
	err = shard.CheckMovable("mixed", infos)
	for code, name := range map[string]string{"collection.view": "mixed.v", "collection.capped": "mixed.fixed", "collection.timeseries": "mixed.series"} {
		require.ErrorContains(t, err, code+": "+name)
	}
	require.NotContains(t, err.Error(), "mixed.good")
	defined, err := b.set.Definitions(ctx, "mixed")
	require.NoError(t, err)
	require.Len(t, defined, len(infos))
	for n, x := range infos {
		if x.Name == "good" {
			require.Zero(t, defined[n].Size, "nobody asked for it")
			require.EqualValues(t, 2, x.Count)
			require.Positive(t, x.Size)
			require.True(t, x.HasIDIndex)
			require.NotEmpty(t, x.UUID.Data)
		}
	}
	builds, err := b.set.IndexBuilds(ctx, "mixed")
	require.NoError(t, err)
	require.Empty(t, builds)
}

func testDropDatabaseIsGuarded(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	p := b.placement(t, 542)
	require.NoError(t, b.set.EnsureLoaderRole(ctx, p, 7))
	wrong := p
	wrong.ID = 543
	require.True(t, failure.HasCode(b.set.DropDatabase(ctx, wrong, unpaced), "placement.wrong_database"))
	wrong = p
	wrong.Database = "drover"
	require.True(t, failure.HasCode(b.set.DropDatabase(ctx, wrong, unpaced), "placement.wrong_database"))
	require.True(t, failure.HasCode(b.set.DropDatabase(ctx, p, unpaced), "placement.in_use"), "it serves")

	f := b.fencer(t)
	b.fence(t, f, p, shard.Writes, 6)
	b.fence(t, f, p, shard.Reads, 6)
	require.NoError(t, b.set.DropDatabase(ctx, p, unpaced))
	require.NoError(t, b.set.DropDatabase(ctx, p, unpaced))
	left, err := b.set.LeftoverDatabases(ctx)
	require.NoError(t, err)
	require.NotContains(t, left, p.ID)
	roles, err := b.client(t, chunk.AdminUser).Database("admin").RunCommand(ctx, bson.D{{Key: "rolesInfo", Value: 1}}).Raw()
	require.NoError(t, err)
	require.False(t, strings.Contains(roles.String(), "_p542_"), "roles of a placement that is gone")
}

// A role that its user does not hold is given again while it is there, and never made anew.
func testGrantedAgain(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	p := b.placement(t, 561)
	require.NoError(t, b.set.EnsureLoaderRole(ctx, p, 7))
	admin := b.client(t, chunk.AdminUser).Database("admin")
	require.NoError(t, admin.RunCommand(ctx, bson.D{{Key: "revokeRolesFromUser", Value: chunk.LoaderUser}, {Key: "roles", Value: bson.A{chunk.LoaderRole(p.ID, 7)}}}).Err())
	load := func() error {
		_, err := b.client(t, chunk.LoaderUser).Database(p.Database).Collection("legs").InsertOne(ctx, bson.D{})
		return err
	}
	require.True(t, mongocode.IsUnauthorized(load()))
	require.NoError(t, b.set.GrantLoaderAgain(ctx, p.ID, 7))
	require.NoError(t, load())
	require.NoError(t, b.set.DropLoaderRole(ctx, p.ID, 7))
	require.True(t, failure.HasCode(b.set.GrantLoaderAgain(ctx, p.ID, 7), "grant.void"))
	require.True(t, mongocode.IsUnauthorized(load()))
}

func testReaderAndRoom(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	c, m, err := b.set.Reader(ctx, false)
	require.NoError(t, err, "there is no other member")
	require.Equal(t, "PRIMARY", m.State)
	before, err := shard.OperationTime(ctx, c)
	require.NoError(t, err)
	at, err := b.set.WriteMarker(ctx, chunk.Marker{Kind: chunk.HeartbeatMarker, Round: 1})
	require.NoError(t, err)
	after, err := shard.OperationTime(ctx, c)
	require.NoError(t, err)
	require.True(t, before.Before(at))
	require.False(t, after.Before(at))
	room, err := b.set.Room(ctx)
	require.NoError(t, err)
	require.Equal(t, room.Total > 0, room.Known)
	st, err := b.set.Status(ctx)
	require.NoError(t, err)
	require.Positive(t, st.ElectionTimeout)
	require.False(t, st.Elected.IsZero())
}

// unpaced lets a clean-up go on at once.
func unpaced(context.Context) error { return nil }
