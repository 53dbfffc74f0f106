package bulkimport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
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

// working is a piece of work that takes so long.
func working(took time.Duration) func(context.Context) error {
	return func(context.Context) error {
		<-time.After(took)
		return nil
	}
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
			require.NoError(t, gently(t.Context(), working(work), throttle))
			rest := time.Since(began) - work
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
		require.NoError(t, gently(t.Context(), working(0), throttle))
		require.NoError(t, gently(t.Context(), working(0), throttle))
		require.Equal(t, before+1, looks, "one look serves all who come soon after it")
	})
}

// TestRestEndsWithItsContext: an import that is paused does not wait for a target.
func TestRestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		throttle := &Throttle{Bounds: DefaultBounds(), rest: 31, Look: func(context.Context) (Health, error) { return Health{Dirty: 1}, nil }}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("paused"))
		defer cancel()
		require.ErrorContains(t, gently(ctx, working(100*time.Millisecond), throttle), "paused")
		var none *Throttle
		require.NoError(t, gently(ctx, working(0), none, nil))
		require.Empty(t, none.Reason())
	})
}

// TestOnePieceAtATimeWhereApplicationsAre: on a shard that applications use, pieces are
// small and come one after another with rests between them; elsewhere as they like.
func TestOnePieceAtATimeWhereApplicationsAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		health := Health{}
		throttle := &Throttle{Name: "a", Bounds: DefaultBounds(), Edge: edge, Look: func(context.Context) (Health, error) { return health, nil }}
		const work = 10 * time.Millisecond
		both := func() time.Duration {
			require.NoError(t, gently(t.Context(), working(0), throttle)) // looks
			began := time.Now()
			var two errgroup.Group
			for range 2 {
				two.Go(func() error { return gently(t.Context(), working(work), throttle) })
			}
			require.NoError(t, two.Wait())
			took := time.Since(began)
			<-time.After(lookEvery)
			return took
		}
		require.Equal(t, work, both(), "nobody is there")
		require.Zero(t, piece(throttle, nil))
		health.Heard.Served = Served{"p": {1}}
		require.Equal(t, 2*time.Duration(float64(work)/levelFirst), both())
		require.InEpsilon(t, 2*levelFirst, piece(throttle), 1e-9)
		require.Contains(t, throttle.Reason(), "a, applications use it")

		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		var waiting errgroup.Group
		waiting.Go(func() error {
			return gently(ctx, func(context.Context) error { <-release; return nil }, throttle)
		})
		synctest.Wait()
		waiting.Go(func() error { return gently(ctx, working(work), throttle) })
		synctest.Wait()
		cancel(errors.New("paused"))
		close(release)
		require.ErrorContains(t, waiting.Wait(), "paused", "who waits for a turn does not wait for ever")

		throttle.courtesy.level = 2
		require.Equal(t, work, both(), "two at once are allowed")
		<-time.After(goneAfter)
		require.Equal(t, work, both())
		require.Zero(t, piece(throttle), "they have gone")
	})
}

// TestTurnsBringLittle: the size of what was read says how much the next turn brings.
func TestTurnsBringLittle(t *testing.T) {
	t.Parallel()
	for want, size := range map[int32]Bytes{firstTurn: 0, turnDocuments: 10, 64: 2 * KiB, 1: MiB} {
		tk := &taker{snapshot: snapshot{docs: make([]bson.Raw, 10), bytes: 10 * size}}
		require.Equal(t, want, tk.perTurn())
	}
	var b batch
	for want, share := range map[int]float64{smallDocuments: 1, smallDocuments / 4: 0.25} {
		b.reset()
		b.share = share
		for range want {
			require.True(t, b.takes(bson.Raw{}))
			b.add(bson.Raw{})
		}
		require.False(t, b.takes(bson.Raw{}))
	}
	b.share = 0
	require.True(t, b.takes(bson.Raw{}))
	require.EqualValues(t, 1, partOf(1, leastPiece))
	require.Zero(t, partOf(500, 0))
}

// TestPiecesAreAsSmallAsWhereTheyHaveToBe: the shard that is read has applications, the one
// that is loaded has none.
func TestPiecesAreAsSmallAsWhereTheyHaveToBe(t *testing.T) {
	t.Parallel()
	crowded := func(level float64) *Throttle { return &Throttle{courtesy: courtesy{crowd: true, level: level}} }
	require.InEpsilon(t, 0.5, piece(&Throttle{}, crowded(0.5), crowded(0.25)), 1e-9)
	require.InEpsilon(t, leastPiece, piece(crowded(levelLeast), nil), 1e-9)
	require.InEpsilon(t, 1.0, piece(crowded(levelMost)), 1e-9)
}
