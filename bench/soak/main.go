// Command soak switches a chunk back and forth for as often as is asked, under
// load, and kills or pauses a component at a random step of some of the switches.
// It starts a stack of its own and writes bench/out/soak.json; what is lost, read
// stale or left unresolved makes it exit 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"drover/bench/figures"
	"drover/bench/rig"
)

// report is the file. Names of fields do not change.
type report struct {
	Switches int `json:"switches"`
	Asked    int `json:"switches_asked"`
	Moves    int `json:"moves"` // that the switches belong to
	Kills    int `json:"kills"`
	Failed   int `json:"failed"`    // stretches after which something was wrong
	GoneBack int `json:"gone_back"` // attempts
	rig.Verdict
	WindowP50 float64    `json:"window_p50_ms"`
	WindowP99 float64    `json:"window_p99_ms"`
	Seconds   float64    `json:"seconds"`
	Seed      uint64     `json:"seed"`
	Struck    []rig.Cell `json:"struck"`

	windows []float64
}

// options of a run.
type options struct {
	switches int
	every    int // switches for one kill, on average
	perMove  int
	limit    time.Duration
	seed     uint64
}

func main() { figures.Main(run) }

func run(ctx context.Context) error {
	f, o := rig.Options{}, options{}
	flag.StringVar(&f.Dir, "dir", ".drover/soak", "folder of the stack; it is made anew")
	out := flag.String("out", "bench/out/soak.json", "report")
	flag.IntVar(&o.switches, "switches", 1000, "how often to switch")
	flag.IntVar(&o.every, "kill-every", 20, "switches for one kill, on average; 0: none")
	flag.IntVar(&o.perMove, "per-move", 100, "switches of one move, which keeps the results of its newest 400")
	flag.DurationVar(&o.limit, "limit", 0, "begin no switch after so long; 0: go to the end")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of what is killed where")
	flag.IntVar(&f.Rate, "rate", 150, "operations per second of the application")
	flag.IntVar(&f.Clients, "clients", 12, "clients of the application")
	flag.StringVar(&f.Binary, "drover", "bin/drover", "the drover binary")
	flag.Parse()
	if o.switches < 1 || o.perMove < 1 || o.perMove > 300 || o.every < 0 {
		return fmt.Errorf("switches is %d, per-move %d, kill-every %d; want 1 or more, for per-move up to 300, and 0 or more for kill-every", o.switches, o.perMove, o.every)
	}
	var err error
	if f.Binary, err = filepath.Abs(f.Binary); err != nil {
		return err
	}
	began := time.Now()
	fleet, err := rig.New(ctx, f)
	if err != nil {
		return err
	}
	defer fleet.Close()
	s := &soak{options: o, fleet: fleet, began: began, report: report{Asked: o.switches, Seed: o.seed}, random: rand.New(rand.NewPCG(o.seed, 0))} //nolint:gosec // no secret
	err = s.run(ctx)
	s.Seconds = time.Since(began).Seconds()
	s.WindowP50, s.WindowP99 = figures.Quantile(s.windows, 0.5), figures.Quantile(s.windows, 0.99)
	text, merr := figures.Write(*out, s.report)
	fmt.Println(text)
	if err = errors.Join(err, merr); err == nil && s.Failed > 0 {
		err = fmt.Errorf("something was wrong after %d stretches", s.Failed)
	}
	return err
}

// soak is one run.
type soak struct {
	options
	report
	fleet  *rig.Rig
	began  time.Time
	random *rand.Rand
}

// over reports whether no switch is to begin any more.
func (s *soak) over() bool {
	return s.Switches >= s.switches || s.limit > 0 && time.Since(s.began) > s.limit
}

// run makes one move after the other until there were enough switches.
func (s *soak) run(ctx context.Context) error {
	for !s.over() {
		if err := s.fleet.Open(ctx, nil); err != nil {
			return err
		}
		s.Moves++
		last := s.Switches + s.perMove
		for s.Switches < last && !s.over() {
			if err := s.stretch(ctx, last); err != nil {
				return err
			}
		}
		forward, err := s.fleet.Forward(ctx)
		if err == nil && !forward { // a move is completed where it leads
			err = s.fleet.Switch(ctx, nil)
		}
		if err != nil {
			return err
		}
		windows, back, err := s.fleet.Windows(ctx)
		if err != nil {
			return err
		}
		s.windows, s.GoneBack = append(s.windows, windows...), s.GoneBack+back
		if err := s.fleet.Finish(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// stretch switches some times undisturbed and then once with a kill, and judges
// what is left.
func (s *soak) stretch(ctx context.Context, last int) error {
	c := s.pick()
	undisturbed := s.perMove
	if s.every > 0 {
		undisturbed = s.random.IntN(2 * s.every)
	}
	struck := false
	v, well := s.fleet.Judged(ctx, &c, func(ctx context.Context, c *rig.Cell) error {
		for range undisturbed {
			if s.over() || s.Switches >= last {
				return nil
			}
			if err := s.fleet.Switch(ctx, nil); err != nil {
				return err
			}
			s.Switches++
		}
		if s.every == 0 || s.over() || s.Switches >= last {
			return nil
		}
		s.Kills++
		struck = true
		err := s.fleet.Switch(ctx, c)
		s.Switches++
		return err
	})
	s.Verdict = v
	if struck || c.Outcome != rig.Held {
		s.Struck = append(s.Struck, c)
	}
	if c.Outcome != rig.Held {
		s.Failed++
	}
	fmt.Printf("%4d of %d switches, %d kills (%s at %s: %t) %v: %s\n", s.Switches, s.switches, s.Kills, c.Component, c.Point, struck, c.Ends, c.Outcome)
	if !well {
		return errors.Join(ctx.Err(), fmt.Errorf("%s at %s: %s", c.Component, c.Point, c.Outcome))
	}
	return nil
}

// pick gives a random cell.
func (s *soak) pick() rig.Cell {
	points := append([]string{rig.LanePoint}, rig.SwitchPoints...)
	return rig.Cell{Component: rig.Components[s.random.IntN(len(rig.Components))], Point: points[s.random.IntN(len(points))]}
}
