package proxy

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/proxy/wire"
)

// increment is a retryable write by hand.
func increment(key string, session string, number int64) bson.D {
	return bson.D{
		{Key: "update", Value: "legs"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}}},
			{Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}},
		}}},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte(session)}}}},
		{Key: "txnNumber", Value: number}, {Key: "$db", Value: testDatabase},
	}
}

// counter reads the counted document through a proxy.
func counter(t *testing.T, c *rawClient, key string) int32 {
	t.Helper()
	got := c.run(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}}}, {Key: "$db", Value: testDatabase}})
	return int32(numberAt(got, "cursor", "firstBatch", "0", "n"))
}

const testSession = "retry-over-fence"

// The retry of a write that ran on the old placement once ran again on the new
// one: there is no record of it there. Applied on A, reply lost on the way to
// the client, switch, the same command again: one and the same answer.
func TestRetryOverSwitch(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	key := f.keysOf(1)[firstChunk][0]
	_, err := f.dial(p).Database(testDatabase).Collection("legs").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}, {Key: "n", Value: 0}})
	require.NoError(t, err)
	first := dialRaw(t, p).run(increment(key, testSession, 5))
	f.newMove(firstChunk, "shard-b").run()
	c := dialRaw(t, p)
	again := c.run(increment(key, testSession, 5))
	require.Equal(t, first, again)
	require.Equal(t, int32(1), counter(t, c, key))
	require.Equal(t, int32(1), c.run(increment(key, testSession, 6)).Lookup("nModified").Int32())
	require.Equal(t, int32(2), counter(t, c, key))
}

// A reply that was lost between shard and proxy: the driver's retry goes to the
// same placement and is not done again. After a switch nobody can say.
func TestLostReply(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	r := f.relayTo("shard-a")
	p := f.start(Config{})
	key := f.keysOf(1)[firstChunk][0]
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}, {Key: "n", Value: 0}})
	require.NoError(t, err)

	r.lose.Store(1)
	res, err := coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	require.NoError(t, err, "the driver tries again by itself")
	require.Equal(t, int64(1), res.ModifiedCount)
	c := dialRaw(t, p)
	require.Equal(t, int32(1), counter(t, c, key))

	r.lose.Store(1)
	got := c.run(increment(key, testSession, 7))
	require.Equal(t, int32(codeHostUnreachable), got.Lookup("code").Int32())
	require.Equal(t, labelRetryableWrite, got.Lookup("errorLabels", "0").StringValue())
	require.Zero(t, got.Lookup("errorLabels", "1").Type, "it may have run")

	m := f.newMove(firstChunk, "shard-b")
	m.waitForAcks = 0
	m.fence()
	unknown := <-f.acked
	require.Equal(t, chunk.Ack{Proxy: "proxy-1", Run: p.run, Attempt: m.attempt, Kind: "writes", State: ackUnknown}, unknown)
	m.shut()
	m.publish()
	m.open()
	got = c.run(increment(key, testSession, 7))
	require.Equal(t, int32(codeIncompleteHistory), got.Lookup("code").Int32(), "%v", got)
	require.Zero(t, got.Lookup("errorLabels").Type, "a driver must not try again")
	require.Equal(t, int32(2), counter(t, c, key), "it ran, once")

	// A read whose reply is lost is simply done again.
	r.lose.Store(1)
	require.ErrorIs(t, coll.FindOne(t.Context(), bson.D{{Key: "origin", Value: f.keysOf(1)[chunk.NewID(testDatabase, 2)][0]}, {Key: "_id", Value: "x"}}).Err(), mongo.ErrNoDocuments)
}

// Where shards keep records of retryable writes, the old one's record decides
// about a retry: also about one whose first try another proxy has sent.
func TestRecordOfOldShard(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	for name, s := range f.shards {
		s.Capabilities.KeepsTransactionRecord = true
		f.shards[name] = s
		f.must(f.roots[name], "admin", bson.D{{Key: "createRole", Value: "records"}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{bson.D{
			{Key: "resource", Value: bson.D{{Key: "db", Value: "config"}, {Key: "collection", Value: "transactions"}}}, {Key: "actions", Value: bson.A{"find"}},
		}}}})
		f.must(f.roots[name], "admin", bson.D{{Key: "grantRolesToUser", Value: chunk.DataUser}, {Key: "roles", Value: bson.A{"records"}}})
	}
	p := f.start(Config{})
	key := f.keysOf(1)[firstChunk][0]
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: key}, {Key: "n", Value: 0}})
	require.NoError(t, err)
	from := f.routes[firstChunk].Placement
	f.newMove(firstChunk, "shard-b").run()
	// The session has not been seen here, but its write 5 ran on the old shard.
	s := p.sessions.of([]byte(testSession), "", time.Now())
	id := s.upstreamSession(from.ID)
	_, err = f.roots[from.Shard].Database("config").Collection("transactions").InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id[:]}}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}}}, {Key: "txnNum", Value: int64(5)}})
	require.NoError(t, err)
	c := dialRaw(t, p)
	got := c.run(increment(key, testSession, 5))
	require.Equal(t, int32(codeIncompleteHistory), got.Lookup("code").Int32(), "%v", got)
	require.Equal(t, int32(0), counter(t, c, key))
	require.Equal(t, int32(1), c.run(increment(key, testSession, 6)).Lookup("nModified").Int32())
	require.Equal(t, int32(1), c.run(increment(key, "another-session-", 1)).Lookup("nModified").Int32())
	require.Equal(t, int32(2), counter(t, c, key))
}

// A held request whose client has left is never sent.
func TestHeldAndLeft(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := f.start(Config{})
	key := f.keysOf(1)[firstChunk][0]
	insert := func(id string, flags uint32, c *rawClient) int32 {
		cmd := bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "origin", Value: key}}}}}
		if flags != 0 {
			cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 0}}})
		}
		return c.send(flags, append(cmd, bson.E{Key: "$db", Value: testDatabase}))
	}
	waiting := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool {
			e := p.routing.entry(firstChunk)
			e.room.mu.Lock()
			defer e.room.mu.Unlock()
			return e.room.waiting == n
		}, waitFor, tick)
	}
	m := f.newMove(firstChunk, "shard-b")
	m.fence()
	leaves, stays, quiet := dialRaw(t, p), dialRaw(t, p), dialRaw(t, p)
	insert("leaves", 0, leaves)
	stayed := insert("stays", 0, stays)
	insert("quiet-1", wire.MoreToCome, quiet)
	insert("quiet-2", wire.MoreToCome, quiet)
	ping := quiet.send(0, bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}})
	waiting(3)
	require.NoError(t, leaves.nc.Close())
	waiting(2)
	m.shut()
	m.publish()
	m.open()
	to, got := stays.read()
	require.Equal(t, stayed, to)
	require.Equal(t, int32(1), got.Lookup("n").Int32(), "%v", got)
	to, _ = quiet.read()
	require.Equal(t, ping, to, "unacknowledged writes wait too, and no reply is out of turn")
	require.Equal(t, int64(3), f.physical(m.to, "legs"))
	require.Zero(t, f.physical(m.from, "legs"))
}

// Another proxy may be asked to commit what it has not seen: the recovery token
// names the placement. After the fence it must not commit there.
func TestRecovery(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	one, two := f.start(Config{ID: "one"}), f.start(Config{ID: "two", Deaf: true})
	key := f.keysOf(1)[firstChunk][0]
	lsid := bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte(testSession)}}}}
	begin := func(n int64) bson.RawValue {
		got := dialRaw(t, one).run(bson.D{
			{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: n}, {Key: "origin", Value: key}}}},
			lsid, {Key: "txnNumber", Value: n}, {Key: "startTransaction", Value: true}, {Key: "autocommit", Value: false}, {Key: "$db", Value: testDatabase},
		})
		require.InDelta(t, 1, got.Lookup("ok").Double(), 0, "%v", got)
		return got.Lookup("recoveryToken")
	}
	commit := func(p *Proxy, n int64, token bson.RawValue) bson.Raw {
		return dialRaw(t, p).run(bson.D{
			{Key: "commitTransaction", Value: 1}, lsid, {Key: "txnNumber", Value: n}, {Key: "autocommit", Value: false},
			{Key: "recoveryToken", Value: token}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}, {Key: "$db", Value: "admin"},
		})
	}
	token := begin(1)
	require.InDelta(t, 1, commit(two, 1, token).Lookup("ok").Double(), 0)
	require.InDelta(t, 1, commit(two, 1, token).Lookup("ok").Double(), 0)
	require.Equal(t, int64(1), f.physical(f.routes[firstChunk].Placement, "legs"))

	token = begin(2)
	m := f.newMove(firstChunk, "shard-b")
	m.waitForAcks = 0
	m.silent = true // the first proxy is as good as dead
	m.fence()
	got := commit(two, 2, token)
	require.Equal(t, int32(codeNoSuchTransaction), got.Lookup("code").Int32(), "%v", got)
	require.Equal(t, labelTransient, got.Lookup("errorLabels", "0").StringValue())
	require.Equal(t, int64(1), f.physical(m.from, "legs"))
	got = dialRaw(t, two).run(bson.D{{Key: "commitTransaction", Value: 1}, lsid, {Key: "txnNumber", Value: int64(3)}, {Key: "autocommit", Value: false}, {Key: "$db", Value: "admin"}})
	require.Equal(t, int32(codeNoSuchTransaction), got.Lookup("code").Int32())
	m.back()
}

// A shard that changes its primary refuses writes for a while. No client may
// hear of it in a way that makes a driver give up the proxy.
func TestLostPrimary(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 1, 1)
	p := f.start(Config{})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	doc := bson.D{{Key: "_id", Value: "counter"}, {Key: "origin", Value: "x"}}
	_, err := coll.InsertOne(t.Context(), doc)
	require.NoError(t, err)
	f.must(f.roots["shard-a"], "admin", bson.D{{Key: "replSetStepDown", Value: 1}, {Key: "force", Value: true}})
	res, err := coll.UpdateOne(t.Context(), doc, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	require.NoError(t, err)
	require.Equal(t, int64(1), res.ModifiedCount)
}

// A shard that dies and comes back with its data.
func TestShardDies(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 0, 0)
	s := f.addShard("shard-a")
	f.databases[testDatabase] = chunk.Database{Name: testDatabase, KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "legs", ShardKey: "origin"}}}
	pl := f.provision(firstChunk, "shard-a")
	f.grant(pl, 0, true, true)
	f.routes[firstChunk] = chunk.Route{Chunk: chunk.Chunk{ID: firstChunk, Database: testDatabase, Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}}, Placement: pl, Token: 1}
	p := f.start(Config{ShardWait: 300 * time.Millisecond})
	coll := f.dial(p).Database(testDatabase).Collection("legs")
	_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "origin", Value: "x"}})
	require.NoError(t, err)
	s.Kill(t)
	_, err = coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 2}, {Key: "origin", Value: "x"}})
	var se mongo.ServerError
	require.ErrorAs(t, err, &se)
	require.True(t, se.HasErrorCode(int(codeHostUnreachable)), "%v", err)
	require.NotContains(t, err.Error(), "127.0.0.1:", "no address of a member")
	s.Restart(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	require.Eventually(t, func() bool {
		_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: 3}, {Key: "origin", Value: "x"}})
		return err == nil
	}, waitFor, tick)
	n, err := coll.CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
}

// At the end a proxy takes nobody new and finishes what it has begun.
func TestShutdownFinishesRequests(t *testing.T) {
	t.Parallel()

	f := newFleet(t, 2, 2)
	p := New(Config{ID: "proxy-1", Listen: "127.0.0.1:0"}, f.ports())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	<-p.Ready()
	m := f.newMove(firstChunk, "shard-b")
	m.fence()
	idle, busy := dialRaw(t, p), dialRaw(t, p)
	require.InDelta(t, 1, idle.run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}).Lookup("ok").Double(), 0)
	busy.send(0, bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}}}, {Key: "$db", Value: testDatabase}})
	require.Eventually(t, func() bool {
		e := p.routing.entry(firstChunk)
		e.room.mu.Lock()
		defer e.room.mu.Unlock()
		return e.room.waiting == 1
	}, waitFor, tick)
	cancel()
	idle.ended()
	m.shut()
	m.publish()
	m.open()
	_, got := busy.read()
	require.Equal(t, int32(1), got.Lookup("n").Int32(), "%v", got)
	busy.ended()
	require.NoError(t, <-done)
	require.Equal(t, int64(1), f.physical(m.to, "legs"))
}
