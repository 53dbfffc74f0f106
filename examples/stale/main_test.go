package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/examples/lessontest"
)

// The shard refuses what comes by an old route, once for the chunk; nothing runs
// there, nothing runs twice, and the application sees none of it.
func TestLesson(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer
	r, err := lesson(t.Context(), &out)
	require.NoError(t, err)
	require.Empty(t, r.errs)
	require.NotEqual(t, r.from.Shard, r.serving.Shard)
	require.Equal(t, 1, r.old.Refused())
	require.Equal(t, 1, r.old.Arrived(), "the others went by the new route")
	require.Equal(t, writes, r.target.Arrived())
	require.Zero(t, r.target.Refused())
	require.EqualValues(t, writes, r.ran)
	require.Equal(t, 13, r.direct)
	lessontest.Documented(t, out.String())
}
