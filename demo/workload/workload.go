// Package workload is a live application with a memory: it writes and reads
// through the proxies with the official driver, keeps its own model of every
// acknowledged operation, and in the end compares every document with it.
package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Collection is the collection that the application lives in. Its shard key is
// origin; {origin, ref} is unique.
const Collection = "bookings"

// Config describes the application.
type Config struct {
	URI        string   // of the proxies, a seed list
	Database   string   // logical database
	Clients    int      // goroutines; each owns its documents
	Rate       int      // operations per second of all clients together, open loop
	Origins    []string // shard-key values to use
	HotOrigins []string // those in the chunk that moves
	HotShare   float64  // share of the operations that goes there
	Documents  int      // documents that each client starts with
	Guarded    bool     // $inc carries its operation id in the filter: for dev shards that forget retried writes at a restart
	Seed       uint64
}

// Workload is the running application.
type Workload struct {
	cfg     Config
	client  *mongo.Client
	coll    *mongo.Collection
	clients []*owner

	began    time.Time
	stop     atomic.Bool
	finished sync.WaitGroup
	paused   sync.RWMutex // held for reading during each operation

	acked    atomic.Int64
	errors   atomic.Int64
	stale    atomic.Int64
	firstErr atomic.Pointer[string]
	lastErr  atomic.Pointer[string]
	gaps     gapRecorder
}

// Connect opens the driver as an application would: retryable writes and reads,
// majority.
func Connect(uri string) (*mongo.Client, error) {
	o := options.Client().ApplyURI(uri).SetAppName("drover-workload").
		SetWriteConcern(writeconcern.Majority()).SetReadConcern(readconcern.Majority()).
		SetMaxPoolSize(128).SetServerSelectionTimeout(15 * time.Second)
	c, err := mongo.Connect(o)
	if err != nil {
		return nil, fmt.Errorf("connect to the proxies: %w", err)
	}
	return c, nil
}

// Start inserts the first documents and lets the application run.
func Start(ctx context.Context, cfg Config) (*Workload, error) {
	c, err := Connect(cfg.URI)
	if err != nil {
		return nil, err
	}
	w := &Workload{cfg: cfg, client: c, coll: c.Database(cfg.Database).Collection(Collection)}
	for i := range cfg.Clients {
		w.clients = append(w.clients, newOwner(w, i, rand.New(rand.NewPCG(cfg.Seed, uint64(i))))) //nolint:gosec // a workload, not a secret
	}
	var wg sync.WaitGroup
	errs := make(chan error, cfg.Clients)
	for _, o := range w.clients {
		wg.Go(func() { errs <- o.populate(ctx) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return nil, fmt.Errorf("insert the first documents: %w", err)
		}
	}
	w.began = time.Now()
	for i, o := range w.clients {
		w.finished.Go(func() { w.drive(ctx, i, o) })
	}
	return w, nil
}

// drive runs one client's share of the schedule. A client that is late does its
// next operations at once: held requests do not lower the rate.
func (w *Workload) drive(ctx context.Context, i int, o *owner) {
	every := time.Duration(float64(time.Second) * float64(w.cfg.Clients) / float64(w.cfg.Rate))
	next := w.began.Add(every * time.Duration(i) / time.Duration(w.cfg.Clients))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !w.stop.Load() && ctx.Err() == nil {
		if wait := time.Until(next); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
		next = next.Add(every)
		w.paused.RLock()
		o.operate(context.WithoutCancel(ctx)) // a stop never cuts an operation in two
		w.paused.RUnlock()
	}
}

// Stop ends the application and waits for its last operations.
func (w *Workload) Stop() {
	w.stop.Store(true)
	w.finished.Wait()
}

// Pause waits until no operation is under way and lets none begin until resume
// is called: [Workload.Check] may be used meanwhile.
func (w *Workload) Pause() (resume func()) {
	w.paused.Lock()
	return w.paused.Unlock
}

// Close disconnects.
func (w *Workload) Close(ctx context.Context) error { return w.client.Disconnect(ctx) }

// Acknowledged counts the operations that succeeded.
func (w *Workload) Acknowledged() int64 { return w.acked.Load() }

// Rate is the acknowledged operations per second since the start.
func (w *Workload) Rate() float64 { return float64(w.acked.Load()) / time.Since(w.began).Seconds() }

// Errors counts what the application saw after all of the driver's retries.
func (w *Workload) Errors() (n int64, first string) {
	if p := w.firstErr.Load(); p != nil {
		first = *p
	}
	return w.errors.Load(), first
}

// LastError is the newest of them; empty: there was none.
func (w *Workload) LastError() string {
	if p := w.lastErr.Load(); p != nil {
		return *p
	}
	return ""
}

// fail counts an error that reached the application.
func (w *Workload) fail(op string, err error) {
	text := op + ": " + err.Error()
	w.firstErr.CompareAndSwap(nil, &text)
	w.lastErr.Store(&text)
	w.errors.Add(1)
}

// Pause is the longest gap between acknowledged operations on the moving chunk.
type Pause struct {
	Writes  time.Duration `json:"-"`
	Reads   time.Duration `json:"-"`
	Since   time.Time     `json:"-"`            // the last write before the gap was acknowledged
	Slowest time.Duration `json:"-"`            // of the writes that were acknowledged in the span, from its begin
	Acked   int           `json:"acknowledged"` // operations on the chunk in the span
}

// Pauses finds the longest gaps around a span, all clients together.
func (w *Workload) Pauses(from, to time.Time) Pause { return w.gaps.longest(from, to) }

// gapRecorder remembers when operations on the moving chunk were acknowledged.
type gapRecorder struct {
	mu     sync.Mutex
	writes []acknowledged
	reads  []acknowledged
}

// acknowledged is one operation.
type acknowledged struct {
	at   time.Time
	took time.Duration
}

func (g *gapRecorder) note(write bool, began time.Time) {
	a := acknowledged{at: time.Now()}
	a.took = a.at.Sub(began)
	g.mu.Lock()
	defer g.mu.Unlock()
	if write {
		g.writes = append(g.writes, a)
	} else {
		g.reads = append(g.reads, a)
	}
}

func (g *gapRecorder) longest(from, to time.Time) Pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	w, r := gapOf(g.writes, from, to), gapOf(g.reads, from, to)
	return Pause{Writes: w.longest, Reads: r.longest, Since: w.since, Slowest: w.slowest, Acked: w.n + r.n}
}

// gap is what a span shows of one kind of operation.
type gap struct {
	longest, slowest time.Duration
	since            time.Time // the longest
	n                int
}

// gapOf looks at the acknowledgements between from and to; the ends count as
// acknowledgements, so that silence is never a short pause.
func gapOf(all []acknowledged, from, to time.Time) gap {
	out, last := gap{}, from
	until := func(t time.Time) {
		if t.Sub(last) > out.longest { // appended under a lock: in order but for scheduling
			out.longest, out.since = t.Sub(last), last
		}
		if t.After(last) {
			last = t
		}
	}
	for _, a := range all {
		if a.at.Before(from) || a.at.After(to) {
			continue
		}
		out.n++
		out.slowest = max(out.slowest, a.took)
		until(a.at)
	}
	until(to)
	return out
}
