// Package flow holds the few Temporal idioms every workflow here shares.
package flow

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"drover/contract"
)

// Profile is the way an activity is called: its timeouts, retries and queue.
type Profile func() workflow.ActivityOptions

// Quick is for one metadata or shard statement. It is retried until it succeeds, or
// fails for good; in a long outage people see the attempt count.
func Quick() workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           contract.ControlQueue,
		StartToCloseTimeout: 30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, MaximumInterval: 20 * time.Second},
	}
}

// Bulk is for work that heartbeats its progress and may take days. The
// heartbeat timeout bounds how long a dead worker goes unnoticed; cancellation
// is waited for, because nobody may clean up while the work still writes.
func Bulk() workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           contract.BulkQueue,
		StartToCloseTimeout: 30 * 24 * time.Hour,
		HeartbeatTimeout:    5 * time.Second,
		WaitForCancellation: true,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 1.5, MaximumInterval: 15 * time.Second},
	}
}

// BulkAmong is Bulk for one of so many moves that are under way. What they heartbeat
// together is most of what the server does for them, so each does it the more rarely the
// more there are, and a dead worker goes unnoticed for longer.
func BulkAmong(moves int) workflow.ActivityOptions {
	o := Bulk()
	o.HeartbeatTimeout = min(max(o.HeartbeatTimeout, o.HeartbeatTimeout*time.Duration(moves)/manyMoves), longestTimeout)
	return o
}

// How many moves heartbeat as a few do, and how long the timeout of the heartbeats gets.
const (
	manyMoves      = 20
	longestTimeout = time.Minute
)

// Wait is for asking again and again until something is so, on the control queue.
// It heartbeats, so that a pause or an abort ends it at once.
func Wait() workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           contract.ControlQueue,
		StartToCloseTimeout: 15 * time.Minute,
		HeartbeatTimeout:    5 * time.Second,
		WaitForCancellation: true,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, MaximumInterval: 20 * time.Second},
	}
}

// Brisk is Quick for the few steps around a switch's window, which wait for each
// other: they heartbeat, so that a dead worker is noticed within seconds.
func Brisk() workflow.ActivityOptions {
	o := Quick()
	o.HeartbeatTimeout = 3 * time.Second
	return o
}

// Fence is for the blackout window. Server timers are too coarse for it, so the
// server makes one attempt and the activity itself does the short retries. The
// heartbeat bounds how long a dead coordinator keeps the next attempt waiting; what
// it left is ended by the watchdog, or by the question that follows.
func Fence() workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:              contract.FenceQueue,
		ScheduleToStartTimeout: 2 * time.Second,
		StartToCloseTimeout:    15 * time.Second,
		HeartbeatTimeout:       2 * time.Second,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
	}
}

// Settle is for asking, after the window, what became of it. It goes on until
// there is an answer: nothing may be undone without one.
func Settle() workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           contract.ControlQueue,
		StartToCloseTimeout: 20 * time.Second,
		HeartbeatTimeout:    3 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 5 * time.Second},
	}
}

// Named gives o the id by which operators address the activity, and the
// sentence that the UI shows.
func Named(o workflow.ActivityOptions, id, summary string) workflow.ActivityOptions {
	o.ActivityID = id
	o.Summary = summary
	return o
}
