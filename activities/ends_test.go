package activities

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/pause"
)

// One who waited for the end of one shard's log, as long as it took, once kept the lanes
// of all moves from saying that they live.
func TestEndOfALogThatHangsHoldsNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ends logEnds
		asked := 0 // for the end that is found
		ask := func(ctx context.Context, shard string) ([]int64, error) {
			if shard == "hangs" {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			asked++
			return []int64{7}, nil
		}
		patient, cancel := context.WithCancelCause(t.Context())
		over := make(chan error, 1)
		go func() {
			_, err := ends.of(patient, "hangs", ask)
			over <- err
		}()
		synctest.Wait()
		for range 2 {
			got, err := ends.of(t.Context(), "a", ask)
			require.NoError(t, err)
			require.Equal(t, []int64{7}, got)
		}
		require.Equal(t, 1, asked, "a moment ago is soon enough")
		hurried, stop := context.WithTimeout(t.Context(), beatEvery/2)
		defer stop()
		began := time.Now()
		_, err := ends.of(hurried, "hangs", ask)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, beatEvery/2, time.Since(began))
		gone := errors.New("cancelled")
		cancel(gone)
		require.ErrorIs(t, <-over, gone)
		require.NoError(t, pause.For(t.Context(), time.Second))
		_, err = ends.of(t.Context(), "a", ask)
		require.NoError(t, err)
		require.Equal(t, 2, asked)
		synctest.Wait()
	})
}
