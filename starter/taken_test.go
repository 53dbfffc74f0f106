package starter

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// taken plays Temporal with a move that runs.
type taken struct {
	client.Client
	status *contract.Status // nil: no worker answers
}

// ExecuteWorkflow implements [client.Client].
func (t *taken) ExecuteWorkflow(context.Context, client.StartWorkflowOptions, any, ...any) (client.WorkflowRun, error) {
	return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("it runs", "", "r1")
}

// QueryWorkflow implements [client.Client].
func (t *taken) QueryWorkflow(context.Context, string, string, string, ...any) (converter.EncodedValue, error) {
	if t.status == nil {
		return nil, errors.New("nobody answers")
	}
	return said{*t.status}, nil
}

// DescribeWorkflowExecution implements [client.Client].
func (*taken) DescribeWorkflowExecution(context.Context, string, string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	return &workflowservice.DescribeWorkflowExecutionResponse{}, nil
}

// said is a status as it comes back from a query.
type said struct{ status contract.Status }

// HasValue implements [converter.EncodedValue].
func (said) HasValue() bool { return true }

// Get implements [converter.EncodedValue].
func (s said) Get(to any) error {
	*to.(*contract.Status) = s.status //nolint:forcetypeassert // nothing else is asked
	return nil
}

// TestSecondMoveOfAChunkIsToldOfTheFirst: who holds the chunk, how far it is, and what is
// possible now.
func TestSecondMoveOfAChunkIsToldOfTheFirst(t *testing.T) {
	t.Parallel()

	begin := func(t *testing.T, st *contract.Status) *failure.Error {
		t.Helper()
		_, err := New(&taken{status: st}).Migrate(t.Context(), contract.MigrateInput{Chunk: "d/0001", To: "c"})
		e, ok := errors.AsType[*failure.Error](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "migration.running", e.Code)
		return e
	}
	st := contract.Status{
		Ref: contract.Ref{Migration: 7, Chunk: "d/0001"}, Phase: chunk.BurnIn, Target: chunk.Placement{Shard: "b"},
		Updates: []string{contract.RollbackUpdate, contract.CompleteUpdate},
	}
	e := begin(t, &st)
	require.ErrorContains(t, e, "to b already: move 7, which is "+string(chunk.BurnIn))
	require.Contains(t, e.Hint, "possible now: rollback, complete")
	e = begin(t, nil)
	require.ErrorContains(t, e, "is being moved already")
	require.Contains(t, e.Hint, "drover migrate status d/0001")
}
