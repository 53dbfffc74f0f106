package bulkimport

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestBudgetHoldsBackWhatHasNoRoom: work waits for room, work that is larger than
// all of it waits for all, and a caller that gives up does not get any.
func TestBudgetHoldsBackWhatHasNoRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100 * MiB)
		one, err := b.take(t.Context(), 60*MiB)
		require.NoError(t, err)
		two, err := b.take(t.Context(), 40*MiB)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := b.take(ctx, MiB)
			failed <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)

		large := make(chan func())
		go func() {
			release, err := b.take(t.Context(), 1000*MiB)
			if err == nil {
				large <- release
			}
		}()
		one()
		synctest.Wait()
		select {
		case <-large:
			t.Fatal("there was no room for it")
		default:
		}
		two()
		(<-large)()
		var none *Budget
		release, err := none.take(t.Context(), 1000*MiB)
		require.NoError(t, err)
		release()
	})
	require.Equal(t, 48*MiB, NewBudget(1).total, "one slice always has room")
}
