package replication

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/internal/mongocode"
)

// TestInternalErrorBehindAnOutage: a server that comes up again may answer with an
// internal error, however long it was away; one that gives nothing else is no outage.
func TestInternalErrorBehindAnOutage(t *testing.T) {
	t.Parallel()

	down, internal := mongo.CommandError{Code: mongocode.ShutdownInProgress}, mongo.CommandError{Code: internalError}
	l := &Lane{cfg: &Config{}, gauge: &gauge{}, log: slog.New(slog.DiscardHandler)}
	l.cfg.Metrics = NewMetrics(nil)
	l.cfg.Limits.Try = time.Minute
	l.cfg.Backoff = func(int) time.Duration { return 0 }
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
