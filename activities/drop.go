package activities

import (
	"context"
	"slices"
	"sync/atomic"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
)

// DropSource removes the placements that no longer serve.
//
// Before: burn-in is over, the lanes have stopped. After: their databases, roles and
// what the migration left on the shards are gone; the fence documents say where their
// keys live. If interrupted: run again; the ledgers say what is left.
func (a *Activities) DropSource(ctx context.Context, in contract.DropInput) (contract.None, error) {
	return contract.None{}, a.drop(ctx, in, stepMark, stepGrants, stepStragglers, stepLanes, stepDatabase, stepMigration)
}

// DropTarget removes the copies of a move that was given up.
func (a *Activities) DropTarget(ctx context.Context, in contract.DropInput) (contract.None, error) {
	steps := []string{stepMark, stepLoader, stepLanes, stepDatabase, stepMigration}
	if in.Direction != 0 { // they have served, and were left again
		steps = []string{stepMark, stepLoader, stepGrants, stepStragglers, stepLanes, stepDatabase, stepMigration}
	}
	return contract.None{}, a.drop(ctx, in, steps...)
}

// drop cleans up after every placement of the side that in's placement is on, one
// after the other: two on one shard would hide from each other what they cost it.
func (a *Activities) drop(ctx context.Context, in contract.DropInput, steps ...string) error {
	rows, err := a.Store.Legs(ctx, in.Migration)
	if err != nil {
		return err
	}
	var all []*cleanup
	for _, d := range doomedOf(rows, in.Placement.ID) {
		c := &cleanup{doomed: d, direction: in.Direction, rows: a.Store, stops: a.Stops}
		c.do = func(ctx context.Context, step string) error { return a.dropStep(ctx, c, step) }
		all = append(all, c)
	}
	var at atomic.Int64
	return beating(ctx, func() any { return at.Load() }, func(ctx context.Context) error {
		for _, c := range all { // before the first of them is decided
			if err := c.check(ctx); err != nil {
				return err
			}
		}
		for _, c := range all {
			at.Store(int64(c.placement.ID))
			if err := c.run(ctx, steps); err != nil {
				return err
			}
		}
		return nil
	})
}

// doomed is one placement that is dropped, with the legs that it is of.
type doomed struct {
	placement chunk.Placement
	keys      chunk.Range // of its chunk
	lead      chunk.MigrationID
	legs      []chunk.MigrationID
}

// doomedOf gives every placement of the side of a migration that one of its
// placements is on.
func doomedOf(rows []metadata.Migration, id chunk.PlacementID) []doomed {
	of := func(m metadata.Migration) (chunk.Placement, chunk.Range) { return m.Source, m.Chunk.Range }
	if slices.ContainsFunc(rows, func(m metadata.Migration) bool { return m.Target.ID == id }) {
		of = func(m metadata.Migration) (chunk.Placement, chunk.Range) { return m.Target, m.TargetChunk.Range }
	}
	var all []doomed
	for _, m := range rows {
		p, keys := of(m)
		at := slices.IndexFunc(all, func(d doomed) bool { return d.placement.ID == p.ID })
		if at < 0 {
			at = len(all)
			all = append(all, doomed{placement: p, keys: keys, lead: m.Lead})
		}
		all[at].legs = append(all[at].legs, m.ID)
	}
	return all
}
