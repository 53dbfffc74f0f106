package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"drover/contract"
)

// A run whose history has grown to mostEvents hands over to another one where it may;
// what comes between two such places adds a few hundred.
const (
	mostEvents   = 1500
	keptSwitches = 400 // results that are handed over; the metadata has all
	keptDetails  = 10  // of them with their timelines
	keptDrills   = 20
)

// makeRoom hands over to a new run when the history is long. It is called where
// nothing is under way but what the next run starts again: lanes, verification, watch.
// The error that it returns is no failure: it goes up as it is, and nothing is undone.
func (m *migration) makeRoom(ctx workflow.Context) error {
	info := workflow.GetInfo(ctx)
	if info.GetCurrentHistoryLength() < mostEvents && !info.GetContinueAsNewSuggested() {
		return nil
	}
	if workflow.GetVersion(ctx, "carry", workflow.DefaultVersion, 1) == workflow.DefaultVersion { // before 0.1
		return nil
	}
	if !m.settled(ctx) {
		return nil
	}
	m.stopBeside(ctx)
	if err := m.hearLastRepairs(ctx); err != nil {
		return nil //nolint:nilerr // cancelled: the caller's next step sees it
	}
	if err := workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) }); err != nil || !m.settled(ctx) {
		return nil //nolint:nilerr // somebody asked for something meanwhile: the caller's next step sees it
	}
	return workflow.NewContinueAsNewError(ctx, contract.MigrateChunkWorkflow, contract.MigrateRun{MigrateInput: m.in, Carry: m.carry(ctx)})
}

// settled reports whether nothing is decided, half done or failed that another run would not
// know of.
func (m *migration) settled(ctx workflow.Context) bool {
	return ctx.Err() == nil && m.abortReason == "" && !m.paused && !m.inWindow && !m.restarting && m.judging == 0 && m.sideFailure() == nil
}

// carry is what the next run needs.
func (m *migration) carry(ctx workflow.Context) *contract.Carry {
	c := &contract.Carry{
		Plan: m.plan, Status: m.status, Serving: m.serving, Spare: m.spare, Direction: m.direction, Runs: m.runs + 1,
		Attempted: m.attempted, Approved: m.approved, RollbackAsked: m.rollbackAsked, DrillAsked: m.drillAsked, CompleteAsked: m.completeAsked,
		Drilling: m.drilling, Tries: m.tries, Restarts: m.restarts, BurnInUntil: m.burnInUntil, Page: m.paging,
	}
	if m.watching != nil && m.watchUntil.After(workflow.Now(ctx)) {
		c.Watch, c.WatchUntil = m.watching, m.watchUntil
	}
	s := &c.Status
	s.Switches = append([]contract.SwitchResult{}, s.Switches[max(0, len(s.Switches)-keptSwitches):]...)
	for i := range s.Switches[:max(0, len(s.Switches)-keptDetails)] {
		s.Switches[i].Timeline = nil
	}
	s.Drills = s.Drills[max(0, len(s.Drills)-keptDrills):]
	return c
}

// restore takes over from the run before, if there was one. Its phase is where this
// one begins.
func (m *migration) restore(c *contract.Carry) {
	if c == nil {
		return
	}
	m.plan, m.status, m.serving, m.spare, m.direction, m.runs = c.Plan, c.Status, c.Serving, c.Spare, c.Direction, c.Runs
	m.attempted, m.approved, m.rollbackAsked, m.drillAsked, m.completeAsked = c.Attempted, c.Approved, c.RollbackAsked, c.DrillAsked, c.CompleteAsked
	m.drilling, m.tries, m.restarts, m.burnInUntil = c.Drilling, c.Tries, c.Restarts, c.BurnInUntil
	m.watching, m.watchUntil, m.paging = c.Watch, c.WatchUntil, c.Page
	m.goesOnAt = c.Status.Phase
	m.carried = true
}

// takeUp starts again what ran beside the steps, and shows people the same as before.
func (m *migration) takeUp(ctx workflow.Context) error {
	if !m.carried {
		return nil
	}
	m.log.Info("A run goes on with a move", "runs_before", m.runs)
	if err := m.describe(ctx); err != nil {
		return err
	}
	if in := m.watching; in != nil {
		rest := *in
		rest.For = contract.Duration(max(time.Second, m.watchUntil.Sub(workflow.Now(ctx))))
		m.watch(ctx, rest)
	}
	if p := m.paging; p != nil {
		workflow.GoNamed(ctx, "page", func(ctx workflow.Context) { m.page(ctx, p.Attempt, p.Why) }) // it waits for a person
	}
	return nil
}

// describe sets what operators filter by.
func (m *migration) describe(ctx workflow.Context) error {
	return workflow.UpsertTypedSearchAttributes(ctx,
		contract.ChunkIDAttribute.ValueSet(string(m.in.Chunk)),
		contract.SourceShardAttribute.ValueSet(m.plan.Source.Shard),
		contract.TargetShardAttribute.ValueSet(m.plan.Target.Shard),
		contract.NeedsAttentionAttribute.ValueSet(false))
}
