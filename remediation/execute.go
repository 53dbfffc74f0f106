package remediation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/internal/failure"
	"drover/internal/stoppoint"
)

// Shard is a replica set that can be read and changed.
type Shard interface {
	Hands
	// Set is the name that the set must have.
	Set() string
	// Look asks every member it can reach.
	Look(ctx context.Context) ([]View, error)
	// Inventory lists the machines of the set and those it may use.
	Inventory(ctx context.Context) ([]Machine, error)
	// Pause lets time pass between two readings.
	Pause(ctx context.Context, d time.Duration) error
}

// Patience is how long an executor waits for what a step is predicted to lead to.
type Patience struct {
	Poll   time.Duration // between two readings; 2 s
	Settle time.Duration // for an election or a change of the configuration; 2 min
	Copy   time.Duration // for a copy to be made, or a member to come back; 24 h
}

// withDefaults fills in what is 0.
func (p Patience) withDefaults() Patience {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&p.Poll, 2*time.Second)
	set(&p.Settle, 2*time.Minute)
	set(&p.Copy, 24*time.Hour)
	return p
}

// The places of a step where an executor may die.
const (
	StopBefore = "remediation.before-step" // the step is chosen and checked, nothing is done
	StopAfter  = "remediation.after-step"  // it is done, nobody has looked
)

// Progress is what an executor tells after each reading.
type Progress struct {
	Step     string   // the operation, for people; empty while planning
	Done     int      // steps that took
	Replans  int      // plans that were given up
	Deviates []string // in what the shard is not as predicted, so far
}

// Executor brings one shard to its layout. It plans, does one step, reads the
// shard again, and goes on only if the shard is as the step predicted; else it
// plans anew.
//
// Contract: the caller holds the shard's lease exclusively, and ends the context
// when it is lost. Before each step: the preconditions hold in a reading that is
// fresh. If interrupted anywhere: run again; nothing but the shard itself is
// remembered.
type Executor struct {
	Planner    *Planner
	Shard      Shard
	Observer   Observer
	Patience   Patience
	Execute    bool // else a dry run: the same steps, predicted only
	MaxReplans int  // 0: 20
	Report     func(ctx context.Context, p Progress) error
	Stops      *stoppoint.Points
	// Guard is asked right before a change, after all that may have taken long: an
	// error ends the run. The caller sees there that its lease is still its own.
	Guard func(ctx context.Context) error

	progress Progress
	pending  bool // a majority does not have the configuration that was read last
}

// Done is a step that took.
type Done struct {
	Order  Order
	Text   string
	Reason string
	Cost   int
}

// Outcome is what an execution led to.
type Outcome struct {
	From, To Health
	Full     bool // nothing differs from the layout
	Done     []Done
	Replans  int
	Why      string // why not full health, or why not fewer steps; of the last plan
	End      Vertex
	DryRun   bool
}

// Look reads the shard. A view that cannot be is read again a few times.
func (e *Executor) Look(ctx context.Context) (Vertex, error) {
	var err error
	for range 5 {
		var v Vertex
		if v, err = e.look(ctx); err == nil || !failure.Is(err, failure.Transient) || ctx.Err() != nil {
			return v, err
		}
		if err := e.Shard.Pause(ctx, e.Patience.withDefaults().Poll); err != nil {
			return v, err
		}
	}
	return Vertex{}, err
}

// look reads the shard once.
func (e *Executor) look(ctx context.Context) (Vertex, error) {
	inventory, err := e.Shard.Inventory(ctx)
	if err != nil {
		return Vertex{}, err
	}
	views, err := e.Shard.Look(ctx)
	if err != nil {
		return Vertex{}, err
	}
	e.pending = uncommitted(views)
	v, err := e.Observer.Vertex(e.Shard.Set(), views, inventory)
	for i := range v.Members {
		if m := &v.Members[i]; m.OplogMB == 0 && !m.Arbiter {
			m.OplogMB = e.Planner.usualOplog(m.Zone) // nobody can ask it; what it is shows when it is back
		}
	}
	return v, err
}

// uncommitted reports whether a primary holds a configuration that another one
// could still take back.
func uncommitted(views []View) bool {
	return slices.ContainsFunc(views, func(v View) bool { return v.Uncommitted && v.sight(v.Host).State == "PRIMARY" })
}

// Run brings the shard to the best health that can be reached. A plan that is
// empty ends it. Codes beside those of a reading: remediation.unsettled.
func (e *Executor) Run(ctx context.Context) (Outcome, error) {
	out := Outcome{DryRun: !e.Execute}
	v, err := e.Look(ctx)
	if err != nil {
		return out, err
	}
	out.From = e.Planner.Health(v)
	limit := e.MaxReplans
	if limit == 0 {
		limit = 20
	}
	for ; ; out.Replans++ {
		plan, err := e.Planner.Plan(v)
		if err != nil {
			return out, failure.New(failure.Transient, "remediation.impossible_view", "%w", err)
		}
		out.To, out.Full, out.Why, out.End = plan.From, plan.Full && len(plan.Steps) == 0, plan.Why, v
		if len(plan.Steps) == 0 {
			return out, nil
		}
		if out.Replans > limit {
			return out, failure.New(failure.Mismatch, "remediation.unsettled", "%d plans did not come out as predicted; last: %s", out.Replans, strings.Join(e.progress.Deviates, "; ")).
				WithHint("look at the shard: something changes it, or a step does not take; then start the remediation again")
		}
		e.progress.Replans = out.Replans
		if v, err = e.follow(ctx, v, plan, &out); err != nil {
			return out, err
		}
		if len(e.progress.Deviates) == 0 { // the plan came out; the next one is empty, or does not count
			out.Replans--
		}
	}
}

// follow does a plan's steps as long as they come out as predicted, and gives
// the vertex that was read last.
func (e *Executor) follow(ctx context.Context, v Vertex, plan *Plan, out *Outcome) (Vertex, error) {
	e.progress.Deviates = nil
	for _, s := range plan.Steps {
		seen, deviates, err := e.Do(ctx, v, s)
		e.progress.Deviates = deviates
		if err != nil || len(deviates) > 0 {
			return seen, err
		}
		order, err := NewOrder(s.Operation)
		if err != nil {
			return seen, err
		}
		out.Done = append(out.Done, Done{Order: order, Text: s.Operation.String(), Reason: s.Reason, Cost: s.Cost})
		e.progress.Done++
		v = seen
	}
	return v, nil
}

// Do does one step of a plan that was made for v, and gives what was read after
// it and in what that is not as predicted. A step that the shard refused is a
// deviation too: planning again from what is seen is the answer to both. An error
// means that the shard could not be read, or that the caller is to stop.
func (e *Executor) Do(ctx context.Context, v Vertex, s Step) (Vertex, []string, error) {
	e.progress.Step = s.Operation.String()
	if !e.Execute {
		if err := s.Operation.Preconditions(v); err != nil {
			return v, []string{err.Error()}, nil
		}
		return s.Operation.Next(v), nil, e.report(ctx)
	}
	fresh, err := e.fresh(ctx, s.Operation)
	if err != nil {
		return v, nil, err
	}
	if d := Differences(v, fresh); len(d) > 0 {
		return fresh, d, e.report(ctx)
	}
	if err := s.Operation.Preconditions(fresh); err != nil {
		return fresh, []string{err.Error()}, e.report(ctx)
	}
	if reason := e.spared(s.Operation, fresh); reason != "" {
		return fresh, []string{reason}, e.report(ctx)
	}
	if err := e.Stops.At(ctx, StopBefore); err != nil {
		return fresh, nil, err
	}
	if e.Guard != nil {
		if err := e.Guard(ctx); err != nil {
			return fresh, nil, err
		}
	}
	failed := s.Operation.Perform(ctx, e.Shard, fresh)
	if ctx.Err() != nil {
		return fresh, nil, context.Cause(ctx)
	}
	if failure.Is(failed, failure.Invalid) { // a person must act: what performs it is not set up
		return fresh, nil, failed
	}
	if err := e.Stops.At(ctx, StopAfter); err != nil {
		return fresh, nil, err
	}
	return e.await(ctx, fresh, s, failed)
}

// fresh reads the shard for an operation. A destroying one waits until a majority
// has the configuration, for as long as one may take to settle.
func (e *Executor) fresh(ctx context.Context, o Operation) (Vertex, error) {
	p := e.Patience.withDefaults()
	for waited := time.Duration(0); ; waited += p.Poll {
		v, err := e.Look(ctx)
		if err != nil || !e.pending || !Destroys(o) || waited >= p.Settle {
			return v, err
		}
		if err := e.Shard.Pause(ctx, p.Poll); err != nil {
			return v, err
		}
	}
}

// spared is why a destroying operation is not done, whatever its own
// preconditions say. A configuration that no majority has can still be taken back:
// the member would have its vote again, and none of what it had acknowledged.
func (e *Executor) spared(o Operation, v Vertex) string {
	switch host := o.Subject(); {
	case !Destroys(o):
		return ""
	case !v.majorityElsewhere(host):
		return host + ": no healthy majority elsewhere"
	case e.pending:
		return host + ": a majority does not have the configuration yet"
	default:
		return ""
	}
}

// await reads the shard until it is as predicted, or will not be.
func (e *Executor) await(ctx context.Context, before Vertex, s Step, failed error) (Vertex, []string, error) {
	p := e.Patience.withDefaults()
	want, host := s.Operation.Next(before), s.Operation.Subject()
	if r, ok := s.Operation.(Replace); ok {
		host = r.By
	}
	var waited time.Duration
	for {
		seen, err := e.Look(ctx)
		if err != nil {
			return before, nil, err
		}
		deviates := Differences(want, seen)
		if len(deviates) == 0 && e.pending {
			deviates = []string{host + ": a majority does not have the configuration yet"}
		}
		e.progress.Deviates = deviates
		if err := e.report(ctx); err != nil {
			return seen, nil, err
		}
		limit := p.Settle
		if at := seen.index(host); at >= 0 && seen.Members[at].State.comesBack() {
			limit = p.Copy
		} else if _, waiting := s.Operation.(Await); waiting && at >= 0 && seen.Members[at].State != Healthy {
			limit = 0 // it does not come back by itself
		}
		switch {
		case len(deviates) == 0:
			return seen, nil, nil
		case failed != nil:
			return seen, append([]string{failed.Error()}, deviates...), nil
		case waited >= limit, beyond(deviates, host):
			return seen, deviates, nil
		}
		if err := e.Shard.Pause(ctx, p.Poll); err != nil {
			return seen, nil, err
		}
		waited += p.Poll
	}
}

// beyond reports whether something is not as predicted that has nothing to do
// with the step: waiting for the step does not help then.
func beyond(deviates []string, host string) bool {
	return slices.ContainsFunc(deviates, func(d string) bool {
		return host != "" && !strings.HasPrefix(d, host+":") && !strings.Contains(d, ": primary is ")
	})
}

// report tells the caller how far it is.
func (e *Executor) report(ctx context.Context) error {
	if e.Report == nil {
		return nil
	}
	if err := e.Report(ctx, e.progress); err != nil {
		return fmt.Errorf("report progress: %w", err)
	}
	return nil
}
