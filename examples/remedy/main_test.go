package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/examples/lessontest"
)

// The set is as its layout wants, each lost node was made anew once and without its
// vote, the change that came between was noticed, and nothing acknowledged is gone.
func TestLesson(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	r, err := lesson(t.Context(), &out)
	require.NoError(t, err)
	require.True(t, r.Full, r.Why)
	require.Equal(t, []string{"rebuild m1", "provision spare"}, r.rebuilt)
	require.Equal(t, 1, r.Replans)
	require.False(t, r.lost)
	require.Equal(t, 1, r.kept)
	votes := 0
	for _, d := range r.Done {
		switch d.Order.Name {
		case "take-vote":
			votes--
		case "give-vote":
			votes++
		case "rebuild", "replace":
			require.Negative(t, votes, "%s while it votes", d.Text)
		}
	}
	require.Zero(t, votes)
	lessontest.Documented(t, out.String())
}
