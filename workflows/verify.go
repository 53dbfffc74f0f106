package workflows

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// verifier is the running verification of what changes in one direction. A nil
// *verifier verifies nothing.
type verifier struct {
	input  contract.VerifyInput
	cancel workflow.CancelFunc
	told   bool // to end
	ended  bool
	err    error
}

// running reports whether changes are being verified.
func (v *verifier) running() bool { return v != nil && !v.ended }

// failure is why the verification ended, nil while it runs and when it was told
// to end.
func (v *verifier) failure() error {
	if v == nil || !v.ended || temporal.IsCanceledError(v.err) {
		return nil
	}
	return v.err
}

// quit cancels the verification. It only reads: nobody has to wait for its end.
func (v *verifier) quit() {
	if v.running() {
		v.told = true
		v.cancel()
	}
}

// stop cancels the verification and waits for its end.
func (v *verifier) stop(ctx workflow.Context) {
	if !v.running() {
		return
	}
	v.quit()
	_ = workflow.Await(ctx, func() bool { return v.ended }) // a cancelled context only stops the waiting
}

// startVerifier makes sure that what changes in the present direction is
// verified. It outlives the step that starts it; when it fails, the step ends.
func (m *migration) startVerifier(ctx workflow.Context) {
	in := contract.VerifyInput{DirectionInput: m.lanesInput(), OnMismatch: m.in.OnMismatch}
	if m.verifier.running() && m.verifier.input.OnMismatch == in.OnMismatch && goesOn(ctx, m.verifier.input.DirectionInput, in.DirectionInput) {
		return
	}
	m.verifier.quit()
	root, cancel := workflow.NewDisconnectedContext(ctx)
	v := &verifier{input: in, cancel: cancel}
	m.verifier = v
	o := flow.Named(m.bulk(), fmt.Sprintf("verify-d%d-%d", in.Direction, workflow.GetInfo(ctx).GetCurrentHistoryLength()),
		fmt.Sprintf("compare what changes on %s with %s", in.From.Shard, in.To.Shard))
	future := flow.Start(root, o, contract.VerifyChanges, in)
	workflow.GoNamed(root, "verifier", func(ctx workflow.Context) {
		v.err = asTold(ctx, v.told, future.Get(ctx, nil))
		v.ended = true
		if m.verifier == v {
			m.endStep(v.failure())
		}
	})
}

// What is copied anew by itself when documents differ: so often, then a person looks.
const mostRestarts = 3

// mismatch is the code of documents or definitions that differ.
const mismatch = "validation.mismatch"

// wantsRestart reports whether the policy answers a failed comparison of an import by
// copying the slices anew that differ; the step that failed runs again behind that.
func (m *migration) wantsRestart(cause error) bool {
	if m.in.OnMismatch != contract.RestartOnMismatch || m.direction != 0 || m.restarts == mostRestarts || flow.Code(m.reason(cause)) != mismatch {
		return false
	}
	m.restarts++
	m.restarting = true
	return true
}

// restartSlices copies slices anew if that is due. It is due until it is done: lanes
// cannot go on beside a slice that is only half there.
func (m *migration) restartSlices(ctx workflow.Context) error {
	if !m.restarting {
		return nil
	}
	m.stopBeside(ctx)
	o := flow.Named(m.bulk(), fmt.Sprintf("restart-%d", m.restarts), "copy the slices anew in which documents differ")
	res, err := flow.Call(ctx, o, contract.RestartSlices, contract.ImportInput{Ref: m.plan.Ref, Sort: m.in.Sort, PrimaryReads: m.in.PrimaryReads})
	if err != nil {
		return err
	}
	m.restarting = false
	if res.Slices == 0 && m.restarts > 0 { // definitions differ, or what differed no longer does: the next comparison goes to a person
		m.restarts = mostRestarts
	}
	return nil
}

// revalidate compares everything again after the verification found a difference
// and an operator said: try again.
func (m *migration) revalidate(ctx workflow.Context) error {
	if m.verifier.failure() == nil {
		return nil
	}
	m.verifier = nil
	m.startLanes(ctx)
	return m.compareAll(ctx)
}

// audit asks both sides other questions than the validation did. Its differences
// wait for an operator: one of the two is wrong.
func (m *migration) audit(ctx workflow.Context) error {
	o := flow.Named(m.bulk(), fmt.Sprintf("audit-d%d-%d", m.direction, workflow.GetInfo(ctx).GetCurrentHistoryLength()), "ask both placements other questions")
	res, err := flow.Call(ctx, o, contract.AuditChunk, m.lanesInput())
	if err != nil {
		return err
	}
	m.status.Audit = &res
	return nil
}
