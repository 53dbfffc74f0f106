package activities

import (
	"context"
	"fmt"
	"math"
	"time"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/metadata"
	"drover/shard"
	"drover/switchover"
)

// The steps of a clean-up, in their order, as the ledger names them.
const (
	stepMark       = "mark"       // the fence document says where the keys live; no attempt can come back
	stepLoader     = "loader"     // the role of every leg
	stepGrants     = "grants"     // gone, on every member
	stepStragglers = "stragglers" // the log was read to a marker behind that: nobody wrote
	stepLanes      = "lanes"      // of every leg: closed for ever, their role is gone
	stepDatabase   = "database"
	stepMigration  = "migration" // what every leg left in Drover's database
)

// cleanupRows is what a clean-up needs of the metadata.
type cleanupRows interface {
	Placement(ctx context.Context, id chunk.PlacementID) (chunk.Placement, error)
	Stragglers(ctx context.Context, of ...chunk.PlacementID) ([]metadata.Straggler, error)
	DropPlacement(ctx context.Context, id chunk.PlacementID) error
	PlacementGone(ctx context.Context, id chunk.PlacementID) error
	BeginCleanup(ctx context.Context, c metadata.Cleanup) (metadata.Cleanup, error)
	CleanupStep(ctx context.Context, p chunk.PlacementID, step string) error
	EndCleanup(ctx context.Context, p chunk.PlacementID) error
}

// cleanup is one placement on its way out.
type cleanup struct {
	doomed
	direction chunk.AttemptID
	rows      cleanupRows
	do        func(ctx context.Context, step string) error // each step may be repeated
	stops     *stoppoint.Points
}

// run does the steps that the ledger does not have yet.
func (c *cleanup) run(ctx context.Context, steps []string) error {
	id := c.placement.ID
	ledger, gone, err := c.begin(ctx)
	if gone || err != nil {
		return err
	}
	for _, step := range steps {
		if ledger.Has(step) {
			continue
		}
		if err := c.do(ctx, step); err != nil {
			return fmt.Errorf("%s of placement %d: %w", step, id, err)
		}
		if err := c.rows.CleanupStep(ctx, id, step); err != nil {
			return err
		}
		if err := c.stops.At(ctx, "drop."+step); err != nil {
			return err
		}
	}
	if err := c.rows.PlacementGone(ctx, id); err != nil {
		return err
	}
	return c.rows.EndCleanup(ctx, id)
}

// begin decides in the metadata that the placement goes: there is no way back from
// there.
func (c *cleanup) begin(ctx context.Context) (ledger metadata.Cleanup, gone bool, err error) {
	p, err := c.rows.Placement(ctx, c.placement.ID)
	if err != nil {
		return ledger, false, err
	}
	if p.State == chunk.Gone {
		return ledger, true, c.rows.EndCleanup(ctx, p.ID)
	}
	if err := c.check(ctx); err != nil {
		return ledger, false, err
	}
	if err := c.rows.DropPlacement(ctx, p.ID); err != nil {
		return ledger, false, err
	}
	ledger, err = c.rows.BeginCleanup(ctx, metadata.Cleanup{Placement: p.ID, Migration: c.lead, Direction: c.direction})
	return ledger, false, err
}

// check refuses while a write stands in the placement that nobody has dealt with.
func (c *cleanup) check(ctx context.Context) error {
	p := c.placement
	stragglers, err := c.rows.Stragglers(ctx, p.ID)
	if err != nil || len(stragglers) == 0 {
		return err
	}
	return failure.New(failure.Mismatch, "drop.stragglers", "%d writes reached placement %d on %s after it was closed", len(stragglers), p.ID, p.Shard).
		WithHint("`drover migrate stragglers %s` shows them, kept in full; acknowledge them there when they are dealt with, then resume", p.Chunk)
}

// dropStep is one step of a clean-up.
func (a *Activities) dropStep(ctx context.Context, c *cleanup, step string) error {
	p := c.placement
	side, err := a.Sides.side(ctx, p.Shard)
	if err != nil {
		return err
	}
	switch step {
	case stepMark:
		routes, err := a.Store.Routes(ctx, databaseOf(p.Chunk))
		if err != nil {
			return err
		}
		return side.MarkGone(ctx, p, homes(routes, c.keys))
	case stepLoader:
		return c.eachLeg(func(m chunk.MigrationID) error { return side.DropLoaderRole(ctx, p.ID, m) })
	case stepGrants:
		return a.takeGrants(ctx, side, p)
	case stepStragglers:
		return a.watchStragglers(ctx, side, c)
	case stepLanes:
		return c.eachLeg(func(m chunk.MigrationID) error {
			if err := side.CloseLanes(ctx, m, c.direction, math.MaxInt64); err != nil {
				return err
			}
			return side.Set.DropApplierRole(ctx, p.ID, m, c.direction)
		})
	case stepDatabase:
		return side.DropDatabase(ctx, p, newPacer(side.Answer).pace)
	case stepMigration:
		return c.eachLeg(func(m chunk.MigrationID) error { return side.RemoveMigration(ctx, m) })
	default:
		panic("no step of a clean-up: " + step)
	}
}

// eachLeg does the same for every leg of the placement.
func (d doomed) eachLeg(do func(chunk.MigrationID) error) error {
	for _, m := range d.legs {
		if err := do(m); err != nil {
			return fmt.Errorf("leg %d: %w", m, err)
		}
	}
	return nil
}

// homes gives where a range of keys is served now.
func homes(routes []chunk.Route, keys chunk.Range) []shard.Home {
	var out []shard.Home
	for _, r := range routes {
		if !r.Chunk.Range.Overlaps(keys) {
			continue
		}
		p := r.Placement
		out = append(out, shard.Home{Chunk: p.Chunk, Forward: shard.Forward{Shard: p.Shard, Placement: p.ID, Database: p.Database, Token: r.Token}})
	}
	return out
}

// takeGrants drops every grant of the placement and sees that all members know.
func (a *Activities) takeGrants(ctx context.Context, side *Side, p chunk.Placement) error {
	defer side.Forget(p)
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
func (a *Activities) watchStragglers(ctx context.Context, side *Side, c *cleanup) error {
	p := c.placement
	from, err := a.Log.EndOffsets(ctx, p.Shard)
	if err != nil {
		return err
	}
	m := chunk.Marker{Kind: chunk.ValidateMarker, Migration: c.lead, Attempt: c.direction, Placement: p.ID, Round: time.Now().UnixNano(), At: time.Now()}
	if err := side.WriteMarker(ctx, m); err != nil {
		return err
	}
	if _, err := a.Log.FindMarker(ctx, p.Shard, m.Key(), from); err != nil {
		return err
	}
	return c.check(ctx)
}
