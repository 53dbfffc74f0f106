package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is what a fault does.
type Kind string

// The kinds of faults.
const (
	Misconfigured Kind = "misconfigured" // a configuration that nobody wanted
	NodeDown      Kind = "node-down"     // a member stops for good; two in five with their machine
	Stalled       Kind = "stalled"       // a member answers and does not move
	ZoneLoss      Kind = "zone-loss"     // all members of a zone, for hours
)

// kinds lists them in the order of reports.
var kinds = []Kind{Misconfigured, NodeDown, Stalled, ZoneLoss}

// Mix is how many faults of each kind happen to 2,000 shards in half a year;
// zones are lost in the fleet, however many shards it has.
type Mix map[Kind]float64

// DefaultMix has the published numbers of misconfigured shards and of nodes that
// were down; the others are this simulation's own.
func DefaultMix() Mix { return Mix{Misconfigured: 124, NodeDown: 32, Stalled: 16, ZoneLoss: 1} }

const (
	mixShards = 2000
	mixTime   = 365 * 24 * time.Hour / 2
)

// ParseMix reads "misconfigured=124,node-down=32". What is not named is 0.
func ParseMix(s string) (Mix, error) {
	m := Mix{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		n, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil || n < 0 || math.IsInf(n, 0) || math.IsNaN(n) {
			return nil, fmt.Errorf("faults: %q: want KIND=NUMBER, as misconfigured=124", part)
		}
		if !slices.Contains(kinds, Kind(name)) {
			return nil, fmt.Errorf("faults: kind %q is not known; want one of %v", name, kinds)
		}
		m[Kind(name)] = n
	}
	return m, nil
}

// String writes the mix as [ParseMix] reads it.
func (m Mix) String() string {
	var parts []string
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%s=%g", k, m[k]))
	}
	return strings.Join(parts, ",")
}

// fault is one fault at its time. Its seed decides all that is random about it,
// so that runs with unlike policies meet the same faults.
type fault struct {
	at    time.Duration
	kind  Kind
	shard int
	seed  uint64
}

// schedule draws the faults of a run.
func schedule(c *Config) []fault {
	r := rand.New(rand.NewPCG(c.Seed, 1)) //nolint:gosec // a simulation
	var all []fault
	share := float64(c.Days) * 24 * float64(time.Hour) / float64(mixTime)
	for _, k := range kinds {
		n := c.Faults[k] * share
		if k != ZoneLoss {
			n *= float64(c.Shards) / mixShards
		}
		for range int(math.Ceil(n - 1e-9)) {
			all = append(all, fault{
				at: time.Duration(r.Float64() * float64(c.span())), kind: k, shard: r.IntN(c.Shards), seed: r.Uint64(),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b fault) int { return int(a.at - b.at) })
	return all
}
