package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	"drover/bench/rig"
)

// name is what a filter sees of a cell.
func name(c rig.Cell) string { return c.Component + "@" + c.Point }

// matrix gives the cells that a filter lets pass: those that need a move of their
// own, and those that are struck while one is switched there and back.
func matrix(filter *regexp.Regexp) (moves, switches []rig.Cell) {
	add := func(to []rig.Cell, component, point string) []rig.Cell {
		if c := (rig.Cell{Component: component, Point: point}); filter.MatchString(name(c)) {
			return append(to, c)
		}
		return to
	}
	for _, component := range rig.Components {
		if component == rig.PausedProxy { // no switch meets it there
			continue
		}
		for _, point := range []string{rig.ImportPoint, rig.CleanupPoint} {
			moves = add(moves, component, point)
		}
	}
	for _, point := range rig.SwitchPoints {
		for _, component := range rig.Components {
			switches = add(switches, component, point)
		}
	}
	for _, component := range rig.Components {
		switches = add(switches, component, rig.LanePoint)
	}
	for _, component := range []string{"worker", rig.PausedWorker, "postgres", "source"} {
		switches = add(switches, component, rig.AbortingPoint)
	}
	return plan(moves), plan(switches)
}

// plan orders the cells: the slowest, which wait for Kafka to start, come last.
func plan(cells []rig.Cell) []rig.Cell {
	slices.SortStableFunc(cells, func(a, b rig.Cell) int { return cmp.Compare(slow(a), slow(b)) })
	return cells
}

// slow is 1 for a cell of a component that takes long to start.
func slow(c rig.Cell) int {
	if c.Component == "kafka" {
		return 1
	}
	return 0
}

// round is one move with the cells that are struck in it.
type round struct {
	early, late *rig.Cell // in its import, and in its clean-up; nil: none
	switches    []rig.Cell
}

// rounds spreads cells over as few moves as there must be, the switches evenly.
func rounds(moves, switches []rig.Cell) []round {
	var early, late []rig.Cell
	for _, c := range moves {
		if c.Point == rig.ImportPoint {
			early = append(early, c)
		} else {
			late = append(late, c)
		}
	}
	all := make([]round, max(1, len(early), len(late)))
	for i := range all {
		if i < len(early) {
			all[i].early = &early[i]
		}
		if i < len(late) {
			all[i].late = &late[i]
		}
		all[i].switches = switches[i*len(switches)/len(all) : (i+1)*len(switches)/len(all)]
	}
	return all
}

// cells is how many a round has.
func (r round) cells() int {
	n := len(r.switches)
	for _, c := range []*rig.Cell{r.early, r.late} {
		if c != nil {
			n++
		}
	}
	return n
}

// strikeAll goes through the cells for as long as there is time. An error is one of
// the rig, which can't go on.
func (r *report) strikeAll(ctx context.Context, fleet *rig.Rig, all []round) error {
	for _, one := range all {
		done := r.Cells
		if !r.over() {
			if err := r.strikeRound(ctx, fleet, one); err != nil {
				return err
			}
		}
		r.NotReached += one.cells() - (r.Cells - done)
	}
	return nil
}

// strikeRound makes one move. What is not begun in time is left, with the move.
func (r *report) strikeRound(ctx context.Context, fleet *rig.Rig, one round) error {
	if err := r.strikeMove(ctx, fleet, one.early, fleet.Open); err != nil {
		return err
	}
	for _, c := range one.switches {
		if r.over() {
			return nil
		}
		if err := r.strike(ctx, fleet, c, fleet.Switch); err != nil {
			return err
		}
	}
	if r.over() {
		return nil
	}
	if err := forth(ctx, fleet); err != nil {
		return err
	}
	return r.strikeMove(ctx, fleet, one.late, fleet.Finish)
}

// strikeMove strikes a cell on the way to where do leads; nil only goes there.
func (r *report) strikeMove(ctx context.Context, fleet *rig.Rig, c *rig.Cell, do func(context.Context, *rig.Cell) error) error {
	if c == nil {
		return do(ctx, nil)
	}
	return r.strike(ctx, fleet, *c, do)
}

// over reports whether the time for beginning cells is over.
func (r *report) over() bool { return r.limit > 0 && time.Since(r.began) > r.limit }

// forth switches to the side on which a move can be completed.
func forth(ctx context.Context, fleet *rig.Rig) error {
	forward, err := fleet.Forward(ctx)
	if err != nil || forward {
		return err
	}
	return fleet.Switch(ctx, nil)
}

// strike runs one cell and keeps what came of it. The error says that the next one
// cannot begin.
func (r *report) strike(ctx context.Context, fleet *rig.Rig, c rig.Cell, do func(context.Context, *rig.Cell) error) error {
	v, well := fleet.Judged(ctx, &c, do)
	r.Verdict = v
	r.Cells++
	if c.Outcome != rig.Held {
		r.Failed++
	}
	r.Outcomes = append(r.Outcomes, c)
	fmt.Printf("%3d  %-13s %-22s %5.1f s  %v  %s  %s\n", r.Cells, c.Component, c.Point, c.Seconds, c.Ends, c.Late(), c.Outcome)
	if well || ctx.Err() != nil {
		return ctx.Err()
	}
	if err := fleet.Recover(ctx); err != nil {
		return fmt.Errorf("after %s: %w", name(c), err)
	}
	return nil
}
