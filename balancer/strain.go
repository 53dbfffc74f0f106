package balancer

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Strain is how a shard bears its load, by its own word. It says what the numbers of
// operations do not: a few dear ones, or a slow disk. Zero is unknown.
type Strain struct {
	CPU   float64       // cores that are busy; known with Cores
	Cores float64       // that it has
	Write time.Duration // mean of a write
	// Other says why the strain is not that of its chunks (a move copies from it or to
	// it): the shard gives nothing for it, and what its chunks keep busy is not known.
	Other string
}

// Limits of strain. A shard that is past one is relieved, whatever its use is, down to
// [eased] of it; up to there others are filled. The gap is the hysteresis.
type Limits struct {
	CPU   float64       // share of the cores; default 0.8
	Write time.Duration // mean of a write; default 100 ms
}

// eased is the share of a limit down to which a shard is relieved.
const eased = 0.8

func (l Limits) withDefaults() Limits {
	return Limits{CPU: cmp.Or(l.CPU, 0.8), Write: cmp.Or(l.Write, 100*time.Millisecond)}
}

// Validate names the first limit that can't be; zero is the default of each.
func (l Limits) Validate() error {
	if !(l.CPU >= 0 && l.CPU <= 1) {
		return fmt.Errorf("limits.cpu %v must lie between 0 and 1", l.CPU)
	}
	if l.Write < 0 {
		return fmt.Errorf("limits.write %s must not be negative", l.Write)
	}
	return nil
}

// share is the strain as a share of the limit that it is nearest to; 0 where nothing is known.
func (l Limits) share(s Strain) float64 {
	share := float64(s.Write) / float64(l.Write)
	if s.Cores > 0 {
		share = max(share, s.CPU/s.Cores/l.CPU)
	}
	return share
}

// Of is the strain of a shard as a share of the limit that it is nearest to; 0 where nothing
// is known.
func (l Limits) Of(s Strain) float64 { return l.withDefaults().share(s) }

// says tells what strains a shard most.
func (l Limits) says(s Strain) string {
	if s.Cores > 0 && s.CPU/s.Cores/l.CPU >= float64(s.Write)/float64(l.Write) {
		return fmt.Sprintf("%.0f %% of its CPU is busy (limit %.0f %%)", 100*s.CPU/s.Cores, 100*l.CPU)
	}
	return fmt.Sprintf("a write takes %s in the mean (limit %s)", s.Write.Round(100*time.Microsecond), l.Write)
}

// strained finds how the work of each shard is shared by its chunks: by the time that
// their operations take, or by their number where nobody said.
func (s *state) strained() {
	s.works, s.first, s.strain = make([]float64, len(s.chunks)), make([]int, len(s.chunks)), make([]Strain, len(s.shards))
	for i := range s.shards {
		s.strain[i] = s.shards[i].Strain
	}
	for i, c := range s.chunks {
		s.first[i] = c.Shard
		if all := s.loads[c.Shard]; all.Time > 0 {
			s.works[i] = c.Load.Time / all.Time
		} else if all.Ops > 0 {
			s.works[i] = c.Load.Ops / all.Ops
		}
	}
}

// shift carries the strain of a chunk over. The CPU that it takes goes with it; how slow
// a shard is with one chunk more nobody can tell: it takes none when it is slow already.
func (s *state) shift(chunk, from, to int) {
	s.strain[to].CPU += s.cores(chunk)
	if from != s.first[chunk] {
		s.strain[from].CPU = max(0, s.strain[from].CPU-s.cores(chunk))
		return
	}
	at := s.shards[from].Strain
	s.strain[from].CPU = max(0, s.strain[from].CPU-s.works[chunk]*at.CPU)
	s.strain[from].Write = max(0, s.strain[from].Write-time.Duration(s.works[chunk]*float64(at.Write)))
}

// cores is how many cores a chunk keeps busy; 0 where that is not known.
func (s *state) cores(chunk int) float64 {
	at := s.shards[s.first[chunk]].Strain
	if at.Cores == 0 || at.Other != "" {
		return 0
	}
	return s.works[chunk] * at.CPU
}

// bears reports whether a shard stays clear of the limits with one chunk more.
func (s *state) bears(chunk, shard int) bool {
	then := s.strain[shard]
	then.CPU += s.cores(chunk)
	return s.limits.share(then) <= eased
}

// ease takes chunks off the shards that are past a limit of strain, the worst one first.
func (b *round) ease() {
	var pressed []int
	limits := b.limits
	for i := range b.shards {
		if limits.share(b.strain[i]) > 1 {
			pressed = append(pressed, i)
		}
	}
	slices.SortStableFunc(pressed, func(x, y int) int {
		return cmp.Or(cmp.Compare(limits.share(b.strain[y]), limits.share(b.strain[x])), cmp.Compare(b.shards[x].Name, b.shards[y].Name))
	})
	for _, shard := range pressed {
		if why := b.shards[shard].Strain.Other; why != "" {
			b.refuse(b.shards[shard].Name, fmt.Sprintf("%s; it is not relieved for that: %s", limits.says(b.strain[shard]), why), "")
			continue
		}
		b.easeOne(shard)
	}
}

// easeOne takes chunks off one shard until it is well below the limits.
func (b *round) easeOne(shard int) {
	limits, name := b.limits, b.shards[shard].Name
	left := slices.DeleteFunc(slices.Clone(b.on[shard]), func(c int) bool { return b.chunks[c].Fixed != "" || b.moved[c] })
	b.cutDear(shard)
	for limits.share(b.strain[shard]) > eased {
		if b.policy.MaxMoves > 0 && len(b.plan.Moves) >= b.policy.MaxMoves {
			b.refuse(name, fmt.Sprintf("%s: the round's %d moves are spent", limits.says(b.strain[shard]), b.policy.MaxMoves), "")
			return
		}
		chunk, to := b.dearest(shard, left)
		if to < 0 {
			b.refuse(name, b.whyStrained(shard, left), "add a shard, or split a chunk: drover chunk split")
			return
		}
		b.plan.Moves = append(b.plan.Moves, Move{
			Chunk: b.chunks[chunk].ID, From: name, To: b.shards[to].Name, Bytes: b.chunks[chunk].Load.Bytes, Writes: b.chunks[chunk].Load.Writes,
			Reason: fmt.Sprintf("%s: %s; this takes %.0f %% of its work off%s", name, limits.says(b.strain[shard]), 100*b.works[chunk], b.leaves(chunk, to)),
		})
		b.move(chunk, to)
		b.moved[chunk] = true
		left = slices.DeleteFunc(left, func(c int) bool { return c == chunk })
		b.cold.fix(to)
		b.cold.fix(shard) // it was relieved for its strain, and may take chunks for its use
	}
}

// leaves says how busy a target is afterwards, where that is known.
func (b *round) leaves(chunk, to int) string {
	at := b.strain[to]
	if at.Cores == 0 {
		return fmt.Sprintf("; how busy %s is is not known", b.shards[to].Name)
	}
	return fmt.Sprintf(" and leaves %s at %.0f %%", b.shards[to].Name, 100*(at.CPU+b.cores(chunk))/at.Cores)
}

// takesOff is how much of a shard's strain, in shares of the limit, leaves with a chunk.
func (b *round) takesOff(chunk, shard int) float64 {
	if b.first[chunk] != shard {
		return 0
	}
	return b.works[chunk] * b.limits.share(b.shards[shard].Strain)
}

// dearest chooses the chunk to take off: the least that is enough, or else the one that
// makes the most work. One that alone is too much for a shard goes only where somebody
// would notice: else the strain would be carried out of sight. to is -1 when nothing helps.
func (b *round) dearest(shard int, left []int) (chunk, to int) {
	excess := b.limits.share(b.strain[shard]) - eased
	slices.SortFunc(left, func(x, y int) int {
		ox, oy := b.takesOff(x, shard), b.takesOff(y, shard)
		if (ox >= excess) != (oy >= excess) {
			return cmp.Compare(oy, ox)
		}
		if ox < excess {
			ox, oy = oy, ox
		}
		return cmp.Or(cmp.Compare(ox, oy),
			cmp.Compare(b.chunks[x].Load.Bytes, b.chunks[y].Load.Bytes), cmp.Compare(b.chunks[x].ID, b.chunks[y].ID))
	})
	for _, c := range left {
		off := b.takesOff(c, shard)
		if off < max(b.policy.MinGain, leastEase) {
			continue
		}
		if to := b.cold.first(func(t int) bool {
			return (off <= eased || b.limits.share(b.strain[t]) > 0) && b.fits(c, t) && b.applies(c, t) && b.bears(c, t) && b.after(c, t) <= max(b.limit, b.policy.Full)
		}); to >= 0 {
			return c, to
		}
	}
	return -1, -1
}

// leastEase is the least share of a limit that a move has to take off: strain is a
// measurement, and what is below it is noise.
const leastEase = 0.02

// cutDear asks for a cut of each chunk whose work alone is too much for a shard.
func (b *round) cutDear(shard int) {
	for _, c := range b.on[shard] {
		off := b.takesOff(c, shard)
		if off <= eased || slices.ContainsFunc(b.plan.Splits, func(s Split) bool { return s.Chunk == b.chunks[c].ID }) {
			continue
		}
		b.split(c, int(off/eased)+1, fmt.Sprintf("it alone makes %.0f %% of the work of %s, of which %s", 100*b.works[c], b.shards[shard].Name, b.limits.says(b.shards[shard].Strain)))
	}
}

// whyStrained says what keeps a shard past its limits.
func (b *round) whyStrained(shard int, left []int) string {
	fixed, cheap, nowhere := 0, 0, 0
	for _, c := range b.on[shard] {
		switch {
		case b.chunks[c].Fixed != "":
			fixed++
		case !slices.Contains(left, c) || b.takesOff(c, shard) < max(b.policy.MinGain, leastEase):
			cheap++
		default:
			nowhere++
		}
	}
	return fmt.Sprintf("%s: of its chunks %d may not move now, %d take too little of its work to help, for %d no shard has room in use, CPU and latency",
		b.limits.says(b.strain[shard]), fixed, cheap, nowhere)
}
