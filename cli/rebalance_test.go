package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRatesAndCountsAreRefused with the flag, its value and what would be right, before
// anything is asked for.
func TestRatesAndCountsAreRefused(t *testing.T) {
	t.Parallel()

	for want, args := range map[string]string{
		"move-rate is -3; want bytes per second":                       "rebalance plan --move-rate -3",
		"at-once is -1; want a number of moves":                        "shard drain a --at-once -1",
		"burn-in is -1h0m0s; want a time":                              "binpack --burn-in -1h",
		"shard-ops is -5; want 0 or more":                              "capacity plan --factor 2 --at 2036-01-01 --until 2036-01-02 --shard-ops -5",
		"cpu-limit is 3; want a share of the cores, 0 to 1":            "rebalance start --cpu-limit 3",
		"latency-limit is -1s; want 0 or more":                         "shard upgrade a --to b --latency-limit -1s",
		"half-life is -1m0s; want 0 or more":                           "fleet reconcile start --half-life -1m",
		"max-moves is -2; want 0 or more":                              "balancer start --max-moves -2",
		"move-rate is NaN; want bytes per second":                      "fleet upgrade --to 8.0 --move-rate NaN",
		"move-rate is -1; want bytes per second, or 0 for what was me": "chunk isolate x/0001 --to a --move-rate -1",
	} {
		var out, errs bytes.Buffer
		status := Main(t.Context(), Env{
			Args: strings.Fields(args), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
			LookupEnv: func(string) (string, bool) { return "", false },
		})
		require.Equal(t, exitMisused, status, errs.String())
		require.Contains(t, errs.String(), want, args)
	}
}
