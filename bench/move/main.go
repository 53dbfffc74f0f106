// Command move measures the movers, side by side with what the same servers can
// do and with the tools people have, and writes a flat JSON object. Each part
// can be run by itself; what it measures is added to the file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"drover/bench/figures"
)

func main() { figures.Main(func(ctx context.Context) error { return run(ctx, os.Stdout) }) }

// settings of one run.
type settings struct {
	out   string
	dir   string
	self  string
	parts []string
	limit time.Duration // of each side of a comparison
	scale float64       // of the number of documents
	moves int
	peers bool

	profile string
}

// part measures something.
type part struct {
	name    string
	measure func(context.Context, *bench) error
}

// parts in the order in which they run.
var parts = []part{
	{"cached", measureCached}, {"larger", measureLarger}, {"indexes", measureIndexes}, {"compare", measureCompare}, {"fleet", measureFleet}, {"foreground", measureForeground}, {"concurrent", measureConcurrent},
}

// keys are always in the file: null is what was not measured, or has no peer here.
var keys = []string{
	"load_vs_ceiling_cached", "import_vs_dump_restore_cached", "sorted_vs_random", "import_vs_dump_restore", "import_vs_pcsm", "apply_vs_pcsm",
	"apply_ops_per_s", "lag_p99_ms", "validate_docs_per_s", "foreground_p99_ratio", "concurrent_moves", "worker_rss_mb",
}

// bench is one run.
type bench struct {
	o       settings
	out     io.Writer
	began   time.Time
	figures map[string]any
}

// say prints a line with the time since the start.
func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.out, "%6.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// set keeps a figure.
func (b *bench) set(key string, value any) {
	if f, ok := value.(float64); ok {
		value = round(f)
	}
	b.figures[key] = value
	b.say("%s = %v", key, value)
}

// ratio keeps a/b, when both were measured.
func (b *bench) ratio(key string, over, under float64) {
	if over > 0 && under > 0 {
		b.set(key, over/under)
	}
}

// run is main with errors.
func run(ctx context.Context, out io.Writer) error {
	o, err := parse()
	if err != nil {
		return err
	}
	b := &bench{o: o, out: out, began: time.Now(), figures: map[string]any{}}
	if err := b.read(); err != nil {
		return err
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var failed []error
	for _, p := range parts {
		if !slices.Contains(o.parts, p.name) {
			continue
		}
		b.say("part %s", p.name)
		if err := p.measure(ctx, b); err != nil {
			failed = append(failed, fmt.Errorf("part %s: %w", p.name, err))
		}
		if err := b.write(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// parse reads the command line.
func parse() (o settings, err error) {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	var chosen string
	flag.StringVar(&o.out, "out", "bench/out/move.json", "file to write; what other parts measured stays in it")
	flag.StringVar(&o.dir, "dir", ".drover/bench-move", "folder of the servers; it is made anew")
	flag.StringVar(&o.self, "drover", "bin/drover", "the binary of workers and proxies")
	flag.StringVar(&chosen, "parts", strings.Join(names, ","), "parts to measure")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "most that each side of a comparison may take")
	flag.Float64Var(&o.scale, "scale", 1, "share of the number of documents")
	flag.IntVar(&o.moves, "moves", 500, "chunks that move at once in part concurrent")
	flag.StringVar(&o.profile, "cpuprofile", "", "file for a CPU profile of this process; workers have their own")
	flag.BoolVar(&o.peers, "peers", true, "compare with mongodump, mongorestore and pcsm where they are on PATH")
	flag.Parse()
	o.parts = strings.Split(chosen, ",")
	for _, p := range o.parts {
		if !slices.Contains(names, p) {
			return o, fmt.Errorf("part %q is not known; want some of %s", p, strings.Join(names, ","))
		}
	}
	if o.scale <= 0 || o.scale > 10 || o.limit <= 0 || o.moves < 1 {
		return o, fmt.Errorf("scale is %g, limit %s, moves %d; want a scale up to 10, and all above 0", o.scale, o.limit, o.moves)
	}
	if o.self, err = exec.LookPath(o.self); err != nil {
		return o, fmt.Errorf("%w: make build makes it", err)
	}
	if o.self, err = filepath.Abs(o.self); err != nil {
		return o, err
	}
	o.dir, err = filepath.Abs(o.dir)
	return o, err
}

// read takes over what other runs measured.
func (b *bench) read() error {
	content, err := os.ReadFile(b.o.out)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(content, &b.figures); err != nil {
			return fmt.Errorf("read %s: %w", b.o.out, err)
		}
	}
	for _, k := range keys {
		if _, ok := b.figures[k]; !ok {
			b.figures[k] = nil
		}
	}
	return nil
}

// write keeps everything.
func (b *bench) write() error {
	b.figures["cpus"] = runtime.NumCPU()
	_, err := figures.Write(b.o.out, b.figures)
	return err
}
