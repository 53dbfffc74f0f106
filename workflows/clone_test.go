package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"drover/contract"
	"drover/internal/failure"
	"drover/workers"
)

// A dry run makes nothing, a clone that fails leaves nothing, and one of a time to
// come is refused at once.
func TestCloneMakesOrLeavesNothing(t *testing.T) {
	t.Parallel()

	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		in      contract.CloneInput
		breaks  string
		want    []string
		refused string
	}{
		"clone":       {contract.CloneInput{Chunk: "d/0001", To: "c", At: at}, "", []string{"PlanClone", "MakeClone"}, ""},
		"dry run":     {contract.CloneInput{Chunk: "d/0001", To: "c", At: at, DryRun: true}, "", []string{"PlanClone"}, ""},
		"no base":     {contract.CloneInput{Chunk: "d/0001", To: "c", At: at}, "PlanClone", []string{"PlanClone"}, "test.failed"},
		"broken":      {contract.CloneInput{Chunk: "d/0001", To: "c", At: at}, "MakeClone", []string{"PlanClone", "MakeClone", "DropClone"}, "test.failed"},
		"to come":     {contract.CloneInput{Chunk: "d/0001", To: "c", At: at.Add(1 << 50)}, "", nil, "clone.bad_input"},
		"no time":     {contract.CloneInput{Chunk: "d/0001", To: "c"}, "", nil, "clone.bad_input"},
		"no shard":    {contract.CloneInput{Chunk: "d/0001", At: at}, "", nil, "clone.bad_input"},
		"to nobody's": {contract.CloneInput{To: "c", At: at}, "", nil, "clone.bad_input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			env := new(testsuite.WorkflowTestSuite).NewTestWorkflowEnvironment()
			env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&workers.Failures{}}})
			env.SetStartTime(at.Add(time.Hour))
			workers.RegisterWorkflows(env)
			var did []string
			note := func(name string) error {
				did = append(did, name)
				if name == c.breaks {
					return failure.New(failure.Invalid, "test.failed", "failed at %s", name)
				}
				return nil
			}
			contract.PlanClone.Register(env, func(_ context.Context, in contract.CloneInput) (contract.ClonePlan, error) {
				return contract.ClonePlan{CloneInput: in, Base: 7}, note("PlanClone")
			})
			contract.MakeClone.Register(env, func(_ context.Context, in contract.CloneWork) (contract.CloneResult, error) {
				return contract.CloneResult{ClonePlan: in.ClonePlan, Clone: 9, Database: "d_0001_c9"}, note("MakeClone")
			})
			contract.DropClone.Register(env, func(_ context.Context, in contract.CloneEnd) (contract.None, error) {
				require.NotEmpty(t, in.WorkflowID)
				return contract.None{}, note("DropClone")
			})
			env.ExecuteWorkflow(contract.CloneChunkWorkflow, c.in)
			require.Equal(t, c.want, did)
			if c.refused != "" {
				require.ErrorContains(t, env.GetWorkflowError(), c.refused)
				return
			}
			require.NoError(t, env.GetWorkflowError())
			var r contract.CloneResult
			require.NoError(t, env.GetWorkflowResult(&r))
			require.EqualValues(t, 7, r.Base)
			require.Equal(t, c.in.DryRun, r.Clone == 0)
		})
	}
}
