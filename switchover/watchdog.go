package switchover

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/internal/failure"
)

// Watchdog ends attempts whose coordinator is gone. It needs the metadata and
// the shards, not Temporal, and compares nothing but the row.
type Watchdog struct {
	Switcher *Switcher
	Every    time.Duration // 100 ms
	Metrics  *WatchdogMetrics
}

// WatchdogMetrics counts what the watchdog did.
type WatchdogMetrics struct {
	Back, Forward prometheus.Counter
	Stuck         prometheus.Gauge // attempts that it could not end in its last look
}

// NewWatchdogMetrics registers the watchdog's metrics.
func NewWatchdogMetrics(r prometheus.Registerer) *WatchdogMetrics {
	m := &WatchdogMetrics{
		Back:    prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_watchdog_back_total", Help: "Attempts that the watchdog took back."}),
		Forward: prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_watchdog_forward_total", Help: "Attempts that the watchdog took forward."}),
		Stuck:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_watchdog_stuck_attempts", Help: "Overdue attempts that the watchdog could not end in its last look."}),
	}
	r.MustRegister(m.Back, m.Forward, m.Stuck)
	return m
}

// Run looks until ctx ends.
func (w *Watchdog) Run(ctx context.Context) error {
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for {
		w.Look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Look ends every attempt that is due, once.
func (w *Watchdog) Look(ctx context.Context) {
	attempts, err := w.openAttempts(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.Switcher.Log.ErrorContext(ctx, "Watchdog cannot read attempts", slog.Any("error", err))
		}
		return
	}
	stuck := 0
	for _, at := range attempts {
		if err := w.end(ctx, at); err != nil && ctx.Err() == nil {
			if failure.Is(err, failure.Lost) {
				continue // the coordinator or another watchdog was first
			}
			stuck++
			w.Switcher.Log.ErrorContext(ctx, "Watchdog cannot end an attempt",
				slog.Int64("attempt", int64(at.ID)), slog.String("state", string(at.State)), slog.Any("error", err))
		}
	}
	w.Metrics.Stuck.Set(float64(stuck))
}

// lookTimeout bounds one reading of the rows: a connection to a Postgres that
// has vanished must not hold up the next look.
const lookTimeout = 2 * time.Second

func (w *Watchdog) openAttempts(ctx context.Context) ([]Attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return w.Switcher.Ledger.OpenAttempts(ctx)
}

// end does what the row demands, if it is due.
func (w *Watchdog) end(ctx context.Context, at Attempt) error {
	if !at.Overdue {
		return nil // the coordinator has time until the deadline, and a little more to open
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch at.State {
	case chunk.Preparing, chunk.Fencing, chunk.Closing, chunk.AttemptAborting:
		if err := w.Switcher.Abandon(ctx, at.ID, "the watchdog found it past its deadline"); err != nil {
			return err
		}
		w.Metrics.Back.Inc()
		w.tell(ctx, "Watchdog took an attempt back", at)
	case chunk.Published:
		if err := w.Switcher.OpenTarget(ctx, at.ID); err != nil {
			return err
		}
		w.Metrics.Forward.Inc()
		w.tell(ctx, "Watchdog took an attempt forward", at)
	case chunk.Open, chunk.AttemptDone, chunk.AttemptAborted: // nobody waits
	}
	return nil
}

func (w *Watchdog) tell(ctx context.Context, msg string, at Attempt) {
	w.Switcher.Log.WarnContext(ctx, msg, slog.Int64("attempt", int64(at.ID)), slog.String("found", string(at.State)),
		slog.String("source", at.Source.Shard), slog.String("target", at.Target.Shard))
}
