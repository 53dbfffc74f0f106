package replication

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/testkit"
)

// scripted is a lane that waits for nothing, of a target that gives these answers, one
// after another.
func scripted(t *testing.T, answers ...bson.D) *Lane {
	t.Helper()
	return &Lane{gauge: newGauge(), log: slog.New(slog.DiscardHandler), cfg: &Config{
		Target: testkit.Replying(t, answers...), Metrics: NewMetrics(nil), Limits: Limits{}.withDefaults(), Backoff: func(int) time.Duration { return 0 },
	}}
}

// TestInternalErrorBehindAnOutage: a server that comes up again may answer with an
// internal error, however long it was away; one that gives nothing else is no outage.
func TestInternalErrorBehindAnOutage(t *testing.T) {
	t.Parallel()

	down, internal := mongo.CommandError{Code: mongocode.ShutdownInProgress}, mongo.CommandError{Code: internalError}
	l := scripted(t)
	tries := 0
	require.NoError(t, l.patiently(t.Context(), func(context.Context) error {
		tries++
		switch {
		case tries <= 2*internalErrors:
			return down
		case tries <= 3*internalErrors:
			return internal
		}
		return nil
	}))
	require.Equal(t, 3*internalErrors+1, tries)
	tries = 0
	require.Error(t, l.patiently(t.Context(), func(context.Context) error { tries++; return internal }))
	require.Equal(t, internalErrors+1, tries)
}

// TestLaneLooksBetweenSavesWhetherItWasClosed: a lane of a crowd saves where it stands
// rarely, and a switch that closed it waits until it has noticed.
func TestLaneLooksBetweenSavesWhetherItWasClosed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		unasked time.Duration // since the target last said that this is the owner
		reached int64         // beyond what was just saved
		closed  bool
	}{
		"looked a moment ago":         {longestUnasked - time.Millisecond, 0, false},
		"nothing to save":             {longestUnasked, 0, true},
		"a save that is not due":      {longestUnasked, 7, true},
		"a save that is not due, yet": {longestUnasked - time.Millisecond, 7, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				closed := bson.D{{Key: "_id", Value: "m1/d0/p0"}, {Key: "epoch", Value: int64(2)}, {Key: "closed", Value: true}}
				l := scripted(t, bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
					{Key: "id", Value: int64(0)}, {Key: "ns", Value: "d.c"}, {Key: "firstBatch", Value: bson.A{closed}},
				}}})
				l.id, l.epoch = "m1/d0/p0", 1
				l.cfg.IdleSave = func() time.Duration { return time.Hour }
				l.reached.seq = tt.reached
				l.savedAt, l.ownedAt = time.Now(), time.Now().Add(-tt.unasked)
				err := l.stillOwner(t.Context())
				require.Equal(t, tt.closed, failure.HasCode(err, "lane.closed"), "%v", err)
				require.Equal(t, tt.closed, err != nil, "%v", err)
			})
		})
	}
}
