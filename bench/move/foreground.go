package main

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

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
	took   []time.Duration
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
				if n%2 == 0 {
					err = m.rows.FindOne(ctx, key).Err()
				} else {
					_, err = m.rows.UpdateOne(ctx, key, bson.D{{Key: "$inc", Value: bson.D{{Key: "seen", Value: 1}}}})
				}
				fg.note(time.Since(began), err, ctx.Err() != nil)
			}
		})
	}
	return fg, nil
}

// note keeps one operation.
func (f *foreground) note(took time.Duration, err error, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil && !over {
		f.failed = err
		return
	}
	f.took = append(f.took, took)
}

// take gives what was noted since it was called last.
func (f *foreground) take() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.took
	f.took = nil
	return out
}

// stop ends it.
func (f *foreground) stop() {
	f.cancel()
	f.group.Wait()
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
