package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/examples/lessontest"
)

// The plan moves what must move and no more; the others do not know how.
func TestLesson(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	g, err := lesson(&out, 8, 12, 1_000_000, 240)
	require.NoError(t, err)
	require.InDelta(t, 1.0/3, g.Plan, 1e-9, "80 of 240 chunks")
	require.Greater(t, g.Modulo, 0.6)
	require.Greater(t, g.Ring, g.Bound)
	lessontest.Documented(t, out.String())

	_, err = lesson(&out, 12, 8, 1000, 240)
	require.ErrorContains(t, err, "must lie above")
}
