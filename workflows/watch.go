package workflows

import (
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
	"drover/remediation"
)

// WatchFleet looks at every shard that has a layout, once, and starts the
// remediations that the rates allow. Without Execute it only says which.
func WatchFleet(ctx workflow.Context, in contract.WatchInput) (contract.WatchResult, error) {
	out := contract.WatchResult{DryRun: !in.Execute}
	if err := in.Rates.Validate(); err != nil {
		return out, temporal.NewNonRetryableApplicationError(err.Error(), "remediation.bad_input", err)
	}
	survey, err := flow.Call(ctx, flow.Named(flow.Bulk(), "survey", "read every shard and plan"), contract.SurveyFleet, in)
	if err != nil {
		return out, err
	}
	out.Survey = survey
	admitted, held := in.Rates.Admit(survey.Now, survey.Candidates, survey.Started)
	out.Held = held
	for _, c := range admitted {
		if survey.Stopped == "" && in.Execute && !startRemedy(ctx, c.Shard) {
			continue
		}
		out.Admitted = append(out.Admitted, c.Shard)
	}
	out.Conditions = conditions(survey, held)
	_, err = flow.Call(ctx, named(flow.Quick(), "record the look"), contract.RecordWatch, out)
	return out, err
}

// startRemedy starts the remediation of a shard, which outlives the look.
func startRemedy(ctx workflow.Context, shard string) bool {
	child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{
		WorkflowID:            contract.RemediateID(shard),
		TaskQueue:             contract.ControlQueue,
		ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         "remediate " + shard,
		TypedSearchAttributes: temporal.NewSearchAttributes(contract.ShardNameAttribute.ValueSet(shard)),
	})
	in := contract.RemediateInput{Shard: shard, Execute: true, RequestedBy: "watch", Reason: "found by the watch over the fleet"}
	err := workflow.ExecuteChildWorkflow(child, contract.RemediateShardWorkflow, in).GetChildWorkflowExecution().Get(ctx, nil)
	if err != nil { // it runs already: somebody was faster
		workflow.GetLogger(ctx).Info("A remediation was not started", "shard", shard, "error", err)
	}
	return err == nil
}

// conditions names the alarms of a look.
func conditions(s contract.Survey, held []remediation.Held) []string {
	var all []string
	if slices.ContainsFunc(held, func(h remediation.Held) bool {
		return h.Reason == remediation.HeldAtOnce || h.Reason == remediation.HeldDomain || h.Reason == remediation.HeldPerHour
	}) {
		all = append(all, contract.RateLimited)
	}
	if len(s.Silent) > 0 {
		all = append(all, contract.HealthSilent)
	}
	if len(s.Growing) > 0 {
		all = append(all, contract.PlansGrowing)
	}
	for _, r := range s.Started {
		if !r.Ended && r.Waiting && s.Now.Sub(r.At) > leaseHeldLong+time.Minute {
			return append(all, contract.LeaseHeldLong)
		}
	}
	return all
}
