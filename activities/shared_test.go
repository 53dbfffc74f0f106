package activities

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Those who ask while an answer is on its way share the next one: what they learn was
// looked up after they asked.
func TestSharedSharesTheNextAnswer(t *testing.T) {
	t.Parallel()
	var all shared[int64]
	var calls atomic.Int64
	begun, goOn := make(chan struct{}), make(chan struct{})
	work := func(context.Context) (int64, error) {
		n := calls.Add(1)
		if n == 1 {
			close(begun)
			<-goOn
		}
		return n, nil
	}
	var g errgroup.Group
	ask := func(want int64) {
		g.Go(func() error {
			got, err := all.do(t.Context(), "a", work)
			if err == nil && got != want {
				err = errors.New("an answer that is not the one after the question")
			}
			return err
		})
	}
	ask(1)
	<-begun
	for range 20 {
		ask(2)
	}
	require.Eventually(t, func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.ask["a"].next != nil && all.ask["a"].next.wait == 20
	}, 10*time.Second, time.Millisecond)
	other, err := all.do(t.Context(), "b", func(context.Context) (int64, error) { return 7, nil })
	require.NoError(t, err)
	require.EqualValues(t, 7, other, "another subject waits for nobody")
	close(goOn)
	require.NoError(t, g.Wait())
	require.EqualValues(t, 2, calls.Load())
	require.Eventually(t, func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return len(all.ask) == 0
	}, 10*time.Second, time.Millisecond)
}

// Work that nobody waits for any more ends; one who leaves takes nothing from the others.
func TestSharedEndsWithTheLast(t *testing.T) {
	t.Parallel()
	var all shared[int]
	begun, ended := make(chan struct{}), make(chan struct{})
	work := func(ctx context.Context) (int, error) {
		close(begun)
		<-ctx.Done()
		close(ended)
		return 0, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := all.do(ctx, "a", work)
		done <- err
	}()
	<-begun
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	<-ended
	got, err := all.do(t.Context(), "a", func(context.Context) (int, error) { return 3, nil })
	require.NoError(t, err)
	require.Equal(t, 3, got)
}
