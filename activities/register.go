package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
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
// behind. If interrupted: run again; it adopts what is there. A move whose earlier
// run was ended from outside is given as it stands.
func (a *Activities) RegisterMigration(ctx context.Context, in contract.RegisterInput) (contract.Plan, error) {
	plan, err := a.register(ctx, in)
	if err != nil {
		return plan, err
	}
	rates, err := a.Store.MoveRates(ctx)
	plan.Copies = contract.Duration(float64(plan.Bytes) / cmp.Or(rates[plan.Target.Shard], fleet.DefaultMoveRate) * float64(time.Second))
	return plan, err
}

// register is RegisterMigration without the time that is to be expected.
func (a *Activities) register(ctx context.Context, in contract.RegisterInput) (contract.Plan, error) {
	if plan, ok, err := a.leftBehind(ctx, in); ok || err != nil {
		return plan, err
	}
	if err := a.checkSort(ctx, in); err != nil {
		return contract.Plan{}, err
	}
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

// leftBehind gives the move that an earlier run of the same workflow has brought
// beyond its registration. Nothing is checked or made again for it.
func (a *Activities) leftBehind(ctx context.Context, in contract.RegisterInput) (plan contract.Plan, ok bool, err error) {
	m, ok, err := a.Store.OpenMigration(ctx, in.Chunk)
	if err != nil || !ok || m.WorkflowID != in.WorkflowID || m.Phase == chunk.Registered {
		return plan, false, err
	}
	if in.Reshape == nil { // one to another shard is refused, with where it goes
		if m, err = a.Store.RegisterMigration(ctx, metadata.MigrationRequest{
			Chunk: in.Chunk, Target: in.To, WorkflowID: in.WorkflowID, RequestedBy: in.RequestedBy,
		}); err != nil {
			return plan, false, err
		}
	}
	legs, err := a.Store.Legs(ctx, m.ID)
	if err != nil {
		return plan, false, err
	}
	plan = contract.Plan{Ref: contract.Ref{Migration: m.ID, Chunk: m.Chunk.ID}, Source: m.Source, Target: m.Target, Phase: m.Phase}
	if in.Reshape != nil {
		plan.AllSides = sidesOf(legs)
	}
	return plan, true, nil
}

// checkSort refuses an order that cannot be read, or one of a collection that is
// not there.
func (a *Activities) checkSort(ctx context.Context, in contract.RegisterInput) error {
	asked, err := orders(in.Sort)
	if err != nil || len(asked) == 0 {
		return err
	}
	catalog, err := a.Store.Collections(ctx, databaseOf(in.Chunk))
	if err != nil {
		return err
	}
	have := names(catalog)
	for name := range asked {
		if !slices.Contains(have, name) {
			return failure.New(failure.Invalid, "import.bad_sort", "sort: %s has no collection %s", databaseOf(in.Chunk), name).
				WithHint("it has %s", strings.Join(have, ", "))
		}
	}
	return nil
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
	if err := readable(ctx, e.from, in.PrimaryReads); err != nil {
		return e, 0, 0, err
	}
	if err := awaitCaptured(ctx, a.Store, route.Placement.Shard); err != nil {
		return e, 0, 0, err
	}
	infos, err := a.defined(ctx, e.from, route.Placement)
	if err != nil {
		return e, 0, 0, err
	}
	if err := a.checkBeside(ctx, route.Placement); err != nil {
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
				WithHint("start the workers with a --%s below %s, or the proxy with a longer --switch-wait", deadline.Name, p.Hold)
		}
	}
	return nil
}

// captures tells whether a shard's changes are captured.
type captures interface {
	CaptureSilence(ctx context.Context, shard string) (silence time.Duration, captured bool, err error)
}

// Times of waiting for a capture that has just been started.
const (
	captureWait = 10 * time.Second
	captureLook = 100 * time.Millisecond
)

// awaitCaptured waits until the changes of a source are captured. The start marker
// comes in a log only if it is written after that: one that was written before
// would be looked for in vain, for ever.
func awaitCaptured(ctx context.Context, of captures, name string) error {
	limit := time.NewTimer(captureWait)
	defer limit.Stop()
	look := time.NewTicker(captureLook)
	defer look.Stop()
	for {
		_, captured, err := of.CaptureSilence(ctx, name)
		if err != nil || captured {
			return err
		}
		select {
		case <-look.C:
		case <-limit.C:
			return failure.New(failure.Transient, "migration.not_captured", "the changes of shard %s are not captured yet", name).
				WithHint("it is tried again; a worker captures it by the workflow capture/%s, which drover shard add starts", name)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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

// readable refuses a source whose bulk reads would go to a primary although the
// set has other members, unless that is allowed.
func readable(ctx context.Context, s *shard.Set, allowPrimary bool) error {
	if allowPrimary {
		return nil
	}
	_, m, err := s.Reader(ctx, false)
	if failure.HasCode(err, "shard.no_secondary") {
		return failure.New(failure.Invalid, "migration.primary_reads", "%w", err).
			WithHint("bring a secondary of %s back, or start the move with --allow-primary-reads", s.Name())
	}
	if err == nil && m.State != primaryState && !s.Shard().Capabilities.PinsSnapshots {
		return failure.New(failure.Invalid, "migration.primary_reads", "shard %s did not pin snapshot reads when it was probed: it can only be read inside transactions, on the primary", s.Name()).
			WithHint("run drover shard add again if its servers have changed since, or start the move with --allow-primary-reads")
	}
	return err
}

// primaryState is what a set calls its primary.
const primaryState = "PRIMARY"

// prepareTarget makes what the move needs, on both shards.
func (a *Activities) prepareTarget(ctx context.Context, e ends, m metadata.Migration) error {
	if err := a.Stops.At(ctx, "register.recorded"); err != nil {
		return err
	}
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
	if err := a.Stops.At(ctx, "register.provisioned"); err != nil {
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
func (a *Activities) RecordPhase(ctx context.Context, in contract.PhaseInput) (out contract.PhaseResult, err error) {
	m, err := a.Store.Migration(ctx, in.Migration)
	if err != nil {
		return out, err
	}
	if m.Phase != in.Phase {
		if err := a.Store.SetPhase(ctx, in.Migration, m.Phase, in.Phase); err != nil {
			return out, err
		}
	}
	if err := a.keepBurnIn(ctx, in); err != nil {
		return out, err
	}
	if in.Expected > 0 {
		if err := a.Store.SetExpected(ctx, in.Migration, time.Duration(in.Expected)); err != nil {
			return out, err
		}
	}
	if m.Paused != in.Paused {
		if err := a.Store.SetPaused(ctx, in.Migration, in.Paused); err != nil {
			return out, err
		}
	}
	if err := a.Store.SetAttention(ctx, in.Migration, in.Attention); err != nil {
		return out, err
	}
	out.Moves, err = a.Store.CountOpenMigrations(ctx)
	return out, err
}

// keepBurnIn keeps how long a burn-in is to last that begins.
func (a *Activities) keepBurnIn(ctx context.Context, in contract.PhaseInput) error {
	if in.Phase != chunk.BurnIn || in.BurnIn == 0 {
		return nil
	}
	b, err := json.Marshal(contract.BurnInStep{BurnIn: in.BurnIn})
	if err != nil {
		return err
	}
	return a.Store.SetStep(ctx, in.Migration, chunk.BurnIn, b)
}
