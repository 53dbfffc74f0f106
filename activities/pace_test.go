package activities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A clean-up waits while the shard answers slower than before it began, and not for
// ever.
func TestCleanUpIsPaced(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		took := 3 * time.Millisecond
		slowUntil := time.Time{}
		p := newPacer(func(context.Context) (time.Duration, error) {
			if time.Now().Before(slowUntil) {
				return 10 * took, nil
			}
			return took, nil
		})
		require.NoError(t, p.pace(t.Context()))
		slowUntil = time.Now().Add(5 * time.Second) // a file was given back
		require.NoError(t, p.pace(t.Context()))
		require.False(t, time.Now().Before(slowUntil), "the next part came while the shard was slow")

		began := time.Now()
		slowUntil = began.Add(time.Hour)
		require.NoError(t, p.pace(t.Context()))
		require.GreaterOrEqual(t, time.Since(began), paceMost)
		require.True(t, time.Now().Before(slowUntil), "a shard that stays slow keeps its garbage for ever")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.pace(ctx), context.Canceled)
	})
}
