package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/devstack"
	"drover/internal/testkit"
)

// The import chooses the prefix that the indexes share, a batch then touches few
// pages of each of them, and both servers hold everything.
func TestLesson(t *testing.T) {
	t.Parallel()
	testkit.SkipShort(t)
	if _, err := devstack.NewTools(); err != nil {
		testkit.Unavailable(t, err.Error())
	}

	const documents = 6000
	var out bytes.Buffer
	r, err := lesson(t.Context(), &out, t.TempDir(), size{documents: documents, cacheMB: 64})
	require.NoError(t, err, out.String())
	require.Equal(t, "a", r.order.Fields[0].Path, "what all three begin with")
	require.EqualValues(t, documents, r.copied)
	require.EqualValues(t, documents, r.there)
	for i := range 3 {
		require.LessOrEqual(t, r.sorted[i], 2*float64(perBatch/perPage), "index %d", i)
		require.Greater(t, r.random[i], 4*r.sorted[i], "index %d", i)
	}
	require.InDelta(t, r.random[3], r.sorted[3], 0.1*r.random[3], "_id has no order either way")
	t.Log(out.String())
}
