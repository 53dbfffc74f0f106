package bulkimport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
	"drover/internal/stoppoint"
)

// Importer runs the import of one migration. All it does can be done again: what
// is stored is not read twice, what is loaded is not doubled.
type Importer struct {
	Migration chunk.MigrationID
	Source    Source
	Target    Target
	Bucket    Bucket
	Slices    Slices
	Limits    Limits
	Sort      map[string]Order // by collection, where another order is asked for than [ChooseOrder] gives
	Readers   int              // slices read at the same time, 2 when zero
	Loaders   int              // stretches loaded at the same time, 3 when zero
	// Progress is called after each piece of work it speaks of, by one goroutine
	// at a time; nil is allowed.
	Progress func(context.Context, Progress)
	// ReadPace and LoadPace make the import give way to others on the shard that is
	// read and on the one that is loaded; a load gives way on both. Nil does not.
	ReadPace *Throttle
	LoadPace *Throttle
	Budget   *Budget // of memory, shared by the imports of a process; nil: without bounds
	Stops    *stoppoint.Points

	mu       sync.Mutex
	progress Progress
}

// Progress is how far an import has come. Totals are estimates until a
// collection is stored.
type Progress struct {
	Collection     string    `json:"collection"`
	Stage          Stage     `json:"stage"`
	SlicesStored   int       `json:"slices_stored"`
	SlicesTotal    int       `json:"slices_total"`
	Documents      Documents `json:"documents"` // of the collection, in this stage
	Bytes          Bytes     `json:"bytes"`
	TotalDocuments Documents `json:"total_documents"`
	TotalBytes     Bytes     `json:"total_bytes"`
	Parked         Documents `json:"parked"`
	Held           string    `json:"held,omitempty"`  // what it gives way to
	Order          string    `json:"order,omitempty"` // by which the collection is loaded, and why
}

// Stage is what an import does with a collection.
type Stage string

// The stages.
const (
	Planning Stage = "planning"
	Storing  Stage = "storing"
	Loading  Stage = "loading"
)

// Result sums an import up.
type Result struct {
	Documents Documents        `json:"documents"`
	Bytes     Bytes            `json:"bytes"`
	Slices    int              `json:"slices"`
	Parked    Documents        `json:"parked"`
	Orders    map[string]Order `json:"orders"` // by collection
}

// Run imports collections one after another and returns when all is on the
// target, or with the first error. It resumes what an earlier run began.
func (i *Importer) Run(ctx context.Context, collections []chunk.Collection) (Result, error) {
	total := Result{Orders: map[string]Order{}}
	for _, c := range collections {
		if err := i.Store(ctx, c); err != nil {
			return total, err
		}
		one, err := i.Load(ctx, c.Name)
		if err != nil {
			return total, err
		}
		total.Documents += one.Documents
		total.Bytes += one.Bytes
		total.Slices += one.Slices
		total.Parked += one.Parked
		total.Orders[c.Name] = one.Orders[c.Name]
	}
	return total, nil
}

// Windows gives the windows of the migration's slices, once all are stored.
func (i *Importer) Windows(ctx context.Context) (Windows, error) {
	all, err := i.Slices.List(ctx, i.Migration)
	if err != nil {
		return Windows{}, fmt.Errorf("list slices of migration %d: %w", i.Migration, err)
	}
	return NewWindows(all)
}

// Store plans a collection and stores all its slices in S3.
func (i *Importer) Store(ctx context.Context, c chunk.Collection) error {
	known, err := i.Source.inspect(ctx, c.Name)
	if err != nil {
		return err
	}
	var expected size
	if err := i.gently(ctx, func(ctx context.Context) (err error) {
		expected, err = i.Source.size(ctx, known)
		return err
	}, i.ReadPace); err != nil {
		return err
	}
	limits := i.Limits.withDefaults()
	i.report(ctx, func(p *Progress) {
		*p = Progress{Collection: c.Name, Stage: Planning, TotalDocuments: expected.documents, TotalBytes: expected.bytes}
	})
	all, err := i.of(ctx, c.Name)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		plan, err := i.Source.plan(ctx, i.turns(ctx), known, Slice{Migration: i.Migration, Collection: c.Name}, limits.perSlice(expected))
		if err != nil {
			return err
		}
		if all, err = i.Slices.Plan(ctx, i.Migration, c.Name, plan); err != nil {
			return fmt.Errorf("record plan of %s: %w", c.Name, err)
		}
	}
	if err := i.Stops.At(ctx, "import.planned"); err != nil {
		return err
	}
	order := i.order(c, expected)
	i.report(ctx, func(p *Progress) { p.Order = order.Why })
	return i.storeAll(ctx, known, order, all, limits)
}

// order is the one that was asked for, else the one that fits the indexes.
func (i *Importer) order(c chunk.Collection, is size) Order {
	if asked, ok := i.Sort[c.Name]; ok {
		return asked
	}
	return ChooseOrder(c.Indexes, is.indexes)
}

// of lists the recorded slices of one collection.
func (i *Importer) of(ctx context.Context, name string) ([]Slice, error) {
	all, err := i.Slices.List(ctx, i.Migration)
	if err != nil {
		return nil, fmt.Errorf("list slices of migration %d: %w", i.Migration, err)
	}
	return slices.DeleteFunc(all, func(s Slice) bool { return s.Collection != name }), nil
}

// storeAll stores the slices that are only planned, those included that others
// leave behind when they are cut.
func (i *Importer) storeAll(ctx context.Context, c collection, order Order, all []Slice, limits Limits) error {
	for {
		if err := i.reportStored(ctx, all); err != nil {
			return err
		}
		planned := slices.DeleteFunc(slices.Clone(all), func(s Slice) bool { return s.State != Planned })
		if len(planned) == 0 {
			return nil
		}
		// Loading begins when all is stored: once it has begun, a slice that is only
		// planned is being read anew.
		_, anew, err := i.Bucket.recorded(ctx, beginKey(i.Migration, c.name))
		if err != nil {
			return err
		}
		first := keepTarget
		if anew {
			first = clearWhole
			if slices.ContainsFunc(all, func(s Slice) bool { return s.State == Loaded }) {
				first = clearSlice
			}
		}
		readers, inner := errgroup.WithContext(ctx)
		readers.SetLimit(atLeast(i.Readers, usualReaders))
		for _, s := range planned {
			readers.Go(func() error { return i.storeSlice(inner, c, order, s, limits, first) })
		}
		if err := readers.Wait(); err != nil {
			return err
		}
		if all, err = i.of(ctx, c.name); err != nil {
			return err
		}
	}
}

// storeSlice stores a slice, and what is left each time that its read is cut.
func (i *Importer) storeSlice(ctx context.Context, c collection, order Order, s Slice, limits Limits, first clearing) error {
	release, err := i.Budget.take(ctx, storeFactor*limits.Bytes)
	if err != nil {
		return err
	}
	defer release()
	if first != keepTarget {
		if err := retry(ctx, func(ctx context.Context) error { return i.Target.clear(ctx, c, s, first) }); err != nil {
			return err
		}
	}
	var read snapshot
	err = retry(ctx, func(ctx context.Context) (err error) {
		read, err = i.Source.read(ctx, i.turns(ctx), c, s, limits)
		return err
	})
	if err != nil {
		return err
	}
	done := s
	var rest *Slice
	if read.next != nil {
		left := s
		left.Lo, done.Hi, rest = read.next, read.next, &left
	}
	var r run
	err = i.gently(ctx, func(context.Context) (err error) { // a proxy may run on the same machine
		r, err = buildRun(done, order, read)
		return err
	}, i.ReadPace)
	if err != nil {
		return err
	}
	if err := i.upload(ctx, r); err != nil {
		return err
	}
	if err := i.Stops.At(ctx, "import.object-stored"); err != nil {
		return err
	}
	done.State, done.Object = Stored, r.object
	if err := i.Slices.Stored(ctx, done, rest); err != nil {
		return i.settle(ctx, s, fmt.Errorf("record %s as stored: %w", s, err))
	}
	if err := i.Stops.At(ctx, "import.stored"); err != nil {
		return err
	}
	i.report(ctx, func(p *Progress) {
		p.SlicesStored++
		if rest != nil {
			p.SlicesTotal++
		}
		p.Documents += done.Object.Documents
		p.Bytes += done.Object.Bytes
	})
	return nil
}

// upload puts a run into S3. It keeps no place at the throttle between two tries.
func (i *Importer) upload(ctx context.Context, r run) error {
	return retry(ctx, func(ctx context.Context) error {
		return i.pace(i.ReadPace).do(ctx, func(ctx context.Context) error { return r.store(ctx, i.Bucket) })
	})
}

// gently lets others on shards go first, and says so.
func (i *Importer) gently(ctx context.Context, work func(context.Context) error, throttles ...*Throttle) error {
	err := gently(ctx, work, throttles...)
	reason := ""
	for _, t := range throttles {
		reason = cmp.Or(reason, t.Reason())
	}
	i.mu.Lock()
	same := reason == i.progress.Held
	i.mu.Unlock()
	if !same {
		i.report(ctx, func(p *Progress) { p.Held = reason })
	}
	return err
}

// pace is that of work on no shard.
func (i *Importer) pace(throttles ...*Throttle) pace {
	return pace{
		others: func() bool { return piece(throttles...) > 0 },
		gently: func(ctx context.Context, work func(context.Context) error) error {
			return i.gently(ctx, work, throttles...)
		},
	}
}

// turns are those of one read of the source.
func (i *Importer) turns(ctx context.Context) turns {
	return turns{piece: i.ReadPace.piece, take: func(work func(context.Context) error) error { return i.gently(ctx, work, i.ReadPace) }}
}

// loading are the throttles of a load, in an order that all imports have. The
// applications of what is moved are on the source: whatever it is that slows them down,
// the load gives way to them too.
func (i *Importer) loading() []*Throttle {
	both := slices.DeleteFunc([]*Throttle{i.ReadPace, i.LoadPace}, func(t *Throttle) bool { return t == nil })
	slices.SortFunc(both, func(a, b *Throttle) int { return cmp.Compare(a.Name, b.Name) })
	return slices.Compact(both)
}

// settle asks whether a slice is stored after all: the answer may have been
// lost, or another run was faster. Whichever object is recorded is the one.
func (i *Importer) settle(ctx context.Context, s Slice, cause error) error {
	all, err := i.of(ctx, s.Collection)
	if err != nil {
		return errors.Join(cause, err)
	}
	for _, now := range all {
		if now.Number == s.Number && now.State != Planned {
			return nil
		}
	}
	return cause
}

// reportStored sets the progress to what is recorded.
func (i *Importer) reportStored(ctx context.Context, all []Slice) error {
	if len(all) == 0 {
		return failure.New(failure.Transient, "import.no_plan", "migration %d has no slices", i.Migration)
	}
	i.report(ctx, func(p *Progress) {
		p.Stage, p.SlicesTotal, p.SlicesStored, p.Documents, p.Bytes = Storing, len(all), 0, 0, 0
		for _, s := range all {
			if s.State != Planned {
				p.SlicesStored++
				p.Documents += s.Object.Documents
				p.Bytes += s.Object.Bytes
			}
		}
	})
	return nil
}

// report changes the progress and tells it.
func (i *Importer) report(ctx context.Context, change func(*Progress)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(&i.progress)
	if i.Progress != nil {
		i.Progress(ctx, i.progress)
	}
}

// usualReaders is how many slices are read at the same time.
const usualReaders = 2

// atLeast gives n, or what is usual when the caller left it open.
func atLeast(n, usual int) int {
	if n <= 0 {
		return usual
	}
	return n
}

// How long a piece of work is tried again before the error goes to the caller,
// whose own retries can be slower.
const (
	retryFor   = time.Minute
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// retry runs work until it succeeds, fails for good, or retryFor is over since it
// first failed: the work may wait for its turn.
func retry(ctx context.Context, work func(context.Context) error) error {
	var end time.Time
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := work(ctx)
		if err == nil || ctx.Err() != nil || !again(err) {
			return refused(err)
		}
		now := time.Now()
		if end.IsZero() {
			end = now.Add(retryFor)
		}
		if now.After(end) {
			return refused(err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// transactionTooLargeForCache is a server's word that its cache is full. It holds
// for good for a transaction that writes; one that only reads, as those here do,
// finds room again when others have ended.
const transactionTooLargeForCache = 388

// again reports whether the same work may succeed soon.
func again(err error) bool {
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return false
	}
	return mongocode.IsRetryable(err) || mongocode.IsSnapshotGone(err) || mongocode.IsCursorNotFound(err) ||
		mongocode.IsNoSuchTransaction(err) || mongocode.Has(err, transactionTooLargeForCache)
}

// refused names an error of a role that is gone: this run is late.
func refused(err error) error {
	if err == nil || !mongocode.IsUnauthorized(err) {
		return err
	}
	return failure.New(failure.Lost, "import.refused", "the shard refuses this migration's import: %w", err).
		WithHint("its role is dropped once the import is over: a newer run has finished, or the migration was aborted")
}
