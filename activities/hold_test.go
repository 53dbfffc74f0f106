package activities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/gate"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// TestFenceBeyondHoldIsRefused: a fence that may outlast what a proxy holds would
// reach the applications as errors. The refusal names field, value and what would
// be right.
func TestFenceBeyondHoldIsRefused(t *testing.T) {
	t.Parallel()
	proxies := []metadata.Proxy{{ID: "old"}, {ID: "p1", Hold: 10 * time.Second}, {ID: "p2", Hold: 3 * time.Second}}
	deadline := gate.Bound{Name: "fence-deadline", Value: 2 * time.Second, Source: "flag"}
	require.NoError(t, holdable(deadline, proxies))
	require.NoError(t, holdable(deadline, nil))

	deadline.Value = 3 * time.Second
	err := holdable(deadline, proxies)
	require.True(t, failure.HasCode(err, "migration.fence_beyond_hold"), "%v", err)
	require.True(t, failure.Is(err, failure.Invalid))
	require.ErrorContains(t, err, "fence-deadline is 3s (flag), but proxy p2 holds requests for 3s only")
}

// asked is a metadata that says from the n-th question on that a shard is captured.
type asked struct{ left int }

func (a *asked) CaptureSilence(context.Context, string) (time.Duration, bool, error) {
	a.left--
	return 0, a.left < 0, nil
}

// TestMoveWaitsForItsCapture: a start marker that is written before the capture has
// begun is in no log, and the import once looked for it for ever.
func TestMoveWaitsForItsCapture(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		soon := &asked{left: 3}
		require.NoError(t, awaitCaptured(t.Context(), soon, "a"))
		require.Negative(t, soon.left)

		err := awaitCaptured(t.Context(), &asked{left: 1 << 30}, "a")
		require.True(t, failure.HasCode(err, "migration.not_captured"), "%v", err)
		require.True(t, failure.Is(err, failure.Transient), "the move waits, it does not fail")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, awaitCaptured(ctx, &asked{left: 1 << 30}, "a"), context.Canceled)
	})
}

// TestSummaryNamesTheOldest: a thousand open cursors are counted, ten are shown.
func TestSummaryNamesTheOldest(t *testing.T) {
	t.Parallel()
	open := []shard.Open{{Kind: "transaction", Where: "h/1", Since: time.Minute}}
	for range 20 {
		open = append(open, shard.Open{Kind: "cursor", Where: "h/2", Since: time.Second})
	}
	w := summary(shard.DrainListed, open)
	require.Equal(t, 1, w.Transactions)
	require.Equal(t, 20, w.Cursors)
	require.EqualValues(t, time.Minute, w.Oldest)
	require.Len(t, w.Items, 10)
	require.Equal(t, "h/1", w.Items[0].Where)
}
