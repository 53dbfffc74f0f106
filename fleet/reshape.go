package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
)

// Split plans to replace a chunk by parts. One by which the median of its requests
// would concern more chunks than before is refused, unless that is allowed.
func (v View) Split(id chunk.ID, cut contract.Reshape, to string, now chunk.FanOut, allowed bool) (contract.FleetPlan, error) {
	out := v.plan()
	parts := max(cut.Parts, len(cut.At)+1)
	if n := len(cut.Shards); n > 0 && n != parts {
		return out, failure.New(failure.Invalid, "migration.bad_input", "%d shards are named for %d parts of %s", n, parts, id).
			WithHint("name one shard for all parts, or one for each in the order of the key space")
	}
	i, err := v.reshaped(id, append([]string{to}, cut.Shards...)...)
	if err != nil {
		return out, err
	}
	after := now.Cut(parts)
	source := fmt.Sprintf("proxies' word of the last minute, %d requests", now.Requests())
	out.Figures = append(slices.Clone(out.Figures),
		contract.Figure{Name: "fan-out now", Value: fanOutText(now), Source: source},
		contract.Figure{Name: "fan-out after", Value: "at most " + fanOutText(after), Source: source + "; one that is not by a single value of the shard key may concern every part"})
	if before, then := now.Quantile(0.5), after.Quantile(0.5); then > before && !allowed {
		return out, failure.New(failure.Invalid, "split.fan_out", "half of the requests to %s concern %d chunks or fewer; of %d parts it would be %d (%s; after, at most %s)",
			id, before, parts, then, fanOutText(now), fanOutText(after)).
			WithHint("requests that name the shard key stay on one chunk: let applications give it, or go on all the same with --allow-fan-out")
	}
	shards := slices.Clone(cut.Shards)
	slices.Sort(shards)
	out.Moves = append(out.Moves, contract.PlannedMove{
		Chunk: id, From: v.Routes[i].Placement.Shard, To: to, Bytes: int64(v.Fleet.Chunks[i].Load.Bytes), Reshape: &cut,
		Reason: fmt.Sprintf("it is replaced by %d parts on %s", parts, cmp.Or(strings.Join(slices.Compact(shards), ", "), to)),
	})
	return out, nil
}

// fanOutText says how many chunks requests concern.
func fanOutText(f chunk.FanOut) string {
	if f.Requests() == 0 {
		return "unknown: no request was seen"
	}
	return fmt.Sprintf("median %d, p99 %d, mean %.2f, by the shard key %.0f %%", f.Quantile(0.5), f.Quantile(0.99), f.Mean(), 100*float64(f.Pinned)/float64(f.Requests()))
}

// Merge plans to replace chunks by one.
func (v View) Merge(ids []chunk.ID, to string) (contract.FleetPlan, error) {
	out := v.plan()
	m := contract.PlannedMove{To: to, Reshape: &contract.Reshape{}}
	var parts []int
	for _, id := range ids {
		i, err := v.reshaped(id, to)
		if err != nil {
			return out, err
		}
		parts = append(parts, i)
		m.Bytes += int64(v.Fleet.Chunks[i].Load.Bytes)
	}
	slices.SortFunc(parts, func(a, b int) int { return cmp.Compare(v.Routes[a].Chunk.Range.Lo, v.Routes[b].Chunk.Range.Lo) })
	var from []string
	for n, i := range parts {
		r := v.Routes[i]
		if n == 0 {
			m.Chunk = r.Chunk.ID // the leg that leads
		} else {
			m.Reshape.With = append(m.Reshape.With, r.Chunk.ID)
		}
		if !slices.Contains(from, r.Placement.Shard) {
			from = append(from, r.Placement.Shard)
		}
	}
	m.From, m.Reason = strings.Join(from, ", "), fmt.Sprintf("%d chunks become one", len(parts))
	out.Moves = append(out.Moves, m)
	return out, nil
}

// reshaped finds a chunk that is to be replaced by others on some shards; what is in
// the way is named.
func (v View) reshaped(id chunk.ID, shards ...string) (int, error) {
	i := slices.IndexFunc(v.Routes, func(r chunk.Route) bool { return r.Chunk.ID == id })
	if i < 0 {
		return i, failure.New(failure.Invalid, "chunk.unknown", "there is no chunk %s", id).WithHint("`drover chunk list` shows the chunks")
	}
	if err := v.free(id, shards...); err != nil {
		return i, err
	}
	if why := v.Fleet.Chunks[i].Fixed; why != "" {
		return i, failure.New(failure.Invalid, "rebalance.no_plan", "chunk %s stays as it is now: %s", id, why)
	}
	return i, nil
}

// free refuses to move a chunk that an open intent or a move has, and to fill shards
// that an open intent empties: it names them.
func (v View) free(id chunk.ID, shards ...string) error {
	if by := v.Moving[id]; by != "" {
		return fights(by, "chunk %s is not free: %s moves it", id, by)
	}
	for _, s := range shards {
		if s == "" {
			continue
		}
		if v.Index(s) < 0 {
			return failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", s).WithHint("`drover shard list` shows the shards")
		}
		if by := v.Emptied[s]; by != "" {
			return fights(by, "shard %s takes nothing: %s empties it", s, by)
		}
	}
	return nil
}

// fights is the refusal of what an open intent, or a single move, is in the way of.
func fights(by, format string, args ...any) error {
	hint := "wait for it, or stop it: drover rebalance stop " + by
	if id, ok := strings.CutPrefix(by, contract.MigrateID("")); ok {
		hint = "wait for it, or see how far it is: drover migrate status " + id
	}
	return failure.New(failure.Invalid, "rebalance.fights", format, args...).WithHint("%s", hint)
}

// Rejoin plans the way back of an isolation: the key that got a shard of its own is
// merged with the chunks beside it that live on one shard, and comes there.
func (v View) Rejoin(r chunk.Route) (contract.FleetPlan, error) {
	ids, to := []chunk.ID{r.Chunk.ID}, ""
	for _, n := range v.Routes {
		beside := n.Chunk.Database == r.Chunk.Database && (n.Chunk.Range.Hi == r.Chunk.Range.Lo || n.Chunk.Range.Lo == r.Chunk.Range.Hi)
		if !beside || n.Placement.Shard == r.Placement.Shard || to != "" && n.Placement.Shard != to {
			continue
		}
		ids, to = append(ids, n.Chunk.ID), n.Placement.Shard
	}
	if to == "" {
		return v.plan(), failure.New(failure.Invalid, "rebalance.no_plan", "no chunk beside %s lives on another shard: there is nothing to join it with", r.Chunk.ID).
			WithHint("drover migrate start %s --to SHARD moves it; drover chunk merge joins chunks on any shard", r.Chunk.ID)
	}
	out, err := v.Merge(ids, to)
	for i := range out.Moves {
		out.Moves[i].Reason = fmt.Sprintf("%s is isolated no more: it is merged with what lies beside it on %s", r.Chunk.ID, to)
	}
	return out, err
}
