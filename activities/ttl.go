package activities

import (
	"context"
	"errors"
	"slices"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// ttlGuard changes TTL of one placement on behalf of an attempt. A collMod cannot be
// made conditional, so the row is looked at before and after: whoever comes late
// leaves things as the newest attempt needs them.
type ttlGuard struct {
	placement     chunk.PlacementID
	attempt       chunk.AttemptID
	latest        func(context.Context) (metadata.Attempt, error) // of the chunk
	park, restore func(context.Context) error
}

// newest is failure.Lost when the attempt is not the newest of its chunk, or is not in
// one of the states in which it may change TTL.
func (g ttlGuard) newest(ctx context.Context, in ...chunk.AttemptState) (metadata.Attempt, error) {
	at, err := g.latest(ctx)
	if err != nil {
		return at, err
	}
	if at.ID != g.attempt || !slices.Contains(in, at.State) {
		return at, failure.New(failure.Lost, "switch.ttl_late", "attempt %d may not change TTL of placement %d: attempt %d is %s", g.attempt, g.placement, at.ID, at.State)
	}
	return at, nil
}

// Park parks TTL while the attempt is being prepared.
func (g ttlGuard) Park(ctx context.Context) error {
	if _, err := g.newest(ctx, chunk.Preparing); err != nil {
		return err
	}
	if err := g.park(ctx); err != nil {
		return err
	}
	at, err := g.newest(ctx, chunk.Preparing, chunk.Fencing)
	if failure.Is(err, failure.Lost) && !g.needsParked(at) {
		if restoreErr := g.restore(ctx); restoreErr != nil {
			return restoreErr // transient: asked again, it finds out and parks nothing
		}
	}
	return err
}

// Restore brings TTL back after the attempt has ended, or opened the placement.
func (g ttlGuard) Restore(ctx context.Context) error {
	mine := []chunk.AttemptState{chunk.Open, chunk.AttemptDone, chunk.AttemptAborting, chunk.AttemptAborted}
	if _, err := g.newest(ctx, mine...); err != nil {
		return err
	}
	if err := g.restore(ctx); err != nil {
		return err
	}
	at, err := g.newest(ctx, mine...)
	if failure.Is(err, failure.Lost) && g.needsParked(at) {
		return errors.Join(err, g.park(ctx))
	}
	return err
}

// needsParked reports whether the newest attempt leaves the placement now.
func (g ttlGuard) needsParked(at metadata.Attempt) bool {
	return leaves(at, g.placement) && (at.State == chunk.Preparing || at.State.HoldsWrites() && at.State != chunk.AttemptAborting)
}

// leaves reports whether an attempt goes away from a placement.
func leaves(at metadata.Attempt, p chunk.PlacementID) bool {
	return slices.ContainsFunc(at.Legs, func(l metadata.Leg) bool { return l.Source.ID == p })
}
