package activities

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
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

// A moment that is worse, as a cold cache makes it, is passed over; ten seconds are not,
// and behind the time nothing is judged any more.
func TestOnlyWhatStaysWorseCounts(t *testing.T) {
	t.Parallel()
	worseAt := func(spans ...[2]time.Duration) (worse bool, after time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var err error
			worse, err = stays(t.Context(), time.Minute, func() (bool, error) {
				at := time.Since(began)
				return slices.ContainsFunc(spans, func(s [2]time.Duration) bool { return s[0] <= at && at < s[1] }), nil
			})
			require.NoError(t, err)
			after = time.Since(began)
		})
		return worse, after
	}
	worse, after := worseAt([2]time.Duration{5 * time.Second, 14 * time.Second}, [2]time.Duration{15 * time.Second, 24 * time.Second})
	require.False(t, worse, "two short times are no long one")
	require.GreaterOrEqual(t, after, time.Minute)
	worse, after = worseAt([2]time.Duration{5 * time.Second, time.Minute})
	require.True(t, worse)
	require.Equal(t, 15*time.Second, after)
	worse, _ = worseAt([2]time.Duration{55 * time.Second, time.Hour})
	require.False(t, worse, "the time was over before")
	_, err := stays(t.Context(), time.Minute, func() (bool, error) { return true, errors.New("no word") })
	require.ErrorContains(t, err, "no word")
}

// Of a split every part is judged: the one that leads may do well beside another that
// does not.
func TestEveryPartOfASplitIsWatched(t *testing.T) {
	t.Parallel()
	limits := gate.Worse{Errors: gate.Rate{Name: "after-switch-errors", Value: 0.01}, Latency: gate.Rate{Name: "after-switch-latency", Value: 3}}
	before := contract.Traffic{Requests: 1000, P99MS: 100}
	part := func(id chunk.ID, shard string, p99 float64) partTraffic {
		return partTraffic{chunk.Placement{Chunk: id, Shard: shard}, contract.Traffic{Requests: 500, P99MS: p99}}
	}
	slowest, why := worst(limits, before, []partTraffic{part("d/0002", "b", 90), part("d/0003", "c", 120)})
	require.Empty(t, why)
	require.InDelta(t, 120, slowest.P99MS, 0)
	slowest, why = worst(limits, before, []partTraffic{part("d/0002", "b", 90), part("d/0003", "c", 301), part("d/0004", "b", 250)})
	require.Contains(t, why, "d/0003 on c: p99 is 301.0 ms")
	require.InDelta(t, 301, slowest.P99MS, 0)
	_, why = worst(limits, before, []partTraffic{part("d/0001", "b", 301)})
	require.Regexp(t, "^p99 is 301.0 ms", why, "of a move nothing else is to be said")
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
