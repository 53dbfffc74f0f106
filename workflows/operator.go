package workflows

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/flow"
)

// verb is one thing that an operator may ask of a running move.
type verb struct {
	name, does string
	allowed    func() error
	apply      func(contract.UpdateInput)
}

// verbs is the whole list; status.updates and the handlers come from it.
func (m *migration) verbs() []verb {
	return []verb{
		{contract.ApproveUpdate, "goes on with the switch that waits for a person", m.mayApprove, func(contract.UpdateInput) { m.approved = true }},
		{contract.PauseUpdate, "stops the lanes and the step; the source serves on", m.mayPause, m.pause},
		{contract.ResumeUpdate, "ends a pause, or tries again what failed", m.mayResume, func(in contract.UpdateInput) {
			m.paused, m.resumed, m.status.PausedBy, m.status.PausedAll = false, true, "", false
			if checkOnDDL(in.OnDDL) == nil && in.OnDDL != "" {
				m.in.OnDDL = in.OnDDL
			}
		}},
		{contract.AbortUpdate, "gives up: the source serves on, the target's copy is removed", m.mayAbort, func(in contract.UpdateInput) {
			m.abortReason = "by " + in.By + ": " + in.Reason
			m.interrupt()
		}},
		{contract.RollbackUpdate, "lets the old placement serve again", m.mayRollback, func(contract.UpdateInput) { m.rollbackAsked = true }},
		{contract.CompleteUpdate, "ends burn-in now and drops the placement that does not serve", m.mayComplete, func(contract.UpdateInput) { m.completeAsked = true }},
		{contract.DrillUpdate, "switches back to the old placement and forth again, and compares both each time", m.mayDrill, func(contract.UpdateInput) { m.drillAsked = true }},
	}
}

// handlers are registered before anything blocks. They change state; the main
// line does the work.
func (m *migration) handlers(ctx workflow.Context) error {
	err := workflow.SetQueryHandlerWithOptions(ctx, contract.StatusQuery, func() (contract.Status, error) {
		m.status.Paused, m.status.Direction = m.paused, m.direction
		m.status.Updates = m.possible()
		return m.status, nil
	}, workflow.QueryHandlerOptions{Description: "where the move is, why it waits, and what may be asked of it"})
	if err != nil {
		return err
	}
	for _, v := range m.verbs() {
		err := workflow.SetUpdateHandlerWithOptions(ctx, v.name,
			func(_ workflow.Context, in contract.UpdateInput) (contract.Status, error) {
				if err := m.may(v); err != nil { // state may have moved since the validator
					return m.status, err
				}
				m.log.Info("An operator asks", "update", v.name, "by", in.By, "reason", in.Reason)
				v.apply(in)
				return m.status, nil
			}, workflow.UpdateHandlerOptions{
				Description: v.does,
				Validator: func(in contract.UpdateInput) error {
					if err := checkOnDDL(in.OnDDL); err != nil {
						return refuse("%s", err)
					}
					if err := m.mayMean(in.Migration); err != nil {
						return err
					}
					return m.may(v)
				},
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// possible names what may be asked of the move now.
func (m *migration) possible() (names []string) {
	for _, v := range m.verbs() {
		if v.allowed() == nil {
			names = append(names, v.name)
		}
	}
	return names
}

// may refuses a verb that does not fit, with what does.
func (m *migration) may(v verb) error {
	err := v.allowed()
	if err == nil {
		return nil
	}
	return refuse("%s; possible now: %s", flow.Cause(err), cmp.Or(strings.Join(m.possible(), ", "), "nothing"))
}

// pause is what the update does; who asked is shown where the move waits.
func (m *migration) pause(in contract.UpdateInput) {
	m.paused, m.status.PausedAll, m.status.PausedBy = true, in.All, cmp.Or(in.By, "an operator")
	if in.Reason != "" {
		m.status.PausedBy += ": " + in.Reason
	}
	m.interrupt()
}

// interrupt ends the running step; in the window of a switch it does nothing.
func (m *migration) interrupt() {
	if m.cancelStep != nil && !m.inWindow {
		m.cancelStep()
	}
}

// refuse is an update's "no", with what would make it a yes.
func refuse(format string, args ...any) error {
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf(format, args...), "migration.not_now", nil)
}

// mayMean refuses what is asked of another move of the chunk: one that is over, where this
// one has begun since.
func (m *migration) mayMean(id chunk.MigrationID) error {
	switch {
	case id == 0 || id == m.plan.Migration:
		return nil
	case m.plan.Migration == 0:
		return refuse("it is being registered: whether it is move %d is not known yet", id)
	default:
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf("move %d is over, and move %d has begun", id, m.plan.Migration), contract.OtherMove, nil)
	}
}

func (m *migration) mayApprove() error {
	if m.drilling {
		return refuse("a drill is running; nothing waits for approval")
	}
	if m.rolledBack() || (m.in.Approval == contract.Manual || m.in.Window != "") && m.status.Phase == chunk.Switching && !m.inWindow {
		return nil
	}
	return refuse("nothing waits for approval in %s", m.status.Phase)
}

func (m *migration) mayPause() error {
	switch {
	case m.inWindow:
		return refuse("a switch is in its window; it ends within seconds")
	case m.paused:
		return refuse("it is paused already")
	case m.status.Phase == chunk.Completing || m.status.Phase == chunk.Aborting || m.status.Phase.Final():
		return refuse("it is %s", m.status.Phase)
	}
	return nil
}

func (m *migration) mayResume() error {
	if m.paused || m.status.Attention != "" {
		return nil
	}
	return refuse("it is neither paused nor waiting for an operator")
}

func (m *migration) mayAbort() error {
	switch {
	case m.inWindow:
		return refuse("a switch is in its window; it ends within seconds, ask again")
	case m.plan.Migration != 0 && m.serving.ID == m.plan.Target.ID:
		return refuse("the target serves; rollback first, then abort")
	case m.status.Phase == chunk.Aborting || m.status.Phase.Final():
		return refuse("it is %s", m.status.Phase)
	}
	return nil
}

func (m *migration) mayRollback() error {
	if m.drilling {
		return refuse("a drill is running; it ends with the target serving, or waits for an operator")
	}
	if m.status.Phase == chunk.BurnIn && !m.rolledBack() && !m.inWindow {
		return nil
	}
	return refuse("only a move in burn-in whose target serves can be rolled back; this one is in %s", m.status.Phase)
}

func (m *migration) mayDrill() error {
	if m.drilling {
		return refuse("a drill is running already")
	}
	if m.status.Phase == chunk.BurnIn && !m.rolledBack() && !m.inWindow && !m.paused {
		return nil
	}
	return refuse("only a move in burn-in whose target serves can be drilled; this one is in %s", m.status.Phase)
}

func (m *migration) mayComplete() error {
	if m.drilling {
		return refuse("a drill is running; it ends with the target serving, or waits for an operator")
	}
	if m.status.Phase == chunk.BurnIn && !m.rolledBack() && !m.inWindow {
		return nil
	}
	return refuse("only a move in burn-in whose target serves can be completed; this one is in %s", m.status.Phase)
}

// show renders the state for Temporal's UI.
func (m *migration) show(ctx workflow.Context) {
	var b strings.Builder
	row := func(k, v string) {
		if v != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", k, v)
		}
	}
	fmt.Fprintf(&b, "### %s: %s\n\n| | |\n| --- | --- |\n", m.in.Chunk, m.status.Step)
	row("phase", string(m.status.Phase))
	row("from", m.status.Source.Shard)
	row("to", m.in.To)
	row("serving", m.status.Serving.Shard)
	row("since", m.status.StepSince.UTC().Format(time.RFC3339))
	if e := time.Duration(m.status.Expected); e > 0 {
		row("expected to take", e.Round(time.Second).String())
		late := m.status.StepSince.Add(contract.OverdueAfter * e).UTC().Format(time.RFC3339)
		row("if it goes on past "+late, contract.StepRemedy(m.status.Phase))
	}
	row("waiting for", m.status.WaitingFor)
	row("**attention**", m.status.Attention)
	row("under repair", m.status.UnderRepair)
	if r := m.status.Import; r != nil {
		row("imported", fmt.Sprintf("%d documents, %d bytes", r.Documents, r.Bytes))
	}
	if r := m.status.Validation; r != nil {
		row("validated", fmt.Sprintf("%d documents, %d mismatches, %d busy", r.Documents, r.Mismatches, r.Busy))
	}
	for _, s := range m.status.Switches {
		outcome := "went back: " + s.Reason
		if s.Published {
			outcome = fmt.Sprintf("published, window %.1f ms", s.WindowMS)
		}
		row(fmt.Sprintf("attempt %d", s.Attempt), outcome)
	}
	for _, d := range m.status.Drills {
		for _, l := range d.Legs {
			row("drill "+l.From+" → "+l.To, fmt.Sprintf("window %.1f ms, %d documents compared, %d differ", l.WindowMS, l.Documents, l.Mismatches))
		}
		row("drill", d.Outcome)
	}
	workflow.SetCurrentDetails(ctx, b.String())
}
