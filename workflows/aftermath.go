package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/chunk"
	"drover/contract"
	"drover/internal/flow"
)

// watchSwitch watches the target that has just begun to serve, beside whatever
// comes next. The next switch, or the end of the move, ends it.
func (m *migration) watchSwitch(ctx workflow.Context) {
	m.endWatch()
	if m.in.AfterSwitch == contract.AfterSwitchOff || m.serving.ID != m.plan.Target.ID {
		return
	}
	in := contract.AftermathInput{
		Ref: m.plan.Ref, Serving: contract.PlacementRef{ID: int64(m.serving.ID), Shard: m.serving.Shard}, For: m.in.AfterSwitchFor,
	}
	if m.status.Gate != nil && m.status.Gate.Before != nil {
		in.Before = *m.status.Gate.Before
	}
	m.watchUntil = workflow.Now(ctx).Add(time.Duration(in.For))
	m.watch(ctx, in)
}

// watch watches beside the steps, and does what the policy says about the result.
func (m *migration) watch(ctx workflow.Context, in contract.AftermathInput) {
	root, cancel := workflow.NewDisconnectedContext(ctx)
	m.cancelWatch, m.watching = cancel, &in
	attempt := m.direction
	future := flow.Start(root, named(m.bulk(), "watch errors and p99 of "+string(m.in.Chunk)+" on "+m.serving.Shard), contract.WatchSwitch, in)
	workflow.GoNamed(root, "watch", func(ctx workflow.Context) { // burn-in goes on meanwhile
		var r contract.AftermathResult
		err := future.Get(ctx, &r)
		err = asTold(ctx, root.Err() != nil, err)
		if m.watching == &in {
			m.watching = nil
		}
		switch {
		case temporal.IsCanceledError(err) || m.direction != attempt:
		case err != nil:
			m.page(ctx, attempt, "the watch after the switch failed: "+flow.Cause(err))
		default:
			m.status.Watch = &r
			m.show(ctx)
			if r.Worse {
				m.worse(ctx, attempt, r)
			}
		}
	})
}

// endWatch ends a watch that runs.
func (m *migration) endWatch() {
	if m.cancelWatch != nil {
		m.cancelWatch()
		m.cancelWatch, m.watching = nil, nil
	}
}

// worse does what the policy says about a chunk that is worse off than before.
func (m *migration) worse(ctx workflow.Context, attempt chunk.AttemptID, r contract.AftermathResult) {
	why := fmt.Sprintf("after attempt %d on %s: %s", attempt, m.serving.Shard, r.Why)
	if m.in.AfterSwitch == contract.AfterSwitchRollback {
		m.judging++
		err := workflow.Await(ctx, func() bool { return m.mayRollback() == nil || m.direction != attempt })
		m.judging--
		if err != nil || m.direction != attempt {
			return
		}
		why += "; rolled back by policy"
		m.rollbackAsked = true
	}
	m.page(ctx, attempt, why)
}

// page raises the flag until an operator says resume.
func (m *migration) page(ctx workflow.Context, attempt chunk.AttemptID, why string) {
	m.log.Warn("A person has to look at a switch", "attempt", int64(attempt), "reason", why)
	m.resumed = false
	m.status.Attention = why
	page := &contract.Page{Attempt: attempt, Why: why}
	m.paging = page
	m.attend(ctx, true)
	err := workflow.Await(ctx, func() bool { return m.resumed || m.status.Attention != why })
	if m.paging == page {
		m.paging = nil
	}
	if err != nil || m.status.Attention != why {
		return // another reason has taken its place
	}
	m.status.Attention = ""
	m.attend(ctx, false)
}

// defaultWatch is how long a switch is watched when nobody says.
const defaultWatch = 5 * time.Minute

// checkWatch names the field of the after-switch policy that is wrong and fills in
// the defaults.
func checkWatch(in *contract.MigrateInput, invalid func(string, ...any) error) error {
	switch in.AfterSwitch {
	case "":
		in.AfterSwitch = contract.AfterSwitchPage
	case contract.AfterSwitchPage, contract.AfterSwitchRollback, contract.AfterSwitchOff:
	default:
		return invalid("afterSwitch is %q; want %q, %q or %q", in.AfterSwitch, contract.AfterSwitchPage, contract.AfterSwitchRollback, contract.AfterSwitchOff)
	}
	if in.AfterSwitchFor < 0 || time.Duration(in.AfterSwitchFor) > 24*time.Hour {
		return invalid("afterSwitchFor is %s; want a positive duration of at most 24h", time.Duration(in.AfterSwitchFor))
	}
	if in.AfterSwitchFor == 0 {
		in.AfterSwitchFor = contract.Duration(defaultWatch)
	}
	return nil
}
