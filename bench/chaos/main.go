// Command chaos kills every component of a fleet at every step of a move, with
// live traffic, and looks after each kill whether the attempt was resolved and
// the invariants held. It starts a stack of its own and writes
// bench/out/chaos.json; a cell that fails makes it exit 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"drover/chunk"
	"drover/contract"
)

// report is the file. Names of fields do not change.
type report struct {
	Cells        int     `json:"cells"`
	Failed       int     `json:"failed"`
	Lost         int64   `json:"lost"`
	Duplicated   int64   `json:"duplicated"`
	StaleReads   int64   `json:"stale_reads"`
	NotLinear    int     `json:"not_linearizable"`
	Stragglers   int     `json:"stragglers"`
	ClientErrors int64   `json:"client_errors"` // allowed: servers of the application's own data were down
	Acknowledged int64   `json:"acknowledged"`
	Registers    int     `json:"register_operations"`
	Seconds      float64 `json:"seconds"`
	Outcomes     []cell  `json:"outcomes"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run() error {
	dir := flag.String("dir", ".drover/chaos", "folder of the stack; it is made anew")
	out := flag.String("out", "bench/out/chaos.json", "report")
	only := flag.String("cells", "", "regular expression on COMPONENT@POINT; empty for all")
	rate := flag.Int("rate", 150, "operations per second of the application")
	clients := flag.Int("clients", 12, "clients of the application")
	binary := flag.String("drover", "bin/drover", "the drover binary")
	flag.Parse()
	filter, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--cells %q: %w", *only, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	path, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := newRig(ctx, *dir, path, *rate, *clients)
	if err != nil {
		return err
	}
	defer r.close()
	rep := &report{}
	err = r.matrix(ctx, filter, rep)
	rep.Seconds = time.Since(began).Seconds()
	if werr := rep.write(*out); werr != nil {
		err = errors.Join(err, werr)
	}
	rep.print()
	if err == nil && rep.Failed > 0 {
		err = fmt.Errorf("%d of %d cells failed", rep.Failed, rep.Cells)
	}
	return err
}

func (r *report) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

func (r *report) print() {
	t := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "COMPONENT\tAT\tSECONDS\tATTEMPTS\tOUTCOME")
	for _, c := range r.Outcomes {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%.1f\t%d\t%s\n", c.Component, c.Point, c.Seconds, c.Attempts, c.Outcome)
	}
	_ = t.Flush() // standard output
	fmt.Printf("%d cells, %d failed; lost %d, duplicated %d, stale reads %d, not linearizable %d, stragglers %d; %d operations acknowledged, %d client errors, %d register operations judged; %.0f s\n",
		r.Cells, r.Failed, r.Lost, r.Duplicated, r.StaleReads, r.NotLinear, r.Stragglers, r.Acknowledged, r.ClientErrors, r.Registers, r.Seconds)
}

// components are what is killed. Source and target are of the switch under way.
var components = []string{"worker", "temporal", "postgres", "kafka", "s3", "source", "target", "proxy"} //nolint:gochecknoglobals // a constant

// Points of a move before its switch, and of a switch, in their order.
var ( //nolint:gochecknoglobals // constants
	movePoints   = []string{"import.stored", "lane.written"}
	switchPoints = []string{
		"switch.prepared", "switch.fence-written", "switch.fenced", "switch.drained", "switch.closed", "switch.ready",
		"switch.before-publish", "switch.published", "switch.granted",
	}
)

// cell is one kill.
type cell struct {
	Component string  `json:"component"`
	Point     string  `json:"point"`
	Seconds   float64 `json:"seconds"`
	Attempts  int     `json:"attempts"` // that the switch took
	Outcome   string  `json:"outcome"`  // "held", or what broke
}

// matrix goes through the cells. An error is one of the rig, which can't go on.
func (r *rig) matrix(ctx context.Context, filter *regexp.Regexp, rep *report) error {
	for _, point := range movePoints {
		for _, c := range components {
			if !filter.MatchString(c + "@" + point) {
				continue
			}
			if err := r.cell(ctx, cell{Component: c, Point: point}, rep, r.wholeMove); err != nil {
				return err
			}
		}
	}
	opened := false
	for _, point := range switchPoints {
		for _, c := range components {
			if !filter.MatchString(c + "@" + point) {
				continue
			}
			if !opened {
				if err := r.openMove(ctx); err != nil {
					return err
				}
				opened = true
			}
			if err := r.cell(ctx, cell{Component: c, Point: point}, rep, r.oneSwitch); err != nil {
				return err
			}
		}
	}
	return r.settle(ctx, rep)
}

// cell runs one cell with registers in use, and judges it.
func (r *rig) cell(ctx context.Context, c cell, rep *report, do func(context.Context, *cell) error) error {
	began := time.Now()
	running, stop := context.WithCancel(ctx)
	history := make(chan int, 1)
	linear, decided := true, true
	go func() {
		h := r.regs.run(running, fmt.Sprintf("%d", rep.Cells))
		linear, decided = judge(h)
		history <- len(h)
	}()
	err := do(ctx, &c)
	stop()
	rep.Registers += <-history
	rep.Cells++
	c.Seconds, c.Outcome = time.Since(began).Seconds(), "held"
	v, cerr := r.compare(ctx)
	switch {
	case err != nil:
		c.Outcome = err.Error()
	case cerr != nil:
		c.Outcome = cerr.Error()
	case v.Lost+v.Duplicated > 0:
		c.Outcome = fmt.Sprintf("lost %d, duplicated %d: %v", v.Lost, v.Duplicated, v.Examples)
	case v.StaleReads > rep.StaleReads:
		c.Outcome = fmt.Sprintf("%d stale reads", v.StaleReads-rep.StaleReads)
	case !linear && decided:
		c.Outcome = "the registers' history is not linearizable"
		rep.NotLinear++
	case !decided:
		c.Outcome = "the registers' history could not be judged in time"
	}
	rep.Lost, rep.Duplicated, rep.StaleReads = max(rep.Lost, v.Lost), max(rep.Duplicated, v.Duplicated), max(rep.StaleReads, v.StaleReads)
	if c.Outcome != "held" {
		rep.Failed++
	}
	rep.Outcomes = append(rep.Outcomes, c)
	fmt.Printf("%3d  %-9s %-22s %5.1f s  %s\n", rep.Cells, c.Component, c.Point, c.Seconds, c.Outcome)
	if err != nil {
		return fmt.Errorf("%s at %s: %w; what follows would stand on it", c.Component, c.Point, err)
	}
	return ctx.Err()
}

// wholeMove moves the chunk with a kill before its switch, and completes.
func (r *rig) wholeMove(ctx context.Context, c *cell) error {
	from, to, err := r.direction(ctx)
	if err != nil {
		return err
	}
	file, err := r.restartWorker(c.Point)
	if err != nil {
		return err
	}
	if err := r.begin(ctx, to); err != nil {
		return err
	}
	if err := r.strike(ctx, c, file, from, to); err != nil {
		return err
	}
	if err := r.await(ctx, "burn-in", inBurnIn); err != nil {
		return err
	}
	c.Attempts = r.attempts(ctx)
	return r.finish(ctx)
}

// openMove brings the chunk to burn-in, where it is switched there and back.
func (r *rig) openMove(ctx context.Context) error {
	_, to, err := r.direction(ctx)
	if err != nil {
		return err
	}
	if _, err := r.restartWorker(""); err != nil {
		return err
	}
	if err := r.begin(ctx, to); err != nil {
		return err
	}
	return r.await(ctx, "burn-in", inBurnIn)
}

func (r *rig) begin(ctx context.Context, to string) error {
	_, err := r.starter.Migrate(ctx, contract.MigrateInput{
		Chunk: r.hot.Chunk.ID, To: to, Approval: contract.Automatic, Complete: contract.Manual, RequestedBy: "chaos",
	})
	return err
}

func (r *rig) finish(ctx context.Context) error {
	if err := r.ask(ctx, contract.CompleteUpdate); err != nil {
		return err
	}
	return until(ctx, "the move is done", func() (bool, error) {
		m, open, err := r.store.OpenMigration(ctx, r.hot.Chunk.ID)
		if err != nil || open {
			return false, nil //nolint:nilerr // asked again
		}
		running, err := r.starter.Running(ctx, r.hot.Chunk.ID)
		return err == nil && !running && m.ID == 0, nil
	})
}

// oneSwitch switches there or back with a kill in the middle.
func (r *rig) oneSwitch(ctx context.Context, c *cell) error {
	file, err := r.restartWorker(c.Point)
	if err != nil {
		return err
	}
	var before contract.Status
	if err := r.await(ctx, "a state to switch from", func(st contract.Status) bool {
		before = st
		return inBurnIn(st) || rolledBack(st)
	}); err != nil {
		return err
	}
	ask, there := contract.RollbackUpdate, rolledBack
	from, to := before.Target.Shard, before.Source.Shard
	if rolledBack(before) {
		ask, there = contract.ApproveUpdate, inBurnIn
		from, to = to, from
	}
	if err := r.ask(ctx, ask); err != nil {
		return err
	}
	if err := r.strike(ctx, c, file, from, to); err != nil {
		return err
	}
	if err := r.await(ctx, "the other side", there); err != nil {
		return err
	}
	c.Attempts = r.attempts(ctx) - len(before.Switches)
	return r.resolved(ctx)
}

// strike waits until the worker holds, kills the component, lets the worker go on
// and starts the component again.
func (r *rig) strike(ctx context.Context, c *cell, file, source, target string) error {
	if err := until(ctx, "the worker comes to "+c.Point, func() (bool, error) {
		_, err := os.Stat(file)
		return err == nil, nil
	}); err != nil {
		return err
	}
	var err error
	switch c.Component {
	case "worker":
		r.worker.kill()
	case "proxy":
		r.proxies[0].kill()
	case "source":
		err = r.killPart(ctx, source)
	case "target":
		err = r.killPart(ctx, target)
	default:
		err = r.killPart(ctx, c.Component)
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
		return err
	}
	return r.heal(ctx)
}

// direction is where the chunk is and where it goes next: away from and back to
// the third shard.
func (r *rig) direction(ctx context.Context) (from, to string, err error) {
	route, err := r.store.Route(ctx, r.hot.Chunk.ID)
	if err != nil {
		return "", "", err
	}
	from, to = route.Placement.Shard, r.stack.Shards[2].Name
	if from == to {
		to = r.stack.Shards[0].Name
	}
	return from, to, nil
}

func (r *rig) attempts(ctx context.Context) int {
	st, err := r.starter.Status(ctx, r.hot.Chunk.ID)
	if err != nil {
		return 0
	}
	return len(st.Switches)
}

// resolved waits until no attempt is open.
func (r *rig) resolved(ctx context.Context) error {
	return until(ctx, "no attempt is open", func() (bool, error) {
		open, err := r.store.OpenAttempts(ctx)
		return err == nil && len(open) == 0, nil
	})
}

func inBurnIn(st contract.Status) bool {
	return st.Phase == chunk.BurnIn && st.Serving.ID == st.Target.ID && slices.Contains(st.Updates, contract.RollbackUpdate) && st.WaitingFor != ""
}

func rolledBack(st contract.Status) bool {
	return st.Phase == chunk.BurnIn && st.Serving.ID == st.Source.ID && slices.Contains(st.Updates, contract.ApproveUpdate) && st.WaitingFor != ""
}
