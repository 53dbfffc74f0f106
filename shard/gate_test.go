package shard_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/shard"
)

// TestRollCallNamesTheSilent: opening connections forgives a member that does not
// answer; the gate must not, or the fence would fail where it costs users something.
func TestRollCallNamesTheSilent(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 3)
	f := openFake(t, set)
	silent, owed, err := f.RollCall(t.Context())
	require.NoError(t, err)
	require.Empty(t, silent)
	require.Empty(t, owed)

	fake.with(func(nodes []*fakeNode) { nodes[2].silent = true })
	silent, owed, err = f.RollCall(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{fake.nodes[2].addr}, silent)
	require.Empty(t, owed)

	fake.with(func(nodes []*fakeNode) { nodes[2].down = true })
	silent, owed, err = f.RollCall(t.Context())
	require.NoError(t, err)
	require.Empty(t, silent)
	require.Equal(t, []shard.Owed{{Host: fake.nodes[2].addr, Reason: "down"}}, owed)
}

// TestOpenWorkIsThePlacements: what others have open, on other placements or as
// other users, is none of a switch's business.
func TestOpenWorkIsThePlacements(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 1)
	lsid := func(p uint64) bson.D {
		id := binary.BigEndian.AppendUint64(nil, p)
		return bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(id, make([]byte, 8)...)}}}
	}
	transaction := func(p uint64, micros int64) bson.D {
		return bson.D{
			{Key: "type", Value: "idleSession"}, {Key: "host", Value: "h"}, {Key: "connectionId", Value: 7}, {Key: "lsid", Value: lsid(p)},
			{Key: "transaction", Value: bson.D{{Key: "parameters", Value: bson.D{{Key: "autocommit", Value: false}}}, {Key: "timeOpenMicros", Value: micros}}},
		}
	}
	cursor := func(ns, user string, age time.Duration) bson.D {
		return bson.D{
			{Key: "type", Value: "idleCursor"}, {Key: "host", Value: "h"}, {Key: "ns", Value: ns},
			{Key: "effectiveUsers", Value: bson.A{bson.D{{Key: "user", Value: user}, {Key: "db", Value: "admin"}}}},
			{Key: "cursor", Value: bson.D{{Key: "createdDate", Value: time.UnixMilli(1_800_000_000_000).Add(-age)}}},
		}
	}
	fake.with(func(nodes []*fakeNode) {
		nodes[0].operations = []bson.D{
			transaction(42, 3_000_000), transaction(41, 9_000_000),
			cursor("flights_0042_p42.bookings", chunk.DataUser, 5*time.Second),
			cursor("flights_0042_p421.bookings", chunk.DataUser, time.Hour),
			cursor("flights_0042_p42.bookings", chunk.ReaderUser, time.Hour),
		}
	})
	open, ok, err := set.OpenWork(t.Context(), flights)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []shard.Open{
		{Kind: "cursor", Where: "h", Since: 5 * time.Second}, {Kind: "transaction", Where: "h/7", Since: 3 * time.Second},
	}, open)
}

// TestStatusTellsSinceWhen: both places in which a server says when its primary
// was elected count.
func TestStatusTellsSinceWhen(t *testing.T) {
	t.Parallel()
	fake, set := newFakeSet(t, 1)
	at := time.UnixMilli(1_800_000_000_000).UTC()
	reply := func(extra ...bson.E) {
		self := bson.D{{Key: "_id", Value: 0}, {Key: "self", Value: true}, {Key: "stateStr", Value: "PRIMARY"}, {Key: "configVersion", Value: 1}}
		d := bson.D{{Key: "term", Value: int64(3)}, {Key: "date", Value: at}}
		for _, e := range extra {
			if e.Key == "electionDate" {
				self = append(self, e)
			} else {
				d = append(d, e)
			}
		}
		fake.with(func([]*fakeNode) {
			fake.replies = map[string]bson.D{"replSetGetStatus": append(d, bson.E{Key: "members", Value: bson.A{self}})}
		})
	}
	reply()
	st, err := set.Status(t.Context())
	require.NoError(t, err)
	require.True(t, st.Elected.IsZero())
	for _, e := range []bson.E{
		{Key: "electionDate", Value: at.Add(-time.Minute)},
		{Key: "electionCandidateMetrics", Value: bson.D{{Key: "lastElectionDate", Value: at.Add(-time.Minute)}}},
	} {
		reply(e)
		st, err := set.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, time.Minute, st.At.Sub(st.Elected), e.Key)
	}
}
