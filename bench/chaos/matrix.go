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

// strikeAll goes through the cells for as long as there is time: those that need a
// move of their own first. An error is one of the rig, which can't go on.
func (r *report) strikeAll(ctx context.Context, fleet *rig.Rig, moves, switches []rig.Cell) error {
	for _, c := range moves {
		if r.late() {
			r.NotReached++
			continue
		}
		if !r.strike(ctx, fleet, c, wholeMove(fleet, c)) {
			return fmt.Errorf("%s broke the move: %s", name(c), r.Outcomes[len(r.Outcomes)-1].Outcome)
		}
	}
	if r.late() || len(switches) == 0 {
		r.NotReached += len(switches)
		return ctx.Err()
	}
	if err := fleet.Open(ctx, nil); err != nil {
		return err
	}
	for _, c := range switches {
		if r.late() {
			r.NotReached++
			continue
		}
		if !r.strike(ctx, fleet, c, fleet.Switch) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := fleet.Recover(ctx); err != nil {
				return fmt.Errorf("after %s: %w", name(c), err)
			}
		}
	}
	if err := forth(ctx, fleet); err != nil {
		return err
	}
	return fleet.Finish(ctx, nil)
}

// late reports whether the time for beginning cells is over.
func (r *report) late() bool { return r.limit > 0 && time.Since(r.began) > r.limit }

// wholeMove moves the chunk, with the strike at the cell's point.
func wholeMove(fleet *rig.Rig, c rig.Cell) func(context.Context, *rig.Cell) error {
	return func(ctx context.Context, cell *rig.Cell) error {
		early, late := cell, (*rig.Cell)(nil)
		if c.Point == rig.CleanupPoint {
			early, late = nil, cell
		}
		if err := fleet.Open(ctx, early); err != nil {
			return err
		}
		return fleet.Finish(ctx, late)
	}
}

// forth switches to the side on which a move can be completed.
func forth(ctx context.Context, fleet *rig.Rig) error {
	forward, err := fleet.Forward(ctx)
	if err != nil || forward {
		return err
	}
	return fleet.Switch(ctx, nil)
}

// strike runs one cell and keeps what came of it; false says that the rig is not
// where the next one can begin.
func (r *report) strike(ctx context.Context, fleet *rig.Rig, c rig.Cell, do func(context.Context, *rig.Cell) error) bool {
	v, well := fleet.Judged(ctx, &c, do)
	r.Verdict = v
	r.Cells++
	if c.Outcome != rig.Held {
		r.Failed++
	}
	r.Outcomes = append(r.Outcomes, c)
	fmt.Printf("%3d  %-13s %-22s %5.1f s  %v  %v  %s\n", r.Cells, c.Component, c.Point, c.Seconds, c.Ends, c.WatchdogMS, c.Outcome)
	return well
}
