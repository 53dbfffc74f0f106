package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// roomFactor is how much more than the chunk's bytes a target must have free.
const roomFactor = 1.5

// RegisterMigration records the move, then makes the target ready for it.
//
// Before: nothing. After: rows, target database, collections, indexes and roles
// exist, and the start marker is in the source's log. A refusal leaves nothing
// behind. If interrupted: run again; it adopts what is there.
func (a *Activities) RegisterMigration(ctx context.Context, in contract.RegisterInput) (contract.Plan, error) {
	if in.Reshape != nil {
		return a.registerReshape(ctx, in)
	}
	route, err := a.Store.Route(ctx, in.Chunk)
	if err != nil {
		return contract.Plan{}, err
	}
	if err := a.checkHold(ctx); err != nil {
		return contract.Plan{}, err
	}
	e, docs, bytes, err := a.precheck(ctx, in, route)
	if err != nil {
		return contract.Plan{}, err
	}
	m, err := a.Store.RegisterMigration(ctx, metadata.MigrationRequest{
		Chunk: in.Chunk, Target: in.To, WorkflowID: in.WorkflowID, RequestedBy: in.RequestedBy,
	})
	if err != nil {
		return contract.Plan{}, err
	}
	plan := contract.Plan{
		Ref: contract.Ref{Migration: m.ID, Chunk: in.Chunk}, Source: m.Source, Target: m.Target, Documents: docs, Bytes: bytes,
	}
	if err := a.prepareTarget(ctx, e, m); err != nil {
		if failure.Is(err, failure.Transient) {
			return contract.Plan{}, err
		}
		return contract.Plan{}, errors.Join(err, a.forget(context.WithoutCancel(ctx), m))
	}
	return plan, nil
}

// precheck refuses what cannot work, before anything is changed.
func (a *Activities) precheck(ctx context.Context, in contract.RegisterInput, route chunk.Route) (e ends, docs, bytes int64, err error) {
	if e.to, err = a.Sides.Set(ctx, in.To); err != nil {
		return e, 0, 0, err
	}
	if e.from, err = a.Sides.Set(ctx, route.Placement.Shard); err != nil {
		return e, 0, 0, err
	}
	for _, s := range []*shard.Set{e.from, e.to} {
		if err := reachable(ctx, s); err != nil {
			return e, 0, 0, err
		}
	}
	infos, err := e.from.Inventory(ctx, route.Placement.Database)
	if err != nil {
		return e, 0, 0, err
	}
	if err := shard.CheckMovable(route.Placement.Database, infos); err != nil {
		return e, 0, 0, err
	}
	for _, i := range infos {
		docs, bytes = docs+i.Count, bytes+i.Size
	}
	room, err := e.to.Room(ctx)
	if err != nil {
		return e, 0, 0, err
	}
	if need := int64(float64(bytes) * roomFactor); room.Known && room.Free() < need {
		return e, 0, 0, failure.New(failure.Invalid, "migration.no_room", "shard %s has %d bytes free, chunk %s needs %d",
			in.To, room.Free(), in.Chunk, need).WithHint("choose another target with --to, or free disk on %s", in.To)
	}
	return e, docs, bytes, nil
}

// checkHold refuses a fence that may last longer than a proxy holds requests: the
// applications would see it as errors.
func (a *Activities) checkHold(ctx context.Context) error {
	proxies, err := a.Store.LiveProxies(ctx)
	if err != nil {
		return err
	}
	return holdable(a.Settings.Gate.FenceDeadline, proxies)
}

// holdable compares the fence's deadline with what the proxies say.
func holdable(deadline gate.Bound, proxies []metadata.Proxy) error {
	for _, p := range proxies {
		if p.Hold > 0 && deadline.Value >= p.Hold {
			return failure.New(failure.Invalid, "migration.fence_beyond_hold", "%s is %s (%s), but proxy %s holds requests for %s only",
				deadline.Name, deadline.Value, deadline.Source, p.ID, p.Hold).
				WithHint("start the workers with a --%s below %s", deadline.Name, p.Hold)
		}
	}
	return nil
}

// reachable turns a shard that does not answer into a refusal: a move that
// cannot begin does not wait for days.
func reachable(ctx context.Context, s *shard.Set) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := s.Status(ctx); err != nil {
		return failure.New(failure.Invalid, "migration.shard_down", "shard %s cannot be used: %w", s.Name(), err).
			WithHint("drover shard check %s shows what is wrong", s.Name())
	}
	return nil
}

// prepareTarget makes what the move needs, on both shards.
func (a *Activities) prepareTarget(ctx context.Context, e ends, m metadata.Migration) error {
	catalog, err := a.Store.Collections(ctx, m.Chunk.Database)
	if err != nil {
		return err
	}
	if err := e.to.Provision(ctx, m.Target.Database, catalog, true); err != nil {
		return fmt.Errorf("provision %s on %s: %w", m.Target.Database, m.Target.Shard, err)
	}
	if err := e.to.EnsureLoaderRole(ctx, m.Target, m.ID); err != nil {
		return err
	}
	_, err = e.from.WriteMarker(ctx, startMarker(m))
	return err
}

// startMarker is where the lanes of an import begin.
func startMarker(m metadata.Migration) chunk.Marker {
	return chunk.Marker{Kind: chunk.StartMarker, Migration: m.ID, Placement: m.Source.ID, At: m.CreatedAt}
}

// forget removes what a refused move has made.
func (a *Activities) forget(ctx context.Context, m metadata.Migration) error {
	if err := a.Store.SetPhase(ctx, m.ID, m.Phase, chunk.Aborting); err != nil {
		return err
	}
	if _, err := a.DropTarget(ctx, contract.DropInput{Ref: contract.Ref{Migration: m.ID, Chunk: m.Chunk.ID}, Placement: m.Target}); err != nil {
		return err
	}
	return a.Store.SetPhase(ctx, m.ID, chunk.Aborting, chunk.Aborted)
}

// RecordPhase writes the phase and what a person has to look at.
func (a *Activities) RecordPhase(ctx context.Context, in contract.PhaseInput) (contract.None, error) {
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return contract.None{}, err
	}
	if m.Phase != in.Phase {
		if err := a.Store.SetPhase(ctx, in.Migration, m.Phase, in.Phase); err != nil {
			return contract.None{}, err
		}
	}
	return contract.None{}, a.Store.SetAttention(ctx, in.Migration, in.Attention)
}
