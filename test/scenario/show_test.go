package scenario_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"drover/internal/testkit"
	"drover/starter"
)

// showMove writes into the log of a test that failed where its move stands: what the
// workflow says, and which of its activities came to what.
func (f *fleet) showMove() {
	f.t.Helper()
	if f.hot.Chunk.ID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.t.Context()), 10*time.Second)
	defer cancel()
	st, err := f.starter.Status(ctx, f.hot.Chunk.ID)
	text, _ := json.MarshalIndent(st, "", " ") // an empty one says as much
	f.t.Logf("--- the move (%v) ---\n%s", err, text)
	id := starter.MigrateID(f.hot.Chunk.ID)
	h, err := testkit.ReadHistory(ctx, f.temporal, id)
	f.t.Logf("--- its workflow (%v) ---\n%s", err, told(h.GetEvents()))
}

// call is one activity in a history, or what an operator asked for.
type call struct {
	name     string
	from, to time.Time
	end      string
	attempt  int32
	failure  string // of the attempt before
}

// told tells a workflow's history by its activities and what it was asked, a line each.
func told(events []*historypb.HistoryEvent) string {
	var order []*call
	calls := map[int64]*call{}
	for _, e := range events {
		at := e.GetEventTime().AsTime()
		if a := e.GetActivityTaskScheduledEventAttributes(); a != nil {
			c := &call{name: a.GetActivityType().GetName() + " " + a.GetActivityId(), from: at, to: at, end: "open"}
			calls[e.GetEventId()], order = c, append(order, c)
		}
		if a := e.GetWorkflowExecutionUpdateAcceptedEventAttributes(); a != nil {
			order = append(order, &call{name: "asked: " + a.GetAcceptedRequest().GetInput().GetName(), from: at, to: at})
		}
		if a := e.GetActivityTaskStartedEventAttributes(); calls[a.GetScheduledEventId()] != nil {
			c := calls[a.GetScheduledEventId()]
			c.attempt, c.failure = a.GetAttempt(), a.GetLastFailure().GetMessage()
		}
		if scheduled, how := ended(e); calls[scheduled] != nil {
			calls[scheduled].to, calls[scheduled].end = at, how
		}
	}
	var out strings.Builder
	for _, c := range order {
		since := events[0].GetEventTime().AsTime()
		fmt.Fprintf(&out, "%7.2f %7.2f  %s %s", c.from.Sub(since).Seconds(), c.to.Sub(since).Seconds(), c.name, c.end)
		if c.attempt > 1 {
			fmt.Fprintf(&out, " (attempt %d, behind: %s)", c.attempt, c.failure)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// ended says how an activity ended, by the event that scheduled it; 0: e is about no end.
func ended(e *historypb.HistoryEvent) (scheduled int64, how string) {
	switch e.GetEventType() { //nolint:exhaustive // the others end no activity
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
		return e.GetActivityTaskCompletedEventAttributes().GetScheduledEventId(), "done"
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_FAILED:
		a := e.GetActivityTaskFailedEventAttributes()
		return a.GetScheduledEventId(), "failed: " + a.GetFailure().GetMessage()
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
		return e.GetActivityTaskTimedOutEventAttributes().GetScheduledEventId(), "timed out"
	case enumspb.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
		return e.GetActivityTaskCanceledEventAttributes().GetScheduledEventId(), "cancelled"
	default:
		return 0, ""
	}
}
