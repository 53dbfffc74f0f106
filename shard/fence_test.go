package shard_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/shard"
)

// fence takes a placement's grants of one kind away for attempt a, with the barrier.
func (b *bundle) fence(t *testing.T, f *shard.Fencer, p chunk.Placement, k shard.GrantKind, a chunk.AttemptID) shard.Cut {
	t.Helper()
	drop := b.set.DropWriteGrants
	if k == shard.Reads {
		drop = b.set.DropReadGrants
	}
	cut, err := drop(t.Context(), p.ID, a)
	require.NoError(t, err)
	owed, err := f.Barrier(t.Context(), p, k, cut)
	require.NoError(t, err)
	require.Empty(t, owed)
	return cut
}

// fencer opens the warm connections.
func (b *bundle) fencer(t *testing.T) *shard.Fencer {
	t.Helper()
	f, err := b.set.OpenFencer(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close(context.WithoutCancel(t.Context()))) })
	return f
}

// insert writes one document as an application would.
func insert(t *testing.T, c *mongo.Collection) error {
	t.Helper()
	_, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: bson.NewObjectID()}})
	return err
}

func testFenceRefusesWritesThenReadsOfOpenConnections(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	p, beside := b.placement(t, 42), b.placement(t, 43)
	docs := b.docs(t, p)
	for range 300 {
		require.NoError(t, insert(t, docs))
	}
	cursor, err := docs.Find(ctx, bson.D{})
	require.NoError(t, err)
	f := b.fencer(t)

	cut := b.fence(t, f, p, shard.Writes, 6)
	require.Equal(t, []string{"w_p42_a0"}, cut.Dropped)
	require.True(t, mongocode.IsUnauthorized(insert(t, docs)))
	n, err := docs.CountDocuments(ctx, bson.D{})
	require.NoError(t, err, "reads pass until the close")
	require.EqualValues(t, 300, n)
	require.NoError(t, insert(t, b.docs(t, beside)), "a fence is for one placement")

	require.Empty(t, b.fence(t, f, p, shard.Writes, 6).Dropped, "again, and nothing happens")

	b.fence(t, f, p, shard.Reads, 6)
	_, err = docs.CountDocuments(ctx, bson.D{})
	require.True(t, mongocode.IsUnauthorized(err), "%v", err)
	for cursor.Next(ctx) { //nolint:revive // what the first batch held
	}
	if err := cursor.Err(); err != nil { // a mongod cuts it; a server that checks only the first batch lets it end
		require.True(t, mongocode.IsUnauthorized(err) || mongocode.IsCursorNotFound(err), "%v", err)
	}

	require.NoError(t, b.set.CreateGrants(ctx, p, 6))
	require.NoError(t, b.set.GrantToData(ctx, p, 6))
	require.NoError(t, insert(t, docs))
	require.NoError(t, b.set.GrantToData(ctx, p, 6), "granting again is allowed at any time")
}

func testBarrierDoesNotPassWhileAGrantIsSeen(t *testing.T, b *bundle) {
	t.Parallel()
	p := b.placement(t, 142)
	f := b.fencer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := f.Barrier(ctx, p, shard.Writes, shard.Cut{})
	require.Error(t, err, "the grant is still there")
	b.fence(t, f, p, shard.Writes, 1)
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = f.Barrier(ctx, p, shard.Reads, shard.Cut{})
	require.Error(t, err, "the read grant is still there")
}

func testLateActorsAreHarmless(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	p := b.placement(t, 242)
	f := b.fencer(t)
	require.NoError(t, b.set.CreateGrants(ctx, p, 5))
	require.NoError(t, b.set.CreateGrants(ctx, p, 5), "creating twice is allowed")
	b.fence(t, f, p, shard.Writes, 6)
	b.fence(t, f, p, shard.Reads, 6)

	err := b.set.GrantToData(ctx, p, 5)
	require.True(t, failure.Is(err, failure.Lost), "a late open is void: %v", err)
	require.True(t, failure.HasCode(err, "grant.void"))
	held, err := b.set.HeldGrants(ctx, p.ID)
	require.NoError(t, err)
	require.Empty(t, held)

	require.NoError(t, b.set.CreateGrants(ctx, p, 6))
	require.NoError(t, b.set.GrantToData(ctx, p, 6))
	cut, err := b.set.DropWriteGrants(ctx, p.ID, 5)
	require.NoError(t, err)
	require.Empty(t, cut.Dropped, "a late fence is void")
	require.NoError(t, insert(t, b.docs(t, p)))

	require.NoError(t, b.set.WriteFence(ctx, p.ID, 7, 0, time.Now()))
	err = b.set.CreateGrants(ctx, p, 6)
	require.True(t, failure.Is(err, failure.Lost), "grants of an overtaken attempt are not made again: %v", err)
}

func TestFenceSurvivesACrashOfTheShard(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	p := b.placement(t, 42)
	require.NoError(t, insert(t, b.docs(t, p)))
	f := b.fencer(t)
	require.NoError(t, b.set.CreateGrants(ctx, p, 6))
	before, err := b.set.Identity(ctx)
	require.NoError(t, err)
	require.NoError(t, b.set.WriteFence(ctx, p.ID, 6, 0, time.Now().Add(time.Second)))
	b.fence(t, f, p, shard.Writes, 6)
	same, err := b.set.Identity(ctx)
	require.NoError(t, err)
	require.Equal(t, before, same)

	b.server.Kill(t)
	b.server.Restart(t)

	require.Eventually(t, func() bool {
		err := insert(t, b.docs(t, p))
		require.Error(t, err, "a write passed the fence after the restart")
		return mongocode.IsUnauthorized(err)
	}, soon, 5*time.Millisecond)
	after, err := b.set.Identity(ctx)
	require.NoError(t, err)
	require.NotEqual(t, before, after, "the restart shows")
	doc, ok, err := b.set.ReadFence(ctx, p.ID)
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 6, doc.Attempt)

	require.NoError(t, f.Warm(ctx))
	b.fence(t, f, p, shard.Writes, 6)
	require.NoError(t, b.set.GrantToData(ctx, p, 6), "going back")
	require.NoError(t, insert(t, b.docs(t, p)))
}

// upstream opens a session the way the proxy does: its id begins with the placement.
func upstream(t *testing.T, c *mongo.Client, p chunk.PlacementID) *mongo.Session {
	t.Helper()
	s, err := c.StartSession()
	require.NoError(t, err)
	id := s.ID() // the driver's own buffer
	_, data, ok := id.Lookup("id").BinaryOK()
	require.True(t, ok)
	binary.BigEndian.PutUint64(data, uint64(p))
	return s
}

// TestProbeSeesWhatLanded: a write that is still on its way when its user's grant goes
// shows between two probes.
func TestProbeSeesWhatLanded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, other := b.placement(t, 52), b.placement(t, 53)
	before, after, err := b.set.LandedBetween(t.Context(), p, func() error { return insert(t, b.docs(t, p)) })
	require.NoError(t, err)
	require.False(t, before)
	require.True(t, after)
	_, after, err = b.set.LandedBetween(t.Context(), p, func() error { return insert(t, b.docs(t, other)) })
	require.NoError(t, err)
	require.False(t, after, "another placement's")
}

func TestOpenTransactionCannotCommitAfterItWasAborted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	next := chunk.PlacementID(42)
	for name, drain := range map[string]func(*bundle, chunk.Placement, []byte) (shard.DrainResult, error){
		"by the proxies' word": func(b *bundle, p chunk.Placement, id []byte) (shard.DrainResult, error) {
			return b.set.Drain(t.Context(), shard.DrainRequest{Placement: p, Sessions: [][]byte{id}})
		},
		"all, because a proxy is silent": func(b *bundle, p chunk.Placement, _ []byte) (shard.DrainResult, error) {
			return b.set.Drain(t.Context(), shard.DrainRequest{Placement: p, Silent: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := b.placement(t, next)
			next++
			docs := b.docs(t, p)
			s := upstream(t, b.client(t, chunk.DataUser), p.ID)
			defer s.EndSession(t.Context())
			_, id, _ := s.ID().Lookup("id").BinaryOK()
			require.EqualValues(t, p.ID, binary.BigEndian.Uint64(id))
			require.NoError(t, s.StartTransaction())
			_, err := docs.InsertOne(mongo.NewSessionContext(t.Context(), s), bson.D{{Key: "_id", Value: "slipped"}})
			require.NoError(t, err)
			b.fence(t, b.fencer(t), p, shard.Writes, 6)

			res, err := drain(b, p, id)
			require.NoError(t, err)
			if b.shard.Capabilities.ListsOperations {
				require.Equal(t, shard.DrainListed, res.Way)
			} else {
				require.Contains(t, []string{shard.DrainSessions, shard.DrainQuiet}, res.Way)
			}
			err = s.CommitTransaction(t.Context())
			require.True(t, mongocode.IsNoSuchTransaction(err), "%v", err)
			require.True(t, mongocode.IsTransientTransaction(err), "the client may run it again: %v", err)
			require.ErrorIs(t, docs.FindOne(t.Context(), bson.D{{Key: "_id", Value: "slipped"}}).Err(), mongo.ErrNoDocuments)
		})
	}
}

func testAbortingNoSessionAbortsNothing(t *testing.T, b *bundle) {
	t.Parallel()
	p := b.placement(t, 342)
	s := upstream(t, b.client(t, chunk.DataUser), p.ID)
	defer s.EndSession(t.Context())
	require.NoError(t, s.StartTransaction())
	_, err := b.docs(t, p).InsertOne(mongo.NewSessionContext(t.Context(), s), bson.D{{Key: "_id", Value: "kept"}})
	require.NoError(t, err)
	require.NoError(t, b.set.AbortSessions(t.Context(), nil))
	other := make([]byte, 16)
	binary.BigEndian.PutUint64(other, 343)
	require.NoError(t, b.set.AbortSessions(t.Context(), [][]byte{other}))
	require.NoError(t, s.CommitTransaction(t.Context()))
}

func testRolesOfLoaderAndApplierEndWithTheirWork(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	p := b.placement(t, 443)
	for user, role := range map[string]struct{ ensure, drop func() error }{
		chunk.LoaderUser: {
			func() error { return b.set.EnsureLoaderRole(ctx, p, 7) },
			func() error { return b.set.DropLoaderRole(ctx, p.ID, 7) },
		},
		chunk.ApplierUser: {
			func() error { return b.set.EnsureApplierRole(ctx, p, 7, 0) },
			func() error { return b.set.DropApplierRole(ctx, p.ID, 7, 0) },
		},
	} {
		docs := b.client(t, user).Database(p.Database).Collection("docs")
		require.True(t, mongocode.IsUnauthorized(insert(t, docs)), user)
		require.NoError(t, role.ensure())
		require.NoError(t, role.ensure())
		require.NoError(t, insert(t, docs), user)
		require.NoError(t, insert(t, b.client(t, user).Database(chunk.SystemDatabase).Collection(chunk.ParkedCollection)), user)
		require.NoError(t, role.drop())
		require.NoError(t, role.drop())
		require.True(t, mongocode.IsUnauthorized(insert(t, docs)), user)
	}
}

func testFenceDocumentsFollowTheNewestAttempt(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	lost := func(err error) {
		t.Helper()
		require.True(t, failure.Is(err, failure.Lost), "%v", err)
	}
	_, ok, err := b.set.ReadFence(ctx, 742)
	require.NoError(t, err)
	require.False(t, ok)

	deadline := time.Now().Add(time.Second).UTC().Truncate(time.Millisecond)
	require.NoError(t, b.set.WriteFence(ctx, 742, 6, 0, deadline))
	require.NoError(t, b.set.WriteFence(ctx, 742, 6, 0, deadline))
	lost(b.set.WriteFence(ctx, 742, 5, 0, deadline))
	lost(b.set.WriteOpenRecord(ctx, 742, 5, 1))
	to := shard.Forward{Shard: "s2", Placement: 43, Database: "flights_0001_p43", Token: 9}
	require.NoError(t, b.set.SetForward(ctx, 742, 6, to))
	lost(b.set.WriteFence(ctx, 742, 6, 0, deadline)) // the attempt was published
	f, ok, err := b.set.ReadFence(ctx, 742)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, shard.Fence{Placement: 742, Attempt: 6, Deadline: deadline, State: shard.FenceUp, Forward: &to}, f)

	require.NoError(t, b.set.WriteOpenRecord(ctx, 742, 8, 11))
	lost(b.set.WriteFence(ctx, 742, 8, 0, deadline))
	lost(b.set.SetForward(ctx, 742, 8, to))
	lost(b.set.SetForward(ctx, 742, 6, to))
	f, _, err = b.set.ReadFence(ctx, 742)
	require.NoError(t, err)
	require.Equal(t, shard.Fence{Placement: 742, Attempt: 8, State: shard.FenceOpen, Opened: 8, Token: 11}, f)
	require.NoError(t, b.set.WriteFence(ctx, 742, 9, 0, deadline))
	f, _, err = b.set.ReadFence(ctx, 742)
	require.NoError(t, err)
	require.EqualValues(t, 8, f.Opened, "what was opened stays on record")
	require.NoError(t, b.set.WriteFence(ctx, 742, 10, 31, deadline))
	lost(b.set.WriteFence(ctx, 742, 10, 30, deadline)) // an older run of the coordinator
	require.NoError(t, b.set.RaiseLease(ctx, 32))
	require.NoError(t, b.set.RaiseLease(ctx, 32))
	lost(b.set.WriteFence(ctx, 742, 10, 31, deadline)) // somebody exclusive was there
	lost(b.set.WriteFence(ctx, 742, 11, 31, deadline))
	lost(b.set.RaiseLease(ctx, 31))
	require.NoError(t, b.set.WriteFence(ctx, 742, 11, 33, deadline))
	gone := chunk.Placement{ID: 742, Chunk: "flights/0001"}
	home := shard.Home{Chunk: "flights/0001", Forward: to}
	require.NoError(t, b.set.MarkGone(ctx, gone, []shard.Home{home}))
	require.NoError(t, b.set.MarkGone(ctx, gone, []shard.Home{home}))
	lost(b.set.WriteFence(ctx, 742, 99, 99, deadline)) // dropping has no way back
	lost(b.set.WriteOpenRecord(ctx, 742, 99, 12))
	lost(b.set.SetForward(ctx, 742, 99, shard.Forward{}))
	f, _, err = b.set.ReadFence(ctx, 742)
	require.NoError(t, err)
	require.Equal(t, shard.FenceGone, f.State)
	require.Equal(t, &to, f.Forward)
	require.Equal(t, []shard.Home{home}, f.Homes)
	halves := []shard.Home{
		{Chunk: "flights/0002", Forward: shard.Forward{Shard: "s2", Placement: 44, Database: "flights_0002_p44", Token: 14}},
		{Chunk: "flights/0003", Forward: shard.Forward{Shard: "s3", Placement: 45, Database: "flights_0003_p45", Token: 15}},
	}
	require.NoError(t, b.set.MarkGone(ctx, gone, halves))
	f, _, err = b.set.ReadFence(ctx, 742)
	require.NoError(t, err)
	require.Equal(t, halves, f.Homes)
	require.Nil(t, f.Forward, "the keys have several addresses")
	token, err := b.set.MaxToken(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 15, token)
	require.NoError(t, b.set.WriteOpenRecord(ctx, 744, 8, 17))
	token, err = b.set.MaxToken(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 17, token)
}

func testMarkersAreWrittenOnce(t *testing.T, b *bundle) {
	t.Parallel()
	ctx := t.Context()
	m := chunk.Marker{Kind: chunk.DrainedMarker, Migration: 77, Attempt: 6, Placement: 42, Round: 1, At: time.Now()}
	has, err := b.set.HasMarker(ctx, m.Key())
	require.NoError(t, err)
	require.False(t, has)
	first, err := b.set.WriteMarker(ctx, m)
	require.NoError(t, err)
	again, err := b.set.WriteMarker(ctx, m)
	require.NoError(t, err)
	require.False(t, again.Before(first))
	has, err = b.set.HasMarker(ctx, m.Key())
	require.NoError(t, err)
	require.True(t, has)

	checkpoints := b.client(t, chunk.AdminUser).Database(chunk.SystemDatabase).Collection(chunk.CheckpointsCollection)
	for i, marker := range []string{m.Key(), "older"} {
		_, err := checkpoints.InsertOne(ctx, bson.D{{Key: "_id", Value: fmt.Sprint(i)}, {Key: "migration", Value: 77}, {Key: "direction", Value: 0}, {Key: "partition", Value: i}, {Key: "marker", Value: marker}})
		require.NoError(t, err)
	}
	for partition, want := range []bool{true, false, false} { // the last lane has no checkpoint
		passed, err := b.set.PassedMarker(ctx, 77, 0, int32(partition), m.Key())
		require.NoError(t, err)
		require.Equal(t, want, passed, "partition %d", partition)
	}
	n, err := b.set.ParkedCount(ctx, 77)
	require.NoError(t, err)
	require.Zero(t, n)
}
