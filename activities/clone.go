package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/bulkimport"
	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/event"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// cloneMargin is how far the clocks of shards and of the metadata may differ: a
// clone's time must be over for that long, and its log is read from so much earlier.
const cloneMargin = time.Minute

// PlanClone says what a clone would be made of. It only reads.
func (a *Activities) PlanClone(ctx context.Context, in contract.CloneInput) (contract.ClonePlan, error) {
	plan := contract.ClonePlan{CloneInput: in}
	now, err := a.Store.Now(ctx)
	if err != nil {
		return plan, err
	}
	if in.At.After(now.Add(-cloneMargin / 10)) {
		return plan, failure.New(failure.Invalid, "clone.bad_time", "%s is not over yet", in.At.UTC().Format(time.RFC3339)).
			WithHint("give a time in the past")
	}
	base, all, err := a.cloneBase(ctx, in)
	if err != nil {
		return plan, err
	}
	plan.Base, plan.Source, plan.Start, plan.Slices = base.ID, base.Source, base.CreatedAt, len(all)
	for _, s := range all {
		plan.Documents, plan.Bytes = plan.Documents+s.Docs, plan.Bytes+s.Bytes
	}
	plan.Stored = time.Unix(int64(latestOf(all).T), 0).UTC()
	if plan.Shards, err = a.clonePath(ctx, in, base); err != nil {
		return plan, err
	}
	to, err := a.Sides.Set(ctx, in.To)
	if err != nil {
		return plan, err
	}
	room, err := to.Room(ctx)
	if err != nil {
		return plan, err
	}
	if need := int64(float64(plan.Bytes) * roomFactor); room.Known && room.Free() < need {
		return plan, failure.New(failure.Invalid, "migration.no_room", "shard %s has %d bytes free, the clone needs %d", in.To, room.Free(), need).
			WithHint("choose another shard with --to")
	}
	return plan, a.checkCloneLog(ctx, base)
}

// cloneBase finds the newest import of the chunk that was over at the clone's time.
func (a *Activities) cloneBase(ctx context.Context, in contract.CloneInput) (metadata.Migration, []metadata.Slice, error) {
	moves, err := a.Store.Migrations(ctx, metadata.MigrationFilter{Chunk: in.Chunk})
	if err != nil {
		return metadata.Migration{}, nil, err
	}
	for _, m := range moves { // newest first
		legs, err := a.Store.Legs(ctx, m.ID)
		if err != nil {
			return m, nil, err
		}
		if len(legs) > 1 || m.Chunk.ID != in.Chunk || m.TargetChunk.ID != in.Chunk { // a part of the chunk, or more
			continue
		}
		all, err := a.Store.Slices(ctx, m.ID)
		if err != nil {
			return m, nil, err
		}
		if storedBefore(all, in.At) {
			return m, all, nil
		}
	}
	return metadata.Migration{}, nil, failure.New(failure.Invalid, "clone.no_base", "no import of chunk %s was over at %s", in.Chunk, in.At.UTC().Format(time.RFC3339)).
		WithHint("a clone begins with the import of a move: one of the chunk as it is, before that time")
}

// storedBefore reports whether an import is complete in the bucket, and every window
// of it was over at a time.
func storedBefore(all []metadata.Slice, at time.Time) bool {
	for _, s := range all {
		if s.State == metadata.SlicePlanned || s.THi.IsZero() {
			return false
		}
	}
	return len(all) > 0 && int64(latestOf(all).T) < at.Unix()
}

// latestOf gives the end of the latest window.
func latestOf(all []metadata.Slice) (latest bson.Timestamp) {
	for _, s := range all {
		if s.THi.After(latest) {
			latest = s.THi
		}
	}
	return latest
}

// clonePath names the shards that served the chunk from the base's import to the
// clone's time, and refuses a time at which the chunk was no more.
func (a *Activities) clonePath(ctx context.Context, in contract.CloneInput, base metadata.Migration) ([]string, error) {
	history, err := a.Store.RouteHistory(ctx, in.Chunk)
	if err != nil {
		return nil, err
	}
	path := []string{base.Source.Shard}
	for _, h := range history {
		if h.At.After(base.CreatedAt) && !h.At.After(in.At) {
			path = append(path, h.Shard)
		}
	}
	return path, nil
}

// checkCloneLog refuses a base whose log no longer reaches back to its start.
func (a *Activities) checkCloneLog(ctx context.Context, base metadata.Migration) error {
	replay := a.replay()
	p, err := partitionOf(base.Source.Database, a.Settings.Partitions)
	if err != nil {
		return err
	}
	from, err := replay.Seek(ctx, base.Source.Shard, p, base.CreatedAt.Add(-cloneMargin))
	if err != nil {
		return err
	}
	key, found := startMarker(base).Key(), false
	err = replay.Read(ctx, base.Source.Shard, p, from, func(_ int64, e *event.Event) error {
		switch {
		case e == nil:
		case e.Marker != nil && e.Marker.Key() == key:
			found = true
			return cdc.ErrStop
		case e.Wall.After(base.CreatedAt.Add(2 * cloneMargin)):
			return cdc.ErrStop
		}
		return nil
	})
	if err == nil && !found {
		err = failure.New(failure.Invalid, "clone.log_gone", "the log of shard %s no longer has the beginning of migration %d", base.Source.Shard, base.ID).
			WithHint("the archive's retention is over: choose a time after a later move of the chunk")
	}
	return err
}

// MakeClone loads an import and replays what followed until the clone's time.
//
// Before: planned. After: the database is what the chunk was, with its indexes; no
// route leads to it, and its documents never expire. If interrupted: run again; the
// row says how far it came, and lanes' checkpoints what was replayed.
func (a *Activities) MakeClone(ctx context.Context, in contract.CloneWork) (contract.CloneResult, error) {
	out := contract.CloneResult{ClonePlan: in.ClonePlan}
	progress := contract.Progress{Step: "clone", DocumentsTotal: in.Documents, BytesTotal: in.Bytes}
	var now guarded[contract.Progress]
	now.set(progress)
	err := beating(ctx, func() any { return now.get() }, func(ctx context.Context) error {
		c, err := a.Store.RegisterClone(ctx, metadata.Clone{
			WorkflowID: in.WorkflowID, Chunk: in.Chunk, At: in.At, Base: in.Base, KeepFrom: in.Start.Add(-cloneMargin), Shard: in.To, RequestedBy: in.RequestedBy,
		}, func(id chunk.MigrationID) string { return chunk.CloneName(in.Chunk, id) })
		if err != nil {
			return err
		}
		out.Clone, out.Database = c.ID, c.Database
		w, err := a.cloning(ctx, c, in.ClonePlan)
		if err != nil {
			return err
		}
		w.report = func(events, documents, bytes int64, detail string) {
			p := progress
			p.Documents, p.Bytes, p.Detail = documents, bytes, detail
			now.set(p)
			out.Events = events
		}
		return w.run(ctx)
	})
	return out, err
}

// cloning is a clone in the making.
type cloning struct {
	a       *Activities
	clone   metadata.Clone
	plan    contract.ClonePlan
	to      *shard.Set
	place   chunk.Placement // stands for the clone in roles and lanes
	catalog []chunk.Collection
	report  func(events, documents, bytes int64, detail string)
}

// cloning is wired to the clone's shard.
func (a *Activities) cloning(ctx context.Context, c metadata.Clone, plan contract.ClonePlan) (*cloning, error) {
	to, err := a.Sides.Set(ctx, c.Shard)
	if err != nil {
		return nil, err
	}
	catalog, err := a.Store.Collections(ctx, databaseOf(c.Chunk))
	if err != nil {
		return nil, err
	}
	return &cloning{a: a, clone: c, plan: plan, to: to, catalog: catalog, place: chunk.Placement{Chunk: c.Chunk, Shard: c.Shard, Database: c.Database}}, nil
}

// run goes on where the row says.
func (w *cloning) run(ctx context.Context) error {
	store, id := w.a.Store, w.clone.ID
	if w.clone.State == metadata.CloneLoading {
		if err := w.load(ctx); err != nil {
			return err
		}
		if err := store.SetCloneState(ctx, id, metadata.CloneLoading, metadata.CloneReplaying); err != nil {
			return err
		}
		w.clone.State = metadata.CloneReplaying
	}
	if w.clone.State == metadata.CloneReplaying {
		if err := renewing(ctx, w.replay, w.to); err != nil {
			return err
		}
		if err := store.SetCloneState(ctx, id, metadata.CloneReplaying, metadata.CloneIndexing); err != nil {
			return err
		}
		w.clone.State = metadata.CloneIndexing
	}
	if w.clone.State != metadata.CloneIndexing {
		return nil
	}
	if err := w.to.IndexClone(ctx, w.clone.Database, w.catalog); err != nil {
		return err
	}
	if err := w.to.DropCloneRoles(ctx, id); err != nil {
		return err
	}
	if err := w.to.RemoveMigration(ctx, id); err != nil {
		return err
	}
	return store.SetCloneState(ctx, id, metadata.CloneIndexing, metadata.CloneDone)
}

// load restores the import's slices.
func (w *cloning) load(ctx context.Context) error {
	rows, err := fromRows(w.a.Store.Slices(ctx, w.plan.Base))
	if err != nil {
		return err
	}
	if err := w.to.ProvisionClone(ctx, w.clone.Database, w.catalog); err != nil {
		return err
	}
	if err := w.to.EnsureLoaderRole(ctx, w.place, w.clone.ID); err != nil {
		return err
	}
	loader, err := w.to.Client(chunk.LoaderUser)
	if err != nil {
		return err
	}
	target := bulkimport.Target{Client: loader, Database: w.clone.Database, KeepsEmptyTimestamps: w.to.Shard().Capabilities.KeepsEmptyTimestamps}
	var documents, bytes int64
	err = target.Restore(ctx, bulkimport.Bucket{Client: w.a.S3, Name: w.a.Bucket}, w.clone.ID, rows, func(s bulkimport.Slice) {
		documents, bytes = documents+int64(s.Object.Documents), bytes+int64(s.Object.Bytes)
		w.report(0, documents, bytes, fmt.Sprintf("loads %s", s.Collection))
	})
	return err
}

// DropClone drops a clone's database: of one that failed, or of one that a person
// has done with. A clone that was never registered is no error.
func (a *Activities) DropClone(ctx context.Context, in contract.CloneEnd) (contract.None, error) {
	all, err := a.Store.Clones(ctx, false)
	if err != nil {
		return contract.None{}, err
	}
	i := slices.IndexFunc(all, func(c metadata.Clone) bool { return c.ID == in.Clone || in.Clone == 0 && c.WorkflowID == in.WorkflowID })
	if i < 0 || all[i].State == metadata.CloneFailed || all[i].State == metadata.CloneDropped {
		return contract.None{}, nil
	}
	c := all[i]
	if in.Clone == 0 && c.State == metadata.CloneDone { // it ended although its answer was lost
		return contract.None{}, nil
	}
	set, err := a.Sides.Set(ctx, c.Shard)
	if err != nil {
		return contract.None{}, err
	}
	if err := errors.Join(set.DropClone(ctx, c.ID, c.Database), set.RemoveMigration(ctx, c.ID)); err != nil {
		return contract.None{}, err
	}
	to := metadata.CloneFailed
	if c.State == metadata.CloneDone {
		to = metadata.CloneDropped
	}
	return contract.None{}, a.Store.SetCloneState(ctx, c.ID, c.State, to)
}
