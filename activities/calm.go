package activities

import (
	"context"
	"log/slog"
	"time"

	"drover/contract"
)

// calmWithin is how long a switch that may begin looks for a good moment. A question
// under way then is waited for: one that is cut off loses a connection that the window
// needs, and its marker may land behind the window's own.
const calmWithin = time.Second

// awaitCalm waits for a moment in which the lanes are as close behind as they have been
// a moment before: what they have to catch up with under the fence is what applications
// wait for. The gate has said that the switch may begin, so nothing keeps it from
// beginning after [calmWithin].
func (a *Activities) awaitCalm(ctx context.Context, ref contract.AttemptRef) {
	ctx, cancel := context.WithTimeout(ctx, calmWithin+answerPatience)
	defer cancel()
	at, err := a.Store.Attempt(ctx, ref.Attempt)
	if err == nil {
		in := contract.DirectionInput{Ref: ref.Ref, From: at.Source, To: at.Target, Direction: at.Direction}
		began := time.Now()
		err = untilCalm(func() (lag time.Duration, more bool, err error) {
			lag, err = a.probeAll(ctx, in)
			return lag, time.Since(began) < calmWithin, err
		})
	}
	if err != nil {
		a.Logger.DebugContext(ctx, "No calm moment was found", slog.Int64("attempt", int64(ref.Attempt)), slog.Any("error", err))
	}
}

// Bounds of [untilCalm].
const (
	calmLooks = 3  // first, to learn what is usual now
	calmTries = 12 // at most, with the first ones
)

// untilCalm measures the lag again and again, until it is no more than a quarter above
// the least that was seen, or probe wants no more.
func untilCalm(probe func() (lag time.Duration, more bool, err error)) error {
	var least time.Duration
	for i := range calmTries {
		lag, more, err := probe()
		if err != nil || !more || i >= calmLooks && lag <= least+least/4 {
			return err
		}
		if i == 0 || lag < least {
			least = lag
		}
	}
	return nil
}
