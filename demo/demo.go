// Package demo moves a live chunk of real data on a stack of real servers,
// while an application with a memory uses it, and reports what happened.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
	"drover/devstack"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

// Options of one demonstration.
type Options struct {
	Self      string // path of the drover binary, for the workers and proxies
	Dir       string // of the stack; it is made anew
	Data      string // folder with flights.csv.gz
	Report    string // path of the JSON report
	Keep      bool   // leave the stack up
	DeafProxy bool   // cut one proxy off from every notification
	Sabotage  string // "", "lose-write", "double-write" or "stale-read"
	Rate      int    // operations per second
	Clients   int
	Rows      int // of the flights; 0 for all
	Out       io.Writer
	LookupEnv func(string) (string, bool)
}

// Names of the demonstration.
const (
	database = "flights"
	rows     = "flights" // the collection of real rows
	hotKey   = "ORD"     // the busiest origin: its chunk moves
	target   = "shard-c"
)

// Run does it all. The report is written whatever happens after the workload
// began; an invariant that does not hold is failure demo.broken.
func Run(ctx context.Context, o Options) error {
	d := &demo{o: o, report: Report{Started: time.Now(), Deaf: o.DeafProxy, Sabotage: o.Sabotage}}
	err := d.run(ctx)
	if !o.Keep || err != nil && d.stack == nil {
		d.tearDown(context.WithoutCancel(ctx))
	}
	return err
}

// demo is one run.
type demo struct {
	o                   Options
	stack               *devstack.Stack
	cfg                 config.Config
	store               *metadata.Store
	starter             *starter.Starter
	children            []*child
	proxies             []string // addresses
	hot                 chunk.Route
	origins, hotOrigins []string
	work                *workload.Workload
	closers             []func(context.Context)
	report              Report
}

func (d *demo) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.o.Out, "%6.1fs  %s\n", time.Since(d.report.Started).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.startStack, d.connect, d.startProcesses, d.createDatabase, d.loadRows, d.startWorkload} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	moveErr := d.move(ctx)
	checkErr := d.check(context.WithoutCancel(ctx))
	if err := d.writeReport(); err != nil {
		return err
	}
	d.report.print(d.o.Out)
	if d.o.Keep {
		d.say("the stack stays up: DROVER_STACK=%s; end it with drover dev down --dir %s", filepath.Join(d.o.Dir, devstack.StateFile), d.o.Dir)
	}
	if err := errors.Join(moveErr, checkErr); err != nil {
		return err
	}
	if d.report.broken() {
		return failure.New(failure.Mismatch, "demo.broken", "the report counts client errors, lost, duplicated or stale operations, or stragglers: see %s", d.o.Report)
	}
	return nil
}

func (d *demo) startStack(ctx context.Context) error {
	opts := devstack.Options{Dir: d.o.Dir, Self: []string{d.o.Self, "dev", "embedded-kafka"}}
	if _, err := os.Stat(d.o.Dir); err == nil {
		if err := devstack.Reset(ctx, opts, func(string, string) {}); err != nil {
			return err
		}
	}
	d.say("starting Postgres, Kafka, S3, Temporal and three shards in %s", d.o.Dir)
	stack, err := devstack.Up(ctx, opts, func(part, msg string) { d.say("  %-9s %s", part, msg) })
	if err != nil {
		return err
	}
	d.stack = stack
	d.report.Shards = map[string]string{}
	for _, s := range stack.Shards {
		d.report.Shards[s.Name] = s.Engine
	}
	d.report.Kafka = stack.Kafka.Engine
	return nil
}

// connect opens metadata and Temporal.
func (d *demo) connect(ctx context.Context) (err error) {
	if d.store, err = metadata.Open(ctx, d.stack.Postgres.DSN); err != nil {
		return err
	}
	d.closers = append(d.closers, func(context.Context) { d.store.Close() })
	if err := d.store.Migrate(ctx); err != nil {
		return err
	}
	c, err := starter.Dial(ctx, d.stack.Temporal.Address, d.stack.Temporal.Namespace, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func(context.Context) { c.Close() })
	d.starter = starter.New(c)
	return nil
}

// tearDown ends what the demonstration started.
func (d *demo) tearDown(ctx context.Context) {
	if d.work != nil {
		_ = d.work.Close(ctx)
	}
	for _, c := range d.closers {
		c(ctx)
	}
	for _, c := range d.children {
		c.stop()
	}
	if d.stack == nil {
		return
	}
	if err := devstack.Down(ctx, devstack.Options{Dir: d.o.Dir}, func(string, string) {}); err != nil {
		d.say("the stack did not stop: %v", err)
	}
}

func (d *demo) writeReport() error {
	d.report.Seconds = time.Since(d.report.Started).Seconds()
	b, err := json.MarshalIndent(d.report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(d.o.Report, append(b, '\n'), 0o600)
}

// manual steers the move by hand: the demonstration drills the way back.
var manual = contract.MigrateInput{To: target, Approval: contract.Automatic, Complete: contract.Manual, RequestedBy: "drover demo"}
