package switchover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
)

// Mark is one moment of a switch, for its timeline.
type Mark struct {
	Step string `json:"step"`
	At   int64  `json:"at_us"` // microseconds since the fence began
	Note string `json:"note,omitempty"`
}

// Timeline is where a switch spent its time, kept with the attempt.
type Timeline []Mark

// Prepare makes the grants that either outcome may need, held by nobody, and
// parks the source's TTL.
//
// Before: the attempt is preparing. After: still preparing. If interrupted:
// repeat, or abandon.
func (s *Switcher) Prepare(ctx context.Context, id chunk.AttemptID) error {
	at, src, dst, err := s.load(ctx, id)
	if err != nil {
		return err
	}
	if at.State != chunk.Preparing {
		return lost(at, chunk.Preparing)
	}
	if err := src.CreateGrants(ctx, at.Source, id); err != nil {
		return fmt.Errorf("create grants of the way back: %w", err)
	}
	if err := dst.CreateGrants(ctx, at.Target, id); err != nil {
		return fmt.Errorf("create grants of the target: %w", err)
	}
	if err := src.ParkTTL(ctx, at.Source, id); err != nil {
		return fmt.Errorf("park TTL of the source: %w", err)
	}
	return s.Stops.At(ctx, "switch.prepared")
}

// Fence takes the source's grants away, waits until the target has everything,
// and leaves the attempt ready to publish.
//
// Before: preparing. After: closing, lanes closed, every write that was ever
// acknowledged on the source is on the target. If interrupted: the watchdog
// goes back at the deadline. Leases are the epochs by shard that the caller holds.
func (s *Switcher) Fence(ctx context.Context, id chunk.AttemptID, leases map[string]int64) (Timeline, error) {
	at, src, dst, err := s.load(ctx, id)
	if err != nil {
		return nil, err
	}
	if at.State != chunk.Preparing { // before its fence document could undo what came of it
		return nil, lost(at, chunk.Preparing)
	}
	words, err := s.Proxies.Listen(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen to proxies: %w", err)
	}
	defer words.Close()

	f := &fence{Switcher: s, src: src, dst: dst, words: words, lease: leases[at.Source.Shard], clock: clockOf(ctx)}
	if all, ok := src.(*fan); ok {
		all.leases = leases
	}
	defer src.Forget(at.Source)
	if err := f.look(ctx, at); err != nil {
		return nil, err
	}
	f.begin()
	err = f.run(ctx)
	return f.timeline(), err
}

// fence is one run through the window.
type fence struct {
	*Switcher
	*clock

	at       Attempt
	src, dst Side
	words    Words
	lease    int64
	identity Identity
	busy     func(context.Context) (int, error)
	round    int64
	moment   Moment
}

// errReign says that the source's primary changed under the fence.
var errReign = errors.New("the source's primary changed")

// look learns what the window will need, and waits for a good moment to begin it.
func (f *fence) look(ctx context.Context, at Attempt) error {
	f.at = at
	if f.Pace != nil {
		f.moment = f.Pace.Ease(ctx, at)
	}
	// Last: what changes from here on is found out under the fence, or not at all.
	err := together(ctx, f.claim,
		func(ctx context.Context) error { return f.src.Foresee(ctx, at.Source) },
		func(ctx context.Context) (err error) {
			f.busy, err = f.Busy.ForeseeBusy(ctx, at.Migration, at.Source, at.Target)
			return err
		})
	if err != nil {
		return fmt.Errorf("look at both sides before the fence: %w", err)
	}
	return nil
}

func (f *fence) run(ctx context.Context) (err error) {
	f.at, err = f.Ledger.Advance(ctx, f.at.ID, chunk.Preparing, chunk.Fencing,
		AdvanceOptions{Deadline: f.Config.FenceDeadline, Identity: f.identity})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.Config.FenceDeadline, errDeadline)
	defer cancel()
	f.mark("fencing", "")

	for f.round = 1; ; f.round++ {
		err := f.pass(ctx)
		if !errors.Is(err, errReign) {
			return deadline(ctx, err)
		}
		if err := f.claim(ctx); err != nil {
			return deadline(ctx, err)
		}
		f.mark("again", "the source has a new primary")
	}
}

// claim learns who the source's primary is, and makes the source this attempt's by its
// fence document, which takes nothing from anybody: one that has lost its lease, or the
// placement, ends here. Before the row says fencing, so that nobody waits for it.
func (f *fence) claim(ctx context.Context) error {
	return together(ctx, func(ctx context.Context) (err error) {
		if f.identity, err = f.src.Identity(ctx); err != nil {
			return fmt.Errorf("identity of the source's primary: %w", err)
		}
		return nil
	}, func(ctx context.Context) error {
		until := f.at.Deadline
		if f.at.State == chunk.Preparing { // the fence's own is not set yet, and this one only informs
			until = time.Now().Add(f.Config.FenceDeadline)
		}
		if err := f.src.WriteFence(ctx, f.at.Source, f.at.ID, f.lease, until); err != nil {
			return fmt.Errorf("write fence document: %w", err)
		}
		return nil
	})
}

// pass goes from the fence to the final marker under one primary.
func (f *fence) pass(ctx context.Context) error {
	if err := f.dropWrites(ctx); err != nil {
		return err
	}
	// Reads go on while the lanes have much to catch up with, and hardly longer than
	// writes where they have little.
	if f.moment.Near {
		if err := together(ctx, f.endWrites, f.dropReads); err != nil {
			return err
		}
	} else {
		if err := f.endWrites(ctx); err != nil {
			return err
		}
		// Nothing else depends on this marker: what it proves the final one proves again.
		if err := f.catchUp(ctx, chunk.DrainedMarker); err != nil {
			return err
		}
	}
	// What the lanes still have to pass is about writes, which are gone: the reads end
	// meanwhile.
	err := together(ctx, f.sayClosing, f.endReads, func(ctx context.Context) error { return f.catchUp(ctx, chunk.FinalMarker) })
	if err != nil {
		return err
	}
	f.at.State = chunk.Closing
	if err := f.Stops.At(ctx, "switch.closed"); err != nil {
		return err
	}
	return f.finish(ctx)
}

// dropWrites takes the right to write away.
func (f *fence) dropWrites(ctx context.Context) error {
	if err := f.Stops.At(ctx, "switch.fence-written"); err != nil {
		return err
	}
	n, err := f.src.DropGrants(ctx, f.at.Source, f.at.ID, Writes)
	if err != nil {
		return fmt.Errorf("drop write grants: %w", err)
	}
	f.mark("write_grants_dropped", fmt.Sprintf("%d roles", n))
	return nil
}

// endWrites sees that no member lets a write through, and that none is under way.
func (f *fence) endWrites(ctx context.Context) error {
	if err := together(ctx, f.sayShut, f.countProxies, func(ctx context.Context) error { return f.barrier(ctx, Writes) }); err != nil {
		return err
	}
	if err := f.Stops.At(ctx, "switch.fenced"); err != nil {
		return err
	}
	return f.drain(ctx)
}

// countProxies learns whose word is needed.
func (f *fence) countProxies(ctx context.Context) error {
	if err := f.words.Count(ctx); err != nil {
		return fmt.Errorf("list the proxies: %w", err)
	}
	return nil
}

// shutWithin is how long the fence waits for what only makes it shorter.
const shutWithin = 50 * time.Millisecond

// sayShut tells the proxies that there is no use in sending writes.
func (f *fence) sayShut(ctx context.Context) error {
	if f.moment.Shut != nil {
		ctx, cancel := context.WithTimeout(ctx, shutWithin)
		defer cancel()
		f.moment.Shut(ctx, f.at)
	}
	return nil
}

// barrier shows the closed door to every member. What it owes to those that are
// down is on record before anything goes on.
func (f *fence) barrier(ctx context.Context, access Access) error {
	owed, err := f.src.Barrier(ctx, f.at.Source, access)
	if err != nil {
		return fmt.Errorf("barrier of %s: %w", access, err)
	}
	if len(owed) > 0 {
		if err := f.owe(ctx, access, owed); err != nil {
			return fmt.Errorf("note who is owed the barrier of %s: %w", access, err)
		}
	}
	f.mark(strings.TrimSuffix(string(access), "s")+"_barrier", owedNote(owed))
	return nil
}

// owe notes who is owed a barrier of the source.
func (f *fence) owe(ctx context.Context, access Access, hosts []string) error {
	if all, ok := f.src.(*fan); ok {
		return all.owe(ctx, f.Ledger, access)
	}
	return f.Ledger.Owe(ctx, f.at, access, hosts)
}

func (f *fence) drain(ctx context.Context) error {
	silent, err := f.words.Wait(ctx, f.at.ID, Writes, Patience{Grace: f.Config.ProxyGrace, All: f.src.Blind()})
	if err != nil {
		return fmt.Errorf("wait for proxies: %w", err)
	}
	f.mark("proxies_clean", silentNote(silent))
	way, err := f.src.Drain(ctx, f.at.Source, len(silent) > 0)
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	f.mark("drained", way)
	return f.Stops.At(ctx, "switch.drained")
}

// catchUp writes a marker and waits until the lane of every leg has passed it.
func (f *fence) catchUp(ctx context.Context, kind chunk.MarkerKind) error {
	m := chunk.Marker{
		Kind: kind, Migration: f.at.Migration, Attempt: f.at.ID,
		Placement: f.at.Source.ID, Round: f.round, At: time.Now(), Database: f.at.Source.OwnName(),
	}
	if err := f.src.WriteMarker(ctx, m); err != nil {
		return fmt.Errorf("write %s marker: %w", kind, err)
	}
	f.mark(string(kind)+"_written", "")
	tick := time.NewTicker(f.Config.LanePoll)
	defer tick.Stop()
	for {
		passed, err := f.dst.Passed(ctx, f.at.Migration, f.at.Direction, f.at.Source, m.Key())
		if err != nil {
			return fmt.Errorf("read lanes' checkpoints: %w", err)
		}
		if passed {
			f.mark(string(kind)+"_passed", "")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lanes did not pass %s: %w", m.Key(), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// dropReads takes the right to read away, before the row says so or beside it: the
// publish needs both, and fewer rights than the row tells of hurt nobody.
func (f *fence) dropReads(ctx context.Context) error {
	n, err := f.src.DropGrants(ctx, f.at.Source, f.at.ID, Reads)
	if err != nil {
		return fmt.Errorf("drop read grants: %w", err)
	}
	f.mark("read_grants_dropped", fmt.Sprintf("%d roles", n))
	return nil
}

// endReads sees that no member lets a read through.
func (f *fence) endReads(ctx context.Context) error {
	if !f.moment.Near {
		if err := f.dropReads(ctx); err != nil {
			return err
		}
	}
	return f.barrier(ctx, Reads)
}

// sayClosing brings the row to closing; in a second pass it is there already.
func (f *fence) sayClosing(ctx context.Context) error {
	if f.at.State == chunk.Fencing {
		if _, err := f.Ledger.Advance(ctx, f.at.ID, chunk.Fencing, chunk.Closing, AdvanceOptions{}); err != nil {
			return err
		}
	}
	f.mark("closing", "")
	return nil
}

// finish proves that nothing of the source can be missing on the target. The lanes
// are closed only under the same primary: another pass needs them.
func (f *fence) finish(ctx context.Context) error {
	if err := together(ctx, f.sameReign, f.unpark); err != nil {
		return err
	}
	if err := together(ctx, f.compareBusy, f.closeLanes); err != nil {
		return err
	}
	return f.Stops.At(ctx, "switch.ready")
}

// together takes steps of which none needs another, and gives the first one's error.
func together(ctx context.Context, steps ...func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, step := range steps {
		g.Go(func() error { return step(ctx) })
	}
	return g.Wait()
}

// sameReign sees that the primary is the one that was fenced.
func (f *fence) sameReign(ctx context.Context) error {
	now, err := f.src.Identity(ctx)
	if err != nil {
		return fmt.Errorf("identity of the source's primary: %w", err)
	}
	if now != f.identity {
		return errReign
	}
	f.mark("same_primary", "")
	return nil
}

func (f *fence) compareBusy(ctx context.Context) error {
	n, err := f.busy(ctx)
	if err != nil {
		return fmt.Errorf("compare busy documents: %w", err)
	}
	f.mark("busy_compared", fmt.Sprintf("%d documents", n))
	return nil
}

func (f *fence) closeLanes(ctx context.Context) error {
	if err := f.dst.CloseLanes(ctx, f.at.Migration, f.at.Direction, f.at.ID); err != nil {
		return fmt.Errorf("close lanes: %w", err)
	}
	f.mark("lanes_closed", "")
	return nil
}

// unpark waits until no document waits for a unique key any more: every event is
// applied, so every key comes free as the lanes try their parked documents again.
func (f *fence) unpark(ctx context.Context) error {
	tick := time.NewTicker(f.Config.LanePoll)
	defer tick.Stop()
	for {
		n, err := f.dst.Parked(ctx, f.at.Migration)
		if err != nil {
			return fmt.Errorf("count parked documents: %w", err)
		}
		if n == 0 {
			f.mark("nothing_parked", "")
			return nil
		}
		select {
		case <-ctx.Done():
			return failure.New(failure.Transient, "switch.parked", "%d documents wait for a unique key on %s: %w", n, f.at.Target.Shard, context.Cause(ctx)).
				WithHint("the attempt goes back and is tried again; see drover.parked on the target if it stays")
		case <-tick.C:
		}
	}
}

// errDeadline is the cause of a window that ran out.
var errDeadline = errors.New("the fence's deadline is over")

// deadline turns what a finished window did to a call into one clear error.
func deadline(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return failure.New(failure.Transient, "switch.deadline", "%w: %w", context.Cause(ctx), err).
		WithHint("the attempt goes back by itself and is tried again; the timeline shows which step took long")
}

func owedNote(owed []string) string {
	if len(owed) == 0 {
		return ""
	}
	return fmt.Sprintf("owed by %v", owed)
}

func silentNote(silent []string) string {
	if len(silent) == 0 {
		return ""
	}
	return fmt.Sprintf("silent %v", silent)
}

// load reads the attempt and finds both sides.
func (s *Switcher) load(ctx context.Context, id chunk.AttemptID) (at Attempt, src, dst Side, err error) {
	if at, err = s.Ledger.Attempt(ctx, id); err != nil {
		return at, nil, nil, err
	}
	src, dst, err = s.sides(ctx, at)
	return at, src, dst, err
}

func lost(at Attempt, want chunk.AttemptState) error {
	return failure.New(failure.Lost, "switch.not_in_state", "attempt %d is %s, not %s", at.ID, at.State, want)
}
