package gate_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
	"drover/gate"
)

var worse = gate.Worse{
	Errors:  gate.Rate{Name: "after-switch-errors", Value: 0.01, Source: "default"},
	Latency: gate.Rate{Name: "after-switch-latency", Value: 3, Source: "flag"},
}

// TestWorseNamesTheFigure: on both sides of each limit, and where too little is
// known to judge.
func TestWorseNamesTheFigure(t *testing.T) {
	t.Parallel()
	at := func(requests, errors int64, p99 float64) contract.Traffic {
		return contract.Traffic{Requests: requests, Errors: errors, P99MS: p99}
	}
	for name, c := range map[string]struct {
		before, after contract.Traffic
		why           string
	}{
		"as before":           {at(1000, 5, 10), at(1000, 5, 10), ""},
		"errors at the limit": {at(1000, 5, 10), at(1000, 15, 10), ""},
		"errors above":        {at(1000, 5, 10), at(1000, 16, 10), "1.60% of the requests fail, 0.50% did before; limit 1.50% (after-switch-errors, default)"},
		"errors, none known":  {at(0, 0, 0), at(1000, 11, 10), "1.10% of the requests fail, 0.00% did before"},
		"slow at the limit":   {at(1000, 0, 100), at(1000, 0, 300), ""},
		"slow above":          {at(1000, 0, 100), at(1000, 0, 301), "p99 is 301.0 ms, it was 100.0 ms before; limit 300.0 ms (after-switch-latency, flag)"},
		"slow, but by little": {at(1000, 0, 1), at(1000, 0, 51), ""},
		"slow, none known":    {at(49, 0, 1), at(1000, 0, 500), ""},
		"hardly any requests": {at(1000, 0, 1), at(49, 49, 500), ""},
	} {
		why := worse.Judge(c.before, c.after)
		if c.why == "" {
			require.Empty(t, why, name)
		} else {
			require.Contains(t, why, c.why, name)
		}
	}
	require.Equal(t, []contract.Limit{
		{Name: "after-switch-errors", Value: "0.01", Source: "default"}, {Name: "after-switch-latency", Value: "3", Source: "flag"},
	}, worse.List())
}

func TestQuantileIsAnUpperEdge(t *testing.T) {
	t.Parallel()
	edge := func(b int) time.Duration { return time.Duration(b+1) * time.Second }
	require.Zero(t, gate.Quantile(nil, 0.5, edge))
	require.Zero(t, gate.Quantile([]int64{0, 0}, 0.99, edge))
	require.Equal(t, time.Second, gate.Quantile([]int64{99, 0, 1}, 0.99, edge))
	require.Equal(t, 3*time.Second, gate.Quantile([]int64{98, 0, 2}, 0.99, edge))
}
