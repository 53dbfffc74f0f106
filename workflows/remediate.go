package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
	"drover/remediation"
)

const (
	defaultLeaseWait = 30 * time.Minute
	leaseHeldLong    = 5 * time.Minute // then it is an alarm that somebody else keeps the shard
	planWithin       = 10 * time.Minute
	maxLeases        = 20   // leases lost in one run
	maxRemedyHistory = 4000 // events, then it continues as new
)

// RemediateShard brings one shard to the best health within reach, one operation
// at a time, under the shard's exclusive lease. Without Execute it plans only.
func RemediateShard(ctx workflow.Context, in contract.RemediateInput) (contract.RemediateResult, error) {
	r, err := newRemedy(ctx, in) // handlers first, nothing blocks here
	if err != nil {
		return contract.RemediateResult{}, err
	}
	if !in.Execute {
		return r.dryRun(ctx)
	}
	again := true
	for again && err == nil {
		again, err = r.round(ctx)
	}
	r.release(ctx)
	switch {
	case err != nil:
		return r.fail(ctx, err)
	case r.carryOn(ctx):
		r.in.Course, r.in.Done, r.in.From = r.course, r.status.Done, r.from
		return contract.RemediateResult{}, workflow.NewContinueAsNewError(ctx, contract.RemediateShardWorkflow, r.in)
	default:
		return r.finish(ctx), nil
	}
}

// remedy is the state of one run; everything in it can be rebuilt by replay.
type remedy struct {
	in      contract.RemediateInput
	status  contract.RemediationStatus
	course  remediation.Course
	verdict remediation.Verdict
	from    *remediation.Health
	leases  int
	stopped string // by whom and why
	log     log.Logger
}

func newRemedy(ctx workflow.Context, in contract.RemediateInput) (*remedy, error) {
	r := &remedy{in: in, course: in.Course, from: in.From, log: log.With(workflow.GetLogger(ctx), "shard", in.Shard)}
	r.status = contract.RemediationStatus{Shard: in.Shard, Execute: in.Execute, StepSince: workflow.Now(ctx), Done: in.Done}
	err := workflow.SetQueryHandlerWithOptions(ctx, contract.StatusQuery, func() (contract.RemediationStatus, error) {
		r.status.Plans = r.course.Plans
		return r.status, nil
	}, workflow.QueryHandlerOptions{Description: "what the remediation does, why it waits, and its plan with reasons"})
	if err != nil {
		return nil, err
	}
	err = workflow.SetUpdateHandlerWithOptions(ctx, contract.AbortUpdate, func(_ workflow.Context, in contract.UpdateInput) (contract.RemediationStatus, error) {
		r.stopped = "by " + in.By + ": " + in.Reason
		return r.status, nil
	}, workflow.UpdateHandlerOptions{Description: "ends the remediation after the operation that runs"})
	if err != nil {
		return nil, err
	}
	if in.Shard == "" {
		return nil, temporal.NewNonRetryableApplicationError("shard is empty; want a name, see drover shard list", "remediation.bad_input", nil)
	}
	if in.LeaseWait < 0 {
		return nil, temporal.NewNonRetryableApplicationError(fmt.Sprintf("leaseWait is %s; want a positive duration", time.Duration(in.LeaseWait)), "remediation.bad_input", nil)
	}
	if in.LeaseWait == 0 {
		r.in.LeaseWait = contract.Duration(defaultLeaseWait)
	}
	return r, nil
}

// dryRun makes the plan that a run would begin with.
func (r *remedy) dryRun(ctx workflow.Context) (contract.RemediateResult, error) {
	if err := r.plan(ctx); err != nil {
		return contract.RemediateResult{}, err
	}
	if r.verdict == remediation.Execute {
		r.verdict = remediation.Unexecuted
	}
	return r.result(), nil
}

// round takes the lease, plans, and performs the plan's operations for as long as
// each comes out as predicted. True: plan again.
func (r *remedy) round(ctx workflow.Context) (again bool, err error) {
	if err := r.lease(ctx); err != nil {
		return false, err
	}
	if err := r.plan(ctx); err != nil {
		return false, err
	}
	if r.verdict != remediation.Execute || r.stopped != "" {
		return false, nil
	}
	if r.course.Plans == 1 {
		r.tell(ctx)
	}
	before := r.status.Plan.Before
	for _, s := range r.status.Plan.Steps {
		if r.stopped != "" || r.long(ctx) {
			return false, nil
		}
		out, err := r.perform(ctx, before, s)
		switch {
		case flow.Code(err) == "remediation.stopped":
			r.stopped = flow.Cause(err)
			return false, nil
		case flow.Code(err) == "lease.lost" && r.leases < maxLeases: // another epoch, another look
			r.status.Lease = contract.ShardLease{}
			return true, nil
		case err != nil:
			return false, err
		}
		r.status.Deviates = out.Deviates
		if len(out.Deviates) > 0 {
			return true, nil
		}
		r.course.Performed(s.Cost)
		r.status.Done = append(r.status.Done, s)
		before = out.After
	}
	return true, nil
}

// long reports whether the history is long enough.
func (*remedy) long(ctx workflow.Context) bool {
	info := workflow.GetInfo(ctx)
	return info.GetContinueAsNewSuggested() || info.GetCurrentHistoryLength() > maxRemedyHistory
}

// carryOn reports whether another run has to go on.
func (r *remedy) carryOn(ctx workflow.Context) bool {
	return r.verdict == remediation.Execute && r.stopped == "" && r.long(ctx)
}

// enter shows the step to people.
func (r *remedy) enter(ctx workflow.Context, step string) {
	r.status.Step, r.status.StepSince = step, workflow.Now(ctx)
	r.show(ctx)
}

// lease takes the shard's exclusive lease, unless it is held. Switches that hold
// it shared are waited for, and no new one begins meanwhile.
func (r *remedy) lease(ctx workflow.Context) error {
	if r.status.Lease.Epoch != 0 {
		return nil
	}
	r.enter(ctx, "wait for the lease")
	r.status.WaitingFor = "the exclusive lease of " + r.in.Shard + "; switches that hold it end within seconds"
	r.leases++
	in := contract.LeaseInput{
		Shard: r.in.Shard, Holder: workflow.GetInfo(ctx).WorkflowExecution.ID, Wait: r.in.LeaseWait,
		Reason: strings.TrimSpace("remediation " + r.in.Reason),
	}
	future := flow.Start(ctx, flow.Named(flow.Bulk(), fmt.Sprintf("lease-%d", r.leases), "take the exclusive lease of "+r.in.Shard), contract.LeaseShard, in)
	if ok, err := workflow.AwaitWithTimeout(ctx, leaseHeldLong, future.IsReady); err != nil {
		_ = future.Get(ctx, nil)
		return err
	} else if !ok {
		r.raise(ctx, contract.LeaseHeldLong)
	}
	var out contract.LeaseResult
	err := future.Get(ctx, &out)
	r.status.WaitingFor = ""
	r.lower(contract.LeaseHeldLong)
	if err != nil {
		return err
	}
	r.status.Lease = out.Lease
	r.moves(ctx, out.Moves)
	return nil
}

// moves tells those that go on beside the remediation.
func (r *remedy) moves(ctx workflow.Context, ids []string) {
	for _, id := range ids {
		notice := contract.RepairNotice{Shard: r.in.Shard, By: r.status.Lease.Holder, Plan: "the plan is in the status of " + r.status.Lease.Holder}
		if err := workflow.SignalExternalWorkflow(ctx, id, "", contract.RepairSignal, notice).Get(ctx, nil); err != nil {
			r.log.Info("A move was not told", "workflow_id", id, "error", err) // it has ended
		}
	}
}

// tell writes down that the run has begun to change things.
func (r *remedy) tell(ctx workflow.Context) { r.record(ctx, "") }

// plan reads the shard and plans.
func (r *remedy) plan(ctx workflow.Context) error {
	r.enter(ctx, "read the shard and plan")
	o := flow.Quick()
	o.Summary = "plan"
	o.ScheduleToCloseTimeout = planWithin // who cannot read a shard gives its lease back
	p, err := flow.Call(ctx, o, contract.PlanShard, contract.PlanInput{Shard: r.in.Shard, Layout: r.in.Layout})
	if err != nil {
		return err
	}
	r.status.Plan = &p
	if r.from == nil {
		r.from = &p.From
	}
	if p.Stopped != "" {
		r.stopped = p.Stopped
	}
	grown := r.course.Grown
	r.verdict = r.course.Planned(len(p.Steps), p.Cost, p.Full)
	if r.course.Grown > grown {
		r.raise(ctx, contract.PlansGrowing)
	}
	r.show(ctx)
	return nil
}

// perform does one operation. A step that has begun is seen to its end: an
// interrupted one is read, not assumed.
func (r *remedy) perform(ctx workflow.Context, before remediation.Vertex, s contract.PlannedStep) (contract.OperationResult, error) {
	r.enter(ctx, s.Text)
	o := flow.Bulk()
	o.Summary = s.Text
	return flow.Call(ctx, o, contract.PerformOperation, contract.OperationInput{Lease: r.status.Lease, Layout: r.in.Layout, Before: before, Step: s})
}

// release gives the lease back, also when the run was cancelled.
func (r *remedy) release(ctx workflow.Context) {
	if r.status.Lease.Epoch == 0 {
		return
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if _, err := flow.Call(ctx, named(flow.Settle(), "release the lease"), contract.ReleaseShard, r.status.Lease); err != nil {
		r.log.Error("The lease is not released; it expires", "error", err)
	}
	r.status.Lease = contract.ShardLease{}
}

// fail ends a run whose cause no retry mends; its type survives.
func (r *remedy) fail(ctx workflow.Context, cause error) (contract.RemediateResult, error) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	r.status.Attention = flow.Cause(cause)
	if hint := flow.Hint(cause); hint != "" {
		r.status.Attention += ". " + hint
	}
	r.verdict = remediation.Failed
	r.attend(ctx)
	r.record(ctx, r.verdict)
	return contract.RemediateResult{}, cause
}

// finish records how the run ended.
func (r *remedy) finish(ctx workflow.Context) contract.RemediateResult {
	switch {
	case r.stopped != "" && r.verdict == remediation.Execute:
		r.verdict = remediation.Halted
		r.status.WaitingFor = "stopped " + r.stopped
	case r.verdict == remediation.Best:
		r.status.Attention = "no plan leads to full health: " + r.status.Plan.Why
	case r.verdict == remediation.PlansGrow || r.verdict == remediation.TooManyPlans:
		r.status.Attention = fmt.Sprintf("%d plans, %d of them dearer than what was left before: something changes the shard, or steps do not take", r.course.Plans, r.course.Grown)
	}
	r.enter(ctx, string(r.verdict))
	if r.status.Attention != "" {
		r.attend(ctx)
	}
	r.record(ctx, r.verdict)
	return r.result()
}

// result is what the run reports.
func (r *remedy) result() contract.RemediateResult {
	p := r.status.Plan
	out := contract.RemediateResult{Shard: r.in.Shard, Verdict: r.verdict, From: *r.from, To: p.From, Why: p.Why, Done: r.status.Done, Plans: r.course.Plans}
	if r.verdict != remediation.Finished && r.verdict != remediation.Best {
		out.Plan = p.Steps
	}
	if r.verdict == remediation.Unexecuted {
		out.To = p.To
	}
	return out
}
