package activities

import (
	"context"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/internal/pause"
	"drover/metadata"
)

// admitEvery is how often a move that waits asks again.
const admitEvery = time.Second

// AdmitMove lets a move begin when its target has room for what it would bring. It
// asks again for as long as the caller has patience.
//
// Before: registered. After: recorded as admitted, or nothing. If interrupted: run
// again; an admitted move stays admitted.
func (a *Activities) AdmitMove(ctx context.Context, in contract.AdmitInput) (out contract.Admission, err error) {
	end := time.Now().Add(time.Duration(in.Patience))
	err = beating(ctx, func() any { return in.Ref }, func(ctx context.Context) error {
		for {
			seen, err := a.admit(ctx, in)
			if err != nil {
				return err
			}
			if seen.Admitted || time.Now().Add(admitEvery).After(end) {
				out = seen
				return nil
			}
			if err := pause.For(ctx, admitEvery); err != nil {
				return err
			}
		}
	})
	return out, err
}

// admit asks once. What a chunk brings is the mean of its requests by the proxies'
// word, who do not tell reads from writes: all count.
func (a *Activities) admit(ctx context.Context, in contract.AdmitInput) (contract.Admission, error) {
	held, err := a.Store.Paused(ctx)
	if err != nil || held != "" {
		return contract.Admission{Held: held}, err
	}
	legs, err := a.Store.Legs(ctx, in.Migration)
	if err != nil {
		return contract.Admission{}, err
	}
	loads, err := a.Store.Loads(ctx)
	if err != nil {
		return contract.Admission{}, err
	}
	waivers, err := a.Store.Waivers(ctx, in.Chunk)
	if err != nil {
		return contract.Admission{}, err
	}
	always := in.Always || waivers[contract.RoomCheck] != ""
	seen, err := a.Store.Admit(ctx, in.Migration, demands(legs, loads), contract.SpareFactor, always)
	return contract.Admission(seen), err
}

// demands divides what each source is asked for among the legs that it has.
func demands(legs []metadata.Migration, loads map[chunk.PlacementID]float64) map[chunk.MigrationID]float64 {
	of := map[chunk.PlacementID]int{}
	for _, l := range legs {
		of[l.Source.ID]++
	}
	out := map[chunk.MigrationID]float64{}
	for _, l := range legs {
		out[l.ID] = loads[l.Source.ID] / float64(of[l.Source.ID])
	}
	return out
}
