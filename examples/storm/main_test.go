package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/bench/fences"
)

// Where requests are held nobody has to try twice; where they are not, those who try
// again send many times as much. No write runs twice either way.
func TestLesson(t *testing.T) {
	t.Parallel()

	s := storm{requests: 4, refusals: 400}
	all, err := s.lesson(t.Context(), io.Discard)
	require.NoError(t, err)
	require.Len(t, all, 3)
	for _, a := range all {
		for _, r := range a.rows {
			require.Zero(t, r.AppliedMore, "%+v", r)
			if r.Profile == hammers {
				require.Zero(t, r.Errors, "%+v", r)
			}
		}
	}
	requests := s.requests * len(fences.Kinds) * 3
	for _, r := range all[0].rows {
		require.Zero(t, r.Errors, "%+v", r)
		require.Equal(t, 1, r.MostTries, "%+v", r)
	}
	require.Zero(t, all[0].arrived, "the fenced shard has peace")
	for _, a := range all[1:] {
		sent := 0.0
		for _, r := range a.rows {
			sent += r.Attempts * float64(r.Requests)
		}
		require.GreaterOrEqual(t, sent, float64(s.refusals))
	}
	require.Greater(t, all[2].arrived, requests, "a proxy that knows nothing asks the shard each time")
}
