package bulkimport

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"drover/internal/failure"
)

// mergeBytes is about what all merges of one collection hold in memory.
const mergeBytes = 96 * MiB

// requestsAtOnce bounds the requests to S3 under way.
const requestsAtOnce = 16

// Load puts a collection's stored slices on the target, in the order that they
// are sorted by, and marks them loaded. It refuses while one is only planned, and
// leaves alone what is loaded: lanes may have changed it since.
func (i *Importer) Load(ctx context.Context, name string) (Result, error) {
	result := Result{Orders: map[string]Order{}}
	all, err := i.of(ctx, name)
	if err != nil {
		return result, err
	}
	if len(all) == 0 {
		return result, failure.New(failure.Transient, "import.no_plan", "%s of migration %d has no slices", name, i.Migration)
	}
	if _, err := NewWindows(all); err != nil {
		return result, err
	}
	var left []Slice
	var want loadedStretch
	for _, s := range all {
		result.Slices++
		result.Documents += s.Object.Documents
		result.Bytes += s.Object.Bytes
		if s.State != Loaded {
			left = append(left, s)
			want.Documents += s.Object.Documents
			want.Bytes += s.Object.Bytes
		}
	}
	if len(left) == 0 {
		m, err := loadManifest(ctx, i.Bucket, all[0])
		result.Orders[name] = m.Order
		return result, err
	}
	i.report(ctx, func(p *Progress) {
		*p = Progress{
			Collection: name, Stage: Loading, SlicesStored: len(all), SlicesTotal: len(all),
			TotalDocuments: want.Documents, TotalBytes: want.Bytes, Order: p.Order,
		}
	})
	groups, err := i.manifests(ctx, left)
	if err != nil {
		return result, err
	}
	result.Orders[name] = groups[0][0].manifest.Order
	if err := i.Bucket.record(ctx, beginKey(i.Migration, name), loadedStretch{}); err != nil {
		return result, err
	}
	sum, err := i.loadGroups(ctx, name, groups)
	if err != nil {
		return result, err
	}
	result.Parked = sum.Parked
	if sum.Documents != want.Documents || sum.Bytes != want.Bytes {
		return result, failure.New(failure.Mismatch, "import.count", "%s: %d documents with %d bytes were loaded, %d with %d were stored",
			name, sum.Documents, sum.Bytes, want.Documents, want.Bytes)
	}
	if err := i.Stops.At(ctx, "import.before-loaded"); err != nil {
		return result, err
	}
	if err := i.Slices.Loaded(ctx, i.Migration, name); err != nil {
		return result, fmt.Errorf("record %s as loaded: %w", name, err)
	}
	return result, nil
}

// manifests reads the manifests of stored slices, grouped by the order they are
// sorted by: one group, unless the indexes changed in between.
func (i *Importer) manifests(ctx context.Context, all []Slice) ([][]stored, error) {
	runs := make([]stored, len(all))
	readers, inner := errgroup.WithContext(ctx)
	readers.SetLimit(requestsAtOnce)
	for n, s := range all {
		readers.Go(func() error {
			return retry(inner, func(ctx context.Context) error {
				m, err := loadManifest(ctx, i.Bucket, s)
				runs[n] = stored{s, m}
				return err
			})
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, err
	}
	var groups [][]stored
next:
	for _, r := range runs {
		for n := range groups {
			if groups[n][0].manifest.Order.Equal(r.manifest.Order) {
				groups[n] = append(groups[n], r)
				continue next
			}
		}
		groups = append(groups, []stored{r})
	}
	return groups, nil
}

// loadGroups loads groups of runs one after the other.
func (i *Importer) loadGroups(ctx context.Context, name string, groups [][]stored) (sum loadedStretch, err error) {
	for _, runs := range groups {
		done, err := i.loadRuns(ctx, name, runs)
		if err != nil {
			return sum, err
		}
		sum.Documents += done.Documents
		sum.Bytes += done.Bytes
		sum.Parked += done.Parked
	}
	return sum, nil
}

// loadRuns loads runs that are sorted alike.
func (i *Importer) loadRuns(ctx context.Context, name string, runs []stored) (sum loadedStretch, err error) {
	from, err := newReader(i.Bucket, requestsAtOnce, i.pace(i.loading()...))
	if err != nil {
		return sum, err
	}
	defer from.close()
	workers := atLeast(i.Loaders, 3)
	parts := stretches(runs)
	release, err := i.Budget.take(ctx, loadNeeds(runs, workers))
	if err != nil {
		return sum, err
	}
	defer release()
	done := make([]loadedStretch, len(parts))
	loaders, inner := errgroup.WithContext(ctx)
	loaders.SetLimit(workers)
	group := max(frameBytes, min(MiB, mergeBytes/Bytes(2*workers*len(runs))))
	for n, part := range parts {
		loaders.Go(func() error {
			one, err := i.loadStretch(inner, name, from, runs, part, group)
			done[n] = one
			return err
		})
	}
	if err := loaders.Wait(); err != nil {
		return sum, err
	}
	for _, one := range done {
		sum.Documents += one.Documents
		sum.Bytes += one.Bytes
		sum.Parked += one.Parked
	}
	return sum, nil
}

// loadNeeds is what a load holds at most: a part of what is to be loaded, or what
// its merges and batches are bounded by.
func loadNeeds(runs []stored, workers int) Bytes {
	total := Bytes(0)
	for _, r := range runs {
		total += r.manifest.Bytes
	}
	merges := max(mergeBytes, 2*frameBytes*Bytes(len(runs)*workers))
	return min(loadFactor*total, merges+loadFactor*batchBytes*Bytes(workers))
}

// loadStretch loads one stretch, unless that is recorded as done.
func (i *Importer) loadStretch(ctx context.Context, name string, from *reader, runs []stored, s stretch, group Bytes) (loadedStretch, error) {
	key := recordKey(runs, s)
	done, ok, err := i.Bucket.recorded(ctx, key)
	if err != nil {
		return done, err
	}
	if ok {
		i.report(ctx, func(p *Progress) {
			p.Documents += done.Documents
			p.Bytes += done.Bytes
			p.Parked += done.Parked
		})
		return done, nil
	}
	done = loadedStretch{Lo: []byte(s.within.Lo), Hi: []byte(s.within.Hi)}

	ctx, cancel := context.WithCancel(ctx)
	m, cursors, err := newMerge(ctx, from, runs, s.within, group)
	defer func() {
		cancel()
		for _, c := range cursors {
			c.finish()
		}
	}()
	if err != nil {
		return done, err
	}
	paces := i.loading()
	b := batch{share: piece(paces...)}
	for {
		e, ok, err := m.next(ctx)
		if err != nil {
			return done, err
		}
		if !ok {
			break
		}
		if !b.takes(e.doc) {
			if err := i.loadBatch(ctx, name, &b, &done, paces); err != nil {
				return done, err
			}
		}
		b.add(e.doc)
	}
	if err := i.loadBatch(ctx, name, &b, &done, paces); err != nil {
		return done, err
	}
	if err := i.Bucket.record(ctx, key, done); err != nil {
		return done, err
	}
	return done, i.Stops.At(ctx, "import.stretch-loaded")
}

// loadBatch inserts a batch as throttles allow, empties it and counts it. It keeps no
// place at a throttle between two tries.
func (i *Importer) loadBatch(ctx context.Context, name string, b *batch, done *loadedStretch, paces []*Throttle) error {
	if len(b.docs) == 0 {
		return nil
	}
	var parked Documents
	err := retry(ctx, func(ctx context.Context) error {
		return i.gently(ctx, func(ctx context.Context) (err error) {
			parked, err = i.Target.insert(ctx, i.Migration, name, b.docs)
			return err
		}, paces...)
	})
	if err != nil {
		return err
	}
	if err := i.Stops.At(ctx, "import.inserted"); err != nil {
		return err
	}
	done.Documents += Documents(len(b.docs))
	done.Bytes += b.bytes
	done.Parked += parked
	i.report(ctx, func(p *Progress) {
		p.Documents += Documents(len(b.docs))
		p.Bytes += b.bytes
		p.Parked += parked
	})
	b.reset()
	b.share = piece(paces...)
	return nil
}
