package activities

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"drover/contract"
)

// TestBriskStepShowsThatItLives while it lasts: its server learns of a dead worker
// by what is missing.
func TestBriskStepShowsThatItLives(t *testing.T) {
	t.Parallel()
	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	beaten := make(chan struct{}, 10)
	env.SetOnActivityHeartbeatListener(func(*activity.Info, converter.EncodedValues) { beaten <- struct{}{} })
	step := brisk(func(ctx context.Context, _ contract.None) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		select {
		case <-beaten:
			return 7, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	env.RegisterActivity(step)
	out, err := env.ExecuteActivity(step, contract.None{})
	require.NoError(t, err)
	var got int
	require.NoError(t, out.Get(&got))
	require.Equal(t, 7, got)
}

// TestBriskStepIsCutByWhoTakesItOver and by a worker that is gone, and by nothing
// else: a Temporal that does not answer is no reason to leave a fence.
func TestBriskStepIsCutByWhoTakesItOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cause error
		cut   bool
	}{
		"given to another":    {serviceerror.NewNotFound("the activity has timed out"), true},
		"cancelled":           {temporal.NewCanceledError(), true},
		"worker gone":         {worker.ErrWorkerShutdown, true},
		"server unreachable":  {serviceerror.NewUnavailable("no connection"), false},
		"server slow":         {fmt.Errorf("heartbeat: %w", serviceerror.NewDeadlineExceeded("slow")), false},
		"heartbeat timed out": {context.DeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				end := time.Now().Add(time.Hour)
				timed, stop := context.WithDeadline(t.Context(), end)
				defer stop()
				ctx, cancel := context.WithCancelCause(timed)
				_, err := brisk(func(work context.Context, _ contract.None) (contract.None, error) {
					cancel(c.cause)
					synctest.Wait()
					at, ok := work.Deadline()
					require.True(t, ok)
					require.Equal(t, end, at)
					return contract.None{}, context.Cause(work)
				})(ctx, contract.None{})
				if c.cut {
					require.ErrorIs(t, err, c.cause)
				} else {
					require.NoError(t, err)
				}
			})
		})
	}
}
