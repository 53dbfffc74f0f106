package testkit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"drover/internal/testkit"
)

// hanging is a Temporal that gives the first events of a history and no more until its
// caller has enough of it.
type hanging struct {
	client.Client
	ctx      context.Context //nolint:containedctx // an iterator is asked without one
	events   int             // that it gives
	complete bool            // nothing is behind them
}

// GetWorkflowHistory implements [client.Client].
func (h *hanging) GetWorkflowHistory(ctx context.Context, _, _ string, _ bool, _ enumspb.HistoryEventFilterType) client.HistoryEventIterator {
	h.ctx = ctx
	return h
}

// HasNext implements [client.HistoryEventIterator].
func (h *hanging) HasNext() bool { return h.events > 0 || !h.complete }

// Next implements [client.HistoryEventIterator].
func (h *hanging) Next() (*historypb.HistoryEvent, error) {
	if h.events == 0 {
		<-h.ctx.Done()
		return nil, h.ctx.Err()
	}
	h.events--
	return &historypb.HistoryEvent{}, nil
}

// TestHistoryOfATemporalThatHangs ends, with what it gave: who asks in a cleanup has processes to
// stop behind that.
func TestHistoryOfATemporalThatHangs(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h, err := testkit.ReadHistory(ctx, &hanging{events: 2}, "migrate/flights/0003")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, h.GetEvents(), 2)

		whole := &hanging{events: 3, complete: true}
		require.Len(t, testkit.History(t, whole, "migrate/flights/0003").GetEvents(), 3)
		_, bounded := whole.ctx.Deadline()
		require.True(t, bounded)
	})
}
