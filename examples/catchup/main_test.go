package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/examples/lessontest"
	"drover/replication"
)

// Time to be in sync grows with the backlog over the spare capacity, and a move
// that never will be is told so.
func TestLesson(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	rows := move{apply: 5000, imported: 10 * time.Minute}.lesson(&out)
	for i, r := range rows {
		spare := 5000 - r.write
		if spare <= 0 {
			require.Zero(t, r.took)
			require.Equal(t, replication.NotConverging, r.forecast.Pace)
			continue
		}
		want := float64(r.backlog) / float64(spare)
		require.InDelta(t, want, r.took.Seconds(), 0.02*want+5, "%d written a second", r.write)
		require.Equal(t, r.write <= 2500, r.spare)
		require.InDelta(t, want, r.forecast.Left.Seconds(), 0.02*want+5, "the forecast is right from its beginning")
		if i > 0 {
			require.Greater(t, r.took, rows[i-1].took)
		}
	}
	require.Zero(t, rows[len(rows)-1].took)
	lessontest.Documented(t, out.String())
}
