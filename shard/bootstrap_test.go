package shard_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/testkit"
	"drover/shard"
)

func TestBootstrapIsIdempotentAndLeavesLeastPrivilege(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	report, err := b.set.Check(ctx)
	require.NoError(t, err)
	require.True(t, report.OK(), "%+v", report.Findings)
	require.Equal(t, b.shard.Capabilities, report.Capabilities)
	require.Len(t, report.Members, 1)
	require.NotEmpty(t, report.Primary)

	require.NotContains(t, b.shard.URI, "@")
	require.NotEmpty(t, b.shard.Capabilities.Version)
	require.Equal(t, 1, b.shard.Capabilities.Members)
	require.Equal(t, b.shard.Capabilities.MaxWireVersion >= 25, b.shard.Capabilities.JoinsWrites, "bulkWrite came with MongoDB 8.0")

	p := b.placement(t, 42)
	again, err := shard.Bootstrap(ctx, b.server.AdminURI(), "s1", secret, shard.BootstrapOptions{})
	require.NoError(t, err)
	require.Equal(t, b.shard, again)
	_, err = b.docs(t, p).InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	require.NoError(t, err, "registering again must not take grants away")

	other := b.client(t, chunk.DataUser).Database(chunk.PhysicalName("flights/0099", 99)).Collection("docs")
	_, err = other.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	require.True(t, mongocode.IsUnauthorized(err), "%v", err)
	for _, user := range []string{chunk.DataUser, chunk.LoaderUser, chunk.ApplierUser, chunk.CaptureUser, chunk.ReaderUser} {
		c := b.client(t, user)
		_, err := c.Database(p.Database).Collection("docs").InsertOne(ctx, bson.D{})
		if user != chunk.DataUser {
			require.True(t, mongocode.IsUnauthorized(err), "%s: %v", user, err)
		}
		_, err = c.Database(chunk.SystemDatabase).Collection(chunk.FencesCollection).InsertOne(ctx, bson.D{})
		require.True(t, mongocode.IsUnauthorized(err), "%s: %v", user, err)
		err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "createRole", Value: "evil"}, {Key: "privileges", Value: bson.A{}}, {Key: "roles", Value: bson.A{}}}).Err()
		require.True(t, mongocode.IsUnauthorized(err), "%s: %v", user, err)
	}
	err = b.client(t, chunk.DataUser).Database(chunk.SystemDatabase).Collection(chunk.FencesCollection).FindOne(ctx, bson.D{}).Err()
	require.ErrorIs(t, err, mongo.ErrNoDocuments, "proxies read forwarding addresses")
	names, err := b.client(t, chunk.AdminUser).Database(chunk.SystemDatabase).ListCollectionNames(ctx, bson.D{})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"markers", "fences", "checkpoints", "parked", "scratch"}, names)

	err = shard.Unregister(ctx, b.server.AdminURI(), "s1")
	require.True(t, failure.HasCode(err, "shard.not_empty"), "%v", err)
	f := b.fencer(t)
	b.fence(t, f, p, shard.Writes, 1)
	b.fence(t, f, p, shard.Reads, 1)
	require.NoError(t, b.set.DropDatabase(ctx, p, unpaced))
	clients := shard.NewClients(secret, shard.Options{})
	defer func() { require.NoError(t, clients.Close(ctx)) }()
	left, err := clients.Remnants(ctx, b.shard)
	require.NoError(t, err)
	require.Subset(t, left.Users, []string{chunk.AdminUser, chunk.DataUser, chunk.LoaderUser, chunk.ApplierUser, chunk.CaptureUser, chunk.ReaderUser})
	require.Len(t, left.Users, len(slices.Compact(slices.Clone(left.Users))))
	require.Subset(t, left.Roles, []string{"drover_admin_base", "drover_data_base", "drover_capture_base"})
	require.Contains(t, left.Collections, chunk.FencesCollection)
	require.NoError(t, shard.Unregister(ctx, b.server.AdminURI(), "s1"))
	require.NoError(t, shard.Unregister(ctx, b.server.AdminURI(), "s1"))
	_, err = shard.Connect(ctx, b.shard, chunk.DataUser, secret, shard.Options{})
	require.True(t, failure.HasCode(err, "shard.bad_credentials"), "%v", err)
}

func TestBootstrapRefusesWhatItCannotWorkOn(t *testing.T) {
	t.Parallel()
	server := testkit.Shard(t)
	ctx := t.Context()

	for code, uri := range map[string]string{
		"shard.bad_uri":         "localhost:1",
		"shard.bad_credentials": server.URI(),
		"shard.unreachable":     "mongodb://root:x@127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=100",
	} {
		_, err := shard.Bootstrap(ctx, uri, "s1", secret, shard.BootstrapOptions{})
		require.True(t, failure.HasCode(err, code), "%s: %v", code, err)
	}
	wrong := strings.Replace(server.AdminURI(), "@", "x@", 1)
	_, err := shard.Bootstrap(ctx, wrong, "s1", secret, shard.BootstrapOptions{})
	require.True(t, failure.HasCode(err, "shard.bad_credentials"), "%v", err)

	root, err := mongo.Connect(options.Client().ApplyURI(server.AdminURI()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Disconnect(t.Context())) })
	users, err := root.Database("admin").RunCommand(ctx, bson.D{{Key: "usersInfo", Value: 1}}).Raw()
	require.NoError(t, err)
	require.NotContains(t, users.String(), "drover_", "a refusal changes nothing")
}

func TestBootstrapRefusesOtherServers(t *testing.T) {
	t.Parallel()
	base := func(more ...bson.E) bson.D {
		return append(bson.D{{Key: "minWireVersion", Value: 0}, {Key: "maxWireVersion", Value: 21}, {Key: "ismaster", Value: true}, {Key: "isWritablePrimary", Value: true}}, more...)
	}
	member := bson.E{Key: "setName", Value: "rs"}
	for name, tc := range map[string]struct {
		hello   bson.D
		version string
		code    string
	}{
		"standalone": {base(), "8.0.4", "shard.not_replica_set"},
		"mongos":     {base(bson.E{Key: "msg", Value: "isdbgrid"}), "8.0.4", "shard.not_replica_set"},
		"too old":    {base(member), "5.0.31", "shard.version_unsupported"},
		"no login":   {base(member), "6.0.0", "shard.no_auth"}, // usersInfo is answered to a stranger
	} {
		fake, _ := newFakeSet(t, 1)
		fake.with(func([]*fakeNode) {
			fake.replies = map[string]bson.D{
				"hello": tc.hello, "isMaster": tc.hello, "ismaster": tc.hello,
				"buildInfo": {{Key: "version", Value: tc.version}}, "usersInfo": {{Key: "users", Value: bson.A{}}},
			}
		})
		uri := "mongodb://root:" + shard.Password(secret, "s1", "root") + "@" + fake.nodes[0].addr + "/?directConnection=true&authMechanism=SCRAM-SHA-256"
		_, err := shard.Bootstrap(t.Context(), uri, "s1", secret, shard.BootstrapOptions{})
		require.True(t, failure.HasCode(err, tc.code), "%s: %v", name, err)
		e, _ := errors.AsType[*failure.Error](err)
		require.NotEmpty(t, e.Hint, name)
	}
}

func TestOtherWritersAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	none, err := b.set.CheckPrincipals(ctx)
	require.NoError(t, err)
	require.Empty(t, none)

	root, err := mongo.Connect(options.Client().ApplyURI(b.server.AdminURI()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Disconnect(t.Context())) })
	admin := func(cmd bson.D) {
		t.Helper()
		require.NoError(t, root.Database("admin").RunCommand(ctx, cmd).Err())
	}
	role := func(name, db string) bson.D { return bson.D{{Key: "role", Value: name}, {Key: "db", Value: db}} }
	admin(bson.D{{Key: "createRole", Value: "sneaky"}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{bson.D{
		{Key: "resource", Value: bson.D{{Key: "db", Value: "flights_0001_p7"}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: bson.A{"find", "remove"}}}}}})
	for name, r := range map[string]bson.D{
		"reader": role("readAnyDatabase", "admin"), "elsewhere": role("readWrite", "app"),
		"agent": role("clusterManager", "admin"), "everywhere": role("readWriteAnyDatabase", "admin"), "there": role("readWrite", "flights_0001_p7"), "custom": role("sneaky", "admin"),
	} {
		admin(bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: "x"}, {Key: "roles", Value: bson.A{r}}})
	}
	admin(bson.D{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: bson.A{role("readWrite", "app")}}})

	found, err := b.set.CheckPrincipals(ctx)
	require.NoError(t, err)
	var names []string
	for _, p := range found {
		names = append(names, p.User)
	}
	require.ElementsMatch(t, []string{"everywhere@admin", "there@admin", "custom@admin", "drover_data@admin"}, names, "%+v", found)
	beside, err := b.set.WhoBeside(ctx)
	require.NoError(t, err)
	require.Equal(t, found, beside.Writers)
	tools := slices.DeleteFunc(beside.Controllers, shard.Principal.Root)
	require.Len(t, tools, 1)
	require.Equal(t, "agent@admin", tools[0].User)

	_, err = shard.Bootstrap(ctx, b.server.AdminURI(), "s1", secret, shard.BootstrapOptions{})
	require.True(t, failure.HasCode(err, "shard.other_writers"), "%v", err)
	_, err = shard.Bootstrap(ctx, b.server.AdminURI(), "s1", secret, shard.BootstrapOptions{AllowOtherWriters: true})
	require.NoError(t, err)

	report, err := b.set.Check(ctx)
	require.NoError(t, err)
	require.False(t, report.OK())
}

func TestStripCredentials(t *testing.T) {
	t.Parallel()
	for in, out := range map[string]string{
		"mongodb://root:p%40w@h1:1,h2:2/?replicaSet=rs":                               "mongodb://h1:1,h2:2/?replicaSet=rs",
		"mongodb://u:p@h/admin?authSource=admin&tls=true&authMechanism=SCRAM-SHA-256": "mongodb://h/?tls=true",
		"mongodb+srv://u:p@h":       "mongodb+srv://h/",
		"mongodb://h:27017/?w=1":    "mongodb://h:27017/?w=1",
		"mongodb://u:p@[::1]:27017": "mongodb://[::1]:27017/",
	} {
		got, err := shard.StripCredentials(in)
		require.NoError(t, err)
		require.Equal(t, out, got)
	}
}

// Behind an election every worker tries the new primary. One set the value that another was
// about to read at an earlier time, and dropped the collection while others tried.
func testTrialsAtOnceFindTheSame(t *testing.T, b *bundle) {
	for range 3 {
		g, ctx := errgroup.WithContext(t.Context())
		for range 4 {
			g.Go(func() error {
				found, err := b.set.Probe(ctx)
				if err == nil && found != b.shard.Capabilities {
					err = fmt.Errorf("found %+v, alone it was %+v", found, b.shard.Capabilities)
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
	}
	n, err := b.client(t, chunk.AdminUser).Database(chunk.SystemDatabase).Collection("scratch").CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Zero(t, n)
}
