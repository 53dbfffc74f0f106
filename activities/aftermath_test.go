package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
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
