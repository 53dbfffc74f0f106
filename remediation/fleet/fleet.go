// Package fleet lets years of failures happen to thousands of shards in seconds:
// with the planner and the operations of package remediation, and with the rules
// of the lease that remediation and switches share. It does no I/O and reads no
// clock; a seed decides everything.
package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"drover/remediation"
)

// Config says what is simulated.
type Config struct {
	Shards  int
	Days    int
	Seed    uint64
	Faults  Mix
	Cells   int // failure domains among which the shards are spread
	Spares  int // machines in reserve, of each kind in each zone
	Rates   remediation.Rates
	Moves   int           // moves begun in a day
	Person  time.Duration // mean time until a person who is called begins
	Crashes float64       // share of the steps during which the remediating worker dies

	// Unaided leaves everything to persons.
	Unaided bool
	// Leaseless lets everybody act as if there were no leases: what they are for.
	Leaseless bool
}

// Defaults is half a year of 2,000 shards.
func Defaults() Config {
	return Config{
		Shards: 2000, Days: 182, Seed: 1, Faults: DefaultMix(), Cells: 50, Spares: 8, Rates: remediation.DefaultRates,
		Moves: 400, Person: 8 * time.Hour, Crashes: 0.02,
	}
}

// span is how long the simulated time is.
func (c *Config) span() time.Duration { return time.Duration(c.Days) * 24 * time.Hour }

// Validate names every field that is wrong.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, field, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: must be %s", field, want))
		}
	}
	check(c.Shards >= 1 && c.Shards <= 100_000, "shards", "1 to 100000")
	check(c.Days >= 1 && c.Days <= 3650, "days", "1 to 3650")
	check(c.Cells >= 1, "cells", "1 or more")
	check(c.Spares >= 0, "spares", "0 or more")
	check(c.Moves >= 0 && (c.Moves == 0 || c.Shards > 1), "moves", "0 or more, and with one shard 0")
	check(c.Person > 0, "person", "a positive duration")
	check(c.Crashes >= 0 && c.Crashes < 1, "crashes", "0 to below 1")
	for k, n := range c.Faults {
		check(n >= 0 && n <= 1e6, string(k), "0 to 1000000")
	}
	return errors.Join(append(errs, c.Rates.Validate())...)
}

// place is where a machine stands and what it is.
type place struct{ zone, instance string }

// world is one simulated fleet.
type world struct {
	clock
	cfg    Config
	rng    *rand.Rand // of everything but the faults themselves
	shards []*shard
	pool   map[place][]string // spare machines
	built  int                // machines bought so far: their names
	out    map[string]bool    // zones that are lost
	start  time.Time          // of the virtual time; only differences count
	begun  []remediation.Started
	moving map[*move]bool
	sick   map[int]bool // shards that are not in full health
	report *Report
}

// Run simulates. The same configuration always gives the same report.
func Run(c Config) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	w := newWorld(c)
	if err := w.build(); err != nil {
		return nil, err
	}
	for _, f := range schedule(&c) {
		w.report.Faults[f.kind]++
		w.after(f.at, func() { w.strike(f) })
	}
	w.scheduleMoves()
	if !c.Unaided {
		w.after(watchEvery, w.watch)
	}
	w.run(c.span())
	w.close()
	return w.report, nil
}

// newWorld is a fleet without shards.
func newWorld(c Config) *world {
	return &world{
		cfg: c, rng: rand.New(rand.NewPCG(c.Seed, 2)), //nolint:gosec // a simulation
		pool: map[place][]string{}, out: map[string]bool{}, moving: map[*move]bool{}, sick: map[int]bool{},
		start: time.Unix(0, 0).UTC(), report: newReport(),
	}
}

// build makes every shard healthy, and fills the pool of machines.
func (w *world) build() error {
	planners := map[string]*remediation.Planner{}
	all := remediation.Catalogue()
	for i := range w.cfg.Shards {
		l := all[i%len(all)]
		p := planners[l.Name]
		if p == nil {
			made, err := remediation.NewPlanner(l, remediation.DefaultCosts, 0)
			if err != nil {
				return fmt.Errorf("layout %s: %w", l.Name, err)
			}
			p = made
			planners[l.Name] = p
			w.stock(l)
		}
		w.shards = append(w.shards, &shard{
			index: i, name: fmt.Sprintf("s%04d", i), domain: fmt.Sprintf("cell-%02d", i%w.cfg.Cells),
			layout: l, planner: p, truth: l.Healthy(func(n int) string { return fmt.Sprintf("s%04d-%d", i, n) }), away: map[string]remediation.State{},
		})
	}
	return nil
}

// stock puts spare machines wherever a layout wants one.
func (w *world) stock(l remediation.Layout) {
	for _, s := range l.Slots {
		at := place{s.Zone, s.Instance}
		if at.instance == "" {
			at.instance = "m"
		}
		for len(w.pool[at]) < w.cfg.Spares {
			w.buy(at)
		}
	}
}

// buy puts one more machine into the pool.
func (w *world) buy(at place) {
	w.built++
	w.pool[at] = append(w.pool[at], fmt.Sprintf("m%05d", w.built))
}

// about draws a time with the given mean, not below a tenth nor above five times it.
func (w *world) about(mean time.Duration) time.Duration {
	return min(max(time.Duration(w.rng.ExpFloat64()*float64(mean)), mean/10), 5*mean)
}

// wall is the virtual time as a time.
func (w *world) wall() time.Time { return w.start.Add(w.now) }
