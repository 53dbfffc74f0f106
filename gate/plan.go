package gate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
)

// Facts are what a switch would find now.
type Facts struct {
	Direction chunk.AttemptID // of the lanes that feed the target
	Last      chunk.AttemptID // newest attempt of the chunk: the next one is later
	Lead      chunk.MigrationID
	Legs      []Leg // every pair of placements; one in a move
	Sources   []Source
	Proxies   []string // live ones
	Grace     time.Duration
	Busy      int // documents left for the comparison under the fence
	Catalog   int64
	Token     chunk.Token
}

// Leg is one pair of placements that a switch would switch.
type Leg struct {
	Migration chunk.MigrationID
	From, To  chunk.Placement
}

// Source is one placement that a switch would leave, on its shard.
type Source struct {
	chunk.Placement
	Can     chunk.Capabilities
	Members []string
	Primary string
	Term    int64
}

// address is the end of what opening does: a split or merge has none to leave.
func (f Facts) address() string {
	if len(f.Legs) > 1 {
		return ""
	}
	return ", leave the forwarding address"
}

// targets are the placements that a switch would open, each once.
func (f Facts) targets() (out []chunk.Placement) {
	for _, l := range f.Legs {
		if !slices.ContainsFunc(out, func(p chunk.Placement) bool { return p.ID == l.To.ID }) {
			out = append(out, l.To)
		}
	}
	return out
}

// sources are those that it would leave, without their shards.
func (f Facts) sources() (out []chunk.Placement) {
	for _, s := range f.Sources {
		out = append(out, s.Placement)
	}
	return out
}

// shardsOf names the shards of some placements.
func shardsOf(all []chunk.Placement) string {
	var names []string
	for _, p := range all {
		names = append(names, p.Shard)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// each gives what is to be said of every placement.
func each(all []chunk.Placement, say func(chunk.Placement) string) (out []string) {
	for _, p := range all {
		out = append(out, say(p))
	}
	return out
}

// Plan lists every step that a switch would take, with its values, in the words of
// the design. Nothing of it is done.
func Plan(f Facts, l Limits) []contract.SwitchStep {
	n := f.Last + 1 // the number is given when the attempt begins; other chunks take numbers too
	from, to := f.sources(), f.targets()
	marker := func(k chunk.MarkerKind) func(chunk.Placement) string {
		return func(p chunk.Placement) string {
			return "marker " + chunk.Marker{Kind: k, Migration: f.Lead, Attempt: n, Placement: p.ID, Round: 1}.Key()
		}
	}
	roles := func(p chunk.Placement) string {
		return "roles " + chunk.WriteGrant(p.ID, n) + " and " + chunk.ReadGrant(p.ID, n) + " on " + p.Shard
	}
	older := func(kind string) func(chunk.Placement) string {
		return func(p chunk.Placement) string { return fmt.Sprintf("roles %s_p%d_a* older than %d", kind, p.ID, n) }
	}
	both := slices.Concat(from, to)
	prepare := append([]string{fmt.Sprintf("attempt %d or later", n), "leases of " + shardsOf(both)}, each(both, roles)...)
	fence := append([]string{fmt.Sprintf("deadline %s after fencing (%s, %s)", l.FenceDeadline.Value, l.FenceDeadline.Name, l.FenceDeadline.Source)}, each(from, older("w"))...)
	drain := []string{f.word()}
	for _, s := range f.Sources {
		fence = append(fence, "members "+strings.Join(s.Members, ", "), s.invalidation(), fmt.Sprintf("primary %s, term %d", s.Primary, s.Term))
		drain = append(drain, s.drainWay())
	}
	closing := append(each(from, older("r")), each(from, marker(chunk.FinalMarker))...)
	return []contract.SwitchStep{
		{Step: "prepare", On: "both", Does: "take shared leases, open the attempt, make the grants that either outcome may need, park TTL of the source", Values: prepare},
		{Step: "fence", On: shardsOf(from), Does: "write the fence document, begin the fence, drop every older write grant, show the drop to every member", Values: fence},
		{
			Step: "drain", On: shardsOf(from), Does: "wait for requests under way, abort open transactions, write the drained marker where the lane is not close behind",
			Values: append(drain, each(from, marker(chunk.DrainedMarker))...),
		},
		{Step: "catch up", On: shardsOf(to), Does: "wait until the lane has passed the drained marker", Values: []string{fmt.Sprintf("direction %d", f.Direction)}},
		{
			Step: "close", On: shardsOf(from), Does: "drop the read grants (beside the drain where the lane is close behind) and, at the same time, write the final marker and wait until the lane has passed it, see that the primary is the same, compare busy documents, close the lane",
			Values: append(closing, fmt.Sprintf("%d busy documents", f.Busy)),
		},
		{
			Step: "publish", On: "metadata", Does: "one transaction: route and token change; the point of no return",
			Values: append(f.changes(), fmt.Sprintf("token above %d", f.Token), fmt.Sprintf("catalog version %d", f.Catalog)),
		},
		{
			Step: "open", On: shardsOf(to), Does: "write open marker and open record, grant the target's roles" + f.address(),
			Values: append(each(to, marker(chunk.OpenMarker)), each(to, func(p chunk.Placement) string {
				return "roles " + chunk.WriteGrant(p.ID, n) + " and " + chunk.ReadGrant(p.ID, n) + " to " + chunk.DataUser
			})...),
		},
		{
			Step: "turn round", On: "both", Does: "reverse lanes keep the old placement current; the closed lanes' role is dropped, TTL is restored",
			Values: f.turned(n),
		},
	}
}

// changes is what the publish does to the routes.
func (f Facts) changes() (out []string) {
	if len(f.Legs) == 1 {
		from, to := f.Legs[0].From, f.Legs[0].To
		return []string{fmt.Sprintf("%s: placement %d on %s becomes placement %d on %s", from.Chunk, from.ID, from.Shard, to.ID, to.Shard)}
	}
	out = each(f.sources(), func(p chunk.Placement) string {
		return fmt.Sprintf("%s: placement %d on %s is left", p.Chunk, p.ID, p.Shard)
	})
	return append(out, each(f.targets(), func(p chunk.Placement) string {
		return fmt.Sprintf("%s: placement %d on %s serves", p.Chunk, p.ID, p.Shard)
	})...)
}

// turned is what becomes of the lanes of each leg.
func (f Facts) turned(n chunk.AttemptID) (out []string) {
	for _, l := range f.Legs {
		out = append(out, fmt.Sprintf("direction %d: from %s to %s", n, l.To.Database, l.From.Database),
			"role "+chunk.ApplierRole(l.To.ID, l.Migration, f.Direction)+" goes")
	}
	return out
}

// word says whose word is waited for, and for how long.
func (f Facts) word() string {
	said := fmt.Sprintf("%d live proxies: %s", len(f.Proxies), strings.Join(f.Proxies, ", "))
	if slices.ContainsFunc(f.Sources, func(s Source) bool { return !s.Can.ListsOperations }) {
		return said + ", each has to say that it is clean"
	}
	return fmt.Sprintf("%s, waited for %s", said, f.Grace)
}

// invalidation says how a member forgets privileges.
func (s Source) invalidation() string {
	if s.Can.InvalidatesUserCache {
		return "invalidateUserCache on each"
	}
	return "no invalidateUserCache there: the privileges that a connection sees decide"
}

// drainWay says how a drain would come to know that nothing is left.
func (s Source) drainWay() string {
	if s.Can.ListsOperations {
		return "by the server's own list of operations and transactions"
	}
	return "the server does not list other clients' operations: the proxies' word takes its place; where one can give none, nothing may land for a while, which is watched"
}
