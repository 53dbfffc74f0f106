package activities

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/switchover"
)

// DropSource removes the placement that no longer serves.
//
// Before: burn-in is over, the lanes have stopped. After: the database, its roles
// and what the migration left on the shards are gone. If interrupted: run again.
func (a *Activities) DropSource(ctx context.Context, in contract.DropInput) (contract.None, error) {
	all, err := a.doomed(ctx, in)
	if err != nil {
		return contract.None{}, err
	}
	for _, d := range all {
		if gone, err := a.dropping(ctx, d.placement); err != nil {
			return contract.None{}, err
		} else if gone {
			continue
		}
		side, err := a.Sides.side(ctx, d.placement.Shard)
		if err != nil {
			return contract.None{}, err
		}
		if err := a.takeGrants(ctx, side, d.placement); err != nil {
			return contract.None{}, err
		}
		if err := a.watchStragglers(ctx, side, d, in.Direction); err != nil {
			return contract.None{}, err
		}
		if err := a.remove(ctx, side, d, in.Direction); err != nil {
			return contract.None{}, err
		}
	}
	return contract.None{}, nil
}

// DropTarget removes the copies of a move that was given up.
func (a *Activities) DropTarget(ctx context.Context, in contract.DropInput) (contract.None, error) {
	all, err := a.doomed(ctx, in)
	if err != nil {
		return contract.None{}, err
	}
	for _, d := range all {
		if gone, err := a.dropping(ctx, d.placement); err != nil {
			return contract.None{}, err
		} else if gone {
			continue
		}
		side, err := a.Sides.side(ctx, d.placement.Shard)
		if err != nil {
			return contract.None{}, err
		}
		for _, m := range d.legs {
			if err := side.DropLoaderRole(ctx, d.placement.ID, m); err != nil {
				return contract.None{}, err
			}
		}
		if err := a.remove(ctx, side, d, in.Direction); err != nil {
			return contract.None{}, err
		}
	}
	return contract.None{}, nil
}

// doomed is one placement that is dropped, with the legs that it is of.
type doomed struct {
	placement chunk.Placement
	lead      chunk.MigrationID
	legs      []chunk.MigrationID
}

// doomed gives every placement of the side that in's placement is on.
func (a *Activities) doomed(ctx context.Context, in contract.DropInput) ([]doomed, error) {
	rows, err := a.Store.Legs(ctx, in.Migration)
	if err != nil {
		return nil, err
	}
	of := func(m metadata.Migration) chunk.Placement { return m.Source }
	if slices.ContainsFunc(rows, func(m metadata.Migration) bool { return m.Target.ID == in.Placement.ID }) {
		of = func(m metadata.Migration) chunk.Placement { return m.Target }
	}
	var all []doomed
	for _, m := range rows {
		at := slices.IndexFunc(all, func(d doomed) bool { return d.placement.ID == of(m).ID })
		if at < 0 {
			at = len(all)
			all = append(all, doomed{placement: of(m), lead: m.Lead})
		}
		all[at].legs = append(all[at].legs, m.ID)
	}
	return all, nil
}

// dropping decides in the metadata that the placement goes: no way back.
func (a *Activities) dropping(ctx context.Context, of chunk.Placement) (gone bool, err error) {
	p, err := a.Store.Placement(ctx, of.ID)
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
func (a *Activities) watchStragglers(ctx context.Context, side *Side, d doomed, direction chunk.AttemptID) error {
	p := d.placement
	from, err := a.Log.EndOffsets(ctx, p.Shard)
	if err != nil {
		return err
	}
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: d.lead, Attempt: direction, Placement: p.ID, Round: time.Now().UnixNano(), At: time.Now()}
	if err := side.WriteMarker(ctx, m); err != nil {
		return err
	}
	if _, err := a.Log.FindMarker(ctx, p.Shard, m.Key(), from); err != nil {
		return err
	}
	stragglers, err := a.Store.Stragglers(ctx, p.ID)
	if err != nil {
		return err
	}
	if len(stragglers) > 0 {
		return failure.New(failure.Mismatch, "drop.stragglers", "%d writes reached placement %d on %s after it was closed", len(stragglers), p.ID, p.Shard).
			WithHint("they are kept in full, see docs/operations.md; nothing is dropped until they are dealt with")
	}
	return nil
}

// remove deletes everything of the placement on its shard, then the last of it
// in the metadata.
func (a *Activities) remove(ctx context.Context, side *Side, d doomed, direction chunk.AttemptID) error {
	p := d.placement
	for _, m := range d.legs {
		if err := side.CloseLanes(ctx, m, direction, math.MaxInt64); err != nil {
			return err
		}
		if err := side.Set.DropApplierRole(ctx, p.ID, m, direction); err != nil {
			return err
		}
	}
	if err := side.DropDatabase(ctx, p); err != nil {
		return fmt.Errorf("drop %s on %s: %w", p.Database, p.Shard, err)
	}
	if err := side.RemoveFence(ctx, p.ID); err != nil {
		return err
	}
	for _, m := range d.legs {
		if err := side.RemoveMigration(ctx, m); err != nil {
			return err
		}
	}
	return a.Store.PlacementGone(ctx, p.ID)
}
