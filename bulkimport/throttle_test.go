package bulkimport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThrottleSaysWhatIsPastItsBound(t *testing.T) {
	t.Parallel()
	b := Bounds{Slower: 2, Answer: 4 * time.Millisecond, Dirty: 0.15, Used: 0.95, Lag: time.Second}
	for want, h := range map[string]Health{
		"":                                     {Answer: 4 * time.Millisecond, Dirty: 0.15, Used: 0.95, Lag: time.Second},
		"a read takes 4.5ms, bound 4ms":        {Answer: 4500 * time.Microsecond},
		"16% of the cache is dirty, bound 15%": {Dirty: 0.16},
		"96% of the cache is used, bound 95%":  {Used: 0.96},
		"secondary h is 2s behind, bound 1s":   {Lag: 2 * time.Second, Behind: "h", Used: 0.99},
	} {
		require.Equal(t, want, b.wrong(h, time.Millisecond))
	}
	require.Empty(t, b.wrong(Health{Answer: 6 * time.Millisecond}, 3*time.Millisecond), "it was never faster than half of that")
}

// TestThrottleRestsWhileTheTargetIsBusy: the rest grows while something is wrong,
// shrinks when it is over, and is nothing for a target that is well.
func TestThrottleRestsWhileTheTargetIsBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := Health{Answer: time.Millisecond}
		var failing error
		looks := 0
		throttle := &Throttle{Name: "b", Bounds: DefaultBounds(), Look: func(context.Context) (Health, error) {
			looks++
			return now, failing
		}}
		const work = 100 * time.Millisecond
		rested := func() time.Duration {
			began := time.Now()
			require.NoError(t, throttle.Pace(t.Context(), work))
			rest := time.Since(began)
			<-time.After(lookEvery) // the next piece of work
			return rest
		}
		require.Zero(t, rested())
		require.Empty(t, throttle.Reason())
		now.Dirty = 0.5
		require.Equal(t, work/2, rested())
		require.Equal(t, work, rested())
		require.Equal(t, 2*work, rested())
		require.Equal(t, "b, 50% of the cache is dirty, bound 15%: rests 2 times as long as it works", throttle.Reason())
		for range 10 {
			rested()
		}
		require.Equal(t, time.Duration(restMost*float64(work)), rested())
		now.Dirty = 0
		require.Equal(t, time.Duration(restMost*float64(work)/2), rested())
		for throttle.Reason() != "" {
			rested()
		}
		require.Zero(t, rested())
		failing = errors.New("down")
		require.Equal(t, work/2, rested())
		require.Contains(t, throttle.Reason(), "down")

		before := looks
		require.NoError(t, throttle.Pace(t.Context(), 0))
		require.NoError(t, throttle.Pace(t.Context(), 0))
		require.Equal(t, before+1, looks, "one look serves all who come soon after it")
	})
}

// TestRestEndsWithItsContext: an import that is paused does not wait for a target.
func TestRestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		throttle := &Throttle{Bounds: DefaultBounds(), Look: func(context.Context) (Health, error) { return Health{Dirty: 1}, nil }}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("paused"))
		defer cancel()
		require.ErrorContains(t, throttle.Pace(ctx, time.Hour), "paused")
		var none *Throttle
		require.NoError(t, none.Pace(ctx, time.Hour))
		require.Empty(t, none.Reason())
	})
}
