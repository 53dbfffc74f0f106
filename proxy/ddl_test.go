package proxy

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
	"drover/proxy/auth"
)

// fakeCatalog keeps what it is asked to change.
type fakeCatalog struct {
	f     *fleet
	asked []CatalogChange
	err   error
}

// Change implements [Catalog].
func (c *fakeCatalog) Change(_ context.Context, ch CatalogChange) (bson.Raw, error) {
	c.asked = append(c.asked, ch)
	if c.err != nil {
		return nil, c.err
	}
	if ch.Command.Index(0).Key() == "create" {
		c.f.mu.Lock()
		db := c.f.databases[ch.Database]
		db.Collections = append(db.Collections, chunk.Collection{Name: ch.Collection, ShardKey: ch.ShardKey})
		c.f.databases[ch.Database] = db
		c.f.mu.Unlock()
	}
	return bson.Marshal(bson.D{{Key: "ns", Value: "physical.x"}, {Key: "numIndexesAfter", Value: 2}, {Key: "operationTime", Value: bson.Timestamp{T: 1}}, {Key: "ok", Value: 1.0}})
}

func TestDDL(t *testing.T) {
	t.Parallel()

	f, _, _ := newScripted(t, 2, func(s *sent) bson.D { t.Errorf("%s reached a shard", s.name); return nil })
	catalog := &fakeCatalog{f: f}
	ports := f.ports()
	ports.Catalog = catalog
	p := New(Config{ID: "proxy-1"}, ports)
	f.run(p)
	c := dialRaw(t, p)
	run := func(cmd bson.D) bson.Raw { return c.run(append(cmd, bson.E{Key: "$db", Value: testDatabase})) }
	index := func(unique bool, fields ...string) bson.D {
		key := bson.D{}
		for _, f := range fields {
			key = append(key, bson.E{Key: f, Value: 1})
		}
		return bson.D{{Key: "createIndexes", Value: "legs"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: key}, {Key: "name", Value: "x"}, {Key: "unique", Value: unique}}}}}
	}

	got := run(append(index(true, "origin", "n"), bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		bson.E{Key: "$client", Value: bson.D{}}, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 0}}}))
	require.Equal(t, int64(2), numberAt(got, "numIndexesAfter"), "%v", got)
	require.Equal(t, testDatabase+".legs", got.Lookup("ns").StringValue())
	require.Zero(t, got.Lookup("operationTime").Type)
	require.Len(t, catalog.asked, 1)
	elements, err := catalog.asked[0].Command.Elements()
	require.NoError(t, err)
	require.Len(t, elements, 2, "nothing of the sender's: %v", catalog.asked[0].Command)

	for name, tc := range map[string]struct {
		cmd  bson.D
		code code
	}{
		"unique elsewhere": {index(true, "n", "origin"), codeCannotCreateIndex},
		"no collection":    {bson.D{{Key: "collMod", Value: "nowhere"}}, codeNamespaceNotFound},
		"exists":           {bson.D{{Key: "create", Value: "legs"}}, codeNamespaceExists},
		"view":             {bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "legs"}}, codeNotSupported},
		"capped":           {bson.D{{Key: "create", Value: "v"}, {Key: "capped", Value: true}, {Key: "size", Value: 1}}, codeNotSupported},
		"system":           {bson.D{{Key: "create", Value: "system.x"}}, codeInvalidNamespace},
		"no name":          {bson.D{{Key: "drop", Value: 1}}, codeInvalidNamespace},
		"no list":          {bson.D{{Key: "createIndexes", Value: "legs"}}, codeFailedToParse},
		"rename":           {bson.D{{Key: "renameCollection", Value: "a.b"}}, codeNotSupported},
		"drop database":    {bson.D{{Key: "dropDatabase", Value: 1}}, codeNotSupported},
		"field and parent": {bson.D{{Key: "shardCollection", Value: "flights.new"}, {Key: "key", Value: bson.D{{Key: "a", Value: 1}, {Key: "a.b", Value: 1}}}}, codeBadValue},
		"other key":        {bson.D{{Key: "shardCollection", Value: "flights.legs"}, {Key: "key", Value: bson.D{{Key: "a", Value: 1}}}}, codeAlreadyInitialized},
	} {
		require.Equal(t, tc.code, codeOf(run(tc.cmd)), name)
	}
	require.Len(t, catalog.asked, 1, "what cannot be is refused before anything is done")
	require.Equal(t, int64(1), numberAt(run(bson.D{{Key: "drop", Value: "nowhere"}}), "ok"))
	require.Equal(t, int64(1), numberAt(run(bson.D{{Key: "shardCollection", Value: "flights.legs"}, {Key: "key", Value: bson.D{{Key: "origin", Value: "hashed"}}}}), "ok"))

	// A new collection is known to this proxy at once, by its own shard key.
	require.Equal(t, int64(1), numberAt(run(bson.D{{Key: "create", Value: "new"}, {Key: "validator", Value: bson.D{}}}), "ok"))
	require.Equal(t, codeNamespaceExists, codeOf(run(bson.D{{Key: "create", Value: "new"}})))
	require.Equal(t, int64(1), numberAt(run(bson.D{{Key: "shardCollection", Value: "flights.keyed"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}}), "ok"))
	require.Equal(t, "k", catalog.asked[2].ShardKey)
	require.Equal(t, int64(1), numberAt(run(bson.D{{Key: "shardCollection", Value: "flights.pair"}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}, {Key: "d.day", Value: 1}}}}), "ok"))
	require.Equal(t, "k,d.day", catalog.asked[3].ShardKey)

	catalog.err = failure.New(failure.Invalid, CatalogMoving, "chunk 1 is being moved").WithHint("wait")
	require.Equal(t, codeConflicting, codeOf(run(bson.D{{Key: "drop", Value: "new"}})))
	catalog.err = mongo.CommandError{Code: 85, Name: "IndexOptionsConflict", Message: "no"}
	got = run(index(false, "n"))
	require.Equal(t, code(85), codeOf(got))
	require.Equal(t, "IndexOptionsConflict", got.Lookup("codeName").StringValue())

	plain := dialRaw(t, f.start(Config{ID: "proxy-2"}))
	require.Equal(t, codeNotSupported, codeOf(plain.run(append(index(false, "n"), bson.E{Key: "$db", Value: testDatabase}))))
}

// shardCollection names its database in its argument: the right to change that one
// is asked for, whatever database the command is sent to.
func TestShardCollectionAsksForTheDatabaseThatItNames(t *testing.T) {
	t.Parallel()

	f, _, dir, p := guarded(t, nil)
	dir.add(t, "shaper", auth.Grant{Database: testDatabase, Actions: []auth.Action{auth.DDL}})
	run := func(user, ns string) error {
		return f.dial(p, as(user, user+user, "admin")).Database("admin").RunCommand(t.Context(), bson.D{
			{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "origin", Value: 1}}},
		}).Err()
	}
	require.Eventually(t, func() bool { return run("shaper", testDatabase+".legs") == nil }, waitFor, tick)
	requireCode(t, 13, run("shaper", "hotels.legs"))
	requireCode(t, 13, run("writer", testDatabase+".legs"))
}
