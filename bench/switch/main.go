// Command switch measures a switch as clients see it: it switches a chunk back
// and forth under a paced load through two proxies, with two workers and three
// shards that sync each commit, and writes a flat JSON object.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"drover/bench/figures"
	"drover/demo"
)

func main() { figures.Main(func(ctx context.Context) error { return run(ctx, os.Stdout) }) }

// options of one run.
type options struct {
	out      string
	switches int
	rate     int
	clients  int
	chunkMB  int64
	hotShare float64
	behind   bool
	limit    time.Duration
}

// run is main with errors.
func run(ctx context.Context, out io.Writer) error {
	var o options
	var dir, self string
	flag.StringVar(&o.out, "out", "bench/out/switch.json", "file to write")
	flag.IntVar(&o.switches, "switches", 200, "how often to switch; every second one is a rollback")
	flag.IntVar(&o.rate, "rate", 1500, "operations per second that are offered, open loop")
	flag.IntVar(&o.clients, "clients", 64, "clients that offer them")
	flag.Int64Var(&o.chunkMB, "chunk-mb", 10, "size of the chunk; 1000 shows that it does not matter")
	flag.Float64Var(&o.hotShare, "hot-share", 0.6, "share of the operations that goes to the chunk")
	flag.BoolVar(&o.behind, "behind-import", false, "let the application begin once the chunk is imported: beside it a large import takes long")
	flag.DurationVar(&o.limit, "limit", 0, "stop switching after so long, and report what there is; 0: never")
	flag.StringVar(&dir, "dir", ".drover/bench-switch", "folder of the stack; it is made anew")
	flag.StringVar(&self, "drover", "bin/drover", "the binary of workers and proxies")
	flag.Parse()
	if o.switches < 1 || o.rate < 1 || o.clients < 1 || o.chunkMB < 0 || o.hotShare <= 0 || o.hotShare > 1 {
		return fmt.Errorf("switches is %d, rate %d, clients %d, chunk-mb %d, hot-share %g; want 1 or more, 0 or more for chunk-mb, and a share above 0 up to 1",
			o.switches, o.rate, o.clients, o.chunkMB, o.hotShare)
	}
	self, err := exec.LookPath(self)
	if err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	if self, err = filepath.Abs(self); err != nil {
		return err
	}
	fleet, err := demo.StartFleet(ctx, demo.Options{
		Self: self, Dir: dir, Out: out, Rate: o.rate, Clients: o.clients, LookupEnv: os.LookupEnv,
	})
	defer fleet.Close(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	b := &bench{o: o, fleet: fleet, began: time.Now()}
	return b.end(b.run(ctx), out)
}

// end makes the report of a run that ended, also by err: what was measured before it
// broke, or was interrupted, was measured.
func (b *bench) end(err error, out io.Writer) error {
	if len(b.switches) == 0 {
		return err
	}
	return errors.Join(err, b.write(out))
}

// write makes the report.
func (b *bench) write(out io.Writer) error {
	r := b.report()
	r["cpus"] = runtime.NumCPU()
	text, err := figures.Write(b.o.out, r)
	_, _ = fmt.Fprintln(out, text)
	return err
}
