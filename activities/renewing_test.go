package activities

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/internal/pause"
)

// filed is a shard whose files may be renewed.
type filed struct{ renewed atomic.Bool }

func (f *filed) Name() string  { return "a" }
func (f *filed) Renewed() bool { return f.renewed.Load() }

// TestWorkBeginsAnewWithRenewedFiles: a lane that waited for a shard which was away while its certificates
// were renewed kept a client that was taken away from it, and waited for ever. Its own end stays its end.
func TestWorkBeginsAnewWithRenewedFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one, two := &filed{}, &filed{}
		waits := func(ctx context.Context) error { return pause.For(ctx, time.Hour) }
		cut := func(ctx context.Context) error { _ = waits(ctx); return errors.New("a command was cut off") }
		began := time.Now()
		require.NoError(t, renewing(t.Context(), waits, one, two))
		require.Equal(t, time.Hour, time.Since(began), "nothing was renewed")

		began = time.Now()
		time.AfterFunc(time.Minute, func() { two.renewed.Store(true) })
		err := renewing(t.Context(), cut, one, two)
		require.True(t, failure.HasCode(err, "shard.renewed"), "%v", err)
		require.True(t, failure.Is(err, failure.Transient))
		require.LessOrEqual(t, time.Since(began), time.Minute+renewEvery)

		closed := failure.New(failure.Lost, "lane.closed", "closed")
		require.ErrorIs(t, renewing(t.Context(), func(context.Context) error { return closed }, two), closed)
		late := func(ctx context.Context) error { _ = waits(ctx); return closed }
		require.ErrorIs(t, renewing(t.Context(), late, two), closed, "it came in the moment of a renewal")
		require.NoError(t, renewing(t.Context(), func(ctx context.Context) error { _ = waits(ctx); return nil }, two), "it was done")

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStopping)
		require.ErrorIs(t, renewing(ctx, waits, one), errStopping)
	})
}
