package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
	"drover/internal/failure"
	"drover/remediation"
	"drover/workers"
)

// clinic is one broken shard, its lease and its record, as the activities of a
// remediation change them.
type clinic struct {
	mu      sync.Mutex
	planner *remediation.Planner
	truth   remediation.Vertex

	epoch     int64 // of the lease, while it is held
	held      bool
	refuse    error    // instead of the lease
	moves     []string // told with the lease
	performed []string // that took
	records   []contract.RemediationRecord
	plans     int
	stopped   string

	// strike is asked at each operation, counted from 1; true: the activity has
	// given its answer already.
	strike func(n int, in contract.OperationInput, take func()) (out contract.OperationResult, err error, answered bool) //nolint:revive // the error is one of three answers
	asked  int
	closed func() bool // a window is open on the shard: nothing may be performed
}

// broken is a set of three whose second member is down: five operations.
func broken(t *testing.T) *clinic {
	t.Helper()

	l := remediation.Catalogue()[1]
	p, err := remediation.NewPlanner(l, remediation.DefaultCosts, 0)
	require.NoError(t, err)
	v := l.Healthy(remediation.Hosts)
	v.Members[1].State = remediation.Down
	return &clinic{planner: p, truth: v}
}

// healthy reports whether the shard is.
func (c *clinic) healthy() bool { return c.planner.Health(c.truth) == c.planner.Full() }

// register serves the activities of remediation.
func (c *clinic) register(r contract.Registry) {
	contract.LeaseShard.Register(r, c.lease)
	contract.PlanShard.Register(r, func(context.Context, contract.PlanInput) (p contract.ShardPlan, err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.plans++
		p.Stopped = c.stopped
		return p, p.Fill(c.planner, c.truth)
	})
	contract.PerformOperation.Register(r, c.perform)
	contract.ReleaseShard.Register(r, func(_ context.Context, l contract.ShardLease) (contract.None, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.Epoch == c.epoch {
			c.held = false
		}
		return contract.None{}, nil
	})
	contract.RecordRemediation.Register(r, func(_ context.Context, in contract.RemediationRecord) (contract.None, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.records = append(c.records, in)
		return contract.None{}, nil
	})
}

// lease gives the lease once no window is open.
func (c *clinic) lease(ctx context.Context, in contract.LeaseInput) (contract.LeaseResult, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		c.mu.Lock()
		if c.refuse != nil {
			defer c.mu.Unlock()
			return contract.LeaseResult{}, c.refuse
		}
		if c.closed == nil || !c.closed() {
			defer c.mu.Unlock()
			c.held = true
			c.epoch++
			return contract.LeaseResult{Lease: contract.ShardLease{Shard: in.Shard, Holder: in.Holder, Epoch: c.epoch}, Moves: c.moves}, nil
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return contract.LeaseResult{}, ctx.Err()
		case <-tick.C:
		}
	}
}

// perform does one operation as an executor would.
func (c *clinic) perform(_ context.Context, in contract.OperationInput) (contract.OperationResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if !c.held || in.Lease.Epoch != c.epoch {
		return contract.OperationResult{}, failure.New(failure.Lost, "lease.lost", "epoch %d is over", in.Lease.Epoch)
	}
	if c.closed != nil && c.closed() {
		return contract.OperationResult{}, failure.New(failure.Invalid, "test.race", "an operation meets an open attempt")
	}
	if d := remediation.Differences(in.Before, c.truth); len(d) > 0 {
		return contract.OperationResult{After: c.truth, Deviates: d}, nil
	}
	op, err := in.Step.Order.Operation()
	if err != nil {
		return contract.OperationResult{}, err
	}
	take := func() {
		c.truth = op.Next(c.truth)
		c.performed = append(c.performed, op.Name())
	}
	if c.strike != nil {
		if out, err, answered := c.strike(c.asked, in, take); answered {
			return out, err
		}
	}
	take()
	return contract.OperationResult{After: c.truth}, nil
}

// ward is a test environment with the clinic's activities.
func ward(t *testing.T, c *clinic) *testsuite.TestWorkflowEnvironment {
	t.Helper()

	env := new(testsuite.WorkflowTestSuite).NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&workers.Failures{}}})
	workers.RegisterWorkflows(env)
	c.register(env)
	return env
}

// treat runs the workflow and gives its result.
func treat(t *testing.T, env *testsuite.TestWorkflowEnvironment, in contract.RemediateInput) contract.RemediateResult {
	t.Helper()

	env.ExecuteWorkflow(contract.RemediateShardWorkflow, in)
	require.True(t, env.IsWorkflowCompleted())
	require.NoError(t, env.GetWorkflowError())
	var r contract.RemediateResult
	require.NoError(t, env.GetWorkflowResult(&r))
	return r
}

// texts lists steps.
func texts(steps []contract.PlannedStep) (all []string) {
	for _, s := range steps {
		all = append(all, s.Text)
	}
	return all
}

// last gives the record of a run that has ended.
func (c *clinic) last(t *testing.T) contract.RemediationRecord {
	t.Helper()

	require.NotEmpty(t, c.records)
	r := c.records[len(c.records)-1]
	require.NotEmpty(t, r.Verdict, "the run's end is recorded")
	return r
}

var order = contract.RemediateInput{Shard: "a", Execute: true, RequestedBy: "ann"}

func TestRemediationRunsToHealth(t *testing.T) {
	t.Parallel()

	c := broken(t)
	r := treat(t, ward(t, c), order)
	require.Equal(t, remediation.Finished, r.Verdict)
	require.True(t, c.healthy())
	require.False(t, c.held, "the lease is given back")
	require.Equal(t, []string{"set-priority", "take-vote", "rebuild", "give-vote", "set-priority"}, c.performed)
	require.Len(t, r.Done, 5)
	require.NotEmpty(t, r.Done[2].Reason)
	require.True(t, r.Done[2].Destroys)
	require.Equal(t, c.planner.Full(), r.To)
	require.Equal(t, remediation.Finished, c.last(t).Verdict)
	require.Equal(t, 37, c.records[0].Cost, "the beginning is recorded with the plan's weight, for the budget")
}

func TestDryRunPlansAndChangesNothing(t *testing.T) {
	t.Parallel()

	c := broken(t)
	before := c.truth
	r := treat(t, ward(t, c), contract.RemediateInput{Shard: "a"})
	require.Equal(t, remediation.Unexecuted, r.Verdict)
	require.Equal(t, []string{"set the priority of h1 to 0", "take the vote of h1", "rebuild h1", "give h1 a vote", "set the priority of h1 to 1"}, texts(r.Plan))
	require.Equal(t, before, c.truth)
	require.Zero(t, c.epoch, "not even the lease is asked for")
	require.Empty(t, c.records)
}

// TestWorkerDiesAtEachStep: before its effect or after it, the run goes on with
// another worker and ends healthy; no operation is performed twice.
func TestWorkerDiesAtEachStep(t *testing.T) {
	t.Parallel()

	for n := 1; n <= 5; n++ {
		for _, effect := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/effect=%t", n, effect), func(t *testing.T) {
				t.Parallel()

				c := broken(t)
				died := false
				c.strike = func(asked int, _ contract.OperationInput, take func()) (out contract.OperationResult, err error, answered bool) {
					if died || asked != n {
						return out, nil, false
					}
					died = true
					if effect {
						take()
					}
					return out, failure.New(failure.Transient, "test.died", "the worker dies"), true
				}
				r := treat(t, ward(t, c), order)
				require.True(t, died)
				require.Equal(t, remediation.Finished, r.Verdict)
				require.True(t, c.healthy())
				require.False(t, c.held)
				require.Len(t, c.performed, 5, "nothing is done twice")
			})
		}
	}
}

// TestLostLeaseIsTakenAnew: the shard is read again, because somebody may have
// been there.
func TestLostLeaseIsTakenAnew(t *testing.T) {
	t.Parallel()

	c := broken(t)
	c.strike = func(asked int, _ contract.OperationInput, _ func()) (out contract.OperationResult, err error, answered bool) {
		if asked != 3 {
			return out, nil, false
		}
		return out, failure.New(failure.Lost, "lease.lost", "it has expired"), true
	}
	r := treat(t, ward(t, c), order)
	require.Equal(t, remediation.Finished, r.Verdict)
	require.EqualValues(t, 2, c.epoch)
	require.Equal(t, 3, c.plans, "before, anew, and at the end")
	require.False(t, c.held)
}

func TestLeaseThatIsHeldTooLong(t *testing.T) {
	t.Parallel()

	c := broken(t)
	c.refuse = failure.New(failure.Invalid, "remediation.lease_timeout", "held by operator/ann").WithHint("drover lease list")
	env := ward(t, c)
	env.ExecuteWorkflow(contract.RemediateShardWorkflow, order)
	require.ErrorContains(t, env.GetWorkflowError(), "remediation.lease_timeout")
	require.Empty(t, c.performed)
	require.Equal(t, remediation.Failed, c.last(t).Verdict)
	require.Contains(t, c.last(t).Attention, "drover lease list")
}

// TestSomethingElseBreaks: another member fails while the first is mended; a new
// plan comes to terms with both.
func TestSomethingElseBreaks(t *testing.T) {
	t.Parallel()

	c := broken(t)
	c.strike = func(asked int, _ contract.OperationInput, take func()) (out contract.OperationResult, err error, answered bool) {
		if asked != 4 {
			return out, nil, false
		}
		take()
		c.truth = remediation.Vertex{Members: slices.Clone(c.truth.Members)}
		c.truth.Members[2].State = remediation.Stalled
		return contract.OperationResult{After: c.truth, Deviates: []string{"h2: state is stalled instead of healthy"}}, nil, true
	}
	r := treat(t, ward(t, c), order)
	require.Equal(t, remediation.Finished, r.Verdict)
	require.True(t, c.healthy())
	require.Greater(t, r.Plans, 2)
}

// TestStepsThatNeverTake: the run gives up and calls a person, and the lease is free.
func TestStepsThatNeverTake(t *testing.T) {
	t.Parallel()

	c := broken(t)
	c.strike = func(int, contract.OperationInput, func()) (contract.OperationResult, error, bool) {
		return contract.OperationResult{After: c.truth, Deviates: []string{"h1: priority is 1 instead of 0"}}, nil, true
	}
	r := treat(t, ward(t, c), order)
	require.Equal(t, remediation.TooManyPlans, r.Verdict)
	require.NotEmpty(t, c.last(t).Attention)
	require.NotEmpty(t, r.Plan, "what was left")
	require.False(t, c.held)
}

// TestPlansThatGrow: each step makes the shard worse; that is an alarm and an end.
func TestPlansThatGrow(t *testing.T) {
	t.Parallel()

	l := remediation.Catalogue()[slices.IndexFunc(remediation.Catalogue(), func(l remediation.Layout) bool { return len(l.Slots) == 7 })]
	p, err := remediation.NewPlanner(l, remediation.DefaultCosts, 0)
	require.NoError(t, err)
	c := &clinic{planner: p, truth: l.Healthy(remediation.Hosts)}
	oplogs := 0
	worse := func() {
		c.truth = remediation.Vertex{Members: slices.Clone(c.truth.Members)}
		c.truth.Members[oplogs].OplogMB = 1000
		oplogs++
	}
	worse()
	c.strike = func(int, contract.OperationInput, func()) (contract.OperationResult, error, bool) {
		worse()
		return contract.OperationResult{After: c.truth, Deviates: []string{"another oplog shrinks"}}, nil, true
	}
	env := ward(t, c)
	r := treat(t, env, order)
	require.Equal(t, remediation.PlansGrow, r.Verdict)
	v, err := env.QueryWorkflow(contract.StatusQuery)
	require.NoError(t, err)
	var st contract.RemediationStatus
	require.NoError(t, v.Get(&st))
	require.Contains(t, st.Conditions, contract.PlansGrowing)
	require.NotEmpty(t, st.Attention)
}

// TestStopSwitch: it takes effect between two operations; the lease is given back
// and the rest of the plan is told.
func TestStopSwitch(t *testing.T) {
	t.Parallel()

	c := broken(t)
	c.strike = func(asked int, _ contract.OperationInput, _ func()) (out contract.OperationResult, err error, answered bool) {
		if asked != 3 {
			return out, nil, false
		}
		return out, failure.New(failure.Invalid, "remediation.stopped", "by ann: incident"), true
	}
	r := treat(t, ward(t, c), order)
	require.Equal(t, remediation.Halted, r.Verdict)
	require.Len(t, c.performed, 2)
	require.False(t, c.held)
	require.Equal(t, remediation.Halted, c.last(t).Verdict)

	c = broken(t)
	c.stopped = "by ann: incident"
	r = treat(t, ward(t, c), order)
	require.Equal(t, remediation.Halted, r.Verdict)
	require.Empty(t, c.performed, "nothing begins while the switch is on")
}

// TestNoPlanHelps: without a majority only a person may act.
func TestNoPlanHelps(t *testing.T) {
	t.Parallel()

	c := broken(t)
	c.truth.Members[0].State, c.truth.Members[0].Primary = remediation.Lost, false
	r := treat(t, ward(t, c), order)
	require.Equal(t, remediation.Best, r.Verdict)
	require.Contains(t, c.last(t).Attention, "a person must decide")
	require.False(t, c.held)
}

// TestSecondRunGoesOn: a long history continues as new between two operations. The
// second run takes the lease anew, and knows what was done, at what plan it is and
// where it all began.
func TestSecondRunGoesOn(t *testing.T) {
	t.Parallel()

	c := broken(t)
	began := c.planner.Health(c.truth)
	env := ward(t, c)
	c.strike = func(asked int, _ contract.OperationInput, _ func()) (out contract.OperationResult, err error, answered bool) {
		if asked == 3 {
			env.SetContinueAsNewSuggested(true)
		}
		return out, nil, false
	}
	env.ExecuteWorkflow(contract.RemediateShardWorkflow, order)
	again, ok := errors.AsType[*workflow.ContinueAsNewError](env.GetWorkflowError())
	require.True(t, ok, "%v", env.GetWorkflowError())
	require.False(t, c.held, "the lease is given back in between")
	require.Len(t, c.performed, 3)
	var in contract.RemediateInput
	require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(again.Input, &in))
	require.Len(t, in.Done, 3)

	c.strike = nil
	r := treat(t, ward(t, c), in)
	require.Equal(t, remediation.Finished, r.Verdict)
	require.True(t, c.healthy())
	require.EqualValues(t, 2, c.epoch)
	require.Len(t, r.Done, 5, "what the first run did is told too")
	require.Equal(t, began, r.From, "where the first run began")
	require.Equal(t, 3, r.Plans)
	require.Len(t, c.performed, 5, "nothing is done twice")
	told := 0
	for _, x := range c.records {
		told += number(x.Verdict == "")
	}
	require.Equal(t, 1, told, "one run in the record, one weight in the hour's budget")
}

// number is 1 for true.
func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestBadRemediationsAreRefused(t *testing.T) {
	t.Parallel()

	for want, in := range map[string]contract.RemediateInput{
		"shard is empty": {Execute: true}, "leaseWait is -1s": {Shard: "a", LeaseWait: contract.Duration(-time.Second)},
	} {
		env := ward(t, broken(t))
		env.ExecuteWorkflow(contract.RemediateShardWorkflow, in)
		require.ErrorContains(t, env.GetWorkflowError(), want)
	}
}
