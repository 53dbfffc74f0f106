package demo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/demo/workload"
	"drover/devstack"
	"drover/metadata"
	"drover/starter"
)

// Fleet is the demonstration's stack, workers, proxies and database, for what
// measures them: without the real rows and without the application.
type Fleet struct{ d *demo }

// StartFleet starts everything. Close it also when it fails.
func StartFleet(ctx context.Context, o Options) (*Fleet, error) {
	f := &Fleet{d: &demo{o: o, report: Report{Started: time.Now()}}}
	for _, step := range []func(context.Context) error{f.d.startStack, f.d.connect, f.d.startProcesses, f.d.createDatabase} {
		if err := step(ctx); err != nil {
			return f, err
		}
	}
	return f, f.nameOrigins()
}

// Close stops everything.
func (f *Fleet) Close(ctx context.Context) { f.d.tearDown(ctx) }

// Hot is the route, as it was made, of the chunk that is to move; Target is the
// shard that it has no part on.
func (f *Fleet) Hot() chunk.Route { return f.d.hot }

// Target is the shard to move to.
func (f *Fleet) Target() string { return target }

// Starter steers the moves.
func (f *Fleet) Starter() *starter.Starter { return f.d.starter }

// Store is the metadata.
func (f *Fleet) Store() *metadata.Store { return f.d.store }

// Say prints a line with the time since the start.
func (f *Fleet) Say(format string, args ...any) { f.d.say(format, args...) }

// nameOrigins finds shard keys within the hot chunk and beside it.
func (f *Fleet) nameOrigins() error {
	for i := 0; len(f.d.hotOrigins) < 20 || len(f.d.origins) < 60; i++ {
		name := fmt.Sprintf("K%04d", i)
		hot, err := inChunk(f.d.hot, name)
		if err != nil {
			return err
		}
		if hot {
			f.d.hotOrigins = append(f.d.hotOrigins, name)
		} else {
			f.d.origins = append(f.d.origins, name)
		}
	}
	return nil
}

// filler is a document that only takes room.
type filler struct {
	ID     int    `bson:"_id"`
	Origin string `bson:"origin"`
	Pad    []byte `bson:"pad"`
}

// Fill makes the hot chunk so many bytes larger.
func (f *Fleet) Fill(ctx context.Context, bytes int64) error {
	const pad, batch = 10_000, 100
	client, err := workload.Connect(f.d.uri())
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	coll := client.Database(database).Collection(rows)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for from := 0; int64(from)*pad < bytes; from += batch {
		g.Go(func() error {
			docs := make([]any, 0, batch)
			for i := from; i < from+batch; i++ {
				docs = append(docs, filler{ID: i, Origin: f.d.hotOrigins[i%len(f.d.hotOrigins)], Pad: make([]byte, pad)})
			}
			_, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("fill the chunk: %w", err)
	}
	return nil
}

// Run starts the application; hotShare of its operations go to the hot chunk.
func (f *Fleet) Run(ctx context.Context, hotShare float64) (*workload.Workload, error) {
	w, err := workload.Start(ctx, workload.Config{
		URI: f.d.uri(), Database: database, Clients: f.d.o.Clients, Rate: f.d.o.Rate, Origins: f.d.origins, HotOrigins: f.d.hotOrigins,
		HotShare: hotShare, Documents: 40, Seed: 1,
	})
	if err != nil {
		return nil, err
	}
	f.d.work = w
	return w, nil
}

// URI names the proxies, as an application would.
func (f *Fleet) URI() string { return f.d.uri() }

// HotOrigins are shard keys in the chunk that is to move.
func (f *Fleet) HotOrigins() []string { return f.d.hotOrigins }

// Stack is where the servers are.
func (f *Fleet) Stack() *devstack.Stack { return f.d.stack }

// Workers are the processes of the workers.
func (f *Fleet) Workers() (pids []int) {
	for _, c := range f.d.children[:min(workerProcesses, len(f.d.children))] {
		pids = append(pids, c.cmd.Process.Pid)
	}
	return pids
}

// Names of the collection that is filled.
const (
	Database = database
	Rows     = rows
)
