package balancer

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
)

// Growth is how many keys change their shard when a database goes from one
// number of shards to another, by several ways to place keys. Each is a share of
// all keys, 0 to 1.
type Growth struct {
	From   int     `json:"from"`
	To     int     `json:"to"`
	Keys   int     `json:"keys"`
	Chunks int     `json:"chunks"`
	Modulo float64 `json:"modulo"` // hash(key) mod shards
	Ring   float64 `json:"ring"`   // consistent hashing with Nodes points for each shard
	Nodes  int     `json:"nodes"`
	Plan   float64 `json:"plan"`  // [Balance] over chunks
	Bound  float64 `json:"bound"` // what must move so that all shards hold the same
}

// Grow compares the ways for keys evenly spread keys.
func Grow(from, to, keys, chunks, nodes int) (Growth, error) {
	for _, x := range []struct {
		name string
		v    int
	}{{"from", from}, {"keys", keys}, {"nodes", nodes}} {
		if x.v < 1 {
			return Growth{}, fmt.Errorf("%s %d must be at least 1", x.name, x.v)
		}
	}
	if to <= from {
		return Growth{}, fmt.Errorf("to %d must lie above from %d", to, from)
	}
	if chunks < to {
		return Growth{}, fmt.Errorf("chunks %d: fewer than the %d shards: some stay empty", chunks, to)
	}
	g := Growth{From: from, To: to, Keys: keys, Chunks: chunks, Nodes: nodes, Bound: float64(to-from) / float64(to)}
	before, after := newRing(from, nodes), newRing(to, nodes)
	modulo, ring := 0, 0
	for k := range keys {
		h := hash("key-" + strconv.Itoa(k))
		if h%uint64(from) != h%uint64(to) {
			modulo++
		}
		if before.shard(h) != after.shard(h) {
			ring++
		}
	}
	g.Modulo, g.Ring = float64(modulo)/float64(keys), float64(ring)/float64(keys)
	plan, err := Balance(even(from, to, chunks), Policy{Start: 0.02, Stop: 0.001}, even(from, to, chunks).At)
	if err != nil {
		return Growth{}, err
	}
	g.Plan = float64(len(plan.Moves)) / float64(chunks)
	return g, nil
}

// even is a fleet of to equal shards, of which the first from hold all chunks.
func even(from, to, chunks int) Fleet {
	var f Fleet
	for i := range to {
		f.Shards = append(f.Shards, Shard{Name: "shard-" + strconv.Itoa(i), Capacity: Load{Bytes: 2 * float64(chunks), Ops: 2 * float64(chunks)}})
	}
	for i := range chunks {
		f.Chunks = append(f.Chunks, Chunk{ID: strconv.Itoa(i), Shard: i % from, Load: Load{Bytes: 1, Ops: 1}})
	}
	return f
}

// ring is consistent hashing, for comparison only: Drover places chunks by plan.
type ring struct{ points []point }

type point struct {
	at    uint64
	shard int
}

func newRing(shards, nodes int) ring {
	var r ring
	for s := range shards {
		for n := range nodes {
			r.points = append(r.points, point{hash(fmt.Sprintf("shard-%d/%d", s, n)), s})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.shard, b.shard)) })
	return r
}

func (r ring) shard(h uint64) int {
	i, _ := slices.BinarySearchFunc(r.points, h, func(p point, h uint64) int { return cmp.Compare(p.at, h) })
	return r.points[i%len(r.points)].shard
}

// hash is FNV-1a, stirred: FNV alone leaves similar strings close together.
func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
