package gate

import (
	"fmt"
	"strings"
	"time"

	"drover/chunk"
	"drover/contract"
)

// Facts are what a switch would find now.
type Facts struct {
	Migration   chunk.MigrationID
	Direction   chunk.AttemptID // of the lanes that feed the target
	Last        chunk.AttemptID // newest attempt of the chunk: the next one is later
	From, To    chunk.Placement
	FromCan     chunk.Capabilities
	FromMembers []string
	FromPrimary string
	FromTerm    int64
	Proxies     []string // live ones
	Grace       time.Duration
	Busy        int // documents left for the comparison under the fence
	Catalog     int64
	Token       chunk.Token
}

// Plan lists every step that a switch would take, with its values, in the words of
// the design. Nothing of it is done.
func Plan(f Facts, l Limits) []contract.SwitchStep {
	n := f.Last + 1 // the number is given when the attempt begins; other chunks take numbers too
	marker := func(k chunk.MarkerKind, p chunk.PlacementID) string {
		return chunk.Marker{Kind: k, Migration: f.Migration, Attempt: n, Placement: p, Round: 1}.Key()
	}
	member := strings.Join(f.FromMembers, ", ")
	invalidate := "no invalidateUserCache there: the privileges that a connection sees decide"
	if f.FromCan.InvalidatesUserCache {
		invalidate = "invalidateUserCache on each"
	}
	deadline := fmt.Sprintf("deadline %s after fencing (%s, %s)", l.FenceDeadline.Value, l.FenceDeadline.Name, l.FenceDeadline.Source)
	return []contract.SwitchStep{
		{Step: "prepare", On: "both", Does: "take shared leases, open the attempt, make the grants that either outcome may need, park TTL of the source", Values: []string{
			fmt.Sprintf("attempt %d or later", n), "leases of " + f.From.Shard + " and " + f.To.Shard,
			"roles " + chunk.WriteGrant(f.From.ID, n) + " and " + chunk.ReadGrant(f.From.ID, n) + " on " + f.From.Shard,
			"roles " + chunk.WriteGrant(f.To.ID, n) + " and " + chunk.ReadGrant(f.To.ID, n) + " on " + f.To.Shard,
		}},
		{Step: "fence", On: f.From.Shard, Does: "write the fence document, begin the fence, drop every older write grant, show the drop to every member", Values: []string{
			deadline, fmt.Sprintf("roles w_p%d_a* older than %d", f.From.ID, n), "members " + member, invalidate,
			fmt.Sprintf("primary %s, term %d", f.FromPrimary, f.FromTerm),
		}},
		{Step: "drain", On: f.From.Shard, Does: "wait for requests under way, abort open transactions, write the drained marker where the lane is not close behind", Values: []string{
			fmt.Sprintf("%d live proxies: %s, waited for %s", len(f.Proxies), strings.Join(f.Proxies, ", "), f.Grace),
			drainWay(f.FromCan), "marker " + marker(chunk.DrainedMarker, f.From.ID),
		}},
		{Step: "catch up", On: f.To.Shard, Does: "wait until the lane has passed the drained marker", Values: []string{
			fmt.Sprintf("direction %d", f.Direction),
		}},
		{Step: "close", On: f.From.Shard, Does: "drop the read grants and, at the same time, write the final marker and wait until the lane has passed it, see that the primary is the same, compare busy documents, close the lane", Values: []string{
			fmt.Sprintf("roles r_p%d_a* older than %d", f.From.ID, n), "marker " + marker(chunk.FinalMarker, f.From.ID), fmt.Sprintf("%d busy documents", f.Busy),
		}},
		{Step: "publish", On: "metadata", Does: "one transaction: route and token change; the point of no return", Values: []string{
			fmt.Sprintf("%s: placement %d on %s becomes placement %d on %s", f.From.Chunk, f.From.ID, f.From.Shard, f.To.ID, f.To.Shard),
			fmt.Sprintf("token above %d", f.Token), fmt.Sprintf("catalog version %d", f.Catalog),
		}},
		{Step: "open", On: f.To.Shard, Does: "write open marker and open record, grant the target's roles, leave the forwarding address", Values: []string{
			"marker " + marker(chunk.OpenMarker, f.To.ID), "roles " + chunk.WriteGrant(f.To.ID, n) + " and " + chunk.ReadGrant(f.To.ID, n) + " to " + chunk.DataUser,
		}},
		{Step: "turn round", On: "both", Does: "reverse lanes keep the old placement current; the closed lanes' role is dropped, TTL is restored", Values: []string{
			fmt.Sprintf("direction %d: from %s to %s", n, f.To.Database, f.From.Database),
			"role " + chunk.ApplierRole(f.To.ID, f.Migration, f.Direction) + " goes",
		}},
	}
}

// drainWay says how a drain would come to know that nothing is left.
func drainWay(c chunk.Capabilities) string {
	if c.ListsOperations {
		return "by the server's own list of operations and transactions"
	}
	return "the server does not list other clients' operations: the proxies' word, the grace and the final marker take its place"
}
