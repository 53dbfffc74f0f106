package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/shard/shardsim"
)

// newSimFleet is newFleet over simulated shards, which keep records of retryable
// writes as mongod does.
func newSimFleet(t testing.TB, chunks int) (*fleet, []*shardsim.Set) {
	t.Helper()
	f := newFleet(t, 0, 0)
	var sets []*shardsim.Set
	for _, name := range []string{"shard-a", "shard-b"} {
		s, err := shardsim.New(shardsim.Options{Name: name, Members: []shardsim.Member{{Votes: 1, Priority: 1}}, Auto: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		sets = append(sets, s)
		s.AddUser(chunk.DataUser, testPassword)
		root, err := mongo.Connect(options.Client().ApplyURI(s.URI()).SetAuth(options.Credential{Username: "root", Password: "root"}))
		require.NoError(t, err)
		t.Cleanup(func() { _ = root.Disconnect(context.Background()) })
		f.roots[name] = root
		f.shards[name] = Shard{Shard: chunk.Shard{
			Name: name, URI: "mongodb://" + s.Primary() + "/?directConnection=true", Capabilities: chunk.Capabilities{KeepsTransactionRecord: true},
		}, User: chunk.DataUser, Password: testPassword}
		f.must(root, "admin", bson.D{{Key: "createRole", Value: "records"}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{bson.D{
			{Key: "resource", Value: bson.D{{Key: "db", Value: "config"}, {Key: "collection", Value: "transactions"}}}, {Key: "actions", Value: bson.A{"find"}},
		}}}})
		f.must(root, "admin", bson.D{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: bson.A{"records"}}})
	}
	for i, r := range chunk.Hashed.Split(chunks) {
		route := f.route(i+1, r, []string{"shard-a", "shard-b"}[i%2])
		f.grant(route.Placement, 0, true, true)
	}
	return f, sets
}

// The old shard's own record ends the question whether a write has run that a
// driver repeats after a switch, at whichever proxy it asks, and whether or not that
// one was there before.
func TestRetriedWriteRunsOnceOverSwitch(t *testing.T) {
	t.Parallel()

	f, _ := newSimFleet(t, 2)
	key := f.keysOf(1)[firstChunk][0]
	one := f.start(Config{ID: "one"})
	_, err := f.dial(one).Database(testDatabase).Collection("legs").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}, {Key: "n", Value: 0}})
	require.NoError(t, err)
	at := dialRaw(t, one)
	first := at.run(increment(key, testSession, 5))
	require.Equal(t, int64(1), numberAt(first, "nModified"))
	require.Equal(t, int64(1), numberAt(at.run(increment(key, "another-session-", 1)), "nModified"))
	f.newMove(firstChunk, "shard-b").run()
	require.Equal(t, first, dialRaw(t, one).run(increment(key, testSession, 5)), "who has seen it answers as before")

	two := f.start(Config{ID: "two"}) // it did not run before the switch
	c := dialRaw(t, two)
	require.Equal(t, codeIncompleteHistory, codeOf(c.run(increment(key, testSession, 5))), "the record says that it ran: not again, and no driver repeats it")
	require.Equal(t, int32(2), counter(t, c, key))
	require.Equal(t, int64(1), numberAt(c.run(increment(key, testSession, 6)), "nModified"), "a newer one can't have run there")
	require.Equal(t, int64(1), numberAt(c.run(increment(key, testSession, 6)), "nModified"), "and is known where it ran")
	require.Equal(t, int64(1), numberAt(c.run(increment(key, "a-third-session-", 9)), "nModified"), "of a session that never wrote there")
	require.Equal(t, int32(4), counter(t, c, key))

	// Back on the first shard, under another placement: both former ones are asked.
	f.newMove(firstChunk, "shard-a").run()
	three := dialRaw(t, f.start(Config{ID: "three"}))
	for _, old := range []bson.D{increment(key, testSession, 6), increment(key, testSession, 5), increment(key, "another-session-", 1), increment(key, "a-third-session-", 9)} {
		require.Equal(t, codeIncompleteHistory, codeOf(three.run(old)))
	}
	require.Equal(t, int32(4), counter(t, three, key))
}

// Replies are lost all the time, the driver repeats, and the chunk goes to and fro:
// what was acknowledged is there once, and beyond it only what an application was told
// it does not know of.
func TestLostRepliesOverSwitches(t *testing.T) {
	t.Parallel()

	const writers, switches = 6, 6
	f, sets := newSimFleet(t, 2)
	var lose atomic.Bool
	var updates, lost atomic.Int64
	for _, s := range sets {
		s.Inject(shardsim.Fault{Stage: shardsim.Done, Drop: true, Match: func(c shardsim.Call) bool {
			hit := c.Command == "update" && lose.Load() && updates.Add(1)%7 == 0
			if hit {
				lost.Add(1)
			}
			return hit
		}})
	}
	key := f.keysOf(1)[firstChunk][0]
	clients := []*mongo.Client{f.dial(f.start(Config{ID: "one"})), f.dial(f.start(Config{ID: "two", Deaf: true}))}
	coll, id := counters(t, clients, key, writers)
	var acked, unknown [writers]atomic.Int64
	var odd sync.Map
	ended := make(chan struct{})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				_, err := coll(w).UpdateOne(context.Background(), id(w), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
				var told mongo.ServerError
				switch {
				case err == nil:
					acked[w].Add(1)
				case errors.As(err, &told):
					unknown[w].Add(1) // not known, or not possible: the application asks
				default:
					odd.Store(err.Error(), w)
				}
			}
		})
	}
	shards := []string{"shard-b", "shard-a"}
	for i := range switches {
		before := acked[0].Load()
		lose.Store(true)
		require.Eventually(t, func() bool { return acked[0].Load() >= before+20 }, waitFor, tick)
		// The simulated shards look at a grant and write at one moment: nothing is
		// under way when it is gone.
		m := f.newMove(firstChunk, shards[i%2])
		m.waitForAcks = 0
		m.run()
	}
	close(ended)
	wg.Wait()
	odd.Range(func(text, _ any) bool { t.Errorf("no error of a server: %v", text); return true })
	require.Positive(t, lost.Load())
	serving := f.routes[firstChunk].Placement
	for w := range writers {
		var doc struct{ N int64 }
		require.NoError(t, f.roots[serving.Shard].Database(serving.Database).Collection("legs").FindOne(t.Context(), id(w)).Decode(&doc))
		require.GreaterOrEqual(t, doc.N, acked[w].Load(), "writer %d lost a write", w)
		require.LessOrEqual(t, doc.N, acked[w].Load()+unknown[w].Load(), "writer %d wrote twice", w)
	}
}
