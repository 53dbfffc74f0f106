package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"drover/contract"
	"drover/internal/failure"
)

// ParseVersion reads a version of MongoDB, as "8", "8.0" or "8.0.12".
func ParseVersion(text string) (v [3]int, err error) {
	number, _, _ := strings.Cut(text, "-")
	parts := strings.Split(number, ".")
	if len(parts) > len(v) {
		return v, fmt.Errorf("%q is no version: want it as 8.0 or 8.0.12", text)
	}
	for i, p := range parts {
		if v[i], err = strconv.Atoi(p); err != nil || v[i] < 0 {
			return v, fmt.Errorf("%q is no version: want it as 8.0 or 8.0.12", text)
		}
	}
	return v, nil
}

// compareVersions compares two of them.
func compareVersions(a, b [3]int) int { return slices.Compare(a[:], b[:]) }

// version gives the version of a shard's servers.
func (v View) version(shard string) ([3]int, error) {
	n, err := ParseVersion(v.Versions[shard])
	if err != nil {
		return n, failure.New(failure.Invalid, "upgrade.version_unknown", "shard %s: %w", shard, err).WithHint("drover shard check %s reads it anew", shard)
	}
	return n, nil
}

// Upgrade plans to move everything from a shard to one that runs a newer version.
// Majors may be skipped: documents are moved, not files.
func (v View) Upgrade(from, to string) (contract.FleetPlan, error) {
	out := v.plan()
	for _, s := range []string{from, to} {
		if v.Index(s) < 0 {
			return out, failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", s).WithHint("`drover shard list` shows the shards")
		}
	}
	old, err := v.version(from)
	if err != nil {
		return out, err
	}
	next, err := v.version(to)
	if err != nil {
		return out, err
	}
	if compareVersions(next, old) <= 0 {
		return out, failure.New(failure.Invalid, "upgrade.not_newer", "%s runs %s and %s runs %s: that is no upgrade", from, v.Versions[from], to, v.Versions[to]).
			WithHint("drover shard drain %s moves its chunks to shards of any version", from)
	}
	if by := v.Filled[from]; by != "" {
		return out, fights(by, "shard %s cannot be upgraded: %s moves chunks to it", from, by)
	}
	if by := v.Emptied[to]; by != "" {
		return out, fights(by, "shard %s takes nothing: %s empties it", to, by)
	}
	target := v.Index(to)
	if v.Fleet.Shards[target].Closed {
		return out, failure.New(failure.Invalid, "upgrade.target_closed", "shard %s takes nothing: it did not answer, or is kept for seasons", to)
	}
	for _, c := range v.Fleet.Chunks {
		if c.Shard == target {
			out.Refusals = append(out.Refusals, contract.Refused{Subject: c.ID, Reason: "it lives on " + to + " and stays there", Offer: "drover shard drain " + to + " before the upgrade"})
		}
	}
	if err := v.transplant(&out, from, to, 0); err != nil {
		return out, err
	}
	out.Emptied = []string{from}
	return out, nil
}

// transplant plans the moves of all that lives on one shard to another.
func (v View) transplant(out *contract.FleetPlan, from, to string, wave int) error {
	source, target := v.Index(from), v.Index(to)
	capacity := v.Fleet.Shards[target].Capacity
	bytes, ops := 0.0, 0.0
	for i, c := range v.Fleet.Chunks {
		if c.Shard == target {
			bytes, ops = bytes+c.Load.Bytes, ops+c.Load.Ops
		}
		if c.Shard != source {
			continue
		}
		bytes, ops = bytes+c.Load.Bytes, ops+c.Load.Ops
		if by := v.Moving[v.Routes[i].Chunk.ID]; by != "" {
			out.Refusals = append(out.Refusals, contract.Refused{Subject: c.ID, Reason: "it is being moved by " + by, Offer: "plan again when that has ended"})
			continue
		}
		if why := v.Pinned[v.Routes[i].Chunk.ID]; why != "" {
			out.Refusals = append(out.Refusals, contract.Refused{Subject: c.ID, Reason: why, Offer: "drover override end pin " + c.ID})
			continue
		}
		out.Moves = append(out.Moves, contract.PlannedMove{
			Chunk: v.Routes[i].Chunk.ID, From: from, To: to, Bytes: int64(c.Load.Bytes), Wave: wave,
			Reason: fmt.Sprintf("%s (%s) is upgraded to %s (%s)", from, v.Versions[from], to, v.Versions[to]),
		})
	}
	if bytes > capacity.Bytes || ops > capacity.Ops {
		return failure.New(failure.Invalid, "upgrade.no_room", "%s would hold %.0f of %.0f bytes and serve %.0f of %.0f requests/s", to, bytes, capacity.Bytes, ops, capacity.Ops).
			WithHint("choose a larger shard, or say what it can take: --shard-bytes, --shard-ops")
	}
	return nil
}

// Criticality ranks databases: a campaign takes shards of low ones first. One that is
// not there counts 1.
type Criticality map[string]int

// candidate is a shard that a campaign upgrades.
type candidate struct {
	name     string
	critical int
	ops      float64
}

// Campaign plans to bring all shards to at least a version, by moving each to an
// empty shard of its zone that runs it: the least critical ones first, so many at
// once, which are a wave.
func (v View) Campaign(version string, atOnce int, rank Criticality) (contract.FleetPlan, error) {
	out := v.plan()
	want, err := ParseVersion(version)
	if err != nil {
		return out, failure.New(failure.Invalid, "upgrade.bad_version", "%w", err)
	}
	old, spare, refused := v.sides(want, rank)
	out.Refusals = append(out.Refusals, refused...)
	n := 0
	for _, c := range old {
		where := place(v.Fleet.Shards[v.Index(c.name)])
		at := slices.IndexFunc(spare, func(s string) bool { return place(v.Fleet.Shards[v.Index(s)]) == where })
		if at < 0 {
			out.Refusals = append(out.Refusals, contract.Refused{
				Subject: c.name, Reason: fmt.Sprintf("no empty shard %s runs %s or newer", where, version), Offer: "drover shard add, and plan again",
			})
			continue
		}
		if err := v.transplant(&out, c.name, spare[at], n/max(1, atOnce)); err != nil {
			return out, err
		}
		out.Emptied = append(out.Emptied, c.name)
		spare = slices.Delete(spare, at, at+1)
		n++
	}
	return out, nil
}

// sides tells the shards that are to be upgraded, in their order, from the empty ones
// that run the version.
func (v View) sides(want [3]int, rank Criticality) (old []candidate, spare []string, refused []contract.Refused) {
	critical, ops, holds := map[int]int{}, map[int]float64{}, map[int]int{}
	for i, c := range v.Fleet.Chunks {
		r, known := rank[v.Routes[i].Chunk.Database]
		if !known {
			r = 1
		}
		critical[c.Shard], ops[c.Shard] = max(critical[c.Shard], r), ops[c.Shard]+c.Load.Ops
		holds[c.Shard]++
	}
	for i, s := range v.Fleet.Shards {
		have, err := v.version(s.Name)
		switch {
		case err != nil:
			refused = append(refused, contract.Refused{Subject: s.Name, Reason: err.Error(), Offer: "drover shard check " + s.Name})
		case compareVersions(have, want) >= 0 && holds[i] == 0 && !s.Closed && v.Filled[s.Name] == "":
			spare = append(spare, s.Name)
		case compareVersions(have, want) < 0 && holds[i] > 0 && v.Emptied[s.Name] != "":
			refused = append(refused, contract.Refused{Subject: s.Name, Reason: v.Emptied[s.Name] + " empties it", Offer: "drover rebalance stop " + v.Emptied[s.Name]})
		case compareVersions(have, want) < 0 && holds[i] > 0 && v.Filled[s.Name] != "":
			refused = append(refused, contract.Refused{Subject: s.Name, Reason: v.Filled[s.Name] + " moves chunks to it", Offer: "drover rebalance stop " + v.Filled[s.Name]})
		case compareVersions(have, want) < 0 && holds[i] > 0:
			old = append(old, candidate{name: s.Name, critical: critical[i], ops: ops[i]})
		}
	}
	slices.SortStableFunc(old, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.critical, b.critical), cmp.Compare(a.ops, b.ops))
	})
	return old, spare, refused
}
