package activities

import (
	"context"
	"log/slog"
	"time"

	"drover/contract"
)

// calmWithin is how long a switch that may begin waits for a good moment at most.
const calmWithin = time.Second

// awaitCalm waits for a moment in which the lanes are as close behind as they have been
// a moment before: what they have to catch up with under the fence is what applications
// wait for. The gate has said that the switch may begin, so nothing keeps it from
// beginning after [calmWithin].
func (a *Activities) awaitCalm(ctx context.Context, ref contract.AttemptRef) {
	ctx, cancel := context.WithTimeout(ctx, calmWithin)
	defer cancel()
	at, err := a.Store.Attempt(ctx, ref.Attempt)
	if err == nil {
		in := contract.DirectionInput{Ref: ref.Ref, From: at.Source, To: at.Target, Direction: at.Direction}
		err = untilCalm(func() (time.Duration, error) { return a.probeAll(ctx, in) })
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
// the least that was seen.
func untilCalm(probe func() (time.Duration, error)) error {
	var least time.Duration
	for i := range calmTries {
		lag, err := probe()
		if err != nil {
			return err
		}
		if i >= calmLooks && lag <= least+least/4 {
			return nil
		}
		if i == 0 || lag < least {
			least = lag
		}
	}
	return nil
}
