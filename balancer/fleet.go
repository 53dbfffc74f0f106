// Package balancer decides which chunk should live on which shard: it keeps the
// heat of chunks, plans moves that relieve the worst shard, packs idle chunks
// together and empties shards. It is pure: it reads nothing, moves nothing and
// knows no clock but the one that it is given, so the simulator runs the same
// code as production.
package balancer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Load is what a chunk asks of its shard, or what a shard can give.
type Load struct {
	Bytes  float64 // stored, data and indexes
	Ops    float64 // operations per second, reads and writes together
	Writes float64 // of these the writes, per second
	Time   float64 // seconds that the operations of a second take; 0: nobody said
}

// Plus adds two loads.
func (l Load) Plus(o Load) Load {
	return Load{Bytes: l.Bytes + o.Bytes, Ops: l.Ops + o.Ops, Writes: l.Writes + o.Writes, Time: l.Time + o.Time}
}

// Minus takes o away.
func (l Load) Minus(o Load) Load {
	return Load{Bytes: l.Bytes - o.Bytes, Ops: l.Ops - o.Ops, Writes: l.Writes - o.Writes, Time: l.Time - o.Time}
}

// Shard is one place for chunks.
type Shard struct {
	Name     string
	Zone     string  // of the placement rules; without one, and without a region, it takes every chunk that names none
	Region   string  // that holds its zone
	Capacity Load    // Bytes and Ops must be positive
	Apply    float64 // changes per second that it can apply beside its own work
	Closed   bool    // takes no chunk: it is drained, broken, or leaves
	Strain   Strain
}

// Chunk is one thing that can be moved.
type Chunk struct {
	ID     string
	Shard  int    // index of the shard that it lives on
	Zone   string // where it may live; "": anywhere in its region
	Region string
	Load   Load
	// Fixed says why it may not be moved now (a move that is open, a pin, a
	// cool-down); "" when it may.
	Fixed string
	// HotKey is the share of its operations that goes to one key, 0 to 1.
	HotKey float64
}

// Fleet is what a plan is made for.
type Fleet struct {
	Shards []Shard
	Chunks []Chunk
	At     time.Time // when the figures were read
	Limits Limits
}

// MaxRebuild limits the size of a shard: a member must be rebuilt within it.
const MaxRebuild = 2 * time.Hour

// SizeLimit is how many bytes a shard may hold so that one member can be rebuilt
// at rate bytes per second within limit.
func SizeLimit(rate float64, limit time.Duration) float64 { return rate * limit.Seconds() }

// Validate names the first thing that makes a plan impossible.
func (f Fleet) Validate() error {
	seen := map[string]bool{}
	for i, s := range f.Shards {
		switch {
		case s.Name == "":
			return fmt.Errorf("shards[%d].name is empty", i)
		case seen[s.Name]:
			return fmt.Errorf("shards[%d].name %q is there twice", i, s.Name)
		case !positive(s.Capacity.Bytes) || !positive(s.Capacity.Ops):
			return fmt.Errorf("shards[%d] %q: capacity %+v: bytes and ops must be positive", i, s.Name, s.Capacity)
		case !known(s.Strain.CPU) || !known(s.Strain.Cores) || s.Strain.Write < 0:
			return fmt.Errorf("shards[%d] %q: strain %+v: every figure must be a number of at least 0", i, s.Name, s.Strain)
		}
		seen[s.Name] = true
	}
	if len(f.Shards) == 0 {
		return errors.New("there are no shards")
	}
	if err := f.Limits.Validate(); err != nil {
		return err
	}
	for i, c := range f.Chunks {
		switch {
		case c.Shard < 0 || c.Shard >= len(f.Shards):
			return fmt.Errorf("chunks[%d] %q is on shard %d of %d", i, c.ID, c.Shard, len(f.Shards))
		case !known(c.Load.Bytes) || !known(c.Load.Ops) || !known(c.Load.Writes) || !known(c.Load.Time):
			return fmt.Errorf("chunks[%d] %q: load %+v: every figure must be a number of at least 0", i, c.ID, c.Load)
		case c.HotKey < 0 || c.HotKey > 1 || math.IsNaN(c.HotKey):
			return fmt.Errorf("chunks[%d] %q: hot key share %v is not between 0 and 1", i, c.ID, c.HotKey)
		}
	}
	return nil
}

func positive(x float64) bool { return x > 0 && !math.IsInf(x, 0) }

func known(x float64) bool { return x >= 0 && !math.IsInf(x, 0) }

// use is the share of a capacity that a load takes: that of the scarcer resource.
func use(l, capacity Load) float64 { return max(l.Bytes/capacity.Bytes, l.Ops/capacity.Ops) }

// state is a fleet with the sums that planning needs.
type state struct {
	shards []Shard
	chunks []Chunk
	loads  []Load    // of each shard
	uses   []float64 // of each shard
	on     [][]int   // chunks of each shard
	coming []float64 // writes per second that planned moves bring to each shard
	works  []float64 // of each chunk: its share of the work of the shard where it was first
	first  []int     // of each chunk: the shard where it was first
	strain []Strain  // of each shard, as planned moves leave it
	limits Limits
}

func newState(f Fleet) *state {
	s := &state{
		shards: f.Shards, chunks: slices.Clone(f.Chunks), loads: make([]Load, len(f.Shards)),
		uses: make([]float64, len(f.Shards)), on: make([][]int, len(f.Shards)), coming: make([]float64, len(f.Shards)), limits: f.Limits.withDefaults(),
	}
	for i, c := range s.chunks {
		s.loads[c.Shard] = s.loads[c.Shard].Plus(c.Load)
		s.on[c.Shard] = append(s.on[c.Shard], i)
	}
	for i := range s.shards {
		s.uses[i] = use(s.loads[i], s.shards[i].Capacity)
	}
	s.strained()
	return s
}

// mean is the use that every open shard would have if load were a liquid.
func (s *state) mean() float64 {
	var all, room Load
	for i, sh := range s.shards {
		all = all.Plus(s.loads[i])
		if !sh.Closed {
			room = room.Plus(sh.Capacity)
		}
	}
	if room.Bytes == 0 {
		return math.Inf(1)
	}
	return use(all, room)
}

// share is what a chunk takes of a shard.
func (s *state) share(chunk, shard int) float64 {
	return use(s.chunks[chunk].Load, s.shards[shard].Capacity)
}

// relief is what a shard has more of the resource that is scarce on it, when a
// chunk leaves.
func (s *state) relief(chunk, shard int) float64 {
	l, load, capacity := s.chunks[chunk].Load, s.loads[shard], s.shards[shard].Capacity
	if load.Bytes/capacity.Bytes > load.Ops/capacity.Ops {
		return l.Bytes / capacity.Bytes
	}
	return l.Ops / capacity.Ops
}

// after is the use of a shard with one chunk more.
func (s *state) after(chunk, shard int) float64 {
	return use(s.loads[shard].Plus(s.chunks[chunk].Load), s.shards[shard].Capacity)
}

// move carries a chunk over.
func (s *state) move(chunk, to int) {
	c := &s.chunks[chunk]
	from := c.Shard
	s.loads[from], s.loads[to] = s.loads[from].Minus(c.Load), s.loads[to].Plus(c.Load)
	s.uses[from], s.uses[to] = use(s.loads[from], s.shards[from].Capacity), use(s.loads[to], s.shards[to].Capacity)
	s.on[from] = slices.DeleteFunc(s.on[from], func(i int) bool { return i == chunk })
	s.on[to] = append(s.on[to], chunk)
	s.coming[to] += c.Load.Writes
	s.shift(chunk, from, to)
	c.Shard = to
}

// fits reports whether a shard may take a chunk by the placement rules.
func (s *state) fits(chunk, shard int) bool {
	return !s.shards[shard].Closed && s.chunks[chunk].allows(s.shards[shard])
}

// allows reports whether a shard lies where a chunk may live.
func (c Chunk) allows(s Shard) bool {
	if c.Zone == "" && c.Region != "" {
		return s.Region == c.Region
	}
	return s.Zone == c.Zone && (c.Zone != "" || s.Region == "")
}

// where names the place where a chunk may live.
func (c Chunk) where() string {
	if c.Zone == "" && c.Region != "" {
		return fmt.Sprintf("region %q", c.Region)
	}
	return fmt.Sprintf("zone %q", c.Zone)
}

// spareFactor is how many times the writes that come to a target it must be able
// to apply: with less a move does not catch up in useful time.
const spareFactor = 2

// applies reports whether a shard can apply a chunk's changes beside those of the
// other moves that the plan brings there. A shard without a figure is not asked.
func (s *state) applies(chunk, shard int) bool {
	spare := s.shards[shard].Apply
	return spare == 0 || spareFactor*(s.coming[shard]+s.chunks[chunk].Load.Writes) <= spare
}
