package proxy

import (
	"drover/chunk"
	"drover/proxy/wire"
)

// Behaviour: with a shard key of several fields, a filter is targeted by what it
// says of each of them, as by that of a key of one field. In a range key space it
// is enough to fix the first fields: everything with these values lies side by
// side, and a range of the field behind them is a part of it. In a hashed one all
// fields are needed. Values in lists are combined, as far as there are not too
// many combinations.

// maxCombinations bounds the points that lists of values are combined to.
const maxCombinations = 1000

// compound is [targeting.of] for a shard key of several fields.
func (t targeting) compound(filter []byte) target {
	best := t.combined(filter)
	if either, ok := wire.Find(filter, "$or"); ok {
		// The branches together are narrower than their values in all combinations.
		if o := t.or(either.Document()); !o.all && (best.all || o.size() < best.size()) {
			best = o
		}
	}
	return best
}

// size is the number of places that a target names.
func (t target) size() int { return len(t.points) + len(t.ranges) }

// combined gives the target of what a filter says of each field.
func (t targeting) combined(filter []byte) target {
	// Every field's values are encoded as in a range key space, and then joined.
	prefixes := []chunk.Key{""}
	for i, field := range t.fields {
		one := targeting{space: chunk.Ranged, path: field, simple: t.simple}.of(filter)
		if one.all || len(prefixes)*len(one.points) > maxCombinations {
			return t.beginning(prefixes, i)
		}
		if len(one.ranges) > 0 {
			return t.between(prefixes, one)
		}
		joined := make([]chunk.Key, 0, len(prefixes)*len(one.points))
		for _, p := range prefixes {
			for _, k := range one.points {
				joined = append(joined, p+k)
			}
		}
		prefixes = joined
	}
	for i := range prefixes {
		prefixes[i] = t.space.Joined(prefixes[i])
	}
	return target{points: prefixes}
}

// beginning gives the target of the values of the first n fields.
func (t targeting) beginning(prefixes []chunk.Key, n int) target {
	if n == 0 || t.space != chunk.Ranged {
		return everywhere
	}
	var out target
	for _, p := range prefixes {
		out.ranges = append(out.ranges, chunk.PrefixRange(p))
	}
	return out
}

// between gives the target of the values of the first fields, and points and
// ranges of the next one.
func (t targeting) between(prefixes []chunk.Key, next target) target {
	if t.space != chunk.Ranged {
		return everywhere
	}
	var out target
	for _, p := range prefixes {
		for _, k := range next.points {
			out.ranges = append(out.ranges, chunk.PrefixRange(p+k))
		}
		for _, r := range next.ranges {
			out.ranges = append(out.ranges, chunk.Range{Lo: p + r.Lo, Hi: p + r.Hi + chunk.KeyMax})
		}
	}
	return out
}
