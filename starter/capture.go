package starter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/temporal"
)

// captureEnds is how long a capture that is cancelled may take to end by itself.
const captureEnds = 30 * time.Second

// EndCapture ends the capture of a shard and waits until it has ended. One that does
// not react, because no worker runs, is terminated.
func (s *Starter) EndCapture(ctx context.Context, shard, reason string) error {
	err := s.StopCapture(ctx, shard)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the capture of %s: %w", shard, err)
	}
	wait, cancel := context.WithTimeout(ctx, captureEnds)
	defer cancel()
	err = s.client.GetWorkflow(wait, CaptureID(shard), "").Get(wait, nil)
	if _, ended := errors.AsType[*temporal.WorkflowExecutionError](err); ended || err == nil {
		return nil
	}
	if ctx.Err() != nil || wait.Err() == nil {
		return fmt.Errorf("wait for the end of the capture of %s: %w", shard, err)
	}
	err = s.client.TerminateWorkflow(ctx, CaptureID(shard), "", reason)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone || err == nil {
		return nil
	}
	return fmt.Errorf("terminate the capture of %s: %w", shard, err)
}
