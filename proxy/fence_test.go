package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"drover/chunk"
	"drover/proxy/wire"
)

// fencedChunk announces a fence of the first chunk of a fake fleet, and gives what
// ends it.
func (f *fleet) fencedChunk(state chunk.AttemptState) (lift func()) {
	m := &move{f: f, id: firstChunk, from: f.routes[firstChunk].Placement}
	f.attempt++
	m.notice = chunk.Notice{
		Attempt: f.attempt, Migration: 1, Source: m.from.ID, Target: 99, Chunks: []chunk.ID{firstChunk},
		DeadlineUnixMS: time.Now().Add(time.Minute).UnixMilli(),
	}
	m.state(state)
	return func() { m.state(chunk.AttemptAborted) }
}

// A refusal behind a fence once made every driver take the only server for one that
// had lost its office: pools were cleared, and all clients dialled anew at once. No
// connection is lost by a fence, however long it lasts.
func TestFenceClearsNoPool(t *testing.T) {
	t.Parallel()

	const callers = 30
	f, s := newFakeFleet(t, 2)
	s.answers(func(bson.Raw) bson.D {
		return bson.D{{Key: "n", Value: 1}, {Key: "nModified", Value: 1}, {Key: "ok", Value: 1.0}}
	})
	p := f.start(Config{SwitchWait: 50 * time.Millisecond, LiveWait: 50 * time.Millisecond})
	key := f.keysOf(1)[firstChunk][0]
	var made, lost, down atomic.Int64
	pool := &event.PoolMonitor{Event: func(e *event.PoolEvent) {
		switch e.Type {
		case event.ConnectionCreated:
			made.Add(1)
		case event.ConnectionClosed, event.ConnectionPoolCleared:
			lost.Add(1)
		}
	}}
	monitor := &event.ServerMonitor{ServerDescriptionChanged: func(e *event.ServerDescriptionChangedEvent) {
		if e.PreviousDescription.Kind == "Mongos" && e.NewDescription.Kind != "Mongos" {
			down.Add(1)
		}
	}}
	c := f.dial(p, options.Client().SetPoolMonitor(pool).SetServerMonitor(monitor).SetMaxPoolSize(callers))
	coll := c.Database(testDatabase).Collection("legs")
	require.NoError(t, c.Ping(t.Context(), nil))

	lift := f.fencedChunk(chunk.Fencing)
	var wg sync.WaitGroup
	errs := make(chan error, callers)
	for range callers {
		wg.Go(func() {
			_, err := coll.UpdateOne(context.Background(), bson.D{{Key: "origin", Value: key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		var told mongo.ServerError
		require.ErrorAs(t, err, &told)
		require.True(t, told.HasErrorCode(int(codeExceededTimeLimit)), "%v", err)
		require.True(t, told.HasErrorLabel(labelRetryableWrite), "%v", err)
	}
	lift()
	_, err := coll.UpdateOne(t.Context(), bson.D{{Key: "origin", Value: key}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	require.NoError(t, err)
	require.Zero(t, lost.Load(), "connections were lost")
	require.Zero(t, down.Load(), "the driver gave the proxy up")
	require.LessOrEqual(t, made.Load(), int64(callers), "no connection was made in another one's place")
}

// counters makes a document at 0 for each of n writers: coll is where a writer finds
// it, through one client after the other, and id its filter.
func counters(t *testing.T, clients []*mongo.Client, key string, n int) (coll func(w int) *mongo.Collection, id func(w int) bson.D) {
	t.Helper()
	coll = func(w int) *mongo.Collection {
		return clients[w%len(clients)].Database(testDatabase).Collection("legs")
	}
	id = func(w int) bson.D {
		return bson.D{{Key: "_id", Value: fmt.Sprintf("w-%d", w)}, {Key: "origin", Value: key}}
	}
	for w := range n {
		_, err := coll(0).InsertOne(t.Context(), append(id(w), bson.E{Key: "n", Value: 0}))
		require.NoError(t, err)
	}
	return coll, id
}

// Requests that waited for one switch were once let go by the plan that they had made
// before, and waited again with nobody left to wake them. The chunk goes to and fro
// under writers, of whom some know only what shards tell: nobody meets an error, and
// each write is there once.
func TestToAndFro(t *testing.T) {
	t.Parallel()

	const writers, switches = 12, 20
	f, _ := newSimFleet(t, 2)
	key := f.keysOf(1)[firstChunk][0]
	clients := []*mongo.Client{f.dial(f.start(Config{ID: "hears"})), f.dial(f.start(Config{ID: "deaf", Deaf: true}))}
	coll, id := counters(t, clients, key, writers)
	var acked [writers]atomic.Int64
	errs := make(chan error, writers)
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
				if _, err := coll(w).UpdateOne(context.Background(), id(w), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
					errs <- fmt.Errorf("writer %d: %w", w, err)
					return
				}
				acked[w].Add(1)
			}
		})
	}
	for i := range switches {
		var before [writers]int64
		for w := range writers {
			before[w] = acked[w].Load()
		}
		require.Eventually(t, func() bool {
			for w := range writers {
				if acked[w].Load() < before[w]+2 {
					return len(errs) > 0
				}
			}
			return true
		}, waitFor, tick)
		m := f.newMove(firstChunk, []string{"shard-b", "shard-a"}[i%2])
		m.waitForAcks = 0 // a grant and a write are one moment here
		m.run()
	}
	close(ended)
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	serving := f.routes[firstChunk].Placement
	for w := range writers {
		var doc struct{ N int64 }
		require.NoError(t, f.roots[serving.Shard].Database(serving.Database).Collection("legs").FindOne(t.Context(), id(w)).Decode(&doc))
		require.Equal(t, acked[w].Load(), doc.N, "writer %d", w)
	}
}

// A fence was once called complete while a write that had passed the check was still
// on its way: the proxy's word is not clean before that has been answered.
func TestWriteUnderWayIsNotCalledClean(t *testing.T) {
	t.Parallel()

	arrived, let := make(chan struct{}), make(chan struct{})
	f, s := newFakeFleet(t, 2)
	release := sync.OnceFunc(func() { close(let) })
	defer release() // else the shard waits, and the test's failure with it
	s.answers(func(bson.Raw) bson.D {
		close(arrived)
		<-let
		return bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1.0}}
	})
	p := f.start(Config{})
	c := dialRaw(t, p)
	c.send(0, bson.D{{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}}}, {Key: "$db", Value: testDatabase}})
	<-arrived
	f.fencedChunk(chunk.Fencing)
	require.Equal(t, ackRunning, f.word().State, "it is said to run")
	release()
	_, got := c.read()
	require.Equal(t, int64(1), numberAt(got, "n"))
	require.Equal(t, ackClean, f.word().State)
}

// word is what a proxy says next.
func (f *fleet) word() chunk.Ack {
	f.t.Helper()
	select {
	case a := <-f.acked:
		return a
	case <-time.After(waitFor):
		require.FailNow(f.t, "no word")
		return chunk.Ack{}
	}
}

// A commit needs no privilege, and a shard may carry it out long after it was sent: until
// it has answered the proxy's word is not clean, and where the answer is lost it is unknown.
func TestCommitThatIsCarriedOutLateIsNotCalledClean(t *testing.T) {
	t.Parallel()

	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			t.Parallel()

			arrived, let := make(chan struct{}), make(chan struct{})
			f, s := newFakeFleet(t, 2)
			release := sync.OnceFunc(func() { close(let) })
			defer release() // else the shard waits, and the test's failure with it
			s.answers(func(cmd bson.Raw) bson.D {
				if _, err := cmd.LookupErr("commitTransaction"); err == nil {
					close(arrived)
					<-let
				}
				return bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1.0}}
			})
			c := dialRaw(t, f.start(Config{}))
			in := []bson.E{lsidOf(testSession), {Key: "txnNumber", Value: int64(3)}, {Key: "autocommit", Value: false}}
			got := c.run(append(bson.D{
				{Key: "insert", Value: "legs"}, {Key: "documents", Value: bson.A{bson.D{{Key: "origin", Value: f.keysOf(1)[firstChunk][0]}}}},
				{Key: "startTransaction", Value: true}, {Key: "$db", Value: testDatabase},
			}, in...))
			require.Equal(t, int64(1), numberAt(got, "n"), "%v", got)
			c.send(0, append(bson.D{{Key: "commitTransaction", Value: 1}, {Key: "$db", Value: "admin"}}, in...))
			<-arrived
			f.fencedChunk(chunk.Fencing)
			require.Equal(t, ackRunning, f.word().State, "it is said to run")
			want := ackClean
			if lost {
				want = ackUnknown
				s.cut()
			}
			release()
			c.read()
			require.Equal(t, want, f.word().State)
		})
	}
}

// A statement of a transaction goes with what makes it one, and so does every getMore
// of a cursor that was begun in it.
func TestCursorOfATransaction(t *testing.T) {
	t.Parallel()

	shards := &cursorShards{}
	f, _, _ := newScripted(t, 2, shards.answer)
	c := dialRaw(t, f.start(Config{}))
	in := []bson.E{lsidOf(testSession), {Key: "txnNumber", Value: int64(3)}, {Key: "autocommit", Value: false}, {Key: "$db", Value: testDatabase}}
	got := c.run(append(bson.D{{Key: "find", Value: "legs"}, {Key: "filter", Value: bson.D{{Key: "origin", Value: "x"}}}, {Key: "batchSize", Value: 1}, {Key: "startTransaction", Value: true}}, in...))
	id := got.Lookup("cursor", "id").Int64()
	require.NotZero(t, id, "%v", got)
	got = c.run(append(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "legs"}}, in...))
	require.Equal(t, int64(1), numberAt(got, "ok"), "%v", got)
	find, more := shards.named("find")[0].body, shards.named("getMore")[0].body
	for _, same := range []string{"lsid", "txnNumber", "autocommit", "$db"} {
		require.Equal(t, find.Lookup(same), more.Lookup(same), same)
	}
	require.True(t, find.Lookup("startTransaction").Boolean())
	_, err := more.LookupErr("startTransaction")
	require.Error(t, err, "it began once")
	got = c.run(bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "legs"}, lsidOf(testSession), {Key: "$db", Value: testDatabase}})
	require.Equal(t, int64(0), numberAt(got, "ok"), "it is gone, or not to be read from outside")
}

// A hello that may be answered by many replies, and that waits for news, is answered
// once and at once: the proxy names no topologyVersion, so that drivers poll.
func TestAwaitableHelloIsAnsweredOnce(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	c := dialRaw(t, f.start(Config{}))
	id := c.send(wire.ExhaustAllowed, bson.D{
		{Key: "hello", Value: 1}, {Key: "topologyVersion", Value: bson.D{{Key: "processId", Value: bson.NewObjectID()}, {Key: "counter", Value: int64(1)}}},
		{Key: "maxAwaitTimeMS", Value: int64(3_600_000)}, {Key: "$db", Value: "admin"},
	})
	to, got := c.read() // it wants no flag in the reply
	require.Equal(t, id, to)
	require.Zero(t, got.Lookup("topologyVersion").Type)
	require.Equal(t, int64(1), numberAt(c.run(bson.D{{Key: "ping", Value: 1}, {Key: "$db", Value: "admin"}}), "ok"), "what comes next is the next one's reply")
}

// A chunk that was switched to a shard on which the data plane has no user: clients are
// told that it can't be reached, and nothing goes there without a login.
func TestShardWithoutTheUser(t *testing.T) {
	t.Parallel()

	f, s := newFakeFleet(t, 1)
	known := f.shards["shard-a"]
	known.User, known.Password = chunk.DataUser, testPassword
	f.shards["shard-a"] = known
	s.answers(func(bson.Raw) bson.D {
		return bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: 18}, {Key: "codeName", Value: "AuthenticationFailed"}, {Key: "errmsg", Value: "Authentication failed."}}
	})
	c := f.dial(f.start(Config{ShardWait: 200 * time.Millisecond}))
	_, err := c.Database(testDatabase).Collection("byid").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}})
	var told mongo.ServerError
	require.True(t, errors.As(err, &told) && told.HasErrorCode(int(codeHostUnreachable)), "%v", err)
	require.NotContains(t, err.Error(), testPassword)
	for _, cmd := range s.seen() {
		name := "saslStart"
		if elements, err := cmd.Elements(); err == nil {
			name = elements[0].Key()
		}
		require.Equal(t, "saslStart", name, "nothing else was sent")
	}
}
