package activities

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// sampleSize is how many documents of a chunk are looked at to cut it by size.
const sampleSize = 4000

// registerReshape records a split or merge and makes its targets ready. What
// [Activities.RegisterMigration] says of a move holds for it.
func (a *Activities) registerReshape(ctx context.Context, in contract.RegisterInput) (contract.Plan, error) {
	open, ok, err := a.Store.OpenMigration(ctx, in.Chunk)
	if err != nil {
		return contract.Plan{}, err
	}
	if ok && open.WorkflowID == in.WorkflowID { // a sample would cut elsewhere the second time
		return a.prepareReshape(ctx, open)
	}
	routes, err := a.oldChunks(ctx, in)
	if err != nil {
		return contract.Plan{}, err
	}
	if err := a.precheckReshape(ctx, in, routes); err != nil {
		return contract.Plan{}, err
	}
	targets, err := a.newChunks(ctx, in, routes)
	if err != nil {
		return contract.Plan{}, err
	}
	r := metadata.ReshapeRequest{Targets: targets, WorkflowID: in.WorkflowID, RequestedBy: in.RequestedBy}
	for _, x := range routes {
		r.Chunks = append(r.Chunks, x.Chunk.ID)
	}
	m, err := a.Store.RegisterReshape(ctx, r)
	if err != nil {
		return contract.Plan{}, err
	}
	return a.prepareReshape(ctx, m)
}

// oldChunks gives the routes of the chunks that are replaced, in the order of the
// key space.
func (a *Activities) oldChunks(ctx context.Context, in contract.RegisterInput) ([]chunk.Route, error) {
	var routes []chunk.Route
	for _, id := range append([]chunk.ID{in.Chunk}, in.Reshape.With...) {
		if databaseOf(id) != databaseOf(in.Chunk) {
			return nil, failure.New(failure.Invalid, "migration.not_contiguous", "chunks %s and %s are of different databases", in.Chunk, id)
		}
		r, err := a.Store.Route(ctx, id)
		if err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(x, y chunk.Route) int { return cmp.Compare(x.Chunk.Range.Lo, y.Chunk.Range.Lo) })
	return routes, nil
}

// precheckReshape refuses what cannot work, before anything is changed.
func (a *Activities) precheckReshape(ctx context.Context, in contract.RegisterInput, routes []chunk.Route) error {
	for _, r := range routes {
		set, err := a.Sides.Set(ctx, r.Placement.Shard)
		if err != nil {
			return err
		}
		if err := reachable(ctx, set); err != nil {
			return err
		}
		if err := readable(ctx, set, in.PrimaryReads); err != nil {
			return err
		}
		if err := awaitCaptured(ctx, a.Store, r.Placement.Shard); err != nil {
			return err
		}
		if _, err := a.defined(ctx, set, r.Placement); err != nil {
			return err
		}
		if err := a.checkBeside(ctx, r.Placement); err != nil {
			return err
		}
	}
	for _, name := range append(slices.Clone(in.Reshape.Shards), in.To) {
		if name == "" {
			continue
		}
		set, err := a.Sides.Set(ctx, name)
		if err != nil {
			return err
		}
		if err := reachable(ctx, set); err != nil {
			return err
		}
	}
	db, err := a.Store.Database(ctx, databaseOf(in.Chunk))
	if err != nil {
		return err
	}
	return shard.CheckUnique(db.Name, db.Collections)
}

// newChunks gives the ranges that come in the place of the old ones.
func (a *Activities) newChunks(ctx context.Context, in contract.RegisterInput, routes []chunk.Route) ([]metadata.NewRange, error) {
	ranges := make([]chunk.Range, 0, len(routes))
	for _, r := range routes {
		ranges = append(ranges, r.Chunk.Range)
	}
	whole, err := chunk.Union(ranges)
	if err != nil {
		return nil, failure.New(failure.Invalid, "migration.not_contiguous", "%w", err).
			WithHint("only chunks of one database that lie side by side can be merged; drover chunk list shows them in order")
	}
	cut, err := a.cut(ctx, in, routes, whole)
	if errors.Is(err, chunk.ErrNotDivisible) {
		return nil, failure.New(failure.Invalid, "migration.not_divisible", "%s: %w", in.Chunk, err).
			WithHint("give boundaries with --at, or fewer parts; equal shard keys are never divided")
	}
	if err != nil {
		return nil, err
	}
	out := make([]metadata.NewRange, 0, len(cut))
	for i, r := range cut {
		name := in.To
		if len(in.Reshape.Shards) > 0 {
			name = in.Reshape.Shards[i]
		}
		out = append(out, metadata.NewRange{Range: r, Shard: name})
	}
	return out, nil
}

// cut divides the whole as asked.
func (a *Activities) cut(ctx context.Context, in contract.RegisterInput, routes []chunk.Route, whole chunk.Range) ([]chunk.Range, error) {
	r := in.Reshape
	if len(r.At) > 0 {
		points := make([]chunk.Key, 0, len(r.At))
		for _, s := range r.At {
			b, err := hex.DecodeString(s)
			if err != nil {
				return nil, failure.New(failure.Invalid, "migration.bad_input", "point %q: %w", s, err)
			}
			points = append(points, chunk.Key(b))
		}
		return whole.SplitAt(points...)
	}
	if r.Parts < 2 {
		return []chunk.Range{whole}, nil
	}
	db, err := a.Store.Database(ctx, databaseOf(in.Chunk))
	if err != nil {
		return nil, err
	}
	if r.Even {
		return db.KeySpace.SplitEvenly(whole, r.Parts)
	}
	var sample []chunk.Weighed
	weigh := a.sample
	if r.By == contract.ByHeat {
		weigh = a.heat
	}
	for _, route := range routes {
		some, err := weigh(ctx, in, db, route)
		if err != nil {
			return nil, err
		}
		sample = append(sample, some...) // one of several may be idle
	}
	if len(sample) == 0 && r.By == contract.ByHeat {
		return nil, failure.New(failure.Invalid, "migration.no_heat", "nothing was written to %s within %s, as far as captured logs have it", in.Chunk, heatFor).
			WithHint("cut it by size, or give boundaries with --at")
	}
	ranges, err := whole.SplitBySize(sample, r.Parts)
	if errors.Is(err, chunk.ErrNotDivisible) && db.KeySpace == chunk.Hashed && len(sample) == 0 {
		return db.KeySpace.SplitEvenly(whole, r.Parts) // nothing in it yet: hashes will spread evenly
	}
	return ranges, err
}

// sample looks at some documents of every collection of a chunk, each standing for
// its share of the collection's bytes.
func (a *Activities) sample(ctx context.Context, in contract.RegisterInput, db chunk.Database, r chunk.Route) ([]chunk.Weighed, error) {
	set, err := a.Sides.Set(ctx, r.Placement.Shard)
	if err != nil {
		return nil, err
	}
	reader, _, err := set.Reader(ctx, in.PrimaryReads)
	if err != nil {
		return nil, err
	}
	infos, err := set.Inventory(ctx, r.Placement.Database)
	if err != nil {
		return nil, err
	}
	size := map[string]int64{}
	for _, i := range infos {
		size[i.Name] = i.Size
	}
	var out []chunk.Weighed
	for _, c := range db.Collections {
		cur, err := reader.Database(r.Placement.Database).Collection(c.Name).Aggregate(ctx, bson.A{
			bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: sampleSize / len(db.Collections)}}}},
		})
		if err != nil {
			return nil, fmt.Errorf("sample %s of %s: %w", c.Name, r.Chunk.ID, err)
		}
		var docs []bson.Raw
		if err := cur.All(ctx, &docs); err != nil {
			return nil, fmt.Errorf("sample %s of %s: %w", c.Name, r.Chunk.ID, err)
		}
		var sampled int64
		for _, doc := range docs {
			sampled += int64(len(doc))
		}
		for _, doc := range docs {
			at, err := db.KeySpace.DocumentPoint(doc, c.ShardKey)
			if err != nil {
				return nil, fmt.Errorf("place a document of %s in %s: %w", c.Name, r.Chunk.ID, err)
			}
			weight := float64(len(doc)) / float64(sampled) * float64(max(size[c.Name], sampled))
			out = append(out, chunk.Weighed{At: at, Bytes: int64(weight)})
		}
	}
	return out, nil
}

// sidesOf gives every placement of a split or merge, each once.
func sidesOf(legs []metadata.Migration) (all contract.AllSides) {
	for _, l := range legs {
		for _, side := range []struct {
			list *[]chunk.Placement
			p    chunk.Placement
		}{{&all.Sources, l.Source}, {&all.Targets, l.Target}} {
			if !slices.ContainsFunc(*side.list, func(o chunk.Placement) bool { return o.ID == side.p.ID }) {
				*side.list = append(*side.list, side.p)
			}
		}
	}
	return all
}

// prepareReshape makes what a registered split or merge needs, on all its shards.
func (a *Activities) prepareReshape(ctx context.Context, m metadata.Migration) (contract.Plan, error) {
	legs, err := a.Store.Legs(ctx, m.ID)
	if err != nil {
		return contract.Plan{}, err
	}
	plan := contract.Plan{Ref: contract.Ref{Migration: m.ID, Chunk: m.Chunk.ID}, Source: m.Source, Target: m.Target, AllSides: sidesOf(legs)}
	for _, p := range plan.Sources {
		set, err := a.Sides.Set(ctx, p.Shard)
		if err != nil {
			return contract.Plan{}, err
		}
		infos, err := set.Inventory(ctx, p.Database)
		if err != nil {
			return contract.Plan{}, err
		}
		for _, i := range infos {
			plan.Documents, plan.Bytes = plan.Documents+i.Count, plan.Bytes+i.Size
		}
	}
	for _, l := range legs {
		e, err := a.ends(ctx, contract.DirectionInput{From: l.Source, To: l.Target})
		if err == nil {
			err = a.prepareTarget(ctx, e, l)
		}
		if err == nil {
			continue
		}
		if failure.Is(err, failure.Transient) {
			return contract.Plan{}, err
		}
		return contract.Plan{}, errors.Join(err, a.forget(context.WithoutCancel(ctx), m))
	}
	return plan, nil
}
