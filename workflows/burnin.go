package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/flow"
)

// burnIn keeps the old placement current until the time is over or an operator
// says so, and rolls back and forth, or drills both, on request.
func (m *migration) burnIn(ctx workflow.Context) error {
	if err := m.reconcile(ctx); err != nil {
		return err
	}
	if err := m.revalidate(ctx); err != nil {
		return err
	}
	for {
		if err := m.makeRoom(ctx); err != nil {
			return err
		}
		m.startLanes(ctx)
		m.startVerifier(ctx)
		if m.tries == 0 && !m.drilling { // else the run before was about to switch
			done, err := m.waitInBurnIn(ctx)
			if done || err != nil {
				return err
			}
		}
		if err := m.turn(ctx); err != nil {
			return err
		}
	}
}

// turn does what burn-in was asked for: it drills, or switches.
func (m *migration) turn(ctx workflow.Context) error {
	if m.drillAsked || m.drilling {
		return m.drill(ctx)
	}
	// Taken back here and not where the waiting begins: what was asked for, and
	// granted, a moment before that must not be lost.
	m.rollbackAsked, m.approved = false, false
	m.burnInUntil = time.Time{} // it begins anew when the target serves again
	return m.flip(ctx, m.atOnce())
}

// atOnce is the policy of a switch that an operator asked for: neither approval nor
// window.
func (m *migration) atOnce() contract.MigrateInput {
	p := m.in
	p.Approval, p.Window = contract.Automatic, ""
	return p
}

// waitInBurnIn returns true when the spare placement may go, false when the
// traffic is to be switched to it.
func (m *migration) waitInBurnIn(ctx workflow.Context) (bool, error) {
	rolledBack := m.serving.ID == m.plan.Source.ID
	asked := func() bool { return m.completeAsked || m.rollbackAsked || m.drillAsked }
	var err error
	switch {
	case rolledBack:
		m.status.WaitingFor = "an operator: the old placement serves again; approve switches forth, abort removes the target"
		m.show(ctx)
		err = workflow.Await(ctx, func() bool { return m.approved })
	case m.in.Complete == contract.Manual:
		m.status.WaitingFor = "an operator: complete drops the old placement, rollback goes back to it, drill tries both"
		m.show(ctx)
		err = workflow.Await(ctx, asked)
	default:
		if m.burnInUntil.IsZero() {
			m.burnInUntil = workflow.Now(ctx).Add(time.Duration(m.in.BurnIn))
		}
		m.status.WaitingFor = "the end of burn-in at " + m.burnInUntil.UTC().Format(time.RFC3339) +
			"; complete ends it now, rollback goes back, drill tries both"
		m.show(ctx)
		_, err = workflow.AwaitWithTimeout(ctx, max(0, m.burnInUntil.Sub(workflow.Now(ctx))), asked)
	}
	m.status.WaitingFor = ""
	return !m.rollbackAsked && !m.drillAsked && !rolledBack, err
}

// drill switches back to the old placement and forth again, and compares both after
// each switch: the proof, while nothing is at stake, that a rollback would work. What
// stops it stops the step, with whoever serves then.
func (m *migration) drill(ctx workflow.Context) (err error) {
	if !m.drilling {
		m.status.Drills = append(m.status.Drills, contract.DrillReport{StartedAt: workflow.Now(ctx), Outcome: "running"})
	}
	m.drillAsked, m.drilling = false, true
	report := &m.status.Drills[len(m.status.Drills)-1]
	defer func() {
		if workflow.IsContinueAsNewError(err) {
			return
		}
		m.drilling = false
		report.EndedAt, report.Outcome = workflow.Now(ctx), "passed"
		if err != nil {
			report.Outcome = "stopped: " + flow.Cause(m.reason(err))
		}
		m.show(ctx)
	}()
	for len(report.Legs) < 2 {
		leg := contract.DrillLeg{From: m.serving.Shard, To: m.spare.Shard}
		before := len(m.status.Switches)
		if err := m.flip(ctx, m.atOnce()); err != nil {
			return err
		}
		leg.Attempts = len(m.status.Switches) - before
		if leg.Attempts > 0 {
			last := m.status.Switches[len(m.status.Switches)-1]
			leg.Attempt, leg.WindowMS = last.Attempt, last.WindowMS
		}
		report.Legs = append(report.Legs, leg)
		m.show(ctx)
		o := m.bulk()
		o.Summary = "compare both placements after a drill's switch"
		res, err := flow.Call(ctx, o, contract.ValidateChunk, m.lanesInput())
		if err != nil {
			return err
		}
		report.Legs[len(report.Legs)-1].Documents, report.Legs[len(report.Legs)-1].Mismatches = res.Documents, res.Mismatches
	}
	return nil
}

// rolledBack reports whether the old placement serves again in burn-in, on an
// operator's word.
func (m *migration) rolledBack() bool {
	return m.status.Phase == chunk.BurnIn && m.serving.ID == m.plan.Source.ID
}
