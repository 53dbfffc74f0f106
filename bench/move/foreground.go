package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/contract"
	"drover/internal/pause"
)

// The paced application.
const (
	foregroundClients = 8
	foregroundRate    = 300 // operations per second, half of them updates
	lagClients        = 16
)

// foreground is an application that is measured.
type foreground struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
	mu     sync.Mutex
	took   [2][]time.Duration // of reads and of updates
	failed error
}

// startForeground lets it run on the documents of the chunk.
func startForeground(ctx context.Context, m *onFleet) (*foreground, error) {
	ctx, cancel := context.WithCancel(ctx)
	fg := &foreground{cancel: cancel}
	every := time.Second * foregroundClients / foregroundRate
	total := int(fleetDocuments * m.b.o.scale)
	for c := range foregroundClients {
		fg.group.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for n := c; ; n += 7919 {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				i := n % total
				key := bson.D{{Key: "_id", Value: i}, {Key: "origin", Value: m.origin(i)}}
				began := time.Now()
				var err error
				kind := n % 2
				if kind == 0 {
					err = m.rows.FindOne(ctx, key).Err()
				} else {
					_, err = m.rows.UpdateOne(ctx, key, bson.D{{Key: "$inc", Value: bson.D{{Key: "seen", Value: 1}}}})
				}
				fg.note(kind, time.Since(began), err, ctx.Err() != nil)
			}
		})
	}
	return fg, nil
}

// note keeps one operation.
func (f *foreground) note(kind int, took time.Duration, err error, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && !over {
		f.failed = err
		return
	}
	f.took[kind] = append(f.took[kind], took)
}

// take gives what was noted since it was called last.
func (f *foreground) take() felt {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := felt{reads: f.took[0], updates: f.took[1]}
	f.took = [2][]time.Duration{}
	return out
}

// felt is what an application's operations took.
type felt struct {
	reads, updates []time.Duration
	tails          []time.Duration // p99 of each stretch of [stretchFor]
}

// add takes in what was felt later.
func (f *felt) add(more felt) {
	f.reads = append(f.reads, more.reads...)
	f.updates = append(f.updates, more.updates...)
}

// stretch takes in a stretch of the time. One that ended early, or in which nothing was
// done, has no say in what is usual.
func (f *felt) stretch(more felt, lasted time.Duration) {
	f.add(more)
	if lasted < stretchFor/2 || len(more.reads)+len(more.updates) == 0 {
		return
	}
	f.tails = append(f.tails, time.Duration(more.p99()*float64(time.Millisecond)))
}

// usual is p99 of a stretch at the median, in milliseconds: what servers do once in a
// minute decides p99 of all, and may fall into one of two times that are compared.
func (f *felt) usual() float64 { return quantile(f.tails, 0.5) }

// p99 is that of all operations, in milliseconds.
func (f *felt) p99() float64 { return quantile(slices.Concat(f.reads, f.updates), 0.99) }

// String shows how many there were, and their tails.
func (f *felt) String() string {
	return fmt.Sprintf("%d operations, p99 %.1f ms (reads %.1f, updates %.1f), median %.1f ms",
		len(f.reads)+len(f.updates), f.p99(), quantile(f.reads, 0.99), quantile(f.updates, 0.99), quantile(slices.Concat(f.reads, f.updates), 0.5))
}

// stop ends it.
func (f *foreground) stop() {
	f.cancel()
	f.group.Wait()
}

// How the application is looked at.
const (
	warmFor   = 5 * time.Second
	beforeFor = time.Minute // servers make checkpoints that often
	feelEvery = 100 * time.Millisecond

	stretchFor = 5 * time.Second
)

// importUnderLoad compares what a paced application feels before and while the
// chunk that it uses is imported, with the throttle as it is by default.
func (m *onFleet) importUnderLoad(ctx context.Context) error {
	fg, err := startForeground(ctx, m)
	if err != nil {
		return err
	}
	defer fg.stop()
	if err := pause.For(ctx, warmFor); err != nil {
		return err
	}
	fg.take()
	var before felt
	for range beforeFor / stretchFor {
		if err := pause.For(ctx, stretchFor); err != nil {
			return err
		}
		before.stretch(fg.take(), stretchFor)
	}
	m.b.say("before the move: %s", &before)
	_, err = m.f.Starter().Migrate(ctx, contract.MigrateInput{
		Chunk: m.id, To: m.f.Target(), Approval: contract.Manual, Complete: contract.Manual, RequestedBy: "bench/move",
	})
	if err != nil {
		return err
	}
	during, took, err := m.feelImport(ctx, fg)
	if err != nil {
		return err
	}
	m.b.set("foreground_p99_before_ms", before.p99())
	m.b.set("foreground_p99_during_ms", during.p99())
	m.b.ratio("foreground_p99_ratio", during.p99(), before.p99())
	m.b.set("foreground_usual_p99_before_ms", before.usual())
	m.b.set("foreground_usual_p99_during_ms", during.usual())
	m.b.ratio("foreground_usual_p99_ratio", during.usual(), before.usual())
	m.b.ratio("foreground_reads_p99_ratio", quantile(during.reads, 0.99), quantile(before.reads, 0.99))
	m.b.ratio("foreground_updates_p99_ratio", quantile(during.updates, 0.99), quantile(before.updates, 0.99))
	m.b.set("foreground_ops_per_s_during", float64(len(during.reads)+len(during.updates))/took.Seconds())
	st, err := m.until(ctx, "the import", func(st contract.Status) bool { return st.Import != nil })
	if err != nil {
		return err
	}
	m.b.set("import_docs_per_s_throttled", float64(st.Import.Documents)/took.Seconds())
	return fg.failed
}

// feelImport takes what the application feels from the first of an import to its
// last, by what the metadata has of the move: to ask the move itself is work for the
// machine that is measured.
func (m *onFleet) feelImport(ctx context.Context, fg *foreground) (all felt, took time.Duration, err error) {
	tick := time.NewTicker(feelEvery)
	defer tick.Stop()
	var began, stretched time.Time
	var stage, said string
	var one, stretch felt
	for {
		select {
		case <-ctx.Done():
			return all, 0, ctx.Err()
		case <-tick.C:
		}
		open, ok, err := m.f.Store().OpenMigration(ctx, m.id)
		if err != nil {
			return all, 0, err
		}
		var p contract.Progress
		if ok && len(open.Progress) > 0 {
			if err := json.Unmarshal(open.Progress, &p); err != nil {
				return all, 0, err
			}
		}
		now, _, _ := strings.Cut(p.Detail, ":")
		switch importing := ok && open.Phase == chunk.Importing; {
		case !importing && began.IsZero(): // not yet
			fg.take()
			continue
		case importing && began.IsZero():
			began, stretched = time.Now(), time.Now()
			fg.take()
		case importing && p.Limit != said:
			said = p.Limit
			m.b.say("held by: %s", cmp.Or(said, "nothing"))
		}
		lately := fg.take()
		stretch.add(lately)
		one.add(lately)
		if lasted := time.Since(stretched); open.Phase != chunk.Importing || lasted >= stretchFor {
			all.stretch(stretch, lasted)
			stretch, stretched = felt{}, time.Now()
		}
		if over := ok && open.Phase != chunk.Importing; over || now != stage {
			m.b.say("%s: %s", cmp.Or(stage, "to begin"), &one)
			if stage, one = now, (felt{}); over {
				return all, time.Since(began), nil
			}
		}
	}
}

// updateMany updates documents one after another in bulk, n times; the last one of
// each bulk says so.
func updateMany(ctx context.Context, c *mongo.Collection, n, documents int, what string, filter func(int) bson.D) error {
	const bulk = 500
	for from := 0; from < n; from += bulk {
		var models []mongo.WriteModel
		for i := from; i < min(from+bulk, n); i++ {
			set := bson.D{{Key: "v", Value: i}}
			if i == from || i == min(from+bulk, n)-1 {
				set = append(set, bson.E{Key: "last", Value: what})
			}
			models = append(models, mongo.NewUpdateOneModel().SetFilter(filter(i%documents)).SetUpdate(bson.D{{Key: "$set", Value: set}}))
		}
		if _, err := c.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(true)); err != nil {
			return err
		}
	}
	return nil
}

// pacedWrites updates single documents at a rate and gives the rate that was reached.
func pacedWrites(ctx context.Context, m *onFleet, rate int, length time.Duration) (float64, error) {
	every := time.Second * lagClients / time.Duration(rate)
	began := time.Now()
	var mu sync.Mutex
	done := 0
	g, ctx := errgroup.WithContext(ctx)
	for c := range lagClients {
		g.Go(func() error {
			next := began
			for n := c; time.Since(began) < length; n += lagClients {
				if err := pause.For(ctx, time.Until(next)); err != nil {
					return err
				}
				next = next.Add(every)
				i := n % changed
				_, err := m.rows.UpdateOne(ctx, bson.D{{Key: "_id", Value: i}, {Key: "origin", Value: m.origin(i)}},
					bson.D{{Key: "$inc", Value: bson.D{{Key: "seen", Value: 1}}}})
				if err != nil {
					return err
				}
				mu.Lock()
				done++
				mu.Unlock()
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(done) / time.Since(began).Seconds(), err
}
