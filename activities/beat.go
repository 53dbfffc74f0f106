package activities

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/internal/pause"
	"drover/metadata"
)

// beatEvery is how often a running activity shows where it is. It must lie well
// below the heartbeat timeout of flow.Bulk.
const beatEvery = time.Second

// Crowd counts what runs at the same time in a process. What each would do every
// moment, for people or for its own good, it does the more rarely the more there
// are, so that all together never keep the metadata and the shards busy.
type Crowd struct{ n atomic.Int64 }

// crowded is how many do something once in a while before they slow down.
const crowded = 50

// join counts one more, until leave is called.
func (c *Crowd) join() (leave func()) {
	c.n.Add(1)
	return func() { c.n.Add(-1) }
}

// every stretches an interval by how crowded it is, up to a most.
func (c *Crowd) every(usual, most time.Duration) time.Duration {
	return max(usual, min(most, usual*time.Duration(c.n.Load())/crowded))
}

// errStopping is the cause of work that ends because its worker stops.
var errStopping = failure.New(failure.Transient, "worker.stopping", "the worker stops; another one goes on")

// rest is how long one who has waited for so long waits before the next look: however
// many moves wait for their lanes, their shard is not kept busy by it, and none learns
// much later than it could.
func (c *Crowd) rest(waited time.Duration) time.Duration {
	return min(max(waited/8, c.every(leastRest, mostRest/2)), mostRest)
}

// until asks until the answer is yes, or patience is over. A question under way is not cut
// off for that: its connection would be lost, and a server that is slow would have to take
// another one in addition.
func (c *Crowd) until(ctx context.Context, patience time.Duration, ask func(context.Context) (bool, error)) (bool, error) {
	for began := time.Now(); ; {
		yes, err := ask(ctx)
		waited := time.Since(began)
		if yes || err != nil || waited >= patience {
			return yes, err
		}
		if err := pause.For(ctx, c.rest(waited)); err != nil {
			return false, err
		}
	}
}

// Bounds of a rest.
const (
	leastRest = 5 * time.Millisecond
	mostRest  = 500 * time.Millisecond
)

// paceOf is how often an activity heartbeats to Temporal. Where many moves are under
// way its timeout is longer, see flow.BulkAmong, and so is the pace: each heartbeat is a
// write there.
func paceOf(timeout time.Duration) time.Duration {
	if timeout <= usualTimeout {
		return beatEvery
	}
	return timeout * 2 / 5 // one that is lost is no dead worker
}

// usualTimeout is the longest that an activity has which says every moment where it is.
const usualTimeout = 5 * time.Second

// beating runs work and says every moment what report says, until work has returned. A
// worker that stops, or a server that does not want the work any more, ends it.
func beating(ctx context.Context, report func() any, work func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	stopping := activity.GetWorkerStopChannel(ctx)
	pace, beaten := paceOf(activity.GetInfo(ctx).HeartbeatTimeout), time.Now()
	for {
		select {
		case err := <-done:
			report() // the end is kept; Temporal hears of it by the result
			if err != nil && errors.Is(context.Cause(ctx), errStopping) {
				return errStopping
			}
			return err
		case <-stopping:
			stopping = nil
			cancel(errStopping)
		case <-tick.C:
			said := report()
			if time.Since(beaten) >= pace-beatEvery/2 {
				activity.RecordHeartbeat(ctx, said)
				beaten = time.Now()
			}
		}
	}
}

// longestSilence is how rarely a crowd writes how far it has come: well within what
// the gate wants of the lanes' word.
const longestSilence = 3 * time.Second

// meter keeps the progress of one activity and writes it where people look.
type meter struct {
	a  *Activities
	id chunk.MigrationID

	mu      sync.Mutex
	now     contract.Progress
	last    contract.Progress // as it was reported
	written time.Time
}

func (a *Activities) meter(ref contract.Ref, step string) *meter {
	t := time.Now()
	return &meter{a: a, id: ref.Migration, now: contract.Progress{Step: step, Since: t, At: t}}
}

// update changes the progress.
func (m *meter) update(change func(*contract.Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.now)
}

// report works out the rates since the last report, and keeps it.
func (m *meter) report(ctx context.Context) contract.Progress {
	m.mu.Lock()
	m.now.At = time.Now()
	if d := m.now.At.Sub(m.last.At).Seconds(); !m.last.At.IsZero() && d > 0 {
		m.now.PerSecond = max(0, float64(m.now.Documents-m.last.Documents)/d)
		m.now.BytesPerSecond = max(0, float64(m.now.Bytes-m.last.Bytes)/d)
	}
	m.last = m.now
	p := m.now
	due := p.At.Sub(m.written) >= m.a.crowd.every(beatEvery/2, longestSilence)
	if due {
		m.written = p.At
	}
	m.mu.Unlock()
	if !due {
		return p
	}
	b, err := json.Marshal(p)
	if err == nil {
		err = m.a.words.keep(ctx, &m.a.crowd, m.a.Store, metadata.Word{Migration: m.id, Progress: b})
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) { // only people miss it
		m.a.Logger.WarnContext(ctx, "Progress is not kept", slog.Int64("migration", int64(m.id)), slog.Any("error", err))
	}
	return p
}

// beatingWith is [beating] with a meter.
func (m *meter) beating(ctx context.Context, work func(context.Context) error) error {
	defer m.a.crowd.join()()
	return beating(ctx, func() any { return m.report(context.WithoutCancel(ctx)) }, work)
}
