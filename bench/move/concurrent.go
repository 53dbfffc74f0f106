package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"drover/bench/loads"
	"drover/chunk"
	"drover/contract"
	"drover/demo"
	"drover/demo/workload"
	"drover/internal/pause"
	"drover/metadata"
	"drover/starter"
	"drover/workers"
)

// manyDB is the database of many small chunks, each of so many documents or about.
const (
	manyDB       = "many"
	manyPerChunk = 20
)

// How many moves are looked at: so often, and so many times more once all wait.
const (
	lookEvery = 2 * time.Second
	manyLooks = 10
)

// measureConcurrent moves many small chunks at once and looks at the workers' memory
// and the length of the histories while the lanes of all of them run.
func measureConcurrent(ctx context.Context, b *bench) error {
	f, err := demo.StartFleet(ctx, demo.Options{
		Self: b.o.self, Dir: filepath.Join(b.o.dir, "fleet"), Out: b.out, Rate: 1, Clients: 1, LookupEnv: os.LookupEnv,
	})
	defer f.Close(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	ids, err := createMany(ctx, b, f)
	if err != nil {
		return err
	}
	began := time.Now()
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, id := range ids {
		g.Go(func() error {
			_, err := f.Starter().Migrate(inner, contract.MigrateInput{
				Chunk: id, To: f.Target(), Approval: contract.Manual, Complete: contract.Manual, RequestedBy: "bench/move",
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	b.say("%d moves are started in %s", len(ids), time.Since(began).Round(time.Millisecond))
	seen, err := watchMany(ctx, b, f, len(ids))
	if err != nil {
		return err
	}
	b.set("concurrent_moves", seen.most)
	b.set("concurrent_ready", seen.ready)
	b.set("worker_rss_mb", seen.rss)
	b.set("concurrent_seconds", time.Since(began).Seconds())
	longest, err := longestHistory(ctx, f, ids)
	if err != nil {
		return err
	}
	b.set("concurrent_history_events", longest)
	return nil
}

// createMany makes the database and fills it.
func createMany(ctx context.Context, b *bench, f *demo.Fleet) ([]chunk.ID, error) {
	spec, err := bson.Marshal(bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}, {Key: "n", Value: 1}}}, {Key: "name", Value: "k_n"}})
	if err != nil {
		return nil, err
	}
	db := chunk.Database{Name: manyDB, KeySpace: chunk.Hashed, Collections: []chunk.Collection{{Name: "docs", ShardKey: "k", Indexes: []bson.Raw{spec}}}}
	var cut []metadata.NewChunk
	for _, r := range chunk.Hashed.Split(b.o.moves) {
		cut = append(cut, metadata.NewChunk{Range: r, Shard: "shard-a"})
	}
	began := time.Now()
	routes, err := workers.CreateDatabase(ctx, f.Store(), f.Stack().Secret, db, cut)
	if err != nil {
		return nil, err
	}
	b.say("%d chunks are made in %s", len(routes), time.Since(began).Round(time.Millisecond))
	var ids []chunk.ID
	for _, r := range routes {
		ids = append(ids, r.Chunk.ID)
	}
	client, err := workload.Connect(f.URI())
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	docs := client.Database(manyDB).Collection("docs")
	const atOnce = 200
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for from := 0; from < manyPerChunk*b.o.moves; from += atOnce {
		g.Go(func() error {
			var some []any
			for n := from; n < min(from+atOnce, manyPerChunk*b.o.moves); n++ {
				some = append(some, bson.D{{Key: "_id", Value: n}, {Key: "k", Value: fmt.Sprintf("k%06d", n)}, {Key: "n", Value: n}, {Key: "pad", Value: strings.Repeat("x", loads.Padding)}})
			}
			_, err := docs.InsertMany(inner, some, options.InsertMany().SetOrdered(false))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("fill the chunks: %w", err)
	}
	b.say("%d documents are in them", manyPerChunk*b.o.moves)
	return ids, nil
}

// crowd is what was seen of many moves so far.
type crowd struct {
	most, ready int // with lanes that ran, and at the switch, at the same time
	rss         float64
	asks        map[string]int // attention, by what it says
	last        string
}

// look notes how the moves stand at a moment.
func (c *crowd) look(b *bench, f *demo.Fleet, moves []metadata.MoveFigures) {
	phases, running, asking := map[chunk.Phase]int{}, 0, 0
	c.asks = map[string]int{}
	for _, m := range moves {
		phases[m.Phase]++
		if m.LanesAge != nil && *m.LanesAge < 10 {
			running++
		}
		if m.Attention != "" {
			c.asks[m.Attention]++
			asking++
		}
	}
	c.most, c.ready = max(c.most, running), phases[chunk.Switching]
	for _, pid := range f.Workers() {
		c.rss = max(c.rss, residentMB(pid))
	}
	if line := fmt.Sprintf("%v, %d with lanes that run, %d ask for a person, worker %.0f MB", phases, running, asking, c.rss); line != c.last {
		b.say("%s", line)
		c.last = line
	}
}

// watchMany looks until all moves have come to the switch, where they wait for their
// approval while their lanes run on, and for a while after that, or until the limit is
// over. What counts is how many had lanes that ran at the same time.
func watchMany(ctx context.Context, b *bench, f *demo.Fleet, want int) (*crowd, error) {
	ctx, cancel := context.WithTimeout(ctx, b.o.limit)
	defer cancel()
	var c crowd
	for left := manyLooks; left > 0 && pause.For(ctx, lookEvery) == nil; {
		figures, err := f.Store().Figures(ctx)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		if err == nil {
			c.look(b, f, figures.Moves)
		}
		if c.ready == want {
			left--
		}
	}
	for why, n := range c.asks {
		b.say("%d moves ask for a person: %s", n, why)
	}
	return &c, nil
}

// residentMB is the resident memory of a process, 0 when it is gone.
func residentMB(pid int) float64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}

// longestHistory asks Temporal for the lengths of the moves' histories.
func longestHistory(ctx context.Context, f *demo.Fleet, ids []chunk.ID) (int64, error) {
	access := f.Stack().Temporal
	c, err := starter.Dial(ctx, access.Address, access.Namespace, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	lengths := make([]int64, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, id := range ids {
		g.Go(func() error {
			d, err := c.DescribeWorkflowExecution(ctx, starter.MigrateID(id), "")
			lengths[i] = d.GetWorkflowExecutionInfo().GetHistoryLength()
			return err
		})
	}
	err = g.Wait()
	return slices.Max(lengths), err
}
