package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/switchover"
)

// Cell is one kill or pause.
type Cell struct {
	Component  string    `json:"component"`
	Point      string    `json:"point"`
	Seconds    float64   `json:"seconds"`
	Ends       []string  `json:"ends"`        // how the attempts of the switch ended, in their order
	WatchdogMS []float64 `json:"watchdog_ms"` // how long past their deadlines attempts were ended, where Postgres and the shards answered
	FoundMS    []float64 `json:"found_ms"`    // of each of these, how long past it somebody began to take it back; 0: nobody had to
	ReturnMS   []float64 `json:"return_ms"`   // of attempts that were overdue when a server that was killed ran again: how long after that they were ended
	Errors     int64     `json:"client_errors"`
	Error      string    `json:"client_error,omitempty"` // the newest of them
	Outcome    string    `json:"outcome"`                // Held, or what broke

	returned time.Time // of the server that was killed
}

// Held is the outcome of a cell in which nothing broke.
const Held = "held"

// Open brings the chunk to burn-in, where it is switched there and back. A cell at
// [ImportPoint] strikes on the way.
func (r *Rig) Open(ctx context.Context, c *Cell) error {
	route, err := r.store.Route(ctx, r.hot.Chunk.ID)
	if err != nil {
		return err
	}
	from, to := route.Placement.Shard, r.stack.Shards[2].Name
	if from == to {
		to = r.stack.Shards[0].Name
	}
	if c != nil {
		if err := r.arm(c.Point); err != nil {
			return err
		}
	}
	if _, err := r.starter.Migrate(ctx, contract.MigrateInput{
		Chunk: r.hot.Chunk.ID, To: to, Approval: contract.Automatic, Complete: contract.Manual, BurnIn: contract.Duration(24 * time.Hour), RequestedBy: "rig",
	}); err != nil {
		return err
	}
	wake := func(context.Context) error { return nil }
	if c != nil {
		if wake, err = r.strike(ctx, c, from, to); err != nil {
			return err
		}
	}
	var st contract.Status
	if err := r.await(ctx, "burn-in", func(now contract.Status) bool { st = now; return inBurnIn(now) }); err != nil {
		return err
	}
	if c != nil {
		r.ends(ctx, contract.Status{Ref: st.Ref}, c)
	}
	return wake(ctx)
}

// Finish completes the move. A cell at [CleanupPoint] strikes on the way.
func (r *Rig) Finish(ctx context.Context, c *Cell) error {
	var st contract.Status
	if err := r.await(ctx, "burn-in", func(now contract.Status) bool { st = now; return inBurnIn(now) }); err != nil {
		return err
	}
	if c != nil {
		if err := r.arm(c.Point); err != nil {
			return err
		}
	}
	if err := r.ask(ctx, contract.CompleteUpdate); err != nil {
		return err
	}
	wake := func(context.Context) error { return nil }
	if c != nil {
		var err error
		if wake, err = r.strike(ctx, c, st.Source.Shard, st.Target.Shard); err != nil {
			return err
		}
	}
	if err := until(ctx, "the move is done", func() (bool, error) {
		_, open, err := r.store.OpenMigration(ctx, r.hot.Chunk.ID)
		if err != nil || open {
			return false, nil //nolint:nilerr // asked again
		}
		running, err := r.starter.Running(ctx, r.hot.Chunk.ID)
		return err == nil && !running, nil
	}); err != nil {
		return err
	}
	return wake(ctx)
}

// Switch switches there or back. A cell strikes on the way; without one nothing is
// done to anybody.
func (r *Rig) Switch(ctx context.Context, c *Cell) error {
	var before contract.Status
	if err := r.await(ctx, "a state to switch from", func(st contract.Status) bool {
		before = st
		return inBurnIn(st) || rolledBack(st)
	}); err != nil {
		return err
	}
	ask, there := contract.RollbackUpdate, rolledBack
	from, to := before.Target.Shard, before.Source.Shard
	if rolledBack(before) {
		ask, there = contract.ApproveUpdate, inBurnIn
		from, to = to, from
	}
	wake := func(context.Context) error { return nil }
	var err error
	switch {
	case c == nil:
		err = r.ask(ctx, ask)
	case c.Point == LanePoint: // the lanes run all the time
		if err = r.arm(c.Point); err == nil {
			wake, err = r.strike(ctx, c, from, to)
		}
		if err == nil {
			err = r.ask(ctx, ask)
		}
	case c.Point == AbortingPoint:
		wake, err = r.strikeWayBack(ctx, c, ask, from, to)
	default:
		if err = r.arm(c.Point); err == nil {
			err = r.ask(ctx, ask)
		}
		if err == nil {
			wake, err = r.strike(ctx, c, from, to)
		}
	}
	if err != nil {
		return err
	}
	if err := r.await(ctx, "the other side", there); err != nil {
		return err
	}
	if err := r.resolved(ctx); err != nil {
		return err
	}
	if c != nil {
		r.ends(ctx, before, c)
	}
	return wake(ctx)
}

// strikeWayBack holds the coordinator behind the fence until a watchdog takes the
// attempt back, and strikes there.
func (r *Rig) strikeWayBack(ctx context.Context, c *Cell, ask, from, to string) (wake func(context.Context) error, err error) {
	for _, p := range []string{AbortingPoint, fencedPoint} {
		if err := r.arm(p); err != nil {
			return nil, err
		}
	}
	if err := r.ask(ctx, ask); err != nil {
		return nil, err
	}
	coordinator, err := r.held(ctx, fencedPoint)
	if err != nil {
		return nil, err
	}
	wake, err = r.strike(ctx, c, from, to)
	if err != nil {
		return nil, err
	}
	return wake, coordinator.goOn()
}

// ends notes how the attempts since a status ended, and how long after their
// deadlines.
func (r *Rig) ends(ctx context.Context, before contract.Status, c *Cell) {
	all, err := r.store.Attempts(ctx, before.Ref.Migration)
	if err != nil {
		return
	}
	for _, a := range all {
		if slices.ContainsFunc(before.Switches, func(s contract.SwitchResult) bool { return s.Attempt == a.ID }) {
			continue
		}
		c.Ends = append(c.Ends, string(a.State))
		c.late(a.Timeline)
	}
}

// late notes how long past its deadline an attempt ended. Where a server that it needs
// was killed, its return counts.
func (c *Cell) late(timeline []metadata.Moment) {
	ends, ok := endsOf(timeline, c.Point == AbortingPoint)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	switch {
	case !ok || !ends.over.After(ends.due):
	case !slices.Contains([]string{"postgres", "source", "target"}, c.Component):
		c.WatchdogMS = append(c.WatchdogMS, ms(ends.over.Sub(ends.due)))
		c.FoundMS = append(c.FoundMS, ms(max(0, ends.found.Sub(ends.due))))
	case ends.over.After(c.returned): // else nobody had to wait for it
		c.ReturnMS = append(c.ReturnMS, ms(ends.over.Sub(latest(ends.due, c.returned))))
	}
}

// Late says how long past their deadlines attempts were ended, of it until somebody
// began to take them back; and how long after the return of a server.
func (c *Cell) Late() string {
	var words []string
	for i, ms := range c.WatchdogMS {
		words = append(words, fmt.Sprintf("%.0f (found %.0f)", ms, c.FoundMS[i]))
	}
	for _, ms := range c.ReturnMS {
		words = append(words, fmt.Sprintf("%.0f after its return", ms))
	}
	return strings.Join(words, ", ")
}

// latest gives the later one of two moments.
func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Deadlines of the workers' defaults.
const fenceDeadline = time.Second

var abortWithin = switchover.Defaults().AbortWithin //nolint:gochecknoglobals // a constant

// attemptEnds is when an attempt had to end, when somebody began to take it back, and
// when it was over.
type attemptEnds struct{ due, found, over time.Time }

// endsOf reads them out of a timeline; ok is false for an attempt that was not fenced,
// or is not over. Who is stopped on the way back leaves it to others at the deadline
// that the way back has.
func endsOf(timeline []metadata.Moment, stopped bool) (e attemptEnds, ok bool) {
	for _, m := range timeline {
		switch m.State {
		case chunk.Fencing:
			e.due = m.At.Add(fenceDeadline)
		case chunk.AttemptAborting:
			e.found = m.At
			if stopped {
				e.due = m.At.Add(abortWithin)
			}
		case chunk.Open, chunk.AttemptAborted:
			e.over = m.At
		case chunk.Preparing, chunk.Closing, chunk.Published, chunk.AttemptDone: // on the way
		}
	}
	return e, !e.due.IsZero() && !e.over.IsZero()
}

// resolved waits until no attempt is open.
func (r *Rig) resolved(ctx context.Context) error {
	return until(ctx, "no attempt is open", func() (bool, error) {
		open, err := r.store.OpenAttempts(ctx)
		return err == nil && len(open) == 0, nil
	})
}

// errStuck is what no cell may come to: everything must resolve itself.
var errStuck = errors.New("the move waits for a person")

// stuck reports whether a step failed and waits for somebody to say that it is to be
// tried again.
func stuck(st contract.Status) bool {
	return st.Attention != "" && !st.Paused && strings.HasPrefix(st.WaitingFor, "an operator: resume")
}

func inBurnIn(st contract.Status) bool {
	return st.Phase == chunk.BurnIn && st.Serving.ID == st.Target.ID && slices.Contains(st.Updates, contract.RollbackUpdate) && st.WaitingFor != ""
}

func rolledBack(st contract.Status) bool {
	return st.Phase == chunk.BurnIn && st.Serving.ID == st.Source.ID && slices.Contains(st.Updates, contract.ApproveUpdate) && st.WaitingFor != ""
}

// await waits until the move is in a state. Errors of asking count as "not yet":
// what answers may be what was killed.
func (r *Rig) await(ctx context.Context, what string, is func(contract.Status) bool) error {
	var last contract.Status
	err := untilEvery(ctx, 100*time.Millisecond, what, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		st, err := r.starter.Status(ctx, r.hot.Chunk.ID)
		if err != nil {
			return false, nil // asked again
		}
		last = st
		if stuck(st) {
			return false, errStuck
		}
		return is(st), nil
	})
	if err != nil {
		return fmt.Errorf("%w (%s)", err, where(last))
	}
	return nil
}

// standsAt says where the move is, for an error.
func (r *Rig) standsAt(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := r.starter.Status(ctx, r.hot.Chunk.ID)
	if err != nil {
		return err.Error()
	}
	return where(st)
}

// where says in words where a move is, and what became of its last attempt.
func where(st contract.Status) string {
	text := fmt.Sprintf("it is at %q, waiting for %q, attention %q", st.Step, st.WaitingFor, st.Attention)
	if n := len(st.Switches); n > 0 && !st.Switches[n-1].Published {
		text += fmt.Sprintf(", attempt %d went back: %s", st.Switches[n-1].Attempt, st.Switches[n-1].Reason)
	}
	return text
}

// ask sends an update; what does not answer is asked again.
func (r *Rig) ask(ctx context.Context, update string) error {
	return until(ctx, update, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := r.starter.Ask(ctx, r.hot.Chunk.ID, update, contract.UpdateInput{By: "rig"})
		return err == nil, nil
	})
}

// Forward reports whether the chunk is where the move brings it.
func (r *Rig) Forward(ctx context.Context) (forward bool, err error) {
	err = r.await(ctx, "a state to switch from", func(st contract.Status) bool {
		forward = inBurnIn(st)
		return forward || rolledBack(st)
	})
	return forward, err
}

// Windows gives the windows of the switches of the running move that went forward,
// in milliseconds, and how many attempts went back.
func (r *Rig) Windows(ctx context.Context) (windows []float64, back int, err error) {
	err = r.await(ctx, "its status", func(st contract.Status) bool {
		windows, back = nil, 0
		for _, s := range st.Switches {
			if s.Published {
				windows = append(windows, s.WindowMS)
			} else {
				back++
			}
		}
		return true
	})
	return windows, back, err
}
