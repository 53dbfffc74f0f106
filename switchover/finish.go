package switchover

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"drover/chunk"
	"drover/internal/failure"
)

// PublishAndOpen changes the routes, the one point of no return, and lets the
// applications onto the target.
//
// Before: closing, within the deadline. After: open. An error does not say that the
// routes did not change: ask [Switcher.Settle].
func (s *Switcher) PublishAndOpen(ctx context.Context, in PublishInput) error {
	var at Attempt
	var token chunk.Token
	err := together(ctx, // what the publish does not change is read beside it
		func(ctx context.Context) (err error) { at, err = s.Ledger.Attempt(ctx, in.Attempt); return err },
		func(ctx context.Context) (err error) { token, err = s.publish(ctx, in); return err })
	if err != nil {
		return err
	}
	at.State, at.Token = chunk.Published, token
	return s.open(ctx, at)
}

// publish is the change of the routes.
func (s *Switcher) publish(ctx context.Context, in PublishInput) (chunk.Token, error) {
	if err := s.Stops.At(ctx, "switch.before-publish"); err != nil {
		return 0, err
	}
	token, err := s.Ledger.Publish(ctx, in)
	if err != nil {
		return 0, fmt.Errorf("publish attempt %d: %w", in.Attempt, err)
	}
	clockOf(ctx).mark("published", "")
	return token, s.Stops.At(ctx, "switch.published")
}

// OpenTarget lets the applications onto the target.
//
// Before: published. After: open. If interrupted: repeat; the watchdog does so
// by itself. When somebody else has opened it meanwhile it returns nil.
func (s *Switcher) OpenTarget(ctx context.Context, id chunk.AttemptID) error {
	at, err := s.Ledger.Attempt(ctx, id)
	if err != nil {
		return err
	}
	if at.State == chunk.Open || at.State == chunk.AttemptDone {
		return nil
	}
	if at.State != chunk.Published {
		return lost(at, chunk.Published)
	}
	return s.open(ctx, at)
}

// open is OpenTarget of an attempt that is published.
func (s *Switcher) open(ctx context.Context, at Attempt) error {
	dst, err := s.target(ctx, at) // the old shard may be gone: opening needs the new one only
	if err != nil {
		return err
	}
	// Both before the grant: the log's new side begins with the marker, and should the
	// metadata forget the publish, the way back finds the record. And both before the
	// grants are locked, which others on that shard may wait for.
	err = together(ctx,
		func(ctx context.Context) error { return s.markOpen(ctx, at, dst) },
		func(ctx context.Context) error { return s.recordOpen(ctx, at, dst) })
	if err != nil {
		return err
	}
	err = s.grant(ctx, dst, at.Target, at.ID)
	if failure.Is(err, failure.Lost) { // a newer attempt has dropped the role: this open is void
		return err
	}
	if err != nil {
		return fmt.Errorf("grant the target: %w", err)
	}
	clockOf(ctx).mark("target_granted", "")
	if err := s.Stops.At(ctx, "switch.granted"); err != nil {
		return err
	}
	if _, err := s.Ledger.Advance(ctx, at.ID, chunk.Published, chunk.Open, AdvanceOptions{}); err != nil {
		return s.unlessReached(ctx, at.ID, err, chunk.Open, chunk.AttemptDone)
	}
	clockOf(ctx).mark("open", "")
	s.forward(ctx, at)
	return nil
}

// markOpen writes the marker with which the target's side of the log begins.
func (s *Switcher) markOpen(ctx context.Context, at Attempt, dst Side) error {
	err := dst.WriteMarker(ctx, chunk.Marker{
		Kind: chunk.OpenMarker, Migration: at.Migration, Attempt: at.ID, Placement: at.Target.ID, At: time.Now(),
	})
	if err != nil {
		return fmt.Errorf("write open marker: %w", err)
	}
	clockOf(ctx).mark("open_marker_written", "")
	return nil
}

// recordOpen notes on the target itself that this attempt opens it.
func (s *Switcher) recordOpen(ctx context.Context, at Attempt, dst Side) error {
	if err := dst.WriteOpenRecord(ctx, at.Target, at.ID, at.Token); err != nil {
		return fmt.Errorf("write open record: %w", err)
	}
	clockOf(ctx).mark("open_record_written", "")
	return nil
}

// forward leaves the new address on the old shard, for proxies that cannot ask
// the metadata. A shard that does not answer gets it by [Switcher.Conclude].
func (s *Switcher) forward(ctx context.Context, at Attempt) {
	src, err := s.source(ctx, at)
	if err == nil {
		err = src.SetForward(ctx, at.Source, at.ID, at.forward())
	}
	if err != nil {
		s.Log.WarnContext(ctx, "The forwarding address is not set", slog.Int64("attempt", int64(at.ID)), slog.Any("error", err))
	}
}

// Conclude does what may wait until the applications run again: the lanes'
// role goes, parked TTL comes back on the target.
//
// Before: open. After: done. If interrupted: repeat.
func (s *Switcher) Conclude(ctx context.Context, id chunk.AttemptID) error {
	at, src, dst, err := s.load(ctx, id)
	if err != nil {
		return err
	}
	if at.State == chunk.AttemptDone {
		return nil
	}
	if at.State != chunk.Open {
		return lost(at, chunk.Open)
	}
	if err := src.SetForward(ctx, at.Source, id, at.forward()); err != nil {
		return fmt.Errorf("set forwarding address: %w", err)
	}
	if err := dst.DropApplierRole(ctx, at.Target, at.Migration, at.Direction); err != nil {
		return fmt.Errorf("drop the lanes' role: %w", err)
	}
	if err := dst.RestoreTTL(ctx, at.Target, id); err != nil {
		return s.unlessReached(ctx, id, fmt.Errorf("restore TTL of the target: %w", err), chunk.AttemptDone)
	}
	if _, err := s.Ledger.Advance(ctx, id, chunk.Open, chunk.AttemptDone, AdvanceOptions{}); err != nil {
		return s.unlessReached(ctx, id, err, chunk.AttemptDone)
	}
	return nil
}

// Abandon gives the source back to the applications. It needs the metadata and
// the source: the publish is a compare-and-set of the row, so a row that is taken
// back here was not published, and nobody has opened, or will open, the target.
//
// Before: anything before published, or aborting. After: aborted. If
// interrupted: repeat; the watchdog does so by itself.
func (s *Switcher) Abandon(ctx context.Context, id chunk.AttemptID, reason string) error {
	at, was, err := s.giveUp(ctx, id, reason)
	if err != nil || at.State == chunk.AttemptAborted {
		return err
	}
	if err := s.Stops.At(ctx, "switch.aborting"); err != nil {
		return err
	}
	src, err := s.source(ctx, at)
	if err != nil {
		return err
	}
	// The source's grants of this attempt may be missing if it never was prepared; one
	// that was fencing was, and only a newer attempt drops them.
	if was != chunk.Fencing && was != chunk.Closing {
		if err := src.CreateGrants(ctx, at.Source, id); err != nil {
			return s.unlessReached(ctx, id, fmt.Errorf("create grants of the way back: %w", err), chunk.AttemptAborted)
		}
	}
	// Before the grant: what is written from then on is no straggler, even behind
	// a final marker.
	if err := src.LiftFence(ctx, at.Source, id); err != nil {
		return s.unlessReached(ctx, id, fmt.Errorf("lift the fence: %w", err), chunk.AttemptAborted)
	}
	// Applications have the source back whatever becomes of TTL, and one whose grant is
	// void restores none.
	if err := s.grant(ctx, src, at.Source, id); err != nil {
		return s.unlessReached(ctx, id, fmt.Errorf("grant the source: %w", err), chunk.AttemptAborted)
	}
	if err := src.RestoreTTL(ctx, at.Source, id); err != nil {
		return s.unlessReached(ctx, id, fmt.Errorf("restore TTL of the source: %w", err), chunk.AttemptAborted)
	}
	if _, err := s.Ledger.Advance(ctx, id, chunk.AttemptAborting, chunk.AttemptAborted, AdvanceOptions{}); err != nil {
		return s.unlessReached(ctx, id, err, chunk.AttemptAborted)
	}
	return nil
}

// giveUp decides that an attempt goes back. It gives one that is aborting, or
// aborted already, and the state that it was in.
func (s *Switcher) giveUp(ctx context.Context, id chunk.AttemptID, reason string) (at Attempt, was chunk.AttemptState, err error) {
	before, err := s.Ledger.Attempt(ctx, id)
	was = before.State
	if err != nil || was == chunk.AttemptAborted {
		return before, was, err
	}
	if isPublished(was) {
		return before, was, failure.New(failure.Lost, "switch.published", "attempt %d is %s: it goes forward only", id, was)
	}
	if err := s.mayGoBack(ctx, before); err != nil {
		return before, was, err
	}
	if was == chunk.AttemptAborting {
		return before, was, nil
	}
	at, err = s.Ledger.Advance(ctx, id, was, chunk.AttemptAborting, AdvanceOptions{Deadline: s.Config.AbortWithin, Reason: reason})
	if err == nil && before.Unbroken { // the server may have been exchanged since it was read
		err = s.mayGoBack(ctx, at)
	}
	return at, was, err
}

// mayGoBack stops the way back when the target was opened by an attempt that
// the row does not know of: a metadata that forgot a publish. A server that ran
// all the time since the attempt began has forgotten nothing; only after a
// restart, a failover or a restore must the target be asked.
func (s *Switcher) mayGoBack(ctx context.Context, at Attempt) error {
	if at.Unbroken {
		return nil
	}
	dst, err := s.target(ctx, at)
	if err != nil {
		return err
	}
	opened, err := dst.Opened(ctx, at.Target)
	if err != nil {
		return fmt.Errorf("read the target's open record: %w", err)
	}
	if opened >= at.ID {
		return failure.New(failure.Mismatch, "switch.open_record_newer",
			"attempt %d is %s in the metadata, but placement %d on %s was opened by attempt %d", at.ID, at.State, at.Target.ID, at.Target.Shard, opened).
			WithHint("the metadata lost a publish: restore it to its newest state before anything else; the fence holds meanwhile")
	}
	return nil
}

// Outcome is a final answer to "what became of the attempt".
type Outcome struct {
	State     chunk.AttemptState `json:"state"`
	Published bool               `json:"published"`
}

// Settle asks what happened and brings an attempt that cannot go forward back.
func (s *Switcher) Settle(ctx context.Context, id chunk.AttemptID, reason string) (Outcome, error) {
	at, err := s.Ledger.Attempt(ctx, id)
	if err != nil {
		return Outcome{}, err
	}
	if !isPublished(at.State) {
		if err := s.Abandon(ctx, id, reason); err != nil && !failure.HasCode(err, "switch.published") {
			return Outcome{}, err
		}
		if at, err = s.Ledger.Attempt(ctx, id); err != nil {
			return Outcome{}, err
		}
	}
	if at.State == chunk.Published {
		if err := s.OpenTarget(ctx, id); err != nil {
			return Outcome{}, err
		}
		at.State = chunk.Open
	}
	return Outcome{State: at.State, Published: isPublished(at.State)}, nil
}

func isPublished(s chunk.AttemptState) bool {
	return s == chunk.Published || s == chunk.Open || s == chunk.AttemptDone
}

// unlessReached forgives a lost compare-and-set when somebody else has brought
// the attempt to where it should be.
func (s *Switcher) unlessReached(ctx context.Context, id chunk.AttemptID, cause error, want ...chunk.AttemptState) error {
	at, err := s.Ledger.Attempt(ctx, id)
	if err != nil {
		return cause
	}
	for _, w := range want {
		if at.State == w {
			return nil
		}
	}
	return cause
}
