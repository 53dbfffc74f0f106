package workers

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"drover/internal/config"
	"drover/internal/failure"
	"drover/switchover"
)

// lookedAt is a metadata without attempts that counts the watchdog's looks.
type lookedAt struct {
	switchover.Ledger
	looks atomic.Int64
}

// OpenAttempts implements [switchover.Ledger].
func (l *lookedAt) OpenAttempts(context.Context) ([]switchover.Attempt, error) {
	l.looks.Add(1)
	return nil, nil
}

// Owed implements [switchover.Ledger].
func (*lookedAt) Owed(context.Context) ([]switchover.Owed, error) { return nil, nil }

// A worker that started while Temporal was away ended at once: after a power cut nobody
// took back what was fenced, for as long as Temporal stayed away.
func TestWatchdogWaitsForNoTemporal(t *testing.T) {
	t.Parallel()

	ledger := &lookedAt{}
	w := &Worker{
		cfg: &config.Config{}, logger: slog.New(slog.DiscardHandler),
		watchdog: &switchover.Watchdog{
			Switcher: &switchover.Switcher{Ledger: ledger, Log: slog.New(slog.DiscardHandler)}, Every: time.Millisecond,
			Metrics: switchover.NewWatchdogMetrics(prometheus.NewRegistry()),
		},
	}
	var dials atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- w.Run(ctx, func(context.Context) (client.Client, error) {
			dials.Add(1)
			return nil, failure.New(failure.Transient, "temporal.unreachable", "it is away")
		})
	}()
	require.Eventually(t, func() bool { return ledger.looks.Load() > 2 && dials.Load() > 1 }, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}
