// Package fleet is the fleet as it is (figures of shards and chunks, each with
// where it comes from) and as it is wanted (the fleet file), and what leads from
// the one to the other.
package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/balancer"
	"drover/chunk"
	"drover/contract"
	"drover/placement"
)

// What a shard can take, unless settings say otherwise.
const (
	RebuildRate     = 100 << 20 // bytes per second at which a member is rebuilt
	DefaultShardOps = 20_000.0  // requests per second
	defaultCoolDown = time.Hour
	DefaultMoveRate = 30 << 20 // bytes per second of one move
)

// Metadata is what reading a fleet needs of the metadata.
type Metadata interface {
	Now(ctx context.Context) (time.Time, error)
	Shards(ctx context.Context) ([]chunk.Shard, error)
	Databases(ctx context.Context) ([]chunk.Database, error)
	Routes(ctx context.Context, database string) ([]chunk.Route, error)
	RouteAges(ctx context.Context) (map[chunk.ID]time.Duration, error)
	Loads(ctx context.Context) (map[chunk.PlacementID]float64, error)
	Moving(ctx context.Context) (map[chunk.ID]string, error)
	MoveRates(ctx context.Context) (map[string]float64, error)
	Pins(ctx context.Context) (map[chunk.ID]string, error)
	IntentClaims(ctx context.Context) (chunks map[chunk.ID]string, emptied, filled map[string]string, err error)
	Strains
}

// Sizes gives how many bytes a database on a shard holds.
type Sizes func(ctx context.Context, s chunk.Shard, database string) (int64, error)

// View is a fleet at one moment.
type View struct {
	Fleet     balancer.Fleet
	Figures   []contract.Figure
	Routes    []chunk.Route // in the order of Fleet.Chunks
	Databases map[string]chunk.Database
	Rules     placement.Rules
	Moving    map[chunk.ID]string       // chunks of unfinished moves, by workflow
	Filled    map[string]string         // shards that open intents fill, by intent
	Emptied   map[string]string         // shards that open intents empty, by intent
	Silent    []contract.Refused        // shards that did not answer
	Conflicts []contract.Refused        // chunks that the rules want in two places
	Versions  map[string]string         // of MongoDB, by shard
	MoveRates map[string]float64        // bytes per second that imports to a shard have reached
	Spare     []string                  // shards of the pool for seasons that answer; nothing else is put there
	Pinned    map[chunk.ID]string       // by people, with why
	Pressures map[string]chunk.Pressure // of the shards that were asked
}

// Reader reads fleets.
type Reader struct {
	Metadata Metadata
	Sizes    Sizes
	Counting Counting // nil: no shard is asked how it bears its load
	Settings contract.BalanceSettings
	Sources  map[string]string // of settings, by their JSON name; one that is missing is a default
	File     *File             // the desired state; nil: there is none
}

// readAtOnce bounds how many shards are read at once, and readLook one of them.
const (
	readAtOnce = 8
	readLook   = 20 * time.Second
)

// Read reads the fleet. A shard that does not answer takes nothing and gives
// nothing: its chunks stay, and it is named.
func (r *Reader) Read(ctx context.Context) (View, error) {
	var v View
	at, err := r.Metadata.Now(ctx)
	if err != nil {
		return v, err
	}
	shards, err := r.Metadata.Shards(ctx)
	if err != nil {
		return v, err
	}
	databases, err := r.Metadata.Databases(ctx)
	if err != nil {
		return v, err
	}
	if v.Routes, err = r.Metadata.Routes(ctx, ""); err != nil {
		return v, err
	}
	v.Databases = map[string]chunk.Database{}
	for _, d := range databases {
		v.Databases[d.Name] = d
	}
	v.Fleet.At = at
	v.Versions = map[string]string{}
	for _, s := range shards {
		v.Versions[s.Name] = s.Capabilities.Version
	}
	r.capacities(&v, shards)
	if v.MoveRates, err = r.Metadata.MoveRates(ctx); err != nil {
		return v, err
	}
	if err := r.claims(ctx, &v); err != nil {
		return v, err
	}
	if err := r.loads(ctx, &v, shards); err != nil {
		return v, err
	}
	if err := r.strains(ctx, &v, shards); err != nil {
		return v, err
	}
	if r.File != nil {
		r.zones(&v)
	}
	return v, nil
}

// figure notes a number with where it comes from, and gives it.
func (r *Reader) figure(v *View, name string, set, otherwise float64, unit, why string) float64 {
	f := contract.Figure{Name: name, Source: "default: " + why}
	if set > 0 {
		otherwise = set
		f.Source = r.Sources[name]
		if f.Source == "" {
			f.Source = "settings of the round"
		}
	}
	f.Value = fmt.Sprintf("%.0f %s", otherwise, unit)
	v.Figures = append(v.Figures, f)
	return otherwise
}

// capacities lists the shards with what each can take.
func (r *Reader) capacities(v *View, shards []chunk.Shard) {
	limit := balancer.SizeLimit(RebuildRate, balancer.MaxRebuild)
	bytes := r.figure(v, "shardBytes", r.Settings.ShardBytes, limit, "bytes of a shard",
		fmt.Sprintf("what is rebuilt within %s at %d MiB/s", balancer.MaxRebuild, RebuildRate>>20))
	ops := r.figure(v, "shardOps", r.Settings.ShardOps, DefaultShardOps, "requests/s of a shard", "nobody has measured it")
	apply := r.figure(v, "shardApply", r.Settings.ShardApply, 0, "changes/s that a shard can apply beside its work", "not asked for")
	v.Figures = append(v.Figures,
		contract.Figure{Name: "chunk bytes", Value: "documents and indexes", Source: "dbStats of the serving placement"},
		contract.Figure{
			Name: "chunk operations", Value: fmt.Sprintf("means of minutes, of which each counts half after %s, and what yesterday says of the next %s", r.halfLife(), r.ahead()),
			Source: "the proxies' word; they do not tell reads from writes, so that all count as writes",
		})
	v.Fleet.Limits = balancer.Limits{CPU: r.Settings.CPULimit, Write: time.Duration(r.Settings.WriteLimit)}
	for _, s := range shards {
		v.Fleet.Shards = append(v.Fleet.Shards, balancer.Shard{
			Name: s.Name, Capacity: balancer.Load{Bytes: bytes, Ops: ops}, Apply: apply,
		})
	}
}

// claims reads what moves already, or will by an open intent. A shard that an
// intent empties takes nothing.
func (r *Reader) claims(ctx context.Context, v *View) error {
	var err error
	if v.Moving, err = r.Metadata.Moving(ctx); err != nil {
		return err
	}
	chunks, emptied, filled, err := r.Metadata.IntentClaims(ctx)
	if err != nil {
		return err
	}
	if v.Moving == nil {
		v.Moving = map[chunk.ID]string{}
	}
	for c, by := range chunks {
		v.Moving[c] = by
	}
	v.Filled, v.Emptied = filled, emptied
	for _, open := range []struct {
		does   string
		shards map[string]string
	}{{"empties", emptied}, {"moves chunks to", filled}} {
		for _, s := range slices.Sorted(maps.Keys(open.shards)) {
			v.Figures = append(v.Figures, contract.Figure{Name: "open intent", Value: open.shards[s] + " " + open.does + " " + s, Source: "metadata; drover rebalance status"})
		}
	}
	for i := range v.Fleet.Shards {
		s := &v.Fleet.Shards[i]
		s.Closed = s.Closed || emptied[s.Name] != ""
	}
	return nil
}

// loads lists the chunks with what each asks of its shard.
func (r *Reader) loads(ctx context.Context, v *View, shards []chunk.Shard) error {
	rates, err := r.Metadata.Loads(ctx)
	if err != nil {
		return err
	}
	times, err := r.Metadata.Times(ctx)
	if err != nil {
		return err
	}
	ages, err := r.Metadata.RouteAges(ctx)
	if err != nil {
		return err
	}
	if v.Pinned, err = r.Metadata.Pins(ctx); err != nil {
		return err
	}
	cool := time.Duration(r.Settings.CoolDown)
	if cool == 0 {
		cool = defaultCoolDown
	}
	index := map[string]int{}
	for i, s := range shards {
		index[s.Name] = i
	}
	heat, err := r.heat(ctx, v, rates)
	if err != nil {
		return err
	}
	for _, route := range v.Routes {
		c := balancer.Chunk{ID: string(route.Chunk.ID), Shard: index[route.Placement.Shard]}
		c.Load.Ops, c.Load.Time = heat[route.Chunk.ID], times[route.Placement.ID]
		c.Load.Writes = c.Load.Ops
		if by, ok := v.Moving[route.Chunk.ID]; ok {
			c.Fixed = "it is being moved by " + by
		} else if why := v.Pinned[route.Chunk.ID]; why != "" {
			c.Fixed = why
		} else if age, ok := ages[route.Chunk.ID]; ok && age < cool {
			c.Fixed = fmt.Sprintf("it came to %s %s ago and cools down for %s", route.Placement.Shard, age.Round(time.Second), cool)
		}
		v.Fleet.Chunks = append(v.Fleet.Chunks, c)
	}
	return r.sizes(ctx, v, shards)
}

// sizes asks every shard how much its chunks hold.
func (r *Reader) sizes(ctx context.Context, v *View, shards []chunk.Shard) error {
	on := make([][]int, len(shards))
	for i, c := range v.Fleet.Chunks {
		on[c.Shard] = append(on[c.Shard], i)
	}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(readAtOnce)
	for at, s := range shards {
		g.Go(func() error {
			look, cancel := context.WithTimeout(ctx, readLook)
			defer cancel()
			for _, i := range on[at] {
				n, err := r.Sizes(look, s, v.Routes[i].Placement.Database)
				if err != nil {
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					mu.Lock()
					defer mu.Unlock()
					r.silent(v, at, err)
					return nil
				}
				v.Fleet.Chunks[i].Load.Bytes = float64(n)
			}
			return nil
		})
	}
	return g.Wait()
}

// silent sets a shard aside.
func (r *Reader) silent(v *View, at int, why error) {
	s := &v.Fleet.Shards[at]
	s.Closed = true
	v.Silent = append(v.Silent, contract.Refused{Subject: s.Name, Reason: "it did not say how much it holds: " + why.Error(), Offer: "drover shard check " + s.Name})
	for i := range v.Fleet.Chunks {
		if c := &v.Fleet.Chunks[i]; c.Shard == at && c.Fixed == "" {
			c.Fixed = "its shard did not say how much it holds"
		}
	}
}

// contradicted is what keeps a chunk that the rules want in two places: until the tenant
// has a chunk of its own, no move of it would be right.
const contradicted = "the placement rules contradict each other about it"

// zones lays the placement rules over the fleet.
func (r *Reader) zones(v *View) {
	rules := r.File.Rules(v.Databases)
	v.Rules = rules
	for i := range v.Fleet.Shards {
		s := &v.Fleet.Shards[i]
		declared := r.File.Shard(s.Name)
		s.Zone, s.Region = declared.Zone, declared.Region
		if declared.Spare {
			if !s.Closed {
				v.Spare = append(v.Spare, s.Name)
			}
			s.Closed = true
		}
	}
	for i, route := range v.Routes {
		c := &v.Fleet.Chunks[i]
		d, err := rules.Chunk(route.Chunk, v.Databases[route.Chunk.Database].KeySpace)
		if err != nil {
			c.Fixed = contradicted
			v.Conflicts = append(v.Conflicts, contract.Refused{Subject: c.ID, Reason: err.Error(), Offer: "drover chunk isolate gives the tenant a chunk of its own"})
			continue
		}
		c.Zone, c.Region = d.Rule.Target.Zone, d.Rule.Target.Region
		if d.Rule.Target.Shard != "" {
			pinned := r.File.Shard(d.Rule.Target.Shard)
			c.Zone, c.Region = pinned.Zone, pinned.Region
			if c.Fixed == "" {
				c.Fixed = "pinned by " + d.Rule.String()
			}
		}
	}
}

// Index finds a shard of the view.
func (v View) Index(shard string) int {
	return slices.IndexFunc(v.Fleet.Shards, func(s balancer.Shard) bool { return s.Name == shard })
}
