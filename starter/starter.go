// Package starter is the client side of the workflows: start, ask, update.
package starter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// Starter starts and steers workflows.
type Starter struct{ client client.Client }

// New uses c, which stays the caller's.
func New(c client.Client) *Starter { return &Starter{client: c} }

// Dial connects to Temporal. The interceptors count for workers of the client too.
func Dial(ctx context.Context, address, namespace string, l *slog.Logger, spans ...interceptor.ClientInterceptor) (client.Client, error) {
	c, err := client.DialContext(ctx, client.Options{HostPort: address, Namespace: namespace, Logger: log.NewStructuredLogger(l), Interceptors: spans})
	if err != nil {
		return nil, failure.New(failure.Transient, "temporal.unreachable", "connect to Temporal at %s, namespace %s: %w", address, namespace, err).
			WithHint("drover dev status shows the dev stack; --temporal-address names another server")
	}
	return c, nil
}

// MigrateID is the workflow id of a chunk's move: the same chunk cannot be
// started twice at once.
func MigrateID(id chunk.ID) string { return contract.MigrateID(id) }

// CaptureID is the workflow id of a shard's capture.
func CaptureID(shard string) string { return "capture/" + shard }

// Migrate starts the move; one that runs already is refused, never joined.
func (s *Starter) Migrate(ctx context.Context, in contract.MigrateInput) (Run, error) {
	run, err := s.begin(ctx, client.StartWorkflowOptions{
		ID:                    MigrateID(in.Chunk),
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		StaticSummary:         summary(in),
		StaticDetails:         in.Reason,
		TypedSearchAttributes: temporal.NewSearchAttributes(
			contract.ChunkIDAttribute.ValueSet(string(in.Chunk)),
			contract.TargetShardAttribute.ValueSet(in.To)),
	}, contract.MigrateChunkWorkflow, in, "the move of "+string(in.Chunk),
		failure.New(failure.Invalid, running, "chunk %s is being moved already", in.Chunk).
			WithHint("drover migrate status %s shows that move", in.Chunk))
	if failure.HasCode(err, running) {
		return run, s.inTheWay(ctx, in.Chunk, err)
	}
	return run, err
}

// running is the code of a move that is refused because one of its chunk runs.
const running = "migration.running"

// lookFor is for a move that is in the way to say where it is: no worker may be there.
const lookFor = 2 * time.Second

// inTheWay says of a move that runs already where it is, and what may be asked of it;
// what it does not say is no reason to wait.
func (s *Starter) inTheWay(ctx context.Context, id chunk.ID, taken error) error {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	st, err := s.Status(ctx, id)
	if err != nil {
		return taken
	}
	return failure.New(failure.Invalid, running, "chunk %s is being moved to %s already: move %d, which is %s", id, st.Target.Shard, st.Migration, st.Phase).
		WithHint("drover migrate status %s shows that move; possible now: %s", id, cmp.Or(strings.Join(st.Updates, ", "), "nothing"))
}

// summary is the one line that Temporal shows of a move.
func summary(in contract.MigrateInput) string {
	switch r := in.Reshape; {
	case r == nil:
		return fmt.Sprintf("move %s to %s", in.Chunk, in.To)
	case len(r.With) == 0:
		return fmt.Sprintf("split %s", in.Chunk)
	case r.Parts < 2 && len(r.At) == 0:
		return fmt.Sprintf("merge %s with %d others to %s", in.Chunk, len(r.With), in.To)
	default:
		return fmt.Sprintf("reshape %s and %d others", in.Chunk, len(r.With))
	}
}

// EnsureCapture starts the capture of a shard unless it runs.
func (s *Starter) EnsureCapture(ctx context.Context, shard string) error {
	_, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                    CaptureID(shard),
		TaskQueue:             contract.ControlQueue,
		StaticSummary:         "capture the changes of " + shard,
		TypedSearchAttributes: temporal.NewSearchAttributes(contract.ShardNameAttribute.ValueSet(shard)),
	}, contract.CaptureShardWorkflow, contract.CaptureInput{Shard: shard})
	if err != nil {
		return fmt.Errorf("start the capture of %s: %w", shard, err)
	}
	return nil
}

// StopCapture cancels the capture of a shard.
func (s *Starter) StopCapture(ctx context.Context, shard string) error {
	return s.client.CancelWorkflow(ctx, CaptureID(shard), "")
}

// Status asks a move where it is.
func (s *Starter) Status(ctx context.Context, id chunk.ID) (contract.Status, error) {
	var st contract.Status
	v, err := s.client.QueryWorkflow(ctx, MigrateID(id), "", contract.StatusQuery)
	if err != nil {
		return st, notFound(err, id)
	}
	if err := v.Get(&st); err != nil {
		return st, err
	}
	st.Failing = s.failing(ctx, MigrateID(id))
	return st, nil
}

// PlanSwitch asks the workers what a switch of a running move would meet and do
// now. It only reads.
func (s *Starter) PlanSwitch(ctx context.Context, st contract.Status, wait contract.Duration) (contract.SwitchPlan, error) {
	var plan contract.SwitchPlan
	spare := st.Target
	if st.Serving.ID == st.Target.ID {
		spare = st.Source
	}
	in := contract.GateInput{
		DirectionInput: contract.DirectionInput{Ref: st.Ref, Direction: st.Direction, From: st.Serving, To: spare},
		WaitForOpen:    wait, ReadOnly: true,
	}
	run, err := s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: "plan-switch/" + string(st.Chunk), TaskQueue: contract.ControlQueue, WorkflowExecutionTimeout: time.Minute,
		StaticSummary: "what a switch of " + string(st.Chunk) + " would meet and do; it changes nothing",
	}, contract.PlanSwitchWorkflow, in)
	if err != nil {
		return plan, fmt.Errorf("ask about the switch of %s: %w", st.Chunk, err)
	}
	return plan, run.Get(ctx, &plan)
}

// Ask sends one of the operator's updates and returns the state after it.
func (s *Starter) Ask(ctx context.Context, id chunk.ID, update string, in contract.UpdateInput) (contract.Status, error) {
	var st contract.Status
	h, err := s.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		WorkflowID: MigrateID(id), UpdateName: update, Args: []any{in},
		WaitForStage: client.WorkflowUpdateStageCompleted,
	})
	if err != nil {
		return st, notFound(err, id)
	}
	if err := h.Get(ctx, &st); err != nil {
		if e, ok := errors.AsType[*temporal.ApplicationError](err); ok {
			return st, failure.New(failure.Invalid, e.Type(), "%s %s: %s", update, id, e.Message())
		}
		return st, err
	}
	return st, nil
}

// Result waits for the end of a move.
func (s *Starter) Result(ctx context.Context, id chunk.ID) (contract.MigrateResult, error) {
	var r contract.MigrateResult
	err := s.client.GetWorkflow(ctx, MigrateID(id), "").Get(ctx, &r)
	return r, err
}

// Running reports whether the newest run of a move has not ended.
func (s *Starter) Running(ctx context.Context, id chunk.ID) (bool, error) {
	d, err := s.client.DescribeWorkflowExecution(ctx, MigrateID(id), "")
	if err != nil {
		return false, notFound(err, id)
	}
	return d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, nil
}

func notFound(err error, id chunk.ID) error {
	if _, ok := errors.AsType[*serviceerror.NotFound](err); ok {
		return failure.New(failure.Invalid, "migration.not_running", "no move of chunk %s is known to Temporal", id).
			WithHint("drover migrate start %s --to SHARD starts one; drover chunk list shows the chunks", id)
	}
	return fmt.Errorf("ask the move of %s: %w", id, err)
}
