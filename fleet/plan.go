package fleet

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"drover/balancer"
	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/placement"
)

// plan begins a plan with what reading the fleet has shown.
func (v View) plan() contract.FleetPlan {
	return contract.FleetPlan{
		FiguresAt: v.Fleet.At, Figures: v.Figures, Shards: v.strains(), Moves: []contract.PlannedMove{},
		Refusals: append(slices.Clone(v.Silent), v.Conflicts...),
	}
}

// moves takes over what the balancer plans.
func moves(all []balancer.Move) []contract.PlannedMove {
	out := make([]contract.PlannedMove, 0, len(all))
	for _, m := range all {
		out = append(out, contract.PlannedMove{Chunk: chunk.ID(m.Chunk), From: m.From, To: m.To, Bytes: int64(m.Bytes), Reason: m.Reason})
	}
	return out
}

// refusals takes over what the balancer refuses.
func refusals(all []balancer.Refusal) []contract.Refused {
	out := make([]contract.Refused, 0, len(all))
	for _, x := range all {
		out = append(out, contract.Refused{Subject: x.Subject, Reason: x.Reason, Offer: x.Offer})
	}
	return out
}

// policy gives the balancer's part of settings.
func policy(s contract.BalanceSettings) balancer.Policy {
	return balancer.Policy{Start: s.Start, Stop: s.Stop, Full: s.Full, MinGain: s.MinGain, MaxMoves: s.MaxMoves}
}

// CheckSettings says what is wrong with settings of the balancer.
func CheckSettings(s contract.BalanceSettings) error {
	for _, x := range []struct {
		name  string
		v     float64
		shown any
	}{
		{"shard-bytes", s.ShardBytes, s.ShardBytes}, {"shard-ops", s.ShardOps, s.ShardOps}, {"shard-apply", s.ShardApply, s.ShardApply},
		{"cpu-limit", s.CPULimit, s.CPULimit}, {"latency-limit", float64(s.WriteLimit), time.Duration(s.WriteLimit)},
		{"half-life", float64(s.HalfLife), time.Duration(s.HalfLife)}, {"max-moves", float64(s.MaxMoves), s.MaxMoves},
	} {
		if !(x.v >= 0) {
			return fmt.Errorf("%s is %v; want 0 or more", x.name, x.shown)
		}
	}
	if s.CPULimit > 1 {
		return fmt.Errorf("cpu-limit is %g; want a share of the cores, 0 to 1", s.CPULimit)
	}
	return policy(s).Validate()
}

// Balance plans to relieve the worst shards.
func (v View) Balance(s contract.BalanceSettings, now time.Time) (contract.FleetPlan, error) {
	out := v.plan()
	p, err := balancer.Balance(v.Fleet, policy(s), now)
	if err != nil {
		return out, failure.New(failure.Invalid, "rebalance.no_plan", "plan the fleet: %w", err)
	}
	return take(out, p), nil
}

// take adds what the balancer plans.
func take(out contract.FleetPlan, p balancer.Plan) contract.FleetPlan {
	out.Moves, out.Refusals = moves(p.Moves), append(out.Refusals, refusals(p.Refusals)...)
	out.Before, out.After, out.Mean = p.Before, p.After, p.Mean
	for _, x := range p.Splits {
		out.Splits = append(out.Splits, contract.PlannedSplit{Chunk: chunk.ID(x.Chunk), Parts: x.Parts, Reason: x.Reason})
	}
	return out
}

// pack takes over a packing.
func (v View) pack(p balancer.Packing, emptied []string, err error) (contract.FleetPlan, error) {
	out := v.plan()
	if err != nil {
		return out, failure.New(failure.Invalid, "rebalance.no_plan", "plan the fleet: %w", err)
	}
	out.Moves, out.Refusals, out.Emptied = moves(p.Moves), append(out.Refusals, refusals(p.Refused)...), emptied
	return out, nil
}

// Drain plans to empty one shard.
func (v View) Drain(shard string, fill float64) (contract.FleetPlan, error) {
	if v.Index(shard) < 0 {
		return v.plan(), failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", shard).WithHint("`drover shard list` shows the shards")
	}
	if by := v.Filled[shard]; by != "" {
		return v.plan(), fights(by, "shard %s cannot be drained: %s moves chunks to it", shard, by)
	}
	p, err := balancer.Drain(v.Fleet, shard, fill)
	return v.pack(p, []string{shard}, err)
}

// Pack plans to empty as many shards as possible.
func (v View) Pack(fill float64) (contract.FleetPlan, error) {
	p, err := balancer.Pack(v.Fleet, fill)
	var emptied []string
	for _, m := range p.Moves {
		if slices.Contains(p.Empty, m.From) && !slices.Contains(emptied, m.From) {
			emptied = append(emptied, m.From)
		}
	}
	return v.pack(p, emptied, err)
}

// Isolate plans a shard of its own for a chunk, or for one point of it: that is cut
// out first. Other chunks on the shard, now, keep it from being its own: they are
// named, and not moved.
func (v View) Isolate(r chunk.Route, point *chunk.Key, to string) (contract.FleetPlan, error) {
	out := v.plan()
	if err := v.free(r.Chunk.ID, to); err != nil {
		return out, err
	}
	target := v.Index(to)
	for i, c := range v.Fleet.Chunks {
		if c.Shard == target && c.ID != string(r.Chunk.ID) {
			out.Refusals = append(out.Refusals, contract.Refused{
				Subject: c.ID, Reason: fmt.Sprintf("it lives on %s too", to), Offer: "drover migrate start " + c.ID + " --to another shard",
			})
		}
		if c.ID != string(r.Chunk.ID) {
			continue
		}
		if c.Fixed != "" && (c.Fixed != contradicted || point == nil) {
			return out, failure.New(failure.Invalid, "rebalance.no_plan", "chunk %s cannot be isolated now: %s", c.ID, c.Fixed)
		}
		m := contract.PlannedMove{
			Chunk: r.Chunk.ID, From: r.Placement.Shard, To: to, Bytes: int64(v.Fleet.Chunks[i].Load.Bytes), Reason: "it gets shard " + to + " for its own",
		}
		if point != nil {
			m.Reshape = v.cutOut(r, *point, to)
			m.Reason = "one key of it gets shard " + to + " for its own"
		}
		if m.Reshape != nil || r.Placement.Shard != to {
			out.Moves = append(out.Moves, m)
		}
	}
	return out, nil
}

// cutOut cuts a chunk so that one point is a chunk of its own; nil where it is one.
func (v View) cutOut(r chunk.Route, k chunk.Key, to string) *contract.Reshape {
	after := v.Databases[r.Chunk.Database].KeySpace.After(k)
	cut := &contract.Reshape{}
	if k > r.Chunk.Range.Lo {
		cut.At, cut.Shards = append(cut.At, hex.EncodeToString([]byte(k))), append(cut.Shards, r.Placement.Shard)
	}
	cut.Shards = append(cut.Shards, to)
	if after < r.Chunk.Range.Hi {
		cut.At, cut.Shards = append(cut.At, hex.EncodeToString([]byte(after))), append(cut.Shards, r.Placement.Shard)
	}
	if len(cut.At) == 0 {
		return nil
	}
	return cut
}

// Reconcile plans what brings every chunk to where the placement rules want it:
// to the shard that is named, or to the coolest one of its zone.
func (v View) Reconcile() contract.FleetPlan {
	out := v.plan()
	uses := make([]float64, len(v.Fleet.Shards))
	share := func(c, s int) float64 {
		l, capacity := v.Fleet.Chunks[c].Load, v.Fleet.Shards[s].Capacity
		return max(l.Bytes/capacity.Bytes, l.Ops/capacity.Ops)
	}
	for i, c := range v.Fleet.Chunks {
		uses[c.Shard] += share(i, c.Shard)
	}
	for i, r := range v.Routes {
		d, err := v.Rules.Chunk(r.Chunk, v.Databases[r.Chunk.Database].KeySpace)
		at := v.Fleet.Chunks[i].Shard
		if err != nil || d.Rule.Target.Allows(r.Placement.Shard, place(v.Fleet.Shards[at])) {
			continue // a conflict is among the refusals already
		}
		var able []int
		for s, sh := range v.Fleet.Shards {
			if d.Rule.Target.Allows(sh.Name, place(sh)) && !sh.Closed {
				able = append(able, s)
			}
		}
		refuse := func(reason string) {
			out.Refusals = append(out.Refusals, contract.Refused{Subject: string(r.Chunk.ID), Reason: reason})
		}
		if _, moving := v.moving(i); moving {
			refuse("it should be in " + d.Rule.Target.String() + "; " + v.Fleet.Chunks[i].Fixed)
			continue
		}
		if len(able) == 0 {
			refuse(fmt.Sprintf("%s wants it on %s, of which no shard can take it", d.Rule, d.Rule.Target))
			continue
		}
		to := slices.MinFunc(able, func(a, b int) int { return cmp.Or(cmp.Compare(uses[a], uses[b]), cmp.Compare(a, b)) })
		uses[at] -= share(i, at)
		uses[to] += share(i, to)
		out.Moves = append(out.Moves, contract.PlannedMove{
			Chunk: r.Chunk.ID, From: r.Placement.Shard, To: v.Fleet.Shards[to].Name, Bytes: int64(v.Fleet.Chunks[i].Load.Bytes),
			Reason: fmt.Sprintf("%s wants it on %s", d.Rule, d.Rule.Target),
		})
	}
	return out
}

// place is where a shard stands.
func place(s balancer.Shard) placement.Place { return placement.Place{Zone: s.Zone, Region: s.Region} }

// moving tells why a chunk cannot move now, whatever rule pins it.
func (v View) moving(i int) (why string, ok bool) {
	why = cmp.Or(v.Moving[v.Routes[i].Chunk.ID], v.Pinned[v.Routes[i].Chunk.ID])
	return why, why != "" || v.Fleet.Shards[v.Fleet.Chunks[i].Shard].Closed
}
