package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/bench/fences"
)

// What is defined follows from the holds and the profile alone.
func TestExpectedOutcomes(t *testing.T) {
	t.Parallel()
	const sure, live = 1500 * time.Millisecond, 10 * time.Second
	for name, want := range map[string][]string{ // fences of 1, 2, 5 s, unknown to the proxy
		fences.NoRetry: {noErrors, allErrors, allErrors}, fences.QuickRetry: {noErrors, noErrors, allErrors}, fences.ByDefault: {noErrors, noErrors, allErrors},
		fences.ByTimeout: {noErrors, noErrors, allErrors}, fences.BackOff: {noErrors, noErrors, noErrors},
	} {
		for _, p := range fences.Profiles(timeoutMS, firstPause) {
			if p.Name != name {
				continue
			}
			for i, fence := range []int64{1000, 2000, 5000} {
				x := row{FenceMS: fence, Row: fences.Row{Of: p, Requests: 1}}
				require.Equal(t, want[i], expected(x, live, sure), "%s at %d ms", name, fence)
				x.Known = true
				if name != fences.ByTimeout || fence < 5000 {
					require.Equal(t, noErrors, expected(x, live, sure), "%s at %d ms", name, fence)
				}
			}
		}
	}
	require.False(t, row{Expected: noErrors, Row: fences.Row{Requests: 2, Errors: 1}}.fits())
	require.False(t, row{Expected: allErrors, Row: fences.Row{Requests: 2, Errors: 1}}.fits())
	require.True(t, row{Expected: either, Row: fences.Row{Requests: 2, Errors: 1}}.fits())
}
