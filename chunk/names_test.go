package chunk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	t.Parallel()

	require.Equal(t, ID("flights/0003"), NewID("flights", 3))
	require.Equal(t, ID("flights/12345"), NewID("flights", 12345))
	require.Equal(t, "flights_0003_p42", PhysicalName(NewID("flights", 3), 42))
	require.Equal(t, "w_p42_a6", WriteGrant(42, 6))
	require.Equal(t, "r_p42_a6", ReadGrant(42, 6))
	require.Equal(t, "l_p43_m7", LoaderRole(43, 7))
	require.Equal(t, "a_p43_m7_d0", ApplierRole(43, 7, 0))
	require.Equal(t, "drover.log.shard-a", Topic("shard-a"))
	require.Equal(t, "drained/m7/a6/p42/r1", Marker{Kind: DrainedMarker, Migration: 7, Attempt: 6, Placement: 42, Round: 1}.Key())
}

func TestPhysicalNameRoundTrip(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		database := rapid.StringMatching(`[a-z][a-z0-9_-]{0,20}`).Draw(t, "database")
		p := PlacementID(rapid.Int64Range(1, 1<<62).Draw(t, "placement"))
		name := PhysicalName(NewID(database, rapid.IntRange(0, 1e6).Draw(t, "chunk")), p)
		got, ok := PlacementOf(name)
		require.True(t, ok)
		require.Equal(t, p, got)
	})
}

func TestForeignDatabases(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"", "admin", "drover", "flights", "flights_0003", "flights_p42", "flights_003_p42", "_0003_p42", "flights_0003_p", "flights_0003_px", "flights_0003_p42x", "flights_0003_p99999999999999999999"} {
		_, ok := PlacementOf(name)
		require.False(t, ok, name)
	}
}

// A marker is read back by capture from the shard and by lanes from the log.
func TestMarkerRoundTrip(t *testing.T) {
	t.Parallel()

	m := Marker{Kind: FinalMarker, Migration: 7, Attempt: 6, Placement: 42, Round: 2, At: time.UnixMilli(1700000000123).UTC()}
	b, err := bson.Marshal(m)
	require.NoError(t, err)
	var got Marker
	require.NoError(t, bson.Unmarshal(b, &got))
	require.Equal(t, m, got)
}

// A clone's database is no placement's, and only its own number names it.
func TestCloneNames(t *testing.T) {
	t.Parallel()

	name := CloneName("payments/0007", 42)
	require.Equal(t, "payments_0007_c42", name)
	require.True(t, IsClone(name))
	_, ok := PlacementOf(name)
	require.False(t, ok)
	require.Equal(t, name, CloneName(CloneOf(name), 42))
	require.NotEqual(t, name, CloneName(CloneOf(name), 43))
	for _, other := range []string{"payments_0007_p42", "drover", "admin", "c42", "payments_c"} {
		require.False(t, IsClone(other), other)
		require.Empty(t, CloneOf(other))
	}
}
