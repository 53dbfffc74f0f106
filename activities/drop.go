package activities

import (
	"context"
	"fmt"
	"math"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/switchover"
)

// DropSource removes the placement that no longer serves.
//
// Before: burn-in is over, the lanes have stopped. After: the database, its roles
// and what the migration left on the shards are gone. If interrupted: run again.
func (a *Activities) DropSource(ctx context.Context, in contract.DropInput) (contract.None, error) {
	if gone, err := a.dropping(ctx, in); gone || err != nil {
		return contract.None{}, err
	}
	side, err := a.Sides.side(ctx, in.Placement.Shard)
	if err != nil {
		return contract.None{}, err
	}
	if err := a.takeGrants(ctx, side, in.Placement); err != nil {
		return contract.None{}, err
	}
	if err := a.watchStragglers(ctx, side, in); err != nil {
		return contract.None{}, err
	}
	return contract.None{}, a.remove(ctx, side, in)
}

// DropTarget removes the copy of a move that was given up.
func (a *Activities) DropTarget(ctx context.Context, in contract.DropInput) (contract.None, error) {
	if gone, err := a.dropping(ctx, in); gone || err != nil {
		return contract.None{}, err
	}
	side, err := a.Sides.side(ctx, in.Placement.Shard)
	if err != nil {
		return contract.None{}, err
	}
	if err := side.DropLoaderRole(ctx, in.Placement.ID, in.Migration); err != nil {
		return contract.None{}, err
	}
	return contract.None{}, a.remove(ctx, side, in)
}

// dropping decides in the metadata that the placement goes: no way back.
func (a *Activities) dropping(ctx context.Context, in contract.DropInput) (gone bool, err error) {
	p, err := a.Store.Placement(ctx, in.Placement.ID)
	if err != nil {
		return false, err
	}
	switch p.State {
	case chunk.Gone:
		return true, nil
	case chunk.Dropping:
		return false, nil
	case chunk.Loading, chunk.Mirror, chunk.Live:
	}
	return false, a.Store.DropPlacement(ctx, p.ID)
}

// takeGrants drops every grant of the placement and sees that all members know.
func (a *Activities) takeGrants(ctx context.Context, side *Side, p chunk.Placement) error {
	for _, access := range []switchover.Access{switchover.Writes, switchover.Reads} {
		if _, err := side.DropGrants(ctx, p, math.MaxInt64, access); err != nil {
			return err
		}
		owed, err := side.Barrier(ctx, p, access)
		if err != nil {
			return err
		}
		if len(owed) > 0 {
			return failure.New(failure.Transient, "drop.member_owed", "members %v of %s have not seen that placement %d is closed", owed, p.Shard, p.ID).
				WithHint("bring them back or remove them from the set; the drop goes on by itself")
		}
	}
	return nil
}

// watchStragglers waits until capture has seen everything that was written to
// the placement, and refuses when something was.
func (a *Activities) watchStragglers(ctx context.Context, side *Side, in contract.DropInput) error {
	from, err := a.Log.EndOffsets(ctx, in.Placement.Shard)
	if err != nil {
		return err
	}
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: in.Migration, Attempt: in.Direction, Placement: in.Placement.ID, Round: time.Now().UnixNano(), At: time.Now()}
	if err := side.WriteMarker(ctx, m); err != nil {
		return err
	}
	if _, err := a.Log.FindMarker(ctx, in.Placement.Shard, m.Key(), from); err != nil {
		return err
	}
	stragglers, err := a.Store.Stragglers(ctx, in.Placement.ID)
	if err != nil {
		return err
	}
	if len(stragglers) > 0 {
		return failure.New(failure.Mismatch, "drop.stragglers", "%d writes reached placement %d on %s after it was closed", len(stragglers), in.Placement.ID, in.Placement.Shard).
			WithHint("they are kept in full, see docs/operations.md; nothing is dropped until they are dealt with")
	}
	return nil
}

// remove deletes everything of the placement on its shard, then the last of it
// in the metadata.
func (a *Activities) remove(ctx context.Context, side *Side, in contract.DropInput) error {
	if err := side.CloseLanes(ctx, in.Migration, in.Direction, math.MaxInt64); err != nil {
		return err
	}
	if err := side.Set.DropApplierRole(ctx, in.Placement.ID, in.Migration, in.Direction); err != nil {
		return err
	}
	if err := side.DropDatabase(ctx, in.Placement); err != nil {
		return fmt.Errorf("drop %s on %s: %w", in.Placement.Database, in.Placement.Shard, err)
	}
	if err := side.RemoveFence(ctx, in.Placement.ID); err != nil {
		return err
	}
	if err := side.RemoveMigration(ctx, in.Migration); err != nil {
		return err
	}
	return a.Store.PlacementGone(ctx, in.Placement.ID)
}
