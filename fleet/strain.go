package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/balancer"
	"drover/chunk"
	"drover/contract"
)

// Counting reads what a shard's primary counts. before is an earlier reading: what does not
// change is not asked again.
type Counting func(ctx context.Context, s chunk.Shard, before chunk.Counters) (chunk.Counters, error)

// Strains is what reading a fleet needs of the metadata to know how shards and chunks bear
// their load.
type Strains interface {
	// Times gives the seconds that the operations of a second on each placement take.
	Times(ctx context.Context) (map[chunk.PlacementID]float64, error)
	Pressures(ctx context.Context) (map[string]chunk.KeptPressure, error)
	KeepPressure(ctx context.Context, shard string, c chunk.Counters, p chunk.Pressure) error
	// Copying gives the shards that moves copy from or to, with the workflow of one.
	Copying(ctx context.Context) (map[string]string, error)
	Heats(ctx context.Context) (map[chunk.ID]json.RawMessage, error)
	KeepHeats(ctx context.Context, all map[chunk.ID]json.RawMessage) error
}

// defaultAhead is how far operations are foreseen: a split or a move is over by then.
const defaultAhead = time.Hour

// halfLife is after which what was measured counts half.
func (r *Reader) halfLife() time.Duration {
	return cmp.Or(time.Duration(r.Settings.HalfLife), balancer.HalfLife)
}

// ahead is how far operations are foreseen.
func (r *Reader) ahead() time.Duration {
	return max(0, cmp.Or(time.Duration(r.Settings.Ahead), defaultAhead))
}

// heatLeast is the rate below which a chunk is as cold as one that was never asked for.
const heatLeast = 0.01

// heat gives the operations per second to plan with: rates with decay, or what the last
// day says of the next hour where that is more. What was observed is kept.
func (r *Reader) heat(ctx context.Context, v *View, rates map[chunk.PlacementID]float64) (map[chunk.ID]float64, error) {
	kept, err := r.Metadata.Heats(ctx)
	if err != nil {
		return nil, err
	}
	out, next := make(map[chunk.ID]float64, len(v.Routes)), map[chunk.ID]json.RawMessage{}
	for _, route := range v.Routes {
		var m balancer.Memory
		id := route.Chunk.ID
		if b, ok := kept[id]; ok {
			if err := json.Unmarshal(b, &m); err != nil {
				return nil, fmt.Errorf("read the heat of %s: %w", id, err)
			}
		}
		was := m.Heat.At
		m = m.Observe(rates[route.Placement.ID], v.Fleet.At, r.halfLife())
		out[id] = m.Heat.Rate
		if r.ahead() > 0 {
			out[id] = m.Expect(v.Fleet.At, r.ahead())
		}
		if cold := m.Heat.Rate < heatLeast && m.Day.Cold(heatLeast); cold || v.Fleet.At.Sub(was) < chunk.PressureLeast {
			continue // a cold one is forgotten, and what was observed just now is known
		}
		if next[id], err = json.Marshal(m); err != nil {
			return nil, err
		}
	}
	return out, r.Metadata.KeepHeats(ctx, next)
}

// strains asks every shard what it counts: one command, unless that was done just now. A
// shard that does not tell stays unknown, and is planned for by size and operations alone.
func (r *Reader) strains(ctx context.Context, v *View, shards []chunk.Shard) error {
	if r.Counting == nil {
		return nil
	}
	kept, err := r.Metadata.Pressures(ctx)
	if err != nil {
		return err
	}
	copying, err := r.Metadata.Copying(ctx)
	if err != nil {
		return err
	}
	v.Pressures = make(map[string]chunk.Pressure, len(shards))
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(readAtOnce)
	for at, s := range shards {
		g.Go(func() error {
			p, err := r.pressure(ctx, s, kept[s.Name])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			v.Pressures[s.Name] = p
			v.Fleet.Shards[at].Strain = strain(p, copying[s.Name])
			return nil
		})
	}
	return g.Wait()
}

// pressure is how one shard bears its load now, with decay.
func (r *Reader) pressure(ctx context.Context, s chunk.Shard, kept chunk.KeptPressure) (chunk.Pressure, error) {
	if kept.Counters.Host != "" && kept.Age < chunk.PressureLeast {
		return kept.Pressure, nil
	}
	look, cancel := context.WithTimeout(ctx, readLook)
	defer cancel()
	c, err := r.Counting(look, s, kept.Counters)
	if err != nil {
		if ctx.Err() != nil {
			return chunk.Pressure{}, context.Cause(ctx)
		}
		return chunk.Pressure{Unknown: err.Error()}, nil
	}
	p := c.Since(kept.Counters)
	if kept.Age < chunk.PressureMost {
		decay(&p, kept, r.halfLife())
	}
	return p, r.Metadata.KeepPressure(ctx, s.Name, c, p)
}

// decay lets what was measured before count too, less the longer ago it was.
func decay(p *chunk.Pressure, kept chunk.KeptPressure, halfLife time.Duration) {
	now := time.Unix(0, 0).Add(kept.Age)
	mean := func(was, is float64) float64 {
		return balancer.Heat{Rate: was, At: time.Unix(0, 0)}.Observe(is, now, halfLife).Rate
	}
	if was := kept.Pressure.CPU; p.CPU != nil && was != nil {
		*p.CPU = mean(*was, *p.CPU)
	}
	for _, x := range []struct{ is, was *time.Duration }{{p.Write, kept.Pressure.Write}, {p.Read, kept.Pressure.Read}} {
		if x.is != nil && x.was != nil {
			*x.is = time.Duration(mean(float64(*x.was), float64(*x.is)))
		}
	}
}

// strain is what the balancer makes of it. by copies from or to the shard: that strain is
// not the chunks'.
func strain(p chunk.Pressure, by string) (s balancer.Strain) {
	if p.CPU != nil && p.Cores > 0 {
		s.Cores = float64(p.Cores)
		s.CPU = *p.CPU * s.Cores
	}
	if p.Write != nil {
		s.Write = *p.Write
	}
	if by != "" {
		s.Other = by + " copies from it or to it, which strains it too"
	}
	return s
}

// shownStrains bounds how many shards a plan shows the strain of.
const shownStrains = 200

// strains gives the shards that were asked, those nearest to a limit first.
func (v View) strains() []contract.ShardStrain {
	if len(v.Pressures) == 0 {
		return nil
	}
	order := slices.Clone(v.Fleet.Shards)
	slices.SortStableFunc(order, func(a, b balancer.Shard) int {
		return cmp.Or(cmp.Compare(v.Fleet.Limits.Of(b.Strain), v.Fleet.Limits.Of(a.Strain)), cmp.Compare(a.Name, b.Name))
	})
	var out []contract.ShardStrain
	for _, s := range order[:min(len(order), shownStrains)] {
		p := v.Pressures[s.Name]
		out = append(out, contract.ShardStrain{Shard: s.Name, CPU: p.CPU, Write: (*contract.Duration)(p.Write), Read: (*contract.Duration)(p.Read), Unknown: p.Unknown})
	}
	return out
}
