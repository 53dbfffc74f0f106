package workflows

import (
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/flow"
)

// BalanceRound reads the fleet, plans one round and keeps what it decided and why.
// Without Execute nothing is started. A round whose plan fights what runs, or
// whose like runs still, starts nothing and says so.
func BalanceRound(ctx workflow.Context, in contract.RoundInput) (contract.RoundResult, error) {
	out := contract.RoundResult{DryRun: !in.Execute}
	plan, err := flow.Call(ctx, flow.Named(flow.Bulk(), "plan", "read every shard and plan"), contract.PlanRound, in)
	if err != nil {
		return out, err
	}
	out.Plan = plan
	switch {
	case len(plan.Moves) == 0:
		out.Held = "nothing has to move"
	case !in.Execute:
		out.Held = "a dry run starts nothing"
	default:
		out.Started, out.Held = startRound(ctx, in, plan)
	}
	return flow.Call(ctx, named(flow.Quick(), "record the round"), contract.RecordRound, out)
}

// startRound starts the plan as an intent.
func startRound(ctx workflow.Context, in contract.RoundInput, plan contract.FleetPlan) (started, held string) {
	_, started, held = startIntent(ctx, contract.RebalanceInput{
		Kind: contract.RebalanceIntent, Moves: plan.Moves, FiguresAt: plan.FiguresAt, AtOnce: in.AtOnce, BurnIn: in.BurnIn,
		RequestedBy: "balancer", Reason: "a round of the balancer",
	}, "rebalance the fleet")
	return started, held
}

// startIntent starts an intent, which outlives who asks. One of its id that runs
// still is not joined: held says so, or what else is in its way.
func startIntent(ctx workflow.Context, in contract.RebalanceInput, summary string) (f workflow.ChildWorkflowFuture, started, held string) {
	id := contract.RebalanceID(in.Kind, in.Subject)
	free, _ := workflow.NewDisconnectedContext(ctx)
	child := workflow.WithChildOptions(free, workflow.ChildWorkflowOptions{
		WorkflowID:            id,
		TaskQueue:             contract.ControlQueue,
		ParentClosePolicy:     enumspb.PARENT_CLOSE_POLICY_ABANDON,
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         summary,
	})
	f = workflow.ExecuteChildWorkflow(child, contract.RebalanceWorkflow, in)
	err := f.GetChildWorkflowExecution().Get(ctx, nil)
	if temporal.IsWorkflowExecutionAlreadyStartedError(err) {
		return nil, "", id + " that was started earlier runs still"
	}
	if err != nil {
		return nil, "", flow.Cause(err)
	}
	return f, id, ""
}
