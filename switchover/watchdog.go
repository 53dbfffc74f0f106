package switchover

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/internal/failure"
)

// Times of the watchdog.
const (
	lookTimeout = 2 * time.Second  // of one reading: a connection to a Postgres that has vanished must not hold up the next look
	endTimeout  = 10 * time.Second // of one try to end an attempt
	payTimeout  = 5 * time.Second  // of one try to show a member a barrier
	payEvery    = time.Second      // how often the list of those who are owed one is read
	remindEvery = 10 * time.Second // how often the same trouble is logged again
	justPast    = time.Millisecond // behind a deadline: it is past then by Postgres' clock too
)

// Watchdog ends attempts whose coordinator is gone. It needs the metadata and
// the shards, not Temporal, and compares nothing but the row. One attempt that
// cannot be ended holds up no other.
type Watchdog struct {
	Switcher *Switcher
	Every    time.Duration // 100 ms; it looks sooner where a deadline ends sooner
	Metrics  *WatchdogMetrics

	mu      sync.Mutex
	busy    map[string]bool                        // what runs now
	stuck   map[chunk.AttemptID]time.Time          // what could not be ended, and when that was logged
	refused map[chunk.AttemptID]chunk.AttemptState // what somebody else was taken to be first with, and the state that it was in
	ready   map[chunk.AttemptID]bool               // whose shards were asked for something, so that connections are there
	paying  time.Time                              // when the list of the owed was last read
	running sync.WaitGroup
}

// WatchdogMetrics counts what the watchdog did.
type WatchdogMetrics struct {
	Back, Forward, Paid prometheus.Counter
	Stuck               prometheus.Gauge // overdue attempts that it could not end
	Owed                prometheus.Gauge // members that have not seen a barrier
}

// NewWatchdogMetrics registers the watchdog's metrics.
func NewWatchdogMetrics(r prometheus.Registerer) *WatchdogMetrics {
	m := &WatchdogMetrics{
		Back:    prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_watchdog_back_total", Help: "Attempts that the watchdog took back."}),
		Forward: prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_watchdog_forward_total", Help: "Attempts that the watchdog took forward."}),
		Paid:    prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_watchdog_barriers_paid_total", Help: "Members that were shown, at their return, that a placement is closed."}),
		Stuck:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_watchdog_stuck_attempts", Help: "Overdue attempts that the watchdog could not end in its last try."}),
		Owed:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_watchdog_owed_barriers", Help: "Members that have not been shown that a placement is closed."}),
	}
	r.MustRegister(m.Back, m.Forward, m.Paid, m.Stuck, m.Owed)
	return m
}

// Run looks until ctx ends, and returns when everything that it began has ended.
func (w *Watchdog) Run(ctx context.Context) error {
	defer w.running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(w.Look(ctx))
	}
}

// Look begins to end every attempt that is due, and to show barriers to those
// who are owed one; what runs already is left alone. [Watchdog.Wait] waits for it.
// It gives the time until the next look.
func (w *Watchdog) Look(ctx context.Context) (next time.Duration) {
	next = w.Every
	attempts, err := w.openAttempts(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.Switcher.Log.ErrorContext(ctx, "Watchdog cannot read attempts", slog.Any("error", err))
		}
		return next
	}
	open, due := map[chunk.AttemptID]bool{}, map[chunk.AttemptID]bool{}
	for _, at := range attempts {
		open[at.ID] = true
		switch {
		case at.Overdue:
			due[at.ID] = true
			w.begin(ctx, fmt.Sprintf("attempt %d", at.ID), endTimeout, func(ctx context.Context) { w.note(ctx, at, w.End(ctx, at)) })
		case at.Left > 0:
			next = min(next, at.Left+justPast)
			w.prepare(ctx, at)
		}
	}
	w.forget(open, due)
	w.pay(ctx)
	return next
}

// prepare makes ready for the end of an attempt that may come to this watchdog: a
// connection that is made, with its login, when a shard is overloaded costs a good part of
// the time that a fence may last.
func (w *Watchdog) prepare(ctx context.Context, at Attempt) {
	w.mu.Lock()
	known := w.ready[at.ID]
	if w.ready == nil {
		w.ready = map[chunk.AttemptID]bool{}
	}
	w.ready[at.ID] = true
	w.mu.Unlock()
	if known {
		return
	}
	w.begin(ctx, fmt.Sprintf("shards of attempt %d", at.ID), payTimeout, func(ctx context.Context) {
		src, dst, err := w.Switcher.sides(ctx, at)
		if err != nil {
			return // its end says what is wrong
		}
		for _, side := range []Side{src, dst} {
			_, _ = side.Identity(ctx) // its end says what is wrong
		}
	})
}

// Wait returns when nothing runs that a look has begun.
func (w *Watchdog) Wait() { w.running.Wait() }

func (w *Watchdog) openAttempts(ctx context.Context) ([]Attempt, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return w.Switcher.Ledger.OpenAttempts(ctx)
}

// begin runs do beside the others, unless what goes by that name runs already.
func (w *Watchdog) begin(ctx context.Context, name string, within time.Duration, do func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[name] {
		return
	}
	if w.busy == nil {
		w.busy = map[string]bool{}
	}
	w.busy[name] = true
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		do(ctx)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, name)
	})
}

// End does what the row of an attempt that is due demands.
func (w *Watchdog) End(ctx context.Context, at Attempt) error {
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

// note keeps whether an attempt could be ended, and says so now and then.
func (w *Watchdog) note(ctx context.Context, at Attempt, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.Metrics.Stuck.Set(float64(len(w.stuck))) }()
	first := failure.Is(err, failure.Lost) && w.refused[at.ID] != at.State // the coordinator or another watchdog; not twice, in one state
	if failure.Is(err, failure.Lost) {
		if w.refused == nil {
			w.refused = map[chunk.AttemptID]chunk.AttemptState{}
		}
		w.refused[at.ID] = at.State
	}
	switch {
	case err == nil:
		delete(w.refused, at.ID)
		delete(w.stuck, at.ID)
		return
	case first: // where somebody else ends it, the next look does not find it due
		return
	}
	if w.stuck == nil {
		w.stuck = map[chunk.AttemptID]time.Time{}
	}
	if told, known := w.stuck[at.ID]; known && time.Since(told) < remindEvery {
		return
	}
	w.stuck[at.ID] = time.Now()
	w.Switcher.Log.ErrorContext(ctx, "Watchdog cannot end an attempt",
		slog.Int64("attempt", int64(at.ID)), slog.String("state", string(at.State)), slog.Any("error", err))
}

// forget drops what is no longer open, or no longer due.
func (w *Watchdog) forget(open, due map[chunk.AttemptID]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.ready {
		if !open[id] {
			delete(w.ready, id)
		}
	}
	for id := range w.stuck {
		if !due[id] {
			delete(w.stuck, id)
		}
	}
	for id := range w.refused {
		if !due[id] {
			delete(w.refused, id)
		}
	}
	w.Metrics.Stuck.Set(float64(len(w.stuck)))
}

// pay shows the barrier to the members that are owed it. A member that is still
// away is tried again.
func (w *Watchdog) pay(ctx context.Context) {
	if time.Since(w.paying) < payEvery {
		return
	}
	w.paying = time.Now()
	w.begin(ctx, "list of the owed", lookTimeout, func(listing context.Context) {
		owed, err := w.Switcher.Ledger.Owed(listing)
		if err != nil {
			return // the next look tells about a metadata that does not answer
		}
		w.Metrics.Owed.Set(float64(len(owed)))
		for _, o := range owed {
			w.begin(ctx, fmt.Sprintf("%s of %d at %s", o.Access, o.Placement.ID, o.Host), payTimeout, func(ctx context.Context) { w.payOne(ctx, o) })
		}
	})
}

// payOne shows one member that a placement is closed.
func (w *Watchdog) payOne(ctx context.Context, o Owed) {
	side, err := w.Switcher.Shards.Side(ctx, o.Placement.Shard)
	if err == nil {
		err = side.Pay(ctx, o.Host, o.Placement, o.Access)
	}
	if err == nil {
		err = w.Switcher.Ledger.Paid(ctx, o)
	}
	log := w.Switcher.Log.With(slog.String("host", o.Host), slog.Int64("placement", int64(o.Placement.ID)), slog.String("access", string(o.Access)))
	if err != nil {
		log.DebugContext(ctx, "A member is still owed a barrier", slog.Any("error", err))
		return
	}
	w.Metrics.Paid.Inc()
	log.InfoContext(ctx, "A member has seen that a placement is closed")
}

func (w *Watchdog) tell(ctx context.Context, msg string, at Attempt) {
	w.Switcher.Log.WarnContext(ctx, msg, slog.Int64("attempt", int64(at.ID)), slog.String("found", string(at.State)),
		slog.String("source", at.Source.Shard), slog.String("target", at.Target.Shard))
}
