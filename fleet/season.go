package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/balancer"
	"drover/contract"
	"drover/internal/failure"
)

// Season is what makes a fleet ready for a time at which it serves more, and what
// leads back afterwards as far as that can be seen now.
type Season struct {
	Expand contract.FleetPlan
	Shrink contract.FleetPlan
	Spare  []string // the pool: none of these holds anything before and afterwards
}

// Season plans for factor times the operations of now, with as few of some spare
// shards as that takes. Without names the pool is that of the fleet file, or else the
// empty shards.
func (v View) Season(names []string, factor, fill float64) (Season, error) {
	spare, source := v.pool(names)
	pool, err := v.spares(spare)
	if err != nil {
		return Season{}, err
	}
	p, err := balancer.Expand(v.Fleet, pool, factor, fill)
	if err != nil {
		return Season{}, failure.New(failure.Invalid, "rebalance.no_plan", "plan the season: %w", err)
	}
	out := Season{Expand: take(v.plan(), p.Plan), Spare: spare}
	out.Expand.Figures = append(slices.Clone(v.Figures),
		contract.Figure{Name: "season", Value: fmt.Sprintf("%g times the operations of when it was read, the same bytes", factor), Source: "what was asked for"},
		contract.Figure{Name: "spare shards", Value: cmp.Or(strings.Join(spare, ", "), "none"), Source: source})
	if p.Mean > fill {
		out.Expand.Refusals = append(out.Expand.Refusals, contract.Refused{
			Subject: "the fleet", Reason: fmt.Sprintf("all of it would be at %.0f %%, and should stay at %.0f %%", 100*p.Mean, 100*fill),
			Offer: "drover shard add, and plan again",
		})
	}
	after := v
	after.Fleet = v.Fleet.After(p.Moves)
	out.Shrink, err = after.Shrink(spare, fill)
	return out, err
}

// Shrink plans to empty spare shards again, into all others up to fill.
func (v View) Shrink(spare []string, fill float64) (contract.FleetPlan, error) {
	pool := make([]int, 0, len(spare))
	for _, s := range spare {
		if i := v.Index(s); i >= 0 { // one that was removed meanwhile holds nothing
			pool = append(pool, i)
		}
	}
	p, err := balancer.Shrink(v.Fleet, pool, fill)
	for i := range p.Moves {
		p.Moves[i].Reason = "the season is over: " + p.Moves[i].From + " goes back to the pool"
	}
	return v.pack(p, spare, err)
}

// Held counts the chunks on some shards.
func (v View) Held(shards []string) (n int) {
	for _, r := range v.Routes {
		if slices.Contains(shards, r.Placement.Shard) {
			n++
		}
	}
	return n
}

// Kept lists the chunks on some shards that a person or a rule has pinned there: no plan
// moves them.
func (v View) Kept(shards []string) (out []contract.Refused) {
	for i, r := range v.Routes {
		if !slices.Contains(shards, r.Placement.Shard) || v.Moving[r.Chunk.ID] != "" {
			continue
		}
		why := v.Pinned[r.Chunk.ID]
		if d, err := v.Rules.Chunk(r.Chunk, v.Databases[r.Chunk.Database].KeySpace); why == "" && err == nil && d.Rule.Target.Shard == r.Placement.Shard {
			why = v.Fleet.Chunks[i].Fixed
		}
		if why != "" {
			out = append(out, contract.Refused{Subject: string(r.Chunk.ID), Reason: why, Offer: "take the pin away, and drover shard drain " + r.Placement.Shard})
		}
	}
	return out
}

// pool gives the spare shards that a plan may use, with where their names come from.
func (v View) pool(names []string) (spare []string, source string) {
	if len(names) > 0 {
		return names, "flag --spare"
	}
	if len(v.Spare) > 0 {
		return v.Spare, "spare: true in the fleet file"
	}
	for _, s := range v.Fleet.Shards {
		if !s.Closed && v.Filled[s.Name] == "" && v.Held([]string{s.Name}) == 0 {
			spare = append(spare, s.Name)
		}
	}
	return spare, "default: the shards that are empty now; a fleet file may declare spare ones"
}

// spares finds the shards of a pool; each must be able to take something.
func (v View) spares(names []string) ([]int, error) {
	out := make([]int, 0, len(names))
	for _, s := range names {
		i := v.Index(s)
		if i < 0 {
			return nil, failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", s).WithHint("`drover shard list` shows the shards")
		}
		if by := v.Emptied[s]; by != "" {
			return nil, fights(by, "shard %s cannot serve a season: %s empties it", s, by)
		}
		if at := slices.IndexFunc(v.Silent, func(x contract.Refused) bool { return x.Subject == s }); at >= 0 {
			return nil, failure.New(failure.Invalid, "capacity.spare_silent", "spare shard %s: %s", s, v.Silent[at].Reason).WithHint("drover shard check %s", s)
		}
		out = append(out, i)
	}
	return out, nil
}

// Expect says how long the copies of some moves take, so many at once: each at the
// given rate, or else at what imports to its shard have reached, at the least that
// was measured elsewhere, or at a default.
func (v View) Expect(moves []contract.PlannedMove, rate float64, atOnce int) (time.Duration, contract.Figure) {
	f := contract.Figure{Name: "moveRate", Source: "flag --move-rate"}
	least := 0.0
	for _, r := range v.MoveRates {
		if least == 0 || r < least {
			least = r
		}
	}
	switch {
	case rate > 0:
	case least > 0:
		f.Source = "the best of the imports to each shard lately; the least of them where there was none"
	default:
		rate, f.Source = DefaultMoveRate, "default: a moderate copy over one network card; no import was measured yet"
	}
	slowest := rate
	busy := make([]float64, max(1, atOnce))
	for _, m := range moves {
		r := cmp.Or(rate, v.MoveRates[m.To], least)
		if slowest == 0 || r < slowest {
			slowest = r
		}
		first := 0
		for i := range busy {
			if busy[i] < busy[first] {
				first = i
			}
		}
		busy[first] += float64(m.Bytes) / r
	}
	f.Value = fmt.Sprintf("%.1f MiB/s of one move", cmp.Or(slowest, least)/(1<<20))
	return time.Duration(slices.Max(busy) * float64(time.Second)).Round(time.Second), f
}

// Around copying a move catches up, is validated and waits for its gate; a season's
// moves begin so much earlier.
const (
	leadFactor = 2
	leadLeast  = 15 * time.Minute
)

// Lead is how long before its date an expansion should begin.
func Lead(copies time.Duration) time.Duration { return leadFactor*copies + leadLeast }
