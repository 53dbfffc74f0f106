package activities

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
	"drover/gate"
	"drover/metadata"
	"drover/proxy"
)

// TestProxiesWordsAddUp: one proxy may count in fewer buckets, when it is older.
func TestProxiesWordsAddUp(t *testing.T) {
	t.Parallel()
	edge := func(b int) time.Duration { return time.Duration(b+1) * time.Millisecond }
	got, open := together([]word{
		{Requests: 90, Errors: 1, Latency: []int64{90}, Transactions: 1, OldestTransaction: 3000},
		{Requests: 10, Errors: 2, Latency: []int64{0, 0, 10}, Cursors: 2, OldestCursor: 5000},
	}, edge)
	require.Equal(t, contract.Traffic{Proxies: 2, Requests: 100, Errors: 3, P50MS: 1, P99MS: 3}, got)
	require.Equal(t, contract.OpenWork{Way: "proxies", Transactions: 1, Cursors: 2, Oldest: contract.Duration(5 * time.Second)}, open)

	got, _ = together(nil, edge)
	require.Equal(t, contract.Traffic{}, got)
}

// What the gate shows of applications is what proxies record: the words of the two sides
// are the same, and what cannot be read is an error and no silence.
func TestCallersAreReadAsProxiesWriteThem(t *testing.T) {
	t.Parallel()

	text, err := json.Marshal(proxy.Envelope{User: "u", App: "shop", Writes: 100, Unnumbered: 25, ShortestMS: 1500, GaveUp: 1, PatienceMS: 400})
	require.NoError(t, err)
	all, err := callersOf([]metadata.ProxyClient{{Proxy: "p1", User: "u", App: "shop", Envelope: text}})
	require.NoError(t, err)
	require.Equal(t, []gate.Caller{{
		User: "u", App: "shop", Writes: 100, Unrepeated: 25, Shortest: 1500 * time.Millisecond, GaveUp: 1, Patience: 400 * time.Millisecond,
	}}, all)
	c := gate.Callers(all, gate.Bound{Name: "fence-deadline", Value: time.Second, Source: "default"}, nil)
	require.Equal(t, "shortest 400ms (u/shop); writes that no driver repeats: u/shop 25%", c.Value)

	_, err = callersOf([]metadata.ProxyClient{{Proxy: "p1", User: "u", Envelope: []byte("broken")}})
	require.ErrorContains(t, err, "what p1 says about u")
}
