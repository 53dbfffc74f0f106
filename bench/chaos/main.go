// Command chaos kills every component of a fleet at every step of a move, pauses
// those that could come back as zombies, with live traffic, and looks after each
// whether the attempt was resolved and the invariants held. It starts a stack of
// its own and writes bench/out/chaos.json; a cell that fails makes it exit 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"drover/bench/figures"
	"drover/bench/rig"
)

// report is the file. Names of fields do not change.
type report struct {
	Cells      int `json:"cells"`
	Failed     int `json:"failed"`
	NotReached int `json:"not_reached"` // cells for which there was no time
	rig.Verdict
	WatchdogEnded int        `json:"watchdog_ended"` // attempts that were ended past their deadlines, while Postgres and the shards answered
	WatchdogP50   float64    `json:"watchdog_p50_ms"`
	WatchdogMax   float64    `json:"watchdog_max_ms"`
	WatchdogLate  int        `json:"watchdog_late"` // of them, those that took more than 500 ms
	ReturnEnded   int        `json:"return_ended"`  // attempts that were overdue when a server that was killed ran again, and were ended then
	ReturnP50     float64    `json:"return_p50_ms"`
	ReturnMax     float64    `json:"return_max_ms"`
	Seconds       float64    `json:"seconds"`
	Outcomes      []rig.Cell `json:"outcomes"`

	began time.Time
	limit time.Duration
}

func main() { figures.Main(run) }

func run(ctx context.Context) error {
	o := rig.Options{}
	flag.StringVar(&o.Dir, "dir", ".drover/chaos", "folder of the stack; it is made anew")
	out := flag.String("out", "bench/out/chaos.json", "report")
	only := flag.String("cells", "", "regular expression on COMPONENT@POINT; empty for all")
	list := flag.Bool("list", false, "list the cells and end")
	limit := flag.Duration("limit", 28*time.Minute, "begin no cell after so long; 0: go to the end")
	flag.IntVar(&o.Rate, "rate", 150, "operations per second of the application")
	flag.IntVar(&o.Clients, "clients", 12, "clients of the application")
	flag.StringVar(&o.Binary, "drover", "bin/drover", "the drover binary")
	flag.Parse()
	filter, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--cells %q: %w", *only, err)
	}
	moves, switches := matrix(filter)
	if *list {
		for _, c := range append(moves, switches...) {
			fmt.Println(name(c))
		}
		return nil
	}
	if len(moves)+len(switches) == 0 {
		return fmt.Errorf("--cells %q names no cell; -list shows all", *only)
	}
	if o.Binary, err = filepath.Abs(o.Binary); err != nil {
		return err
	}
	began := time.Now()
	r, err := rig.New(ctx, o)
	if err != nil {
		return err
	}
	defer r.Close()
	rep := &report{began: began, limit: *limit}
	err = rep.strikeAll(ctx, r, rounds(moves, switches))
	rep.Seconds = time.Since(began).Seconds()
	rep.sum()
	if _, werr := figures.Write(*out, rep); werr != nil {
		err = errors.Join(err, werr)
	}
	rep.print()
	if err == nil && rep.Failed > 0 {
		err = fmt.Errorf("%d of %d cells failed", rep.Failed, rep.Cells)
	}
	return err
}

// sum takes the cells' times of the watchdog together.
func (r *report) sum() {
	var late, returns []float64
	for _, c := range r.Outcomes {
		late, returns = append(late, c.WatchdogMS...), append(returns, c.ReturnMS...)
	}
	for _, ms := range late {
		if ms > 500 {
			r.WatchdogLate++
		}
	}
	r.WatchdogEnded, r.WatchdogP50, r.WatchdogMax = spread(late)
	r.ReturnEnded, r.ReturnP50, r.ReturnMax = spread(returns)
}

// spread gives the number of some times, the middle one and the longest.
func spread(all []float64) (n int, middle, longest float64) {
	if n = len(all); n == 0 {
		return 0, 0, 0
	}
	slices.Sort(all)
	return n, all[n/2], all[n-1]
}

func (r *report) print() {
	t := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "COMPONENT\tAT\tSECONDS\tATTEMPTS\tENDED PAST THEIR DEADLINE (ms)\tOUTCOME")
	for _, c := range r.Outcomes {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.1f\t%s\t%s\t%s\n", c.Component, c.Point, c.Seconds, strings.Join(c.Ends, " "), c.Late(), c.Outcome)
	}
	_ = t.Flush() // standard output
	fmt.Printf("%d cells, %d failed, %d not reached; lost %d, duplicated %d, stale reads %d, not linearizable %d, stragglers %d, two owners %d; %d operations acknowledged, %d client errors, %d register operations judged; %.0f s\n",
		r.Cells, r.Failed, r.NotReached, r.Lost, r.Duplicated, r.StaleReads, r.NotLinear, r.Stragglers, r.TwoOwners, r.Acknowledged, r.ClientErrors, r.Registers, r.Seconds)
	fmt.Printf("%d attempts were ended past their deadlines while Postgres and the shards answered: half of them within %.0f ms, all within %.0f ms, %d in more than 500 ms\n",
		r.WatchdogEnded, r.WatchdogP50, r.WatchdogMax, r.WatchdogLate)
	fmt.Printf("%d were overdue when a server that was killed ran again: half of them were ended within %.0f ms of that, all within %.0f ms\n",
		r.ReturnEnded, r.ReturnP50, r.ReturnMax)
}
