package rig

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/metadata"
)

// TestTimesPastTheDeadline are told of attempts that ended behind it.
func TestTimesPastTheDeadline(t *testing.T) {
	t.Parallel()

	start := time.Now()
	at := func(s chunk.AttemptState, ms int) metadata.Moment {
		return metadata.Moment{State: s, At: start.Add(time.Duration(ms) * time.Millisecond)}
	}
	ended, found, ok := pastDeadline([]metadata.Moment{at(chunk.Preparing, -50), at(chunk.Fencing, 0), at(chunk.AttemptAborting, 1040), at(chunk.AttemptAborted, 1110)})
	require.True(t, ok)
	require.Equal(t, 110*time.Millisecond, ended)
	require.Equal(t, 40*time.Millisecond, found)
	ended, found, ok = pastDeadline([]metadata.Moment{at(chunk.Fencing, 0), at(chunk.Published, 300), at(chunk.Open, 1200)})
	require.True(t, ok)
	require.Equal(t, 200*time.Millisecond, ended)
	require.Zero(t, found)
	_, _, ok = pastDeadline([]metadata.Moment{at(chunk.Fencing, 0), at(chunk.Open, 400)})
	require.False(t, ok)
	_, _, ok = pastDeadline([]metadata.Moment{at(chunk.Preparing, 0)})
	require.False(t, ok)
}
