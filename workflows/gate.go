package workflows

import (
	"time"

	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// mostPatience is how long one look at a gate that refuses may last. The activity
// measures every second meanwhile; the history grows by one call.
const mostPatience = 5 * time.Minute

// waitForGate asks the gate until it says go, at a time that the policy allows. A
// refusal costs nothing: replication goes on.
func (m *migration) waitForGate(ctx workflow.Context, p contract.MigrateInput) error {
	patience := time.Duration(0)
	for {
		if err := m.makeRoom(ctx); err != nil {
			return err
		}
		if err := m.waitForLeave(ctx, p); err != nil {
			return err
		}
		m.startLanes(ctx)
		m.startVerifier(ctx)
		in := contract.GateInput{DirectionInput: m.lanesInput(), WaitForOpen: p.WaitForOpen, Patience: contract.Duration(m.inTime(ctx, p, patience))}
		report, err := flow.Call(ctx, named(flow.Wait(), "gate"), contract.CheckGate, in)
		if err != nil {
			return err
		}
		m.status.Gate = &report
		if report.Go && m.mayLeave(ctx, p) {
			m.status.WaitingFor = ""
			return nil
		}
		if !report.Go {
			m.status.WaitingFor = "the gate: " + report.Refusals()
			m.show(ctx)
		}
		patience = min(max(time.Second, 2*patience), mostPatience)
		if err := workflow.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// waitForLeave waits for an operator where the policy wants one, else for the
// window. An approval counts for both.
func (m *migration) waitForLeave(ctx workflow.Context, p contract.MigrateInput) error {
	for !m.mayLeave(ctx, p) {
		if p.Approval == contract.Manual {
			m.status.WaitingFor = "an operator's approve"
			m.show(ctx)
			if err := workflow.Await(ctx, func() bool { return m.approved }); err != nil {
				return err
			}
			m.status.WaitingFor = ""
			break
		}
		w, err := contract.ParseWindow(p.Window)
		if err != nil {
			return err // checkInput has seen it: it never is
		}
		wait := w.Until(workflow.Now(ctx))
		m.status.WaitingFor = "the window " + p.Window + " UTC, which opens at " + workflow.Now(ctx).Add(wait).UTC().Format(time.RFC3339) +
			"; approve switches before"
		m.show(ctx)
		if _, err := workflow.AwaitWithTimeout(ctx, wait, func() bool { return m.approved }); err != nil {
			return err
		}
		m.status.WaitingFor = ""
	}
	return nil
}

// mayLeave reports whether the policy allows a switch now.
func (m *migration) mayLeave(ctx workflow.Context, p contract.MigrateInput) bool {
	switch {
	case m.approved:
		return true
	case p.Approval == contract.Manual:
		return false
	case p.Window == "":
		return true
	}
	w, err := contract.ParseWindow(p.Window)
	return err == nil && w.Left(workflow.Now(ctx)) > 0
}

// inTime shortens a patience to what is left of the window.
func (m *migration) inTime(ctx workflow.Context, p contract.MigrateInput, patience time.Duration) time.Duration {
	if m.approved || p.Window == "" {
		return patience
	}
	w, err := contract.ParseWindow(p.Window)
	if err != nil {
		return 0
	}
	return min(patience, w.Left(workflow.Now(ctx)))
}

// PlanSwitch asks the workers what a switch would meet and do now. Only they know
// their own limits.
func PlanSwitch(ctx workflow.Context, in contract.GateInput) (contract.SwitchPlan, error) {
	return flow.Call(ctx, named(flow.Quick(), "read what a switch would do"), contract.PlanSwitch, in)
}
