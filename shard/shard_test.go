package shard_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/internal/testkit"
	"drover/shard"
)

// secret is the fleet's secret in these tests.
const secret = "test fleet"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is a registered shard of a test's own.
type bundle struct {
	server  *testkit.ShardServer
	shard   chunk.Shard
	clients *shard.Clients
	set     *shard.Set
}

// setup starts and registers a shard.
func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{server: testkit.Shard(t)}
	var err error
	b.shard, err = shard.Bootstrap(t.Context(), b.server.AdminURI(), "s1", secret, shard.BootstrapOptions{})
	require.NoError(t, err)
	b.clients = shard.NewClients(secret, shard.Options{})
	t.Cleanup(func() { require.NoError(t, b.clients.Close(t.Context())) })
	b.set, err = b.clients.Set(b.shard)
	require.NoError(t, err)
	return b
}

// TestOnOneShard runs what can share a server: each test has placements of its own.
func TestOnOneShard(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, test := range map[string]func(*testing.T, *bundle){
		"FenceRefusesWritesThenReadsOfOpenConnections": testFenceRefusesWritesThenReadsOfOpenConnections,
		"BarrierDoesNotPassWhileAGrantIsSeen":          testBarrierDoesNotPassWhileAGrantIsSeen,
		"LateActorsAreHarmless":                        testLateActorsAreHarmless,
		"AbortingNoSessionAbortsNothing":               testAbortingNoSessionAbortsNothing,
		"RolesOfLoaderAndApplierEndWithTheirWork":      testRolesOfLoaderAndApplierEndWithTheirWork,
		"FenceDocumentsFollowTheNewestAttempt":         testFenceDocumentsFollowTheNewestAttempt,
		"MarkersAreWrittenOnce":                        testMarkersAreWrittenOnce,
		"CountersAreKnownOrUnknown":                    testCountersAreKnownOrUnknown,
		"ProvisionCarriesEveryOption":                  testProvisionCarriesEveryOption,
		"ProvisionRefusesWhatIsDefinedOtherwise":       testProvisionRefusesWhatIsDefinedOtherwise,
		"FollowsDefinitions":                           testFollowsDefinitions,
		"InventoryCountsAndRefuses":                    testInventoryCountsAndRefuses,
		"DropDatabaseIsGuarded":                        testDropDatabaseIsGuarded,
		"GrantedAgain":                                 testGrantedAgain,
		"ReaderAndRoom":                                testReaderAndRoom,
		"TrialsAtOnceFindTheSame":                      testTrialsAtOnceFindTheSame,
	} {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

// client gives the client of one of Drover's users.
func (b *bundle) client(t *testing.T, user string) *mongo.Client {
	t.Helper()
	c, err := b.clients.Client(b.shard, user)
	require.NoError(t, err)
	return c
}

// placement makes a placement with one collection, open to the data plane by attempt 0.
func (b *bundle) placement(t *testing.T, id chunk.PlacementID) chunk.Placement {
	t.Helper()
	c := chunk.NewID("flights", int(id))
	p := chunk.Placement{ID: id, Chunk: c, Shard: b.shard.Name, Database: chunk.PhysicalName(c, id), State: chunk.Live}
	require.NoError(t, b.set.Provision(t.Context(), p.Database, []chunk.Collection{{Name: "docs", ShardKey: "_id"}}, false))
	require.NoError(t, b.set.CreateGrants(t.Context(), p, 0))
	require.NoError(t, b.set.GrantToData(t.Context(), p, 0))
	return p
}

// docs is the placement's collection as an application reaches it.
func (b *bundle) docs(t *testing.T, p chunk.Placement) *mongo.Collection {
	t.Helper()
	return b.client(t, chunk.DataUser).Database(p.Database).Collection("docs")
}

// raw encodes a document that cannot fail to encode.
func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	r, err := bson.Marshal(d)
	require.NoError(t, err)
	return r
}

// soon bounds what a test waits for.
const soon = 10 * time.Second
