package switchover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/chunk"
)

// Leg is one pair of placements that an attempt switches.
type Leg struct {
	Migration chunk.MigrationID
	Source    chunk.Placement
	Target    chunk.Placement
}

// sides finds both sides of an attempt. Those of a split or merge are fans.
func (s *Switcher) sides(ctx context.Context, at Attempt) (src, dst Side, err error) {
	if src, err = s.source(ctx, at); err != nil {
		return nil, nil, err
	}
	dst, err = s.target(ctx, at)
	return src, dst, err
}

// source finds the side that serves until the publish.
func (s *Switcher) source(ctx context.Context, at Attempt) (Side, error) {
	if len(at.Legs) <= 1 {
		return s.Shards.Side(ctx, at.Source.Shard)
	}
	return s.fan(ctx, at, func(l Leg) chunk.Placement { return l.Source })
}

// target finds the side that serves after the publish.
func (s *Switcher) target(ctx context.Context, at Attempt) (Side, error) {
	if len(at.Legs) <= 1 {
		return s.Shards.Side(ctx, at.Target.Shard)
	}
	return s.fan(ctx, at, func(l Leg) chunk.Placement { return l.Target })
}

// fan is all placements of one side of a split or merge: a step is taken on every
// one of them, at the same time, and is done when the last one has it. The
// placement that a call names is the one that leads.
type fan struct {
	at     Attempt
	parts  []part
	of     func(Leg) chunk.Placement
	leases map[string]int64 // by shard, for the fence

	mu   sync.Mutex
	owed map[chunk.PlacementID][]string // by the last barrier of each placement
}

// part is one placement of a fan with its shard.
type part struct {
	placement chunk.Placement
	side      Side
}

var _ Side = (*fan)(nil)

// fan finds the shards of one side.
func (s *Switcher) fan(ctx context.Context, at Attempt, of func(Leg) chunk.Placement) (*fan, error) {
	f := &fan{at: at, of: of}
	for _, l := range at.Legs {
		p := of(l)
		if slices.ContainsFunc(f.parts, func(o part) bool { return o.placement.ID == p.ID }) {
			continue
		}
		side, err := s.Shards.Side(ctx, p.Shard)
		if err != nil {
			return nil, err
		}
		f.parts = append(f.parts, part{placement: p, side: side})
	}
	return f, nil
}

// each takes a step on every placement.
func (f *fan) each(ctx context.Context, step func(context.Context, part) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range f.parts {
		g.Go(func() error {
			if err := step(ctx, p); err != nil {
				return fmt.Errorf("placement %d on %s: %w", p.placement.ID, p.placement.Shard, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// eachLeg takes a step for every leg, on the shard of this side.
func (f *fan) eachLeg(ctx context.Context, step func(context.Context, Leg, Side) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range f.at.Legs {
		at := slices.IndexFunc(f.parts, func(p part) bool { return p.placement.ID == f.of(l).ID })
		g.Go(func() error { return step(ctx, l, f.parts[at].side) })
	}
	return g.Wait()
}

// CreateGrants implements [Side].
func (f *fan) CreateGrants(ctx context.Context, _ chunk.Placement, a chunk.AttemptID) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.CreateGrants(ctx, p.placement, a) })
}

// Foresee implements [Side].
func (f *fan) Foresee(ctx context.Context, _ chunk.Placement) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.Foresee(ctx, p.placement) })
}

// DropGrants implements [Side].
func (f *fan) DropGrants(ctx context.Context, _ chunk.Placement, a chunk.AttemptID, access Access) (int, error) {
	var mu sync.Mutex
	sum := 0
	err := f.each(ctx, func(ctx context.Context, p part) error {
		n, err := p.side.DropGrants(ctx, p.placement, a, access)
		mu.Lock()
		defer mu.Unlock()
		sum += n
		return err
	})
	return sum, err
}

// Forget implements [Side].
func (f *fan) Forget(chunk.Placement) {
	for _, p := range f.parts {
		p.side.Forget(p.placement)
	}
}

// Barrier implements [Side]; see [fan.owe].
func (f *fan) Barrier(ctx context.Context, _ chunk.Placement, access Access) ([]string, error) {
	var all []string
	err := f.each(ctx, func(ctx context.Context, p part) error {
		hosts, err := p.side.Barrier(ctx, p.placement, access)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.owed == nil {
			f.owed = map[chunk.PlacementID][]string{}
		}
		f.owed[p.placement.ID] = hosts
		all = append(all, hosts...)
		return err
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// owe notes for each placement who is owed its last barrier.
func (f *fan) owe(ctx context.Context, ledger Ledger, access Access) error {
	for _, p := range f.parts {
		hosts := f.owed[p.placement.ID]
		if len(hosts) == 0 {
			continue
		}
		own := f.at
		own.Source = p.placement
		if err := ledger.Owe(ctx, own, access, hosts); err != nil {
			return err
		}
	}
	return nil
}

// Pay implements [Side]. What is owed is owed for one placement, by its own shard.
func (f *fan) Pay(ctx context.Context, host string, of chunk.Placement, access Access) error {
	for _, p := range f.parts {
		if p.placement.ID == of.ID {
			return p.side.Pay(ctx, host, of, access)
		}
	}
	return fmt.Errorf("placement %d is none of attempt %d", of.ID, f.at.ID)
}

// GrantToData implements [Side]. It is called under one shard's lock only, see
// [Switcher.grant].
func (f *fan) GrantToData(ctx context.Context, _ chunk.Placement, a chunk.AttemptID) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.GrantToData(ctx, p.placement, a) })
}

// Identity implements [Side]: one reign of all primaries together.
func (f *fan) Identity(ctx context.Context) (Identity, error) {
	var mu sync.Mutex
	var all Identity
	var names []string
	err := f.each(ctx, func(ctx context.Context, p part) error {
		id, err := p.side.Identity(ctx)
		mu.Lock()
		defer mu.Unlock()
		all.Term = max(all.Term, id.Term)
		names = append(names, fmt.Sprintf("%s=%d:%s", p.placement.Shard, id.Term, id.ProcessID))
		return err
	})
	slices.Sort(names)
	all.ProcessID = strings.Join(slices.Compact(names), " ")
	return all, err
}

// Blind implements [Side]: one that is blind makes all of them so.
func (f *fan) Blind() bool {
	return slices.ContainsFunc(f.parts, func(p part) bool { return p.side.Blind() })
}

// Drain implements [Side].
func (f *fan) Drain(ctx context.Context, _ chunk.Placement, silent bool) (string, error) {
	var mu sync.Mutex
	var ways []string
	err := f.each(ctx, func(ctx context.Context, p part) error {
		way, err := p.side.Drain(ctx, p.placement, silent)
		mu.Lock()
		defer mu.Unlock()
		ways = append(ways, p.placement.Shard+" "+way)
		return err
	})
	slices.Sort(ways)
	return strings.Join(ways, "; "), err
}

// WriteFence implements [Side].
func (f *fan) WriteFence(ctx context.Context, _ chunk.Placement, a chunk.AttemptID, _ int64, deadline time.Time) error {
	return f.each(ctx, func(ctx context.Context, p part) error {
		return p.side.WriteFence(ctx, p.placement, a, f.leases[p.placement.Shard], deadline)
	})
}

// LiftFence implements [Side].
func (f *fan) LiftFence(ctx context.Context, _ chunk.Placement, a chunk.AttemptID) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.LiftFence(ctx, p.placement, a) })
}

// WriteMarker implements [Side]: each placement's log gets its own.
func (f *fan) WriteMarker(ctx context.Context, m chunk.Marker) error {
	return f.each(ctx, func(ctx context.Context, p part) error {
		own := m
		own.Placement, own.Database = p.placement.ID, p.placement.OwnName()
		return p.side.WriteMarker(ctx, own)
	})
}

// Opened implements [Side]: the newest of all.
func (f *fan) Opened(ctx context.Context, _ chunk.Placement) (chunk.AttemptID, error) {
	var mu sync.Mutex
	var newest chunk.AttemptID
	err := f.each(ctx, func(ctx context.Context, p part) error {
		a, err := p.side.Opened(ctx, p.placement)
		mu.Lock()
		defer mu.Unlock()
		newest = max(newest, a)
		return err
	})
	return newest, err
}

// WriteOpenRecord implements [Side].
func (f *fan) WriteOpenRecord(ctx context.Context, _ chunk.Placement, a chunk.AttemptID, token chunk.Token) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.WriteOpenRecord(ctx, p.placement, a, token) })
}

// SetForward implements [Side]. A chunk that was split or merged has no address to
// leave: its keys have several, or another chunk's.
func (f *fan) SetForward(context.Context, chunk.Placement, chunk.AttemptID, Forward) error {
	return nil
}

// Passed implements [Side] for the marker of the placement that leads.
func (f *fan) Passed(ctx context.Context, _ chunk.MigrationID, direction chunk.AttemptID, _ chunk.Placement, key string) (bool, error) {
	var mu sync.Mutex
	all := true
	err := f.eachLeg(ctx, func(ctx context.Context, l Leg, side Side) error {
		// The markers of a step differ in the placement only.
		own := strings.Replace(key, fmt.Sprintf("/p%d/", f.at.Source.ID), fmt.Sprintf("/p%d/", l.Source.ID), 1)
		passed, err := side.Passed(ctx, l.Migration, direction, l.Source, own)
		mu.Lock()
		defer mu.Unlock()
		all = all && passed
		return err
	})
	return all && err == nil, err
}

// Parked implements [Side].
func (f *fan) Parked(ctx context.Context, _ chunk.MigrationID) (int64, error) {
	var mu sync.Mutex
	var sum int64
	err := f.eachLeg(ctx, func(ctx context.Context, l Leg, side Side) error {
		n, err := side.Parked(ctx, l.Migration)
		mu.Lock()
		defer mu.Unlock()
		sum += n
		return err
	})
	return sum, err
}

// CloseLanes implements [Side].
func (f *fan) CloseLanes(ctx context.Context, _ chunk.MigrationID, direction, by chunk.AttemptID) error {
	return f.eachLeg(ctx, func(ctx context.Context, l Leg, side Side) error {
		return side.CloseLanes(ctx, l.Migration, direction, by)
	})
}

// DropApplierRole implements [Side].
func (f *fan) DropApplierRole(ctx context.Context, _ chunk.Placement, _ chunk.MigrationID, direction chunk.AttemptID) error {
	return f.eachLeg(ctx, func(ctx context.Context, l Leg, side Side) error {
		return side.DropApplierRole(ctx, f.of(l), l.Migration, direction)
	})
}

// ParkTTL implements [Side].
func (f *fan) ParkTTL(ctx context.Context, _ chunk.Placement, a chunk.AttemptID) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.ParkTTL(ctx, p.placement, a) })
}

// RestoreTTL implements [Side].
func (f *fan) RestoreTTL(ctx context.Context, _ chunk.Placement, a chunk.AttemptID) error {
	return f.each(ctx, func(ctx context.Context, p part) error { return p.side.RestoreTTL(ctx, p.placement, a) })
}

// grant gives the proxies' user an attempt's roles of one side, each shard under
// its own lock and one after the other, so that no two attempts wait for each
// other.
func (s *Switcher) grant(ctx context.Context, side Side, p chunk.Placement, a chunk.AttemptID) error {
	parts := []part{{placement: p, side: side}}
	if f, ok := side.(*fan); ok {
		parts = f.parts
	}
	for _, one := range parts {
		err := s.Ledger.GrantLock(ctx, one.placement.Shard, func(ctx context.Context) error {
			return one.side.GrantToData(ctx, one.placement, a)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
