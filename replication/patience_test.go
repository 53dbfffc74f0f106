package replication

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/drivertest"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/xoptions"

	"drover/internal/mongocode"
)

// scripted is a lane that waits for nothing, of a target that gives these answers, one
// after another.
func scripted(t *testing.T, answers ...bson.D) *Lane {
	t.Helper()
	opts := options.Client()
	require.NoError(t, xoptions.SetInternalClientOptions(opts, "deployment", drivertest.NewMockDeployment(answers...)))
	client, err := mongo.Connect(opts)
	require.NoError(t, err)
	return &Lane{gauge: newGauge(), log: slog.New(slog.DiscardHandler), cfg: &Config{
		Target: client, Metrics: NewMetrics(nil), Limits: Limits{}.withDefaults(), Backoff: func(int) time.Duration { return 0 },
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
