package activities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/pause"
)

// TestCrowdSlowsDownWhatEachDoes: together they do it about as often, however many
// there are, and none more rarely than it must.
func TestCrowdSlowsDownWhatEachDoes(t *testing.T) {
	t.Parallel()
	c := &Crowd{}
	var leave []func()
	for range 100 {
		leave = append(leave, c.join())
	}
	require.Equal(t, 2*time.Second, c.every(time.Second, time.Minute))
	require.Equal(t, time.Second, c.every(time.Second, time.Second), "not more rarely than it must")
	for _, l := range leave[:80] {
		l()
	}
	require.Equal(t, time.Second, c.every(time.Second, time.Minute), "a few do it as usual")
}

// TestRestsShortlyAtFirst and later in proportion to what was waited; in a crowd nobody
// begins as if it were alone.
func TestRestsShortlyAtFirst(t *testing.T) {
	t.Parallel()
	c := &Crowd{}
	require.Equal(t, 5*time.Millisecond, c.rest(0))
	require.Equal(t, 125*time.Millisecond, c.rest(time.Second))
	require.Equal(t, 500*time.Millisecond, c.rest(time.Hour))
	for range 1000 {
		defer c.join()()
	}
	require.Equal(t, 100*time.Millisecond, c.rest(0))
	require.Equal(t, 125*time.Millisecond, c.rest(time.Second))
}

// TestQuestionIsNotCutOffForPatience: who has waited long enough leaves with the answer that
// is on its way, and asks no more.
func TestQuestionIsNotCutOffForPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, asked := &Crowd{}, 0
		ask := func(yes int) func(context.Context) (bool, error) {
			asked = 0
			return func(ctx context.Context) (bool, error) {
				asked++
				return asked == yes, pause.For(ctx, 3*time.Second)
			}
		}
		yes, err := c.until(t.Context(), 2*time.Second, ask(2))
		require.NoError(t, err)
		require.False(t, yes)
		require.Equal(t, 1, asked)
		yes, err = c.until(t.Context(), time.Minute, ask(5))
		require.NoError(t, err)
		require.True(t, yes)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = c.until(ctx, time.Minute, ask(-1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
