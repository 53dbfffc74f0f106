package balancer

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Season is what makes a fleet ready for a time at which it serves more.
type Season struct {
	Plan
	Opened []string // spare shards that it needs
}

// Expand plans for factor times the operations of now (1: as they are): no shard above fill, with
// as few of the spare shards as that takes. Spare shards (by index) take nothing
// unless they are opened. Sizes stay as they are.
func Expand(f Fleet, spare []int, factor, fill float64) (Season, error) {
	if factor < 1 || math.IsInf(factor, 0) || math.IsNaN(factor) {
		return Season{}, fmt.Errorf("factor %v must not lie below 1", factor)
	}
	if fill <= 0 || fill > 1 {
		return Season{}, fmt.Errorf("fill %v must lie above 0 and not above 1", fill)
	}
	if err := f.Validate(); err != nil {
		return Season{}, err
	}
	if len(f.Chunks) == 0 {
		return Season{}, errors.New("there are no chunks")
	}
	f.Shards, f.Chunks = slices.Clone(f.Shards), slices.Clone(f.Chunks)
	for i := range f.Chunks {
		l := &f.Chunks[i].Load
		l.Ops, l.Writes = l.Ops*factor, l.Writes*factor
	}
	for _, i := range spare {
		f.Shards[i].Closed = true
	}
	var out Season
	for {
		b := season(f, fill)
		next := b.nextSpare(spare)
		if next < 0 {
			out.Plan = b.plan
			out.Opened = slices.DeleteFunc(out.Opened, func(name string) bool {
				return !slices.ContainsFunc(b.plan.Moves, func(m Move) bool { return m.To == name })
			})
			return out, nil
		}
		f.Shards[next].Closed = false
		spare = slices.DeleteFunc(slices.Clone(spare), func(i int) bool { return i == next })
		out.Opened = append(out.Opened, f.Shards[next].Name)
	}
}

// season relieves every shard that would be above fill, and no other.
func season(f Fleet, fill float64) *round {
	p := Policy{Full: fill}.withDefaults()
	b := newRound(f, p)
	b.plan.Mean = b.mean()
	b.plan.Before = slices.Max(b.uses)
	b.limit = fill
	if b.plan.Mean > fill { // no spare shard is left, or none was opened yet: moves only level
		b.limit = b.plan.Mean * (1 + p.Stop)
	}
	b.run()
	b.plan.After = slices.Max(b.uses)
	return b
}

// nextSpare gives the spare shard that the hottest shard needs that stays above the
// limit although it has a chunk to give; -1 where no spare shard would help.
func (b *round) nextSpare(spare []int) int {
	hot, worst := -1, 0.0
	found := -1
	for i := range b.shards {
		if over := b.uses[i] - b.policy.Full - b.policy.MinGain; over <= 1e-9 || hot >= 0 && b.uses[i] <= worst {
			continue
		}
		at := slices.IndexFunc(spare, func(s int) bool {
			return slices.ContainsFunc(b.on[i], func(c int) bool {
				return b.chunks[c].Fixed == "" && !b.moved[c] && b.chunks[c].allows(b.shards[s]) && b.share(c, s) <= b.policy.Full
			})
		})
		if at >= 0 {
			hot, worst, found = i, b.uses[i], spare[at]
		}
	}
	return found
}

// Shrink plans to empty shards (by index) again, into all others up to fill.
func Shrink(f Fleet, shards []int, fill float64) (Packing, error) {
	f.Shards, f.Chunks = slices.Clone(f.Shards), slices.Clone(f.Chunks)
	if err := f.Validate(); err != nil {
		return Packing{}, err
	}
	for _, i := range shards {
		f.Shards[i].Closed = true
	}
	out := Packing{Moves: []Move{}}
	for _, i := range shards {
		p, err := Drain(f, f.Shards[i].Name, fill)
		if err != nil {
			return Packing{}, err
		}
		out.Moves, out.Refused = append(out.Moves, p.Moves...), append(out.Refused, p.Refused...)
		out.Bytes, out.Used, out.Empty = out.Bytes+p.Bytes, p.Used, append(out.Empty, p.Empty...)
		f.apply(p.Moves)
	}
	return out, nil
}

// After gives the fleet as moves leave it.
func (f Fleet) After(moves []Move) Fleet {
	f.Chunks = slices.Clone(f.Chunks)
	f.apply(moves)
	return f
}
