package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"drover/metadata"
	"drover/proxy"
)

func TestGrantsAreRead(t *testing.T) {
	t.Parallel()

	database, actions, err := parseGrant("shop:read,ddl")
	require.NoError(t, err)
	require.Equal(t, "shop", database)
	require.Equal(t, []string{"read", "ddl"}, actions)
	for _, bad := range []string{"", "shop", "shop:", ":read", "shop:reed", "shop:read,", "read"} {
		_, _, err := parseGrant(bad)
		require.Error(t, err, bad)
	}
}

func TestEnvelopesOfSeveralProxiesAreOne(t *testing.T) {
	t.Parallel()

	got, err := mergeEnvelopes([]metadata.ProxyClient{
		{Proxy: "p1", User: "shop", App: "till", Envelope: []byte(`{"requests": 8, "chunks": 9, "scattered": 1, "writes": 5, "unnumbered": 1, "shortest_ms": 300, "patience_ms": 40}`)},
		{Proxy: "p2", User: "shop", App: "till", Envelope: []byte(`{"requests": 9, "chunks": 11, "scattered": 2, "writes": 7, "shortest_ms": 200, "soonest_ms": 9, "patience_ms": 90, "gave_up": 1}`)},
		{Proxy: "p1", User: "shop", App: "web", Envelope: []byte(`{"writes": 2}`)},
	})
	require.NoError(t, err)
	require.Equal(t, []proxy.Envelope{
		{User: "shop", App: "till", Requests: 17, Chunks: 20, Scattered: 3, Writes: 12, Unnumbered: 1, ShortestMS: 200, SoonestMS: 9, PatienceMS: 90, GaveUp: 1},
		{User: "shop", App: "web", Writes: 2},
	}, got)
}
