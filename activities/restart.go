package activities

import (
	"context"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/replication"
	"drover/shard"
)

// mostRestarted is how many differing documents are looked at for their slices: more
// of them are hardly in slices that none of these is in.
const mostRestarted = 10_000

// RestartSlices copies those slices of a move's import anew in which documents were
// found to differ.
//
// Before: no lanes and no verification of the migration run, it has one leg, and its
// source serves.
// After: these slices are as the source was at a snapshot behind everything that
// lanes have applied, with windows that say so; lanes that start then skip what is
// in it. If interrupted: run again, and before any lane: a slice may be cleared.
func (a *Activities) RestartSlices(ctx context.Context, in contract.ImportInput) (contract.RestartResult, error) {
	var out contract.RestartResult
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return out, err
	}
	sort, err := orders(in.Sort)
	if err != nil {
		return out, err
	}
	meter := a.meter(in.Ref, "restart")
	err = meter.beating(ctx, func(ctx context.Context) error {
		r, err := a.Store.Route(ctx, m.Chunk.ID)
		if err == nil {
			err = sourceServes(m, r)
		}
		if err != nil {
			return err
		}
		l := leg{DirectionInput: contract.DirectionInput{Ref: in.Ref, From: m.Source, To: m.Target, PrimaryReads: in.PrimaryReads}}
		e, err := a.ends(ctx, l.DirectionInput)
		if err != nil {
			return err
		}
		// A lane that was taken for dead must not meet the loaders.
		if err := e.to.DropApplierRole(ctx, m.Target.ID, m.ID, 0); err != nil {
			return err
		}
		if err := a.abortOwners(ctx, e.to, m.ID); err != nil {
			return err
		}
		if _, err := e.to.DrainUser(ctx, chunk.ApplierUser, shard.DrainRequest{Placement: m.Target, Budget: drainBudget}); err != nil {
			return err
		}
		if out.Slices, err = a.replan(ctx, m.ID); err != nil || out.Slices == 0 {
			return err
		}
		// A secondary may be behind what lanes have applied, which they do not apply again.
		mark, err := (&heartbeatMarks{a: a, e: e, in: l.DirectionInput}).Write(ctx)
		if err != nil {
			return err
		}
		l.applied = mark.At
		a.Logger.InfoContext(ctx, "Slices with documents that differ are copied anew", slog.Int("slices", out.Slices))
		if err := e.to.EnsureLoaderRole(ctx, m.Target, m.ID); err != nil {
			return err
		}
		_, err = a.importLeg(ctx, l, sort, meter)
		return err
	})
	return out, err
}

// abortOwners aborts the batch that a lane of the import's direction may have left
// open: its commit would need no role, and until then it keeps loaders from its documents.
func (a *Activities) abortOwners(ctx context.Context, to *shard.Set, m chunk.MigrationID) error {
	admin, err := to.Client(chunk.AdminUser)
	if err != nil {
		return err
	}
	return replication.AbortOwners(ctx, admin, to, m, 0)
}

// sourceServes refuses a move whose target serves: its documents are newer than those
// that the slices would be read from.
func sourceServes(m metadata.Migration, r chunk.Route) error {
	if r.Placement.ID == m.Source.ID {
		return nil
	}
	return failure.New(failure.Invalid, "migration.source_not_serving", "slices of %s cannot be copied anew: shard %s serves it by now", m.Chunk.ID, r.Placement.Shard).
		WithHint("repair documents that differ by hand, see drover migrate mismatches")
}

// replan takes the slices back to planned that hold documents that differ, and gives
// the number of all that are not loaded.
func (a *Activities) replan(ctx context.Context, id chunk.MigrationID) (int, error) {
	rows, err := a.Store.Slices(ctx, id)
	if err != nil {
		return 0, err
	}
	differ, _, err := a.Store.OpenMismatches(ctx, id, mostRestarted)
	if err != nil {
		return 0, err
	}
	again, err := sliceNumbers(rows, differ)
	if err != nil {
		return 0, err
	}
	n := 0
	for i, r := range rows {
		if again[i] && r.State == metadata.SliceLoaded {
			if err := a.Store.SetSliceState(ctx, r, metadata.SliceLoaded, metadata.SlicePlanned); err != nil {
				return 0, err
			}
		}
		if again[i] || r.State != metadata.SliceLoaded {
			n++
		}
	}
	return n, nil
}

// sliceNumbers gives by index those slices that hold one of the documents.
func sliceNumbers(rows []metadata.Slice, differ []metadata.Mismatch) (map[int]bool, error) {
	all, _ := fromRows(rows, nil)
	out := map[int]bool{}
	for _, d := range differ {
		held, ok, err := bulkimport.Holding(all, d.Collection, bson.Raw(d.ID).Lookup("_id"))
		if err != nil {
			return nil, err
		}
		for i, s := range all {
			if ok && s.Collection == held.Collection && s.Number == held.Number {
				out[i] = true
			}
		}
	}
	return out, nil
}
