package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
	"drover/remediation"
)

// raise shows a condition to people.
func (r *remedy) raise(ctx workflow.Context, condition string) {
	if !slices.Contains(r.status.Conditions, condition) {
		r.status.Conditions = append(r.status.Conditions, condition)
		r.log.Warn("Remediation raises an alarm", "condition", condition)
	}
	r.show(ctx)
}

// lower takes a condition back.
func (r *remedy) lower(condition string) {
	r.status.Conditions = slices.DeleteFunc(r.status.Conditions, func(c string) bool { return c == condition })
}

// attend raises the flag that operators filter by.
func (r *remedy) attend(ctx workflow.Context) {
	r.show(ctx)
	err := workflow.UpsertTypedSearchAttributes(ctx,
		contract.ShardNameAttribute.ValueSet(r.in.Shard),
		contract.NeedsAttentionAttribute.ValueSet(true))
	if err != nil {
		r.log.Error("Search attributes are not set", "error", err)
	}
}

// record keeps the run where operators and the watch look.
func (r *remedy) record(ctx workflow.Context, v remediation.Verdict) {
	row := contract.RemediationRecord{
		WorkflowID: workflow.GetInfo(ctx).WorkflowExecution.ID, Shard: r.in.Shard, Execute: r.in.Execute, RequestedBy: r.in.RequestedBy,
		Steps: r.course.Steps, Verdict: v, Attention: r.status.Attention, Grown: r.course.Grown,
	}
	if r.status.Plan != nil {
		row.Cost = r.status.Plan.Cost
	}
	if _, err := flow.Call(ctx, named(flow.Quick(), "record the run"), contract.RecordRemediation, row); err != nil {
		r.log.Error("The run is not recorded", "error", err)
	}
}

// show renders the state for Temporal's UI.
func (r *remedy) show(ctx workflow.Context) {
	var b strings.Builder
	row := func(k, v string) {
		if v != "" {
			fmt.Fprintf(&b, "| %s | %s |\n", k, v)
		}
	}
	mode := "dry run"
	if r.in.Execute {
		mode = "executes"
	}
	fmt.Fprintf(&b, "### %s: %s\n\n| | |\n| --- | --- |\n", r.in.Shard, r.status.Step)
	row("mode", mode)
	row("since", r.status.StepSince.UTC().Format(time.RFC3339))
	row("waiting for", r.status.WaitingFor)
	row("**attention**", r.status.Attention)
	row("conditions", strings.Join(r.status.Conditions, ", "))
	row("not as predicted", strings.Join(r.status.Deviates, "; "))
	if p := r.status.Plan; p != nil {
		row("health", p.From.String())
		row("within reach", p.To.String())
		row("why", p.Why)
	}
	for i, s := range r.status.Done {
		row(fmt.Sprintf("done %d", i+1), s.Text)
	}
	if p := r.status.Plan; p != nil {
		for i, s := range p.Steps {
			row(fmt.Sprintf("step %d", i+1), s.Text+": "+s.Reason)
		}
	}
	workflow.SetCurrentDetails(ctx, b.String())
}

// hearRepairs keeps what remediations tell a move. The move goes on: what it reads
// and writes fails and is tried again, and its switch waits for the lease.
func (m *migration) hearRepairs(ctx workflow.Context) {
	told := workflow.GetSignalChannel(ctx, contract.RepairSignal)
	workflow.GoNamed(ctx, "repairs", func(ctx workflow.Context) {
		for {
			var notice contract.RepairNotice
			if !told.Receive(ctx, &notice) {
				return
			}
			m.noteRepair(ctx, notice)
		}
	})
}

// noteRepair shows that a shard is under repair.
func (m *migration) noteRepair(ctx workflow.Context, notice contract.RepairNotice) {
	m.status.UnderRepair = notice.Shard + " by " + notice.By
	m.log.Info("A shard is under repair", "shard", notice.Shard, "by", notice.By)
	m.show(ctx)
}

// hearLastRepairs lets what has come be heard: the next run would not be told. A signal
// of this very workflow task is with [migration.hearRepairs] already, whose turn comes
// before that of whoever was made last.
func (m *migration) hearLastRepairs(ctx workflow.Context) error {
	heard := false
	workflow.GoNamed(ctx, "last repairs", func(workflow.Context) { heard = true })
	return workflow.Await(ctx, func() bool { return heard })
}
