package activities

import (
	"context"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/validation"
)

// compareSlice is how many documents lie between two marks of a comparison that
// runs beside a move, whose lanes save at each of them.
const compareSlice = 100_000

// Present gives the direction in which the lanes of a chunk's unfinished move run
// now: from the placement that serves to the other one.
func (a *Activities) Present(ctx context.Context, id chunk.ID) (in contract.DirectionInput, err error) {
	m, ok, err := a.Store.OpenMigration(ctx, id)
	if err != nil {
		return in, err
	}
	if !ok {
		return in, failure.New(failure.Invalid, "validation.one_side", "chunk %s is not being moved: it has one placement and nothing to compare it with", id).
			WithHint("drover migrate list shows what is being moved")
	}
	in = contract.DirectionInput{Ref: contract.Ref{Migration: m.ID, Chunk: id}, From: m.Source, To: m.Target}
	attempts, err := a.Store.Attempts(ctx, m.ID)
	if err != nil {
		return in, err
	}
	for _, at := range attempts {
		if at.Token != 0 && at.ID > in.Direction {
			in.Direction, in.From, in.To = at.ID, at.Target, at.Source
		}
	}
	return in, nil
}

// Compare compares both sides of a direction, leg by leg, at any time while its
// lanes run, beside whatever the move itself does. What it finds is kept.
func (a *Activities) Compare(ctx context.Context, in contract.DirectionInput, progress func(context.Context, validation.Progress)) (sum validation.Result, err error) {
	all, err := a.legs(ctx, in)
	if err != nil {
		return sum, err
	}
	for _, l := range all {
		res, err := a.compareLeg(ctx, l, progress)
		if err != nil {
			return sum, err
		}
		sum.Add(res)
	}
	return sum, nil
}

// compareLeg compares one leg.
func (a *Activities) compareLeg(ctx context.Context, l leg, progress func(context.Context, validation.Progress)) (validation.Result, error) {
	e, err := a.ends(ctx, l.DirectionInput)
	if err != nil {
		return validation.Result{}, err
	}
	v, err := a.validator(ctx, l, e)
	if err != nil {
		return validation.Result{}, err
	}
	v.Settings.Slice, v.Progress = compareSlice, progress
	catalog, err := a.Store.Collections(ctx, databaseOf(l.Chunk))
	if err != nil {
		return validation.Result{}, err
	}
	res, err := v.Run(ctx, names(catalog))
	if err != nil {
		return res, err
	}
	return res, a.recordMismatches(ctx, l.Migration, res.Mismatches)
}
