// Package workflows decides the order of a migration; activities do the work.
package workflows

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/flow"
)

// MigrateChunk moves one chunk to another shard while it is in use, and leaves
// exactly one placement serving it.
func MigrateChunk(ctx workflow.Context, in contract.MigrateRun) (contract.MigrateResult, error) {
	m, err := newMigration(ctx, in) // handlers first, nothing blocks here
	if err != nil {
		return contract.MigrateResult{}, err
	}
	if err := m.takeUp(ctx); err != nil {
		return contract.MigrateResult{}, err
	}
	for _, s := range []step{
		{chunk.Registered, "register", m.register},
		{chunk.Importing, "import", m.importChunk},
		{chunk.Replicating, "replicate until in sync", m.replicate},
		{chunk.Validating, "validate", m.validate},
		{chunk.Switching, "switch", m.switchOver},
		{chunk.BurnIn, "burn-in", m.burnIn},
		{chunk.Completing, "drop the old placement", m.complete},
	} {
		if m.passed(s.phase) {
			continue
		}
		err := m.do(ctx, s)
		if workflow.IsContinueAsNewError(err) {
			return contract.MigrateResult{}, err
		}
		if err != nil {
			return m.abandon(ctx, err)
		}
	}
	return m.finish(ctx, chunk.Done), nil
}

// step is one phase of a move. Its run may be repeated.
type step struct {
	phase chunk.Phase
	name  string
	run   func(workflow.Context) error
}

// migration is the state of one run; everything in it can be rebuilt by replay.
type migration struct {
	in     contract.MigrateInput
	plan   contract.Plan
	status contract.Status
	log    log.Logger

	serving, spare chunk.Placement // lanes carry changes from serving to spare
	direction      chunk.AttemptID // of those lanes
	lanes          *lanes
	verifier       *verifier

	cancelStep    workflow.CancelFunc // ends the running step early
	ending        error               // of what runs beside the step, and has ended it
	paused        bool
	inWindow      bool // between prepare and its outcome: nothing may interrupt
	abortReason   string
	approved      bool
	attempted     bool      // a switch was begun: who serves is what the metadata says
	burnInUntil   time.Time // zero: not in burn-in with the target serving
	rollbackAsked bool
	drillAsked    bool
	drilling      bool
	tries         int                      // of the switch that is under way, from 1; 0: none is
	cancelWatch   workflow.CancelFunc      // ends the watch after a switch
	watching      *contract.AftermathInput // of that watch; nil: none runs
	watchUntil    time.Time
	judging       int            // results of watches that have not come to anything yet
	paging        *contract.Page // nil: no switch waits for a person to look at it
	completeAsked bool
	restarts      int         // of slices, see restartSlices
	restarting    bool        // slices are to be copied anew before any lane runs
	resumed       bool        // an operator said: try again
	goesOnAt      chunk.Phase // where a move goes on whose earlier run was ended, or handed over; empty: it is new
	runs          int         // before this one
	among         int         // moves that were under way when the step began
	carried       bool        // this run was handed a move and has begun no step yet
}

// errAborted ends a move on an operator's word.
var errAborted = temporal.NewNonRetryableApplicationError("aborted by an operator", "migration.aborted", nil)

func newMigration(ctx workflow.Context, in contract.MigrateRun) (*migration, error) {
	m := &migration{in: in.MigrateInput, log: log.With(workflow.GetLogger(ctx), "chunk_id", string(in.Chunk))}
	m.status.Chunk = in.Chunk
	m.status.StepSince = workflow.Now(ctx)
	m.restore(in.Carry)
	if err := m.handlers(ctx); err != nil {
		return nil, err
	}
	m.hearRepairs(ctx)
	return m, checkInput(&m.in)
}

// checkInput names the field that is wrong and fills in the defaults.
func checkInput(in *contract.MigrateInput) error {
	invalid := func(format string, args ...any) error {
		return temporal.NewNonRetryableApplicationError(fmt.Sprintf(format, args...), "migration.bad_input", nil)
	}
	if in.Chunk == "" {
		return invalid(`chunk is empty; want an id as "flights/0003", see drover chunk list`)
	}
	if in.To == "" && (in.Reshape == nil || len(in.Reshape.Shards) == 0) {
		return invalid(`to is empty; want the name of the target shard, see drover shard list`)
	}
	if err := checkReshape(in); err != nil {
		return invalid("%s", err)
	}
	for _, f := range []struct {
		name  string
		value *string
	}{{"approval", &in.Approval}, {"complete", &in.Complete}} {
		if *f.value == "" {
			*f.value = contract.Automatic
		}
		if *f.value != contract.Automatic && *f.value != contract.Manual {
			return invalid("%s is %q; want %q or %q", f.name, *f.value, contract.Automatic, contract.Manual)
		}
	}
	if in.Window != "" {
		if _, err := contract.ParseWindow(in.Window); err != nil {
			return invalid("window %s", err)
		}
	}
	if in.WaitForOpen < 0 {
		return invalid("waitForOpen is %s; want a positive duration, or none", time.Duration(in.WaitForOpen))
	}
	if err := checkWatch(in, invalid); err != nil {
		return err
	}
	if err := checkOnMismatch(in); err != nil {
		return invalid("%s", err)
	}
	if err := checkOnDDL(in.OnDDL); err != nil {
		return invalid("%s", err)
	}
	if in.BurnIn < 0 {
		return invalid("burnIn is %s; want a positive duration", time.Duration(in.BurnIn))
	}
	if in.Kind == "" {
		in.Kind = contract.MoveKind
	}
	burnIn, ok := contract.BurnInOf(in.Kind)
	if !ok {
		return invalid("kind is %q; want %q, %q or %q", in.Kind, contract.MoveKind, contract.UpgradeKind, contract.BinPackKind)
	}
	if in.BurnIn == 0 {
		in.BurnIn = contract.Duration(burnIn)
	}
	return nil
}

// checkOnMismatch says what is wrong with a policy, and fills in the default.
func checkOnMismatch(in *contract.MigrateInput) error {
	in.OnMismatch = cmp.Or(in.OnMismatch, contract.BlockOnMismatch)
	switch in.OnMismatch {
	case contract.BlockOnMismatch, contract.RepairOnMismatch, contract.PageOnMismatch:
		return nil
	case contract.RestartOnMismatch:
		if in.Reshape != nil { // its lanes count together what each of them has skipped
			return fmt.Errorf("onMismatch is %q, which is for moves; a split or merge waits for an operator", in.OnMismatch)
		}
		return nil
	default:
		return fmt.Errorf("onMismatch is %q; want %q, %q, %q or %q", in.OnMismatch,
			contract.BlockOnMismatch, contract.RepairOnMismatch, contract.RestartOnMismatch, contract.PageOnMismatch)
	}
}

// checkOnDDL says what is wrong with a policy; empty is the default's.
func checkOnDDL(policy string) error {
	switch policy {
	case "", contract.StopOnDDL, contract.FollowOnDDL:
		return nil
	default:
		return fmt.Errorf("onDDL is %q; want %q or %q", policy, contract.StopOnDDL, contract.FollowOnDDL)
	}
}

// do runs s until it is done. A failure that no retry mends waits for an
// operator's resume or abort; a pause runs the step again afterwards.
func (m *migration) do(ctx workflow.Context, s step) error {
	for {
		if err := m.waitWhilePaused(ctx); err != nil {
			return err
		}
		m.enter(ctx, s)
		if s.phase != chunk.Registered { // which is where there is nothing to hand over yet
			if err := m.makeRoom(ctx); err != nil {
				return err
			}
		}
		stepCtx, cancel := workflow.WithCancel(ctx)
		m.cancelStep, m.ending = cancel, nil
		err := m.recordPhase(stepCtx, s.phase)
		if err == nil {
			err = m.restartSlices(stepCtx)
		}
		if err == nil {
			err = s.run(stepCtx)
		}
		if err == nil && s.phase != chunk.Completing { // what failed just as the step ended could not end it
			err = m.sideFailure()
		}
		cancel()
		m.cancelStep = nil
		switch {
		case workflow.IsContinueAsNewError(err):
			return err
		case m.abortReason != "":
			return errAborted
		case ctx.Err() != nil:
			return ctx.Err()
		case m.paused:
			continue
		case err == nil:
			return nil
		case s.phase == chunk.Registered: // nothing has been made that a person would want to keep
			return err
		case m.wantsRestart(err):
			continue
		}
		if err := m.waitForOperator(ctx, s, err); err != nil {
			return err
		}
	}
}

// enter shows the step to people.
func (m *migration) enter(ctx workflow.Context, s step) {
	m.status.Phase, m.status.Step = s.phase, s.name
	if !m.carried {
		m.status.StepSince = workflow.Now(ctx)
	}
	m.carried = false
	m.status.WaitingFor, m.status.Expected = "", contract.Duration(m.expected(s.phase))
	m.show(ctx)
	err := workflow.UpsertTypedSearchAttributes(ctx,
		contract.MigrationStepAttribute.ValueSet(string(s.phase)),
		contract.StepStartedAtAttribute.ValueSet(m.status.StepSince))
	if err != nil {
		m.log.Error("Search attributes are not set", "error", err)
	}
}

// expected is how long a phase of this move takes that nothing holds up.
func (m *migration) expected(p chunk.Phase) time.Duration {
	if m.plan.Phase != "" && p != chunk.Switching && p != chunk.BurnIn { // an earlier run has measured it
		return 0
	}
	waits := m.in.Approval == contract.Manual || m.in.Window != "" || m.in.WaitForOpen > 0
	return contract.StepExpected(p, time.Duration(m.plan.Copies), time.Duration(m.in.BurnIn), waits)
}

// recordPhase writes the phase where the truth is kept. Registering does so by
// itself.
func (m *migration) recordPhase(ctx workflow.Context, p chunk.Phase) error {
	if p == chunk.Registered {
		return nil
	}
	res, err := flow.Call(ctx, flow.Quick(), contract.RecordPhase,
		contract.PhaseInput{Ref: m.plan.Ref, Phase: p, Attention: m.status.Attention, BurnIn: m.in.BurnIn, Expected: contract.Duration(m.expected(p))})
	if err == nil {
		m.among = res.Moves
	}
	return err
}

// bulk is how the move calls what heartbeats for long.
func (m *migration) bulk() workflow.ActivityOptions { return flow.BulkAmong(m.among) }

func (m *migration) waitWhilePaused(ctx workflow.Context) error {
	if !m.paused {
		return nil
	}
	m.stopBeside(ctx)
	m.status.WaitingFor = "a resume; paused by " + m.status.PausedBy
	m.show(ctx)
	if workflow.GetVersion(ctx, "pause is kept", workflow.DefaultVersion, 1) != workflow.DefaultVersion && m.plan.Migration != 0 { // since 0.1
		in := contract.PhaseInput{Ref: m.plan.Ref, Phase: m.status.Phase, Attention: m.status.Attention, Paused: true}
		if _, err := flow.Call(ctx, flow.Quick(), contract.RecordPhase, in); err != nil { // the lists show it as running
			m.log.Error("The pause is not recorded", "error", err)
		}
	}
	err := workflow.Await(ctx, func() bool { return !m.paused || m.abortReason != "" })
	m.status.WaitingFor = ""
	if m.abortReason != "" {
		return errAborted
	}
	return err
}

// waitForOperator holds a move that failed in a way that no retry mends.
func (m *migration) waitForOperator(ctx workflow.Context, s step, cause error) error {
	cause = m.reason(cause)
	m.status.Attention = fmt.Sprintf("%s failed: %s", s.name, flow.Cause(cause))
	if hint := flow.Hint(cause); hint != "" {
		m.status.Attention += ". " + hint
	}
	m.status.WaitingFor = "an operator: resume tries again, abort gives up"
	m.resumed = false
	m.attend(ctx, true)
	err := workflow.Await(ctx, func() bool { return m.resumed || m.abortReason != "" })
	m.status.Attention, m.status.WaitingFor = "", ""
	m.attend(ctx, false)
	if m.abortReason != "" {
		return errAborted
	}
	return err
}

// endStep ends the running step because of what runs beside it, but where nothing may
// be interrupted.
func (m *migration) endStep(cause error) {
	if cause != nil && m.cancelStep != nil && !m.inWindow {
		m.ending = cause
		m.cancelStep()
	}
}

// reason is why a step ended: one that was cancelled because of what runs beside it
// says nothing itself. That may run again meanwhile, as behind a publish.
func (m *migration) reason(cause error) error {
	if !temporal.IsCanceledError(cause) {
		return cause
	}
	return cmp.Or(m.ending, m.sideFailure(), cause)
}

// sideFailure is why what runs beside the steps ended: the lanes, else the
// verification. Nil while both run and when they were told to end.
func (m *migration) sideFailure() error {
	if err := m.lanes.failure(); err != nil {
		return err
	}
	return m.verifier.failure()
}

// attend raises or lowers the flag that operators filter by.
func (m *migration) attend(ctx workflow.Context, needed bool) {
	m.show(ctx)
	if err := workflow.UpsertTypedSearchAttributes(ctx, contract.NeedsAttentionAttribute.ValueSet(needed)); err != nil {
		m.log.Error("Search attributes are not set", "error", err)
	}
	if m.plan.Migration == 0 {
		return
	}
	_, err := flow.Call(ctx, flow.Quick(), contract.RecordPhase,
		contract.PhaseInput{Ref: m.plan.Ref, Phase: m.status.Phase, Attention: m.status.Attention})
	if err != nil {
		m.log.Error("Attention is not recorded", "error", err)
	}
}

// abandon leaves the serving placement alone, removes what the move made, and
// fails with the cause, whose type must survive.
func (m *migration) abandon(ctx workflow.Context, cause error) (contract.MigrateResult, error) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	m.stopBeside(ctx)
	if m.plan.Migration == 0 {
		return contract.MigrateResult{}, cause
	}
	if err := m.reconcile(ctx); err != nil { // who serves is not known: nothing may be removed
		m.log.Error("What became of the last attempt is not known", "error", err)
		return m.finish(ctx, m.status.Phase), errors.Join(cause, err)
	}
	if m.serving.ID == m.plan.Target.ID { // published: what was made is what serves
		return m.finish(ctx, m.status.Phase), cause
	}
	m.enter(ctx, step{phase: chunk.Aborting, name: "remove the unfinished target"})
	err := m.recordPhase(ctx, chunk.Aborting)
	if err == nil {
		_, err = flow.Call(ctx, m.bulk(), contract.DropTarget,
			contract.DropInput{Ref: m.plan.Ref, Placement: m.plan.Target, Direction: m.direction})
	}
	if err != nil {
		m.log.Error("The unfinished target is not removed", "error", err)
		return m.finish(ctx, chunk.Aborting), errors.Join(cause, err)
	}
	return m.finish(ctx, chunk.Aborted), cause
}

// finish records the last phase and makes the result.
func (m *migration) finish(ctx workflow.Context, p chunk.Phase) contract.MigrateResult {
	m.endWatch()
	m.enter(ctx, step{phase: p, name: string(p)})
	if err := m.recordPhase(ctx, p); err != nil {
		m.log.Error("Last phase is not recorded", "error", err)
	}
	r := contract.MigrateResult{Ref: m.plan.Ref, Phase: p, Serving: m.serving, Switches: m.status.Switches}
	if m.status.Import != nil {
		r.Documents, r.Bytes = m.status.Import.Documents, m.status.Import.Bytes
	}
	return r
}
