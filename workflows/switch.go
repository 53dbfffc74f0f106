package workflows

import (
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// prepareLate is the code of an attempt that was not fenced in time.
const prepareLate = "switch.prepare_late"

// maxAttempts is how often a switch is tried before a person is asked.
const maxAttempts = 10

// switchOver brings the traffic to the target.
func (m *migration) switchOver(ctx workflow.Context) error {
	if err := m.reconcile(ctx); err != nil {
		return err
	}
	if m.serving.ID == m.plan.Target.ID {
		return nil // the step runs again after a pause or a failure behind the publish
	}
	if err := m.revalidate(ctx); err != nil {
		return err
	}
	m.startLanes(ctx)
	m.startVerifier(ctx)
	if m.tries == 0 { // not before a rollback, which must not wait
		if err := m.audit(ctx); err != nil {
			return err
		}
	}
	return m.flip(ctx, m.in)
}

// reconcile learns from the metadata what became of the attempts, and ends what is
// left of them. A step that failed behind the publish, or whose answer was lost, may
// have changed who serves without this run knowing.
func (m *migration) reconcile(ctx workflow.Context) error {
	if !m.attempted {
		return nil
	}
	res, err := flow.Call(ctx, named(flow.Brisk(), "see what became of the attempts"), contract.ReconcileSwitch, m.plan.Ref)
	if err != nil {
		return err
	}
	m.serving, m.spare, m.direction = res.Serving, res.Spare, res.Direction
	m.status.Serving = m.serving
	for _, s := range res.Switches {
		if len(m.status.Switches) > 0 && s.Attempt < m.status.Switches[0].Attempt { // older than what a run hands over
			continue
		}
		known := slices.ContainsFunc(m.status.Switches, func(k contract.SwitchResult) bool { return k.Attempt == s.Attempt && k.Published })
		if !known {
			m.status.Switches = append(m.status.Switches, s)
		}
	}
	m.show(ctx)
	return nil
}

// flip tries until the spare placement serves: gate, fence, publish, open.
func (m *migration) flip(ctx workflow.Context, p contract.MigrateInput) (err error) {
	defer func() {
		if !workflow.IsContinueAsNewError(err) {
			m.tries = 0
		}
	}()
	for m.tries = max(1, m.tries); m.tries <= maxAttempts; m.tries++ {
		m.startLanes(ctx)
		m.startVerifier(ctx)
		if err := m.waitForGate(ctx, p); err != nil {
			return err
		}
		published, err := m.attempt(ctx)
		if err != nil || published {
			return err
		}
		m.status.WaitingFor = fmt.Sprintf("attempt %d of %d went back, the next one follows", m.tries, maxAttempts)
		m.show(ctx)
		if err := workflow.Sleep(ctx, time.Duration(m.tries)*time.Second); err != nil {
			return err
		}
	}
	last := m.status.Switches[len(m.status.Switches)-1]
	return temporal.NewNonRetryableApplicationError(
		fmt.Sprintf("%d attempts went back, the last because: %s", maxAttempts, last.Reason), "switch.attempts_exhausted", nil)
}

// attempt is one try. Once prepared it cannot be interrupted, and it does not
// end before it is known what became of it.
func (m *migration) attempt(ctx workflow.Context) (published bool, err error) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	m.endWatch()
	m.inWindow, m.attempted = true, true
	defer func() { m.inWindow = false }()
	ref, err := flow.Call(ctx, named(flow.Brisk(), "prepare the switch"), contract.PrepareSwitch, m.lanesInput())
	if flow.Code(err) == prepareLate { // the watchdog took it back meanwhile
		m.status.Switches = append(m.status.Switches, contract.SwitchResult{Attempt: ref.Attempt, Reason: flow.Cause(err)})
		return false, nil
	}
	if err != nil {
		return false, err
	}

	res, err := flow.Call(ctx, named(flow.Fence(), "fence, drain, catch up, close, publish, open"), contract.SwitchRoute, ref)
	if err != nil { // an error is not a "no": ask, and bring back what cannot go forward
		in := contract.SettleInput{AttemptRef: ref, Reason: flow.Cause(err)}
		res, err = flow.Call(ctx, named(flow.Settle(), "settle the attempt"), contract.SettleAttempt, in)
		if err != nil {
			return false, err
		}
	}
	m.status.Switches = append(m.status.Switches, res)
	m.approved = false
	if !res.Published {
		return false, nil
	}
	m.verifier.quit()
	m.swap(ref)
	m.inWindow = false
	m.startLanes(ctx)
	m.watchSwitch(ctx)
	m.show(ctx)
	_, err = flow.Call(ctx, named(flow.Brisk(), "conclude the switch"), contract.ConcludeSwitch, ref)
	return true, err
}

// swap makes the published placement the serving one; the lanes turn round.
func (m *migration) swap(ref contract.AttemptRef) {
	m.serving, m.spare = m.spare, m.serving
	m.direction = ref.Attempt
	m.status.Serving = m.serving
}

func named(o workflow.ActivityOptions, summary string) workflow.ActivityOptions {
	o.Summary = summary
	return o
}
