// Package rig is a fleet that is there to be broken: a stack of its own, two
// workers, two proxies, and an application that remembers what it was told. It
// switches a chunk back and forth, kills or pauses a part at a named stop point,
// and judges what is left.
package rig

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/demo/workload"
	"drover/devstack"
	"drover/metadata"
	"drover/shard"
	"drover/starter"
	"drover/workers"
)

// Options of a rig.
type Options struct {
	Dir     string // of the stack, which is made anew
	Binary  string // drover
	Rate    int    // operations per second of the application
	Clients int    // of the application
}

// Rig is the fleet.
type Rig struct {
	o       Options
	stack   *devstack.Stack
	store   *metadata.Store
	starter *starter.Starter
	work    *workload.Workload
	regs    *registers
	hot     chunk.Route
	workers []*process
	proxies []*process
	started int // processes, for names of logs
	cells   int // judged, for names of registers
	closers []func()
	known   Verdict // what the last judgement found
}

// database is what the application works in.
const database = "app"

// New starts everything, and moves the chunk to where it can be switched back and
// forth.
func New(ctx context.Context, o Options) (r *Rig, err error) {
	r = &Rig{o: o}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	opts := r.options()
	if err := devstack.Reset(ctx, opts, quiet); err != nil {
		return r, err
	}
	if r.stack, err = devstack.Up(ctx, opts, quiet); err != nil {
		return r, err
	}
	if r.store, err = metadata.Open(ctx, r.stack.Postgres.DSN); err != nil {
		return r, err
	}
	r.closers = append(r.closers, r.store.Close)
	if err := r.store.Migrate(ctx); err != nil {
		return r, err
	}
	c, err := starter.Dial(ctx, r.stack.Temporal.Address, r.stack.Temporal.Namespace, slog.New(slog.DiscardHandler))
	if err != nil {
		return r, err
	}
	r.closers = append(r.closers, c.Close)
	r.starter = starter.New(c)
	for _, s := range r.stack.Shards {
		sh, err := shard.Bootstrap(ctx, s.AdminURI, s.Name, r.stack.Secret, shard.BootstrapOptions{AllowOtherWriters: true})
		if err != nil {
			return r, err
		}
		if err := r.store.AddShard(ctx, sh); err != nil {
			return r, err
		}
		if err := r.starter.EnsureCapture(ctx, s.Name); err != nil {
			return r, err
		}
	}
	for range 2 {
		p, err := r.startWorker()
		if err != nil {
			return r, err
		}
		r.workers = append(r.workers, p)
	}
	return r, r.startApplication(ctx)
}

func quiet(string, string) {}

func (r *Rig) options() devstack.Options {
	return devstack.Options{Dir: r.o.Dir, Self: []string{r.o.Binary, "dev", "embedded-kafka"}}
}

// startApplication starts the proxies, makes the database and lets clients run.
func (r *Rig) startApplication(ctx context.Context) error {
	var addresses []string
	for i := range 2 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		address := l.Addr().String()
		if err := l.Close(); err != nil {
			return err
		}
		p, err := r.start("proxy", "--child", "--listen", address, "--name", fmt.Sprintf("proxy-%d", i+1))
		if err != nil {
			return err
		}
		r.proxies, addresses = append(r.proxies, p), append(addresses, address)
	}
	for _, a := range addresses {
		if err := until(ctx, "a proxy listens at "+a, func() (bool, error) { return answers(ctx, a), nil }); err != nil {
			return err
		}
	}
	hot, cold, err := r.createDatabase(ctx)
	if err != nil {
		return err
	}
	uri := "mongodb://" + strings.Join(addresses, ",") + "/"
	if r.regs, err = newRegisters(uri, hot[0]); err != nil {
		return err
	}
	r.work, err = workload.Start(ctx, workload.Config{
		URI: uri, Database: database, Clients: r.o.Clients, Rate: r.o.Rate, Origins: cold, HotOrigins: hot, HotShare: 0.6,
		Documents: 40, Guarded: true, Seed: 11,
	})
	return err
}

// answers reports whether somebody listens.
func answers(ctx context.Context, address string) bool {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// createDatabase provisions the application's database over two shards and sorts
// shard-key values by whether they live in the chunk that moves.
func (r *Rig) createDatabase(ctx context.Context) (hot, cold []string, err error) {
	index, err := bson.Marshal(bson.D{
		{Key: "key", Value: bson.D{{Key: "origin", Value: int32(1)}, {Key: "ref", Value: int32(1)}}},
		{Key: "name", Value: "origin_ref"}, {Key: "unique", Value: true},
	})
	if err != nil {
		return nil, nil, err
	}
	db := chunk.Database{Name: database, KeySpace: chunk.Hashed, Collections: []chunk.Collection{
		{Name: workload.Collection, ShardKey: "origin", Indexes: []bson.Raw{index}},
		{Name: registerCollection, ShardKey: "origin"},
	}}
	var parts []metadata.NewChunk
	for i, rg := range chunk.Hashed.Split(4) {
		parts = append(parts, metadata.NewChunk{Range: rg, Shard: r.stack.Shards[i%2].Name})
	}
	routes, err := workers.CreateDatabase(ctx, r.store, r.stack.Secret, db, parts)
	if err != nil {
		return nil, nil, err
	}
	r.hot = routes[0]
	for i := range 40 {
		origin := fmt.Sprintf("O%02d", i)
		raw, err := bson.Marshal(bson.D{{Key: "origin", Value: origin}})
		if err != nil {
			return nil, nil, err
		}
		p, err := chunk.Hashed.DocumentPoint(raw, "origin")
		if err != nil {
			return nil, nil, err
		}
		if r.hot.Chunk.Range.Contains(p) {
			hot = append(hot, origin)
		} else {
			cold = append(cold, origin)
		}
	}
	return hot, cold, nil
}

// Close ends everything.
func (r *Rig) Close() {
	if r.work != nil {
		r.work.Stop()
		_ = r.work.Close(context.Background())
	}
	if r.regs != nil {
		r.regs.close()
	}
	for _, p := range append(r.proxies, r.workers...) {
		p.kill()
	}
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	if r.stack != nil {
		_ = devstack.Down(context.Background(), r.options(), quiet) // the report is written; what stays is found by dev status
	}
}

// drillDir is where the workers look whether they are to hold somewhere.
func (r *Rig) drillDir() string { return filepath.Join(r.o.Dir, "drill") }
