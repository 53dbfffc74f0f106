package replication

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/internal/stoppoint"
)

// A worker that died in the middle of a batch leaves a transaction open, which holds
// its checkpoint for a minute. The next one opened the lanes again, or closed them,
// before it took them, and waited for that: the switch stood still, and with it the
// change stream of the target.
func TestADeadOwnersTransactionHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	errDead := errors.New("dead")
	dies := w.cfg
	dies.Points = stoppoint.New(func(_ context.Context, name string) error {
		if name == "lane.written" {
			return errDead
		}
		return nil
	})
	m, d := w.cfg.Direction.Migration, w.cfg.Direction.Attempt
	for i, then := range []func(context.Context) error{
		func(ctx context.Context) error { return ReopenLanes(ctx, w.client, w.sessions, m, d, 5) },
		func(ctx context.Context) error { return CloseLanes(ctx, w.client, w.sessions, m, d, 6) },
	} {
		w.inserted(bson.D{{Key: "_id", Value: w.inPartition(0, 2)[i]}})
		l, err := NewLane(dies, 0)
		require.NoError(t, err)
		require.NoError(t, l.Take(t.Context()))
		require.ErrorIs(t, l.Run(t.Context()), errDead)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // half of what the server waits
		require.NoError(t, then(ctx))
		cancel()
	}
}
