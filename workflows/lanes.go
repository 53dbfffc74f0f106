package workflows

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// laneClosed is the code of lanes that a switch has ended, as it should.
const laneClosed = "lane.closed"

// lanes is the running replication of one direction. A nil *lanes runs nothing.
type lanes struct {
	input  contract.DirectionInput
	cancel workflow.CancelFunc
	told   bool // to end
	ended  bool
	err    error
}

// running reports whether changes are being applied.
func (l *lanes) running() bool { return l != nil && !l.ended }

// failure is why the lanes ended, nil while they run and when they were told to end.
func (l *lanes) failure() error {
	if l == nil || !l.ended || temporal.IsCanceledError(l.err) || flow.Code(l.err) == laneClosed {
		return nil
	}
	return l.err
}

// quit cancels the lanes.
func (l *lanes) quit() {
	if l.running() {
		l.told = true
		l.cancel()
	}
}

// stop cancels the lanes and waits until the last one has stopped.
func (l *lanes) stop(ctx workflow.Context) {
	if !l.running() {
		return
	}
	l.quit()
	_ = workflow.Await(ctx, func() bool { return l.ended }) // a cancelled context only stops the waiting
}

// asTold gives how something ended that runs beside the steps. Where it was told to end
// and its worker is dead or stands still, the server says that it timed out; where it
// was just in trouble that would have been tried again, it says that. Either is its end,
// and no failure of the move.
func asTold(ctx workflow.Context, told bool, err error) error {
	troubled := inPassingTrouble(err)
	if !told || !troubled && !temporal.IsTimeoutError(err) {
		return err
	}
	version := workflow.GetVersion(ctx, "as-told", workflow.DefaultVersion, 2)
	if version == workflow.DefaultVersion || version == 1 && troubled { // before 0.1
		return err
	}
	return temporal.NewCanceledError()
}

// inPassingTrouble reports whether an activity failed in a way that is tried again.
func inPassingTrouble(err error) bool {
	e, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && !e.NonRetryable()
}

func (m *migration) lanesInput() contract.DirectionInput {
	in := contract.DirectionInput{Ref: m.plan.Ref, Direction: m.direction, From: m.serving, To: m.spare, PrimaryReads: m.in.PrimaryReads}
	if m.in.OnDDL == contract.FollowOnDDL {
		in.OnDDL = m.in.OnDDL
	}
	return in
}

// goesOn reports whether what was started with one input does what another one asks
// for. The placements' states, of which a run hears late, make no difference.
func goesOn(ctx workflow.Context, has, wants contract.DirectionInput) bool {
	if has == wants {
		return true
	}
	has.From.State, has.To.State = wants.From.State, wants.To.State
	return has == wants && workflow.GetVersion(ctx, "lanes-go-on", workflow.DefaultVersion, 1) != workflow.DefaultVersion // since 0.1
}

// stopBeside ends the verification and the lanes and waits for both: together, as each
// hears of it with its next heartbeat only.
func (m *migration) stopBeside(ctx workflow.Context) {
	if m.verifier.running() && m.lanes.running() &&
		workflow.GetVersion(ctx, "stop-together", workflow.DefaultVersion, 1) != workflow.DefaultVersion { // since 0.1
		m.lanes.quit()
	}
	m.verifier.stop(ctx)
	m.lanes.stop(ctx)
}

// startLanes makes sure that changes flow from the serving placement to the
// spare one. Lanes outlive the step that starts them.
func (m *migration) startLanes(ctx workflow.Context) {
	in := m.lanesInput()
	if m.lanes.running() && goesOn(ctx, m.lanes.input, in) {
		return
	}
	m.lanes.stop(ctx)
	root, cancel := workflow.NewDisconnectedContext(ctx)
	l := &lanes{input: in, cancel: cancel}
	m.lanes = l
	o := flow.Named(m.bulk(), fmt.Sprintf("replicate-d%d-%d", in.Direction, workflow.GetInfo(ctx).GetCurrentHistoryLength()),
		fmt.Sprintf("apply changes of %s to %s", in.From.Shard, in.To.Shard))
	future := flow.Start(root, o, contract.ReplicateChanges, in)
	workflow.GoNamed(root, "lanes", func(ctx workflow.Context) { // the main line must learn at once when they end
		l.err = asTold(ctx, l.told, future.Get(ctx, nil))
		l.ended = true
		if m.lanes == l {
			m.endStep(l.failure())
		}
	})
}
