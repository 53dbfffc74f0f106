package shard_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/shard"
)

// flights is the placement of the fake set.
var flights = chunk.Placement{ID: 42, Chunk: "flights/0042", Shard: "s1", Database: "flights_0042_p42"}

// dropped is what the drop of its write grant gave.
var dropped = shard.Cut{At: bson.Timestamp{T: 10}}

// openFake opens a fencer on a fake set.
func openFake(t *testing.T, set *shard.Set) *shard.Fencer {
	t.Helper()
	f, err := set.OpenFencer(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close(context.WithoutCancel(t.Context()))) })
	return f
}

// TestBarrierReachesEveryMember: a secondary that has applied the drop but kept the
// old grants cached would come alive with them after an election.
func TestBarrierReachesEveryMember(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 3)
	f := openFake(t, set)
	fake.with(func(nodes []*fakeNode) {
		nodes[1].granted, nodes[1].stale = true, true
		nodes[2].granted, nodes[2].applied = true, bson.Timestamp{T: 9}
	})
	late, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := f.Barrier(late, flights, shard.Writes, dropped)
	require.Error(t, err, "a member has not applied the drop")

	fake.with(func(nodes []*fakeNode) { nodes[2].applied = bson.Timestamp{T: 10} })
	early, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	owed, err := f.Barrier(early, flights, shard.Writes, dropped)
	require.NoError(t, err)
	require.Empty(t, owed)
	fake.with(func(nodes []*fakeNode) {
		for _, n := range nodes {
			require.Positive(t, n.invalidated, "member %d", n.id)
			require.False(t, n.mayWrite())
		}
	})
	late, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = f.Barrier(late, flights, shard.Reads, dropped)
	require.Error(t, err, "the read grant is still there")
}

// TestSilentMemberRefusesAndDownMemberIsOwed: the majority's word, not our own
// impatience, tells a dead member from one that we alone cannot reach.
func TestSilentMemberRefusesAndDownMemberIsOwed(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 3)
	f := openFake(t, set)
	fake.with(func(nodes []*fakeNode) { nodes[2].silent = true })
	_, err := f.Barrier(t.Context(), flights, shard.Writes, dropped)
	require.True(t, failure.HasCode(err, "shard.member_silent"), "%v", err)
	require.ErrorContains(t, err, fake.nodes[2].addr)

	fake.with(func(nodes []*fakeNode) { nodes[2].down = true })
	owed, err := f.Barrier(t.Context(), flights, shard.Writes, dropped)
	require.NoError(t, err)
	require.Equal(t, []shard.Owed{{Host: fake.nodes[2].addr, Reason: "down"}}, owed)
	require.Error(t, pay(t, f, owed[0]), "it is still away")

	fake.with(func(nodes []*fakeNode) {
		n := nodes[2]
		n.silent, n.down, n.granted, n.stale = false, false, true, true
	})
	require.Eventually(t, func() bool { return pay(t, f, owed[0]) == nil }, soon, 10*time.Millisecond)
	fake.with(func(nodes []*fakeNode) { require.False(t, nodes[2].mayWrite()) })
}

// pay shows the fence to an owed member, with little patience.
func pay(t *testing.T, f *shard.Fencer, o shard.Owed) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return f.Pay(ctx, o.Host, flights, shard.Writes, dropped)
}

// running is an active operation of a user.
func running(user string, opid int, more ...bson.E) bson.D {
	return append(bson.D{
		{Key: "type", Value: "op"}, {Key: "host", Value: "h:1"}, {Key: "connectionId", Value: 7}, {Key: "opid", Value: opid}, {Key: "active", Value: true},
		{Key: "effectiveUsers", Value: bson.A{bson.D{{Key: "user", Value: user}, {Key: "db", Value: "admin"}}}},
	}, more...)
}

// command is an operation's command on a database.
func command(name, db string) bson.E {
	return bson.E{Key: "command", Value: bson.D{{Key: name, Value: "c"}, {Key: "$db", Value: db}}}
}

// transaction is a session with an open transaction that belongs to a placement.
func transaction(p uint64) (id []byte, op bson.D) {
	id = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, p), 77)
	uid := sha256.Sum256([]byte("drover_data@admin"))
	return id, bson.D{{Key: "type", Value: "idleSession"}, {Key: "host", Value: "h:1"}, {Key: "active", Value: false},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: id}}, {Key: "uid", Value: bson.Binary{Data: uid[:]}}}},
		{Key: "transaction", Value: bson.D{{Key: "parameters", Value: bson.D{{Key: "txnNumber", Value: 1}, {Key: "autocommit", Value: false}}}}}}
}

// TestDrainKillsWhatOutlivesTheBudget: operations are told apart by identity; one
// without a visible command counts, a read or another placement's write does not.
func TestDrainKillsWhatOutlivesTheBudget(t *testing.T) {
	t.Parallel()
	_, theirs := transaction(43)
	commit := running(chunk.DataUser, 2, bson.E{Key: "command", Value: bson.D{{Key: "commitTransaction", Value: 1}, {Key: "$db", Value: "admin"}}}, theirs[3], theirs[4])
	for name, tc := range map[string]struct {
		op    bson.D
		waits bool
	}{
		"write here":                         {running(chunk.DataUser, 1, command("update", flights.Database)), true},
		"no visible command":                 {running(chunk.DataUser, 1), true},
		"unknown command":                    {running(chunk.DataUser, 1, command("frobnicate", flights.Database)), true},
		"names its databases itself":         {running(chunk.DataUser, 1, command("bulkWrite", "admin")), true},
		"may write elsewhere":                {running(chunk.DataUser, 1, command("aggregate", "flights_0043_p43")), true},
		"read here":                          {running(chunk.DataUser, 1, command("find", flights.Database)), false},
		"write to another placement":         {running(chunk.DataUser, 1, command("update", "flights_0043_p43")), false},
		"commit of another placement":        {commit, false},
		"another user":                       {running(chunk.ApplierUser, 1, command("update", flights.Database)), false},
		"another placement's open statement": {theirs, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, set := newFakeSet(t, 1)
			fake.with(func(nodes []*fakeNode) { nodes[0].operations = []bson.D{tc.op} })
			res, err := set.Drain(t.Context(), shard.DrainRequest{Placement: flights, Budget: time.Millisecond})
			require.NoError(t, err)
			require.Equal(t, shard.DrainListed, res.Way)
			want := shard.DrainResult{Way: shard.DrainListed}
			if tc.waits {
				want.Waited, want.Killed = 1, 1
			}
			require.Equal(t, want, res)
			fake.with(func(nodes []*fakeNode) { require.Len(t, nodes[0].killed, want.Killed) })
		})
	}
}

func TestDrainOfTheLoader(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 1)
	fake.with(func(nodes []*fakeNode) {
		nodes[0].operations = []bson.D{running(chunk.LoaderUser, 3, command("insert", flights.Database))}
	})
	res, err := set.DrainUser(t.Context(), chunk.LoaderUser, shard.DrainRequest{Placement: flights, Budget: time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, shard.DrainResult{Way: shard.DrainListed, Waited: 1, Killed: 1}, res)
}

func TestDrainAbortsThePlacementsTransactions(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 1)
	id, mine := transaction(42)
	fake.with(func(nodes []*fakeNode) { nodes[0].operations = []bson.D{mine} })
	res, err := set.Drain(t.Context(), shard.DrainRequest{Placement: flights, Budget: time.Second})
	require.NoError(t, err)
	require.Equal(t, shard.DrainResult{Way: shard.DrainListed, Aborted: 1}, res)
	uid := sha256.Sum256([]byte("drover_data@admin"))
	fake.with(func(nodes []*fakeNode) {
		require.Equal(t, []any{fmt.Sprintf("%x/%x", id, uid)}, nodes[0].killed, "exactly that session, by its user")
	})
}

func TestReaderPrefersAHealthySecondary(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 3)
	fake.with(func(nodes []*fakeNode) { nodes[1].down = true })
	_, m, err := set.Reader(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, fake.nodes[2].addr, m.Host)
}
