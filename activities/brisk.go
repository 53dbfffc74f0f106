package activities

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"

	"drover/internal/pause"
)

// briskBeat is how often a step of a switch shows that its worker lives: well below
// the heartbeat timeouts of flow.Fence, flow.Brisk and flow.Settle. A window is
// mostly over before the first.
const briskBeat = 500 * time.Millisecond

// brisk makes a step of a switch show that its worker lives, so that another one
// goes on within seconds where it does not. Neither a worker that begins to stop
// nor a server that does not answer cuts the step short: it has an end of its own,
// and whoever finds it dead asks the row. Only a server that has given it up, or a
// worker that can't wait any longer, ends it.
func brisk[In, Out any](step func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() {
			if cause := context.Cause(ctx); !unanswered(cause) {
				cancel(cause)
			}
		})()
		if end, ok := ctx.Deadline(); ok {
			var done context.CancelFunc
			work, done = context.WithDeadline(work, end)
			defer done()
		}
		beats, stop := context.WithCancel(work)
		var beating sync.WaitGroup
		beating.Go(func() {
			for pause.For(beats, briskBeat) == nil {
				activity.RecordHeartbeat(beats)
			}
		})
		defer beating.Wait()
		defer stop()
		return step(work, in)
	}
}

// unanswered reports that an activity's context ended because its server did not
// answer a heartbeat, which says nothing about whose work it is.
func unanswered(cause error) bool {
	if _, is := errors.AsType[*serviceerror.Unavailable](cause); is {
		return true
	}
	_, is := errors.AsType[*serviceerror.DeadlineExceeded](cause)
	return is || errors.Is(cause, context.DeadlineExceeded)
}
