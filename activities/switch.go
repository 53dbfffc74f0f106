package activities

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/switchover"
)

// Times of a switch around its window.
const (
	prepareWithin = 30 * time.Second // an attempt that is not fencing by then is taken back
	leaseTTL      = 45 * time.Second
)

// PrepareSwitch opens an attempt, takes the leases and makes the grants.
//
// Before: the gate said go. After: preparing. If interrupted: run again; an
// attempt that nobody goes on with is taken back by the watchdog.
func (a *Activities) PrepareSwitch(ctx context.Context, in contract.DirectionInput) (contract.AttemptRef, error) {
	// Leases first: an attempt that cannot have them would keep others waiting.
	all, err := a.legs(ctx, in)
	if err != nil {
		return contract.AttemptRef{}, err
	}
	epochs, err := a.lease(ctx, in, shardsOf(all))
	if err != nil {
		return contract.AttemptRef{}, err
	}
	info := activity.GetInfo(ctx)
	key := info.WorkflowExecution.RunID + "/" + info.ActivityID
	at, err := a.Store.BeginAttempt(ctx, in.Migration, key, prepareWithin)
	if err != nil {
		return contract.AttemptRef{}, err
	}
	if at.State != chunk.Preparing {
		return contract.AttemptRef{}, failure.New(failure.Lost, "switch.prepare_late", "attempt %d is %s already", at.ID, at.State)
	}
	ref := contract.AttemptRef{Ref: in.Ref, Attempt: at.ID, LeaseEpochs: epochs}
	db, err := a.Store.Database(ctx, databaseOf(in.Chunk))
	if err != nil {
		return ref, err
	}
	ref.CatalogVersion = db.CatalogVersion
	if err := a.renewSides(ctx, shardsOf(all)...); err != nil {
		return ref, err
	}
	for _, name := range shardsOf(all) {
		side, err := a.Sides.side(ctx, name)
		if err != nil {
			return ref, err
		}
		if err := side.Warm(ctx); err != nil {
			return ref, err
		}
	}
	return ref, a.Switcher.Prepare(ctx, at.ID)
}

// lease takes the shared leases of all shards, with new epochs: an older run of
// this switch can publish nothing.
func (a *Activities) lease(ctx context.Context, in contract.DirectionInput, shards []string) (map[string]int64, error) {
	epochs := map[string]int64{}
	for _, name := range shards {
		l, err := a.Store.TakeLease(ctx, metadata.LeaseRequest{
			Shard: name, Holder: holder(in.Migration), Mode: metadata.SharedLease, TTL: leaseTTL,
			Reason: "switch of " + string(in.Chunk),
		})
		if err != nil {
			return nil, err
		}
		epochs[name] = l.Epoch
	}
	return epochs, nil
}

// holder names a migration in leases.
func holder(m chunk.MigrationID) string { return fmt.Sprintf("migration/%d", m) }

// fenceSource goes through the window up to the publish.
func (a *Activities) fenceSource(ctx context.Context, ref contract.AttemptRef) (contract.SwitchResult, error) {
	if err := a.renew(ctx, ref); err != nil {
		return contract.SwitchResult{Attempt: ref.Attempt}, err
	}
	if err := a.renewSides(ctx, slices.Sorted(maps.Keys(ref.LeaseEpochs))...); err != nil { // another worker may have prepared it
		return contract.SwitchResult{Attempt: ref.Attempt}, err
	}
	if err := a.Store.Rehearse(ctx, publishRequest(publishOf(ref))); err != nil {
		return contract.SwitchResult{Attempt: ref.Attempt}, err
	}
	_, err := a.Switcher.Fence(ctx, ref.Attempt, ref.LeaseEpochs)
	return contract.SwitchResult{Attempt: ref.Attempt}, err
}

// publishOf is what the publish of an attempt checks.
func publishOf(ref contract.AttemptRef) switchover.PublishInput {
	return switchover.PublishInput{Attempt: ref.Attempt, LeaseEpochs: ref.LeaseEpochs, CatalogVersion: ref.CatalogVersion}
}

// publishRoute changes the route and opens the target.
func (a *Activities) publishRoute(ctx context.Context, ref contract.AttemptRef) (contract.SwitchResult, error) {
	return contract.SwitchResult{Attempt: ref.Attempt}, a.Switcher.PublishAndOpen(ctx, publishOf(ref))
}

// SettleAttempt answers what became of an attempt, and ends it.
func (a *Activities) SettleAttempt(ctx context.Context, in contract.SettleInput) (contract.SwitchResult, error) {
	if _, err := a.Switcher.Settle(ctx, in.Attempt, in.Reason); err != nil {
		if failure.Is(err, failure.Lost) { // somebody else was first: ask again
			return contract.SwitchResult{}, failure.New(failure.Transient, "switch.settle_again", "settle attempt %d: %w", in.Attempt, err)
		}
		return contract.SwitchResult{}, err
	}
	res, err := a.outcome(ctx, in.Attempt)
	if err == nil && !res.Published {
		err = a.release(ctx, in.AttemptRef)
	}
	return res, err
}

// ConcludeSwitch does what could wait until the applications ran again.
func (a *Activities) ConcludeSwitch(ctx context.Context, ref contract.AttemptRef) (contract.None, error) {
	if err := a.Switcher.Conclude(ctx, ref.Attempt); err != nil {
		return contract.None{}, err
	}
	return contract.None{}, a.release(ctx, ref)
}

// ReconcileSwitch ends what an earlier run of the coordinator left of its attempts,
// forward or back as their rows say, and tells who serves.
//
// Before: no attempt of the migration is in its window on the caller's behalf. After:
// every attempt is terminal. If interrupted: run again.
func (a *Activities) ReconcileSwitch(ctx context.Context, ref contract.Ref) (contract.ReconcileResult, error) {
	attempts, err := a.Store.Attempts(ctx, ref.Migration)
	if err != nil {
		return contract.ReconcileResult{}, err
	}
	var res contract.ReconcileResult
	for _, at := range attempts {
		if err := a.finishAttempt(ctx, at); err != nil {
			return res, err
		}
		out, err := a.outcome(ctx, at.ID)
		if err != nil {
			return res, err
		}
		if out.Published {
			res.Direction = at.ID
			res.Switches = append(res.Switches, out)
		}
	}
	// A live placement is one that a route leads to, whatever its chunk is called: a
	// split has none by the name of the old one.
	m, err := a.Store.Migration(ctx, ref.Migration)
	if err != nil {
		return res, err
	}
	switch chunk.Live {
	case m.Source.State:
		res.Serving, res.Spare = m.Source, m.Target
	case m.Target.State:
		res.Serving, res.Spare = m.Target, m.Source
	default:
		return res, failure.New(failure.Invalid, "switch.route_elsewhere", "chunk %s is served by neither placement %d nor %d of migration %d",
			ref.Chunk, m.Source.ID, m.Target.ID, ref.Migration)
	}
	return res, nil
}

// finishAttempt brings one attempt to its end.
func (a *Activities) finishAttempt(ctx context.Context, at metadata.Attempt) error {
	if at.State.Terminal() {
		return nil
	}
	out, err := a.Switcher.Settle(ctx, at.ID, "its coordinator has lost it")
	if err == nil && out.State == chunk.Open {
		err = a.Switcher.Conclude(ctx, at.ID)
	}
	if failure.Is(err, failure.Lost) { // the watchdog was first: ask again
		return failure.New(failure.Transient, "switch.settle_again", "end attempt %d: %w", at.ID, err)
	}
	return err
}

// renew makes the leases last through the window. A coordinator that lost one, or
// whose work a newer run has taken over, ends here, before it touches anything.
func (a *Activities) renew(ctx context.Context, ref contract.AttemptRef) error {
	for name, epoch := range ref.LeaseEpochs {
		l := metadata.Lease{Shard: name, Holder: holder(ref.Migration), Mode: metadata.SharedLease, Epoch: epoch}
		if _, err := a.Store.RenewLease(ctx, l, leaseTTL); err != nil {
			return err
		}
	}
	return nil
}

func (a *Activities) release(ctx context.Context, ref contract.AttemptRef) error {
	for name, epoch := range ref.LeaseEpochs {
		l := metadata.Lease{Shard: name, Holder: holder(ref.Migration), Mode: metadata.SharedLease, Epoch: epoch}
		if err := a.Store.ReleaseLease(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// outcome tells the result of an attempt from its row.
func (a *Activities) outcome(ctx context.Context, id chunk.AttemptID) (contract.SwitchResult, error) {
	at, err := a.Store.Attempt(ctx, id)
	if err != nil {
		return contract.SwitchResult{}, err
	}
	res := contract.SwitchResult{Attempt: id, Token: at.Token, Reason: at.Reason}
	if res.Timeline, err = a.steps(ctx, id); err != nil {
		return res, err
	}
	res.Published = at.State == chunk.Published || at.State == chunk.Open || at.State == chunk.AttemptDone
	var fenced, opened time.Time
	for _, m := range at.Timeline {
		switch m.State { //nolint:exhaustive // only the window's ends matter
		case chunk.Fencing:
			fenced = m.At
		case chunk.Open, chunk.AttemptAborted:
			opened = m.At
		}
		if !fenced.IsZero() {
			res.Timeline = append(res.Timeline, contract.TimelineMark{Step: "row:" + string(m.State), AtUS: m.At.Sub(fenced).Microseconds()})
		}
	}
	if !fenced.IsZero() && !opened.IsZero() {
		res.FencedAt, res.OpenedAt = fenced, opened
		res.WindowMS = float64(opened.Sub(fenced).Microseconds()) / 1000
	}
	return res, nil
}
