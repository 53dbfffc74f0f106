package shard_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/shard"
	"drover/shard/shardsim"
)

// simulated is a set of three members with the switch's own code working on it:
// placement flights is open under attempt 0.
type simulated struct {
	sim *shardsim.Set
	set *shard.Set
	c   *shard.Clients
}

// simulate starts it.
func simulate(t *testing.T) *simulated {
	t.Helper()

	sim, err := shardsim.New(shardsim.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close()) })
	everything := bson.D{{Key: "resource", Value: bson.D{{Key: "anyResource", Value: true}}}, {Key: "actions", Value: bson.A{"anyAction"}}}
	sim.AddUser(chunk.AdminUser, shard.Password(secret, "s1", chunk.AdminUser), everything)
	sim.AddUser(chunk.DataUser, shard.Password(secret, "s1", chunk.DataUser))
	clients := shard.NewClients(secret, shard.Options{SelectionTimeout: soon})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = clients.Close(ctx) // members that are down take no goodbye
	})
	set, err := clients.Set(chunk.Shard{Name: "s1", URI: sim.URI(), Capabilities: chunk.Capabilities{
		ListsOperations: true, KillsSessionsByUser: true, InvalidatesUserCache: true, KeepsTransactionRecord: true, Members: 3, SetName: "rs",
	}})
	require.NoError(t, err)
	require.NoError(t, set.CreateGrants(t.Context(), flights, 0))
	require.NoError(t, set.GrantToData(t.Context(), flights, 0))
	return &simulated{sim: sim, set: set, c: clients}
}

// docs is a collection of the placement, as the data-plane user sees it.
func (s *simulated) docs(t *testing.T) *mongo.Collection {
	t.Helper()

	c, err := s.set.Client(chunk.DataUser)
	require.NoError(t, err)
	return c.Database(flights.Database).Collection("docs")
}

// fencer opens the warm connections.
func (s *simulated) fencer(t *testing.T) *shard.Fencer {
	t.Helper()

	f, err := s.set.OpenFencer(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = f.Close(ctx)
	})
	return f
}

// An acknowledged drop alone is no fence: a secondary that keeps old privileges
// cached lets writes pass once it is elected. After the barrier none does.
func TestBarrierAgainstStalePrivilegesOnASimulatedSet(t *testing.T) {
	t.Parallel()

	for _, barrier := range []bool{false, true} {
		s := simulate(t)
		f, docs := s.fencer(t), s.docs(t)
		require.NoError(t, insert(t, docs))
		stale := s.sim.Hosts()[1]
		s.sim.StaleCaches(stale)
		cut, err := s.set.DropWriteGrants(t.Context(), flights.ID, 1)
		require.NoError(t, err)
		require.Equal(t, []string{"w_p42_a0"}, cut.Dropped)
		require.True(t, mongocode.IsUnauthorized(insert(t, docs)), "the primary refuses at once")
		if barrier {
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			owed, err := f.Barrier(ctx, flights, shard.Writes, cut)
			cancel()
			require.NoError(t, err)
			require.Empty(t, owed)
			for _, h := range s.sim.Hosts() {
				require.Positive(t, s.sim.Emptied(h), "every member that holds data")
			}
		}
		require.True(t, s.sim.StepUp(stale))
		require.Eventually(t, func() bool {
			err := insert(t, docs)
			if !barrier {
				return err == nil
			}
			require.Error(t, err, "a write passed the fence")
			return mongocode.IsUnauthorized(err)
		}, soon, 5*time.Millisecond, "barrier: %t", barrier)
	}
}

// The attempt remembers who reigned when it fenced. An election in between shows
// in the identity, whoever wins, the same process too; the fence itself is data
// and holds on the new primary.
func TestAnElectionIsWantedWhileTheShardIsFenced(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	f, docs := s.fencer(t), s.docs(t)
	require.NoError(t, insert(t, docs))
	require.NoError(t, s.set.WriteFence(t.Context(), flights.ID, 1, 1, time.Now().Add(time.Second)))
	before, err := s.set.Identity(t.Context())
	require.NoError(t, err)
	cut, err := s.set.DropWriteGrants(t.Context(), flights.ID, 1)
	require.NoError(t, err)
	_, err = f.Barrier(t.Context(), flights, shard.Writes, cut)
	require.NoError(t, err)
	same, err := s.set.Identity(t.Context())
	require.NoError(t, err)
	require.Equal(t, before, same, "nobody else reigned")

	old := s.sim.Primary()
	require.True(t, s.sim.StepUp(s.sim.Hosts()[2]))
	require.True(t, s.sim.StepUp(old), "and the old one is back in office")
	var after shard.Identity
	require.Eventually(t, func() bool {
		after, err = s.set.Identity(t.Context())
		return err == nil
	}, soon, 5*time.Millisecond)
	require.Equal(t, before.Host, after.Host)
	require.Equal(t, before.Process, after.Process)
	require.NotEqual(t, before, after, "the term tells: back to the fence")

	again, err := s.set.DropWriteGrants(t.Context(), flights.ID, 1)
	require.NoError(t, err)
	require.Empty(t, again.Dropped, "the fence is on the new primary already")
	owed, err := f.Barrier(t.Context(), flights, shard.Writes, again)
	require.NoError(t, err)
	require.Empty(t, owed)
	require.True(t, mongocode.IsUnauthorized(insert(t, docs)))
	doc, found, err := s.set.ReadFence(t.Context(), flights.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.EqualValues(t, 1, doc.Attempt)
	require.NoError(t, s.set.CreateGrants(t.Context(), flights, 1))
	require.NoError(t, s.set.GrantToData(t.Context(), flights, 1))
	require.NoError(t, insert(t, docs), "the way back")
}

// A grant is looked at after it was made: one whose role a newer attempt has dropped
// meanwhile is none.
func TestGrantMissesARoleThatWasDroppedMeanwhile(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	require.NoError(t, s.set.CreateGrants(t.Context(), flights, 1))
	var cut shard.Cut
	var err error
	s.sim.Inject(shardsim.Fault{
		Stage: shardsim.Done, Match: shardsim.Command("grantRolesToUser", ""), Times: 1,
		Do: func() { cut, err = s.set.DropWriteGrants(t.Context(), flights.ID, 2) },
	})
	granted := s.set.GrantToData(t.Context(), flights, 1)
	require.NoError(t, err)
	require.Contains(t, cut.Dropped, chunk.WriteGrant(flights.ID, 1))
	require.True(t, failure.HasCode(granted, "grant.void"), "%v", granted)
}

// A restart of the primary that wins again shows by its process, a member that is
// down is owed the barrier, and pays when it is back.
func TestMemberThatIsDownIsOwedOnASimulatedSet(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	f := s.fencer(t)
	dead := s.sim.Hosts()[2]
	s.sim.StaleCaches(dead)
	s.sim.Kill(dead)
	s.sim.Advance(time.Minute)
	cut, err := s.set.DropWriteGrants(t.Context(), flights.ID, 1)
	require.NoError(t, err)
	owed, err := f.Barrier(t.Context(), flights, shard.Writes, cut)
	require.NoError(t, err)
	require.Equal(t, []shard.Owed{{Host: dead, Reason: "down"}}, owed)
	require.Error(t, pay(t, f, owed[0]))
	s.sim.Start(dead)
	require.Eventually(t, func() bool { return f.Pay(t.Context(), dead, flights, shard.Writes, cut) == nil }, soon, 5*time.Millisecond)
	require.Positive(t, s.sim.Emptied(dead))
}

// drainBeside drains a simulated set beside something that is held, which is killed at
// once, or waited for, and let go once the drain has seen it three times.
func (s *simulated) drainBeside(t testing.TB, held *shardsim.Fault, killed bool) <-chan shard.DrainResult {
	t.Helper()
	drained := make(chan shard.DrainResult, 1)
	budget := time.Minute
	if killed {
		budget = time.Millisecond
	}
	go func() {
		res, err := s.set.Drain(t.Context(), shard.DrainRequest{Placement: flights, Budget: budget})
		if err == nil {
			drained <- res
		}
		close(drained)
	}()
	if !killed {
		looked := s.sim.Inject(shardsim.Fault{Stage: shardsim.Done, Match: shardsim.Command("aggregate", "")})
		require.NoError(t, looked.Await(t.Context(), 3))
		require.Empty(t, drained, "it is still under way")
		held.Release()
	}
	return drained
}

// What passed the check before the fence is found by its identity and waited for,
// or killed; nothing of it is written after the drain.
func TestDrainWaitsForOperationsByIdentityOnASimulatedSet(t *testing.T) {
	t.Parallel()

	for _, killed := range []bool{false, true} {
		s := simulate(t)
		docs := s.docs(t)
		require.NoError(t, insert(t, docs))
		held := s.sim.Inject(shardsim.Fault{Stage: shardsim.Checked, Times: 1, Hold: true, Match: func(c shardsim.Call) bool {
			return c.Command == "insert" && c.User == chunk.DataUser
		}})
		wrote := make(chan error, 1)
		go func() {
			_, err := docs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "late"}})
			wrote <- err
		}()
		require.NoError(t, held.Await(t.Context(), 1))
		_, err := s.set.DropWriteGrants(t.Context(), flights.ID, 1)
		require.NoError(t, err)
		drained := s.drainBeside(t, held, killed)
		require.Equal(t, !killed, <-wrote == nil)
		res := <-drained
		want := shard.DrainResult{Way: shard.DrainListed, Waited: 1}
		if killed {
			want.Killed = 1
		}
		require.Equal(t, want, res)
		require.True(t, mongocode.IsUnauthorized(insert(t, docs)))
	}
}

// A commit needs no privilege, and the server may carry it out long after the fence: the
// drain waits for it, or it is killed and nothing of it is there.
func TestDrainWaitsForACommitThatIsCarriedOutLate(t *testing.T) {
	t.Parallel()

	for _, killed := range []bool{false, true} {
		s := simulate(t)
		docs := s.docs(t)
		client, err := s.set.Client(chunk.DataUser)
		require.NoError(t, err)
		x := upstream(t, client, flights.ID)
		defer x.EndSession(t.Context())
		require.NoError(t, x.StartTransaction())
		_, err = docs.InsertOne(mongo.NewSessionContext(t.Context(), x), bson.D{{Key: "_id", Value: "late"}})
		require.NoError(t, err)
		held := s.sim.Inject(shardsim.Fault{Stage: shardsim.Checked, Times: 1, Hold: true, Match: shardsim.Command("commitTransaction", "")})
		committed := make(chan error, 1)
		go func() { committed <- x.CommitTransaction(context.WithoutCancel(t.Context())) }()
		require.NoError(t, held.Await(t.Context(), 1))
		_, err = s.set.DropWriteGrants(t.Context(), flights.ID, 1)
		require.NoError(t, err)
		drained := s.drainBeside(t, held, killed)
		err = <-committed
		res, ok := <-drained
		require.True(t, ok, "the drain failed")
		require.Equal(t, 1, res.Waited)
		require.Zero(t, s.sim.Transactions(s.sim.Primary()))
		there := len(s.sim.Documents(s.sim.Primary(), flights.Database+".docs"))
		if killed {
			require.Error(t, err)
			require.Positive(t, res.Killed+res.Aborted)
			require.Zero(t, there, "it is there all the same")
		} else {
			require.NoError(t, err)
			require.Equal(t, 1, there, "what was acknowledged is there before the drain is over")
		}
	}
}

// Exactly the placement's open transactions are aborted: commit needs no privilege.
func TestDrainAbortsByExactSessionOnASimulatedSet(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	docs := s.docs(t)
	client, err := s.set.Client(chunk.DataUser)
	require.NoError(t, err)
	var sessions []*mongo.Session
	for _, p := range []chunk.PlacementID{42, 43} {
		x := upstream(t, client, p)
		defer x.EndSession(t.Context())
		require.NoError(t, x.StartTransaction())
		_, err := docs.InsertOne(mongo.NewSessionContext(t.Context(), x), bson.D{{Key: "_id", Value: int64(p)}})
		require.NoError(t, err)
		sessions = append(sessions, x)
	}
	_, err = s.set.DropWriteGrants(t.Context(), flights.ID, 1)
	require.NoError(t, err)
	res, err := s.set.Drain(t.Context(), shard.DrainRequest{Placement: flights, Budget: time.Second})
	require.NoError(t, err)
	require.Equal(t, 1, res.Aborted)
	require.Equal(t, 1, s.sim.Transactions(s.sim.Primary()))
	err = sessions[0].CommitTransaction(t.Context())
	require.True(t, mongocode.IsNoSuchTransaction(err), "%v", err)
	require.NoError(t, sessions[1].CommitTransaction(t.Context()), "another placement's goes on, and needs no privilege to commit")
}

// TestRolesOfWorkAreChangedOneAfterTheOther: a dev shard lost one of two grants that one user was given at
// the same time, and its import or lanes were refused.
func TestRolesOfWorkAreChangedOneAfterTheOther(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	s.sim.AddUser(chunk.LoaderUser, "x")
	var now, most atomic.Int64
	edits := func(c shardsim.Call) bool { return c.Command == "grantRolesToUser" || c.Command == "dropRole" }
	s.sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: edits, Do: func() {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		runtime.Gosched()
	}})
	s.sim.Inject(shardsim.Fault{Stage: shardsim.Done, Match: edits, Do: func() { now.Add(-1) }})
	g, ctx := errgroup.WithContext(t.Context())
	for i := range chunk.MigrationID(16) {
		g.Go(func() error {
			if err := s.set.EnsureLoaderRole(ctx, flights, i); err != nil {
				return err
			}
			return s.set.DropLoaderRole(ctx, flights.ID, i)
		})
	}
	require.NoError(t, g.Wait())
	require.EqualValues(t, 1, most.Load())
}
