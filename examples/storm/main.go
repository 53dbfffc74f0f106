// Command storm lets applications that retry in different ways meet a fence that is
// stuck: once where the proxy holds requests until it is over, once where they get
// the refusal at once, and once where the proxy does not even know of the fence. It
// counts what reaches the proxy and the shard. The shards are simulated; it needs
// no server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"drover/bench/fences"
	"drover/bench/figures"
	"drover/internal/pause"
)

func main() { figures.Main(func(ctx context.Context) error { return run(ctx, os.Stdout) }) }

// run is main with errors.
func run(ctx context.Context, out io.Writer) error {
	s := storm{}
	flag.IntVar(&s.requests, "requests", 16, "reads, and as many writes, that each kind of application makes at once")
	flag.Int64Var(&s.refusals, "refusals", 3000, "the fence is stuck until so many refusals, where they are not held")
	flag.Parse()
	if s.requests < 1 || s.requests > fences.MostRequests || s.refusals < 1 {
		return fmt.Errorf("requests is %d, refusals %d; want 1 to %d, and 1 at least", s.requests, s.refusals, fences.MostRequests)
	}
	_, err := s.lesson(ctx, out)
	return err
}

// Applications of the lesson.
const (
	gives   = "gives up at once"
	retries = "driver's one retry"
	hammers = "tries until it works"
)

// storm is how large the lesson is.
type storm struct {
	requests int
	refusals int64
}

// act is one way to meet the fence.
type act struct {
	name     string
	settings fences.Settings
	held     bool // the fence ends when all requests wait, else after the refusals
}

// told is what an act came to.
type told struct {
	rows    []fences.Row
	arrived int // commands on the shard that was fenced
}

// Times that the proxy holds requests.
const (
	forLong = time.Minute      // longer than any fence may last
	hardly  = time.Millisecond // as if it did not
)

// lesson meets the fence in each way.
func (s storm) lesson(ctx context.Context, out io.Writer) (all []told, err error) {
	for _, a := range []act{
		{"the proxy holds requests", fences.Settings{Sure: forLong, Live: forLong}, true},
		{"it passes the refusal on", fences.Settings{Sure: hardly, Live: hardly}, false},
		{"it does so, and does not know of the fence", fences.Settings{Sure: hardly, Live: hardly, Deaf: true, Blind: true}, false},
	} {
		t, err := s.meet(ctx, a)
		if err != nil {
			return all, fmt.Errorf("%s: %w", a.name, err)
		}
		all = append(all, t)
		t.print(out, a.name)
	}
	_, _ = fmt.Fprintln(out, "No write ran more often than it was acknowledged. A request that is held costs a place in a queue; one that is refused comes again.")
	return all, nil
}

// meet lets the applications meet the fence in one way.
func (s storm) meet(ctx context.Context, a act) (t told, err error) {
	a.settings.Profiles = []fences.Profile{{Name: gives, Tries: 1}, {Name: retries, Driver: true, Tries: 1}, {Name: hammers, Tries: 1 << 30}}
	f, err := fences.New(a.settings)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	shard := f.Arrivals(f.Serving().Shard)
	waiting := s.requests * len(fences.Kinds) * len(a.settings.Profiles)
	var refused atomic.Int64
	t.rows, err = f.Hold(ctx, s.requests, func(ctx context.Context, up *fences.Fence) error {
		for {
			n, err := f.Waiting()
			if err != nil {
				return err
			}
			done := refused.Load() >= s.refusals
			if a.held {
				done = n == waiting || refused.Load() > 0 // who is refused does not wait
			}
			if done {
				return up.Release()
			}
			if err := pause.For(ctx, time.Millisecond); err != nil {
				return err
			}
		}
	}, func(*fences.Fence) { refused.Add(1) })
	t.arrived = shard.Arrived()
	return t, err
}

// print shows an act.
func (t told) print(out io.Writer, name string) {
	_, _ = fmt.Fprintf(out, "%s:\n", name)
	sent, more := 0.0, 0
	for _, r := range t.rows {
		_, _ = fmt.Fprintf(out, "  %-21s %-5s  %2d requests, %2d errors, %6.1f commands for each, at most %d\n", r.Profile, r.Kind, r.Requests, r.Errors, r.Attempts, r.MostTries)
		sent, more = sent+r.Attempts*float64(r.Requests), more+r.AppliedMore
	}
	_, _ = fmt.Fprintf(out, "  %.0f commands to the proxy, %d to the shard that was fenced; %d writes ran once too often\n\n", sent, t.arrived, more)
}
