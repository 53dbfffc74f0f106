package balancer

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Packing is a plan that leaves shards empty.
type Packing struct {
	Moves   []Move    `json:"moves"`
	Empty   []string  `json:"empty"` // shards that hold nothing afterwards
	Used    int       `json:"used"`  // shards that hold something afterwards
	Bound   int       `json:"bound"` // no packing uses fewer
	Bytes   float64   `json:"bytes"` // to move
	Refused []Refusal `json:"refusals"`
}

// Pack empties as many shards as possible: the fullest ones stay and take the
// chunks of the others, each up to fill (0 to 1) of its capacity. Chunks that may
// not move keep their shard. One zone after the other, since nothing leaves its zone.
func Pack(f Fleet, fill float64) (Packing, error) {
	if fill <= 0 || fill > 1 {
		return Packing{}, fmt.Errorf("fill %v must lie above 0 and not above 1", fill)
	}
	if err := f.Validate(); err != nil {
		return Packing{}, err
	}
	s := newState(f)
	var out Packing
	zones := map[string][]int{}
	for i, sh := range s.shards {
		key := sh.Region + "/" + sh.Zone
		zones[key] = append(zones[key], i)
	}
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		s.packZone(zones[zone], fill, &out)
	}
	for i := range s.shards {
		if len(s.on[i]) > 0 {
			out.Used++
		} else if len(f.Chunks) > 0 && !s.shards[i].Closed {
			out.Empty = append(out.Empty, s.shards[i].Name)
		}
	}
	return out, nil
}

// bound is the fewest shards that could hold all the load of a zone, were it a
// liquid: the largest shards taken first.
func (s *state) bound(shards []int, fill float64) int {
	var all Load
	for _, i := range shards {
		all = all.Plus(s.loads[i])
	}
	least := 0
	for _, dim := range []func(Load) float64{func(l Load) float64 { return l.Bytes }, func(l Load) float64 { return l.Ops }} {
		capacities := make([]float64, 0, len(shards))
		for _, i := range shards {
			capacities = append(capacities, dim(s.shards[i].Capacity))
		}
		slices.SortFunc(capacities, func(a, b float64) int { return cmp.Compare(b, a) })
		n, left := 0, dim(all)
		for left > 1e-9*dim(all) && n < len(capacities) {
			left -= fill * capacities[n]
			n++
		}
		least = max(least, n)
	}
	return least
}

// packZone empties what can be emptied of one zone.
func (s *state) packZone(shards []int, fill float64, out *Packing) {
	bound := s.bound(shards, fill)
	out.Bound += bound
	order := slices.SortedFunc(slices.Values(shards), func(a, b int) int { // who stays: what is pinned, then the fullest
		return cmp.Or(cmp.Compare(s.pinned(b), s.pinned(a)), cmp.Compare(s.uses[b], s.uses[a]), cmp.Compare(a, b))
	})
	open := slices.DeleteFunc(slices.Clone(order), func(i int) bool { return s.shards[i].Closed })
	stay := make([]int, 0, len(open))
	for _, i := range open {
		if len(stay) < bound || s.pinned(i) > 0 || s.uses[i] > fill {
			stay = append(stay, i)
		}
	}
	reserve := open[len(stay):]
	room := coldest{uses: s.uses, shards: slices.Clone(stay)}
	heap.Init(&room)
	leaving := map[int]bool{}
	for _, i := range shards {
		leaving[i] = !slices.Contains(stay, i)
	}
	var homeless []int
	for _, i := range shards {
		if leaving[i] {
			for _, c := range s.on[i] {
				if s.chunks[c].Fixed == "" {
					homeless = append(homeless, c)
				}
			}
		}
	}
	slices.SortFunc(homeless, func(a, b int) int { // large ones first: small ones fill the gaps
		return cmp.Or(cmp.Compare(s.share(b, s.chunks[b].Shard), s.share(a, s.chunks[a].Shard)), cmp.Compare(s.chunks[a].ID, s.chunks[b].ID))
	})
	for _, c := range homeless {
		if !leaving[s.chunks[c].Shard] {
			continue // its shard was taken from the reserve meanwhile
		}
		to := room.first(func(t int) bool { return s.fits(c, t) && s.bears(c, t) && s.after(c, t) <= fill })
		if to < 0 && len(reserve) > 0 {
			to, reserve = reserve[0], reserve[1:]
			leaving[to] = false
			heap.Push(&room, to)
			if to == s.chunks[c].Shard || s.after(c, to) > fill || !s.fits(c, to) || !s.bears(c, to) {
				continue
			}
		}
		if to < 0 {
			out.Refused = append(out.Refused, Refusal{
				Subject: s.chunks[c].ID, Reason: s.noRoom(c, fill),
			})
			continue
		}
		s.pack(c, to, out)
		room.fix(to)
	}
}

// noRoom says why no shard takes a chunk.
func (s *state) noRoom(chunk int, fill float64) string {
	for t := range s.shards {
		if t != s.chunks[chunk].Shard && s.fits(chunk, t) && s.after(chunk, t) <= fill && !s.bears(chunk, t) {
			return fmt.Sprintf("%s has room for it, but %s", s.shards[t].Name, s.limits.says(s.strain[t]))
		}
	}
	return fmt.Sprintf("no shard of %s has room for it up to %.0f %%", s.chunks[chunk].where(), 100*fill)
}

// pinned counts the chunks of a shard that may not move.
func (s *state) pinned(shard int) int {
	n := 0
	for _, c := range s.on[shard] {
		if s.chunks[c].Fixed != "" {
			n++
		}
	}
	return n
}

func (s *state) pack(chunk, to int, out *Packing) {
	c := s.chunks[chunk]
	out.Moves = append(out.Moves, Move{
		Chunk: c.ID, From: s.shards[c.Shard].Name, To: s.shards[to].Name, Bytes: c.Load.Bytes, Writes: c.Load.Writes,
		Reason: fmt.Sprintf("%s is at %.0f %% and can be emptied", s.shards[c.Shard].Name, 100*s.uses[c.Shard]),
	})
	out.Bytes += c.Load.Bytes
	s.move(chunk, to)
}

// Drain plans to empty one shard: each chunk goes to the coolest shard that may
// take it. What nobody can take is refused by name.
func Drain(f Fleet, shard string, fill float64) (Packing, error) {
	if err := f.Validate(); err != nil {
		return Packing{}, err
	}
	if fill <= 0 || fill > 1 {
		return Packing{}, fmt.Errorf("fill %v must lie above 0 and not above 1", fill)
	}
	at := slices.IndexFunc(f.Shards, func(s Shard) bool { return s.Name == shard })
	if at < 0 {
		return Packing{}, fmt.Errorf("shard %q is unknown", shard)
	}
	f.Shards = slices.Clone(f.Shards)
	f.Shards[at].Closed = true
	s := newState(f)
	room := coldest{uses: s.uses}
	for i := range s.shards {
		if !s.shards[i].Closed {
			room.shards = append(room.shards, i)
		}
	}
	heap.Init(&room)
	var out Packing
	chunks := slices.SortedFunc(slices.Values(s.on[at]), func(a, b int) int {
		return cmp.Or(cmp.Compare(s.share(b, at), s.share(a, at)), cmp.Compare(s.chunks[a].ID, s.chunks[b].ID))
	})
	for _, c := range chunks {
		to := -1
		reason := s.noRoom(c, fill)
		if s.chunks[c].Fixed != "" {
			reason = s.chunks[c].Fixed
		} else {
			to = room.first(func(t int) bool { return s.fits(c, t) && s.applies(c, t) && s.bears(c, t) && s.after(c, t) <= fill })
		}
		if to < 0 {
			out.Refused = append(out.Refused, Refusal{Subject: s.chunks[c].ID, Reason: reason})
			continue
		}
		s.pack(c, to, &out)
		out.Moves[len(out.Moves)-1].Reason = fmt.Sprintf("%s is drained", shard)
		room.fix(to)
	}
	if len(s.on[at]) == 0 {
		out.Empty = []string{shard}
	}
	for i := range s.shards {
		if len(s.on[i]) > 0 {
			out.Used++
		}
	}
	return out, nil
}

// Days is how long a number of bytes takes at rate bytes per second for each of
// moves at once.
func Days(bytes, rate float64, moves int) float64 {
	if rate <= 0 || moves <= 0 {
		return math.Inf(1)
	}
	return bytes / (rate * float64(moves)) / (24 * 3600)
}
