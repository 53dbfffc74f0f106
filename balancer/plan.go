package balancer

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Policy says when the balancer acts. The zero value of a field is its default.
type Policy struct {
	Start    float64       // a shard is relieved when its use is above the mean times 1+Start; default 0.20
	Stop     float64       // and down to the mean times 1+Stop; default 0.05. The gap is the hysteresis
	Full     float64       // or when it is above this use whatever the mean is; default 0.85
	MinGain  float64       // a move that relieves its shard by less of its use is not made; default 0.002
	MaxMoves int           // in one round; 0 for no limit
	MaxAge   time.Duration // of the figures; default 5 minutes
	HotKey   float64       // a chunk of which one key takes more than this share can't be split; default 0.5
}

func (p Policy) withDefaults() Policy {
	for _, d := range []struct {
		v    *float64
		then float64
	}{{&p.Start, 0.20}, {&p.Stop, 0.05}, {&p.Full, 0.85}, {&p.MinGain, 0.002}, {&p.HotKey, 0.5}} {
		if *d.v == 0 {
			*d.v = d.then
		}
	}
	if p.MaxAge == 0 {
		p.MaxAge = 5 * time.Minute
	}
	return p
}

// Validate names the first setting that can't be; zero is the default of each.
func (p Policy) Validate() error { return p.withDefaults().validate() }

// validate names the first setting that can't be.
func (p Policy) validate() error {
	switch {
	case p.Stop < 0 || p.Start <= p.Stop:
		return fmt.Errorf("policy.start %v must lie above policy.stop %v, which must not be negative: without a gap shards swing", p.Start, p.Stop)
	case p.Full <= 0 || p.Full > 1:
		return fmt.Errorf("policy.full %v must lie above 0 and not above 1", p.Full)
	case p.MinGain < 0 || p.HotKey < 0 || p.HotKey > 1 || p.MaxMoves < 0:
		return fmt.Errorf("policy %+v: a share lies between 0 and 1, and no figure is negative", p)
	}
	return nil
}

// ErrOld is returned for figures that are too old to act on.
var ErrOld = errors.New("the figures are too old")

// Move is one intent: carry a chunk to another shard.
type Move struct {
	Chunk  string  `json:"chunk"`
	From   string  `json:"from"`
	To     string  `json:"to"`
	Bytes  float64 `json:"bytes"`
	Writes float64 `json:"writesPerSecond"`
	Reason string  `json:"reason"`
}

// Split is one intent: cut a chunk that is more than a shard should hold.
type Split struct {
	Chunk  string `json:"chunk"`
	Parts  int    `json:"parts"`
	Reason string `json:"reason"`
}

// Refusal is something that should be done and is not.
type Refusal struct {
	Subject string `json:"subject"` // a chunk or a shard
	Reason  string `json:"reason"`
	Offer   string `json:"offer,omitempty"` // what a person may do
}

// Plan is what one round decides, and how the fleet is before and after it.
type Plan struct {
	Moves    []Move    `json:"moves"`
	Splits   []Split   `json:"splits"`
	Refusals []Refusal `json:"refusals"`
	Mean     float64   `json:"mean"`        // use of the whole fleet
	Before   float64   `json:"worstBefore"` // use of the worst shard
	After    float64   `json:"worstAfter"`
	Moved    float64   `json:"moved"`      // what the moves take off their old shards, of the resource that is scarce there
	Bound    float64   `json:"lowerBound"` // no plan that relieves the same shards moves less
}

// Balance plans one round: it relieves every shard that is too hot, the worst
// one first, without making another one too hot. Deterministic. Figures older
// than the policy's MaxAge are [ErrOld]; other errors name the bad field.
func Balance(f Fleet, p Policy, now time.Time) (Plan, error) {
	p = p.withDefaults()
	if err := p.validate(); err != nil {
		return Plan{}, err
	}
	if err := f.Validate(); err != nil {
		return Plan{}, err
	}
	if age := now.Sub(f.At); age > p.MaxAge {
		return Plan{}, fmt.Errorf("%w: read %s ago, at most %s: read the fleet again", ErrOld, age.Round(time.Second), p.MaxAge)
	}
	return played(f, p).plan, nil
}

// played is a round that has planned everything.
func played(f Fleet, p Policy) *round {
	b := newRound(f, p)
	b.plan.Mean = b.mean()
	b.plan.Before = slices.Max(b.uses)
	b.limit = min(p.Full, b.plan.Mean*(1+p.Stop))
	if b.plan.Mean > b.limit { // everything is full: more shards are needed, moves only level
		b.limit = b.plan.Mean * (1 + p.Stop)
	}
	b.run()
	b.ease()
	b.plan.After = slices.Max(b.uses)
	return b
}

// newRound begins to plan.
func newRound(f Fleet, p Policy) *round {
	return &round{state: newState(f), policy: p, moved: map[int]bool{}}
}

// round is one run of Balance.
type round struct {
	*state
	policy Policy
	limit  float64 // use down to which shards are relieved, and up to which others are filled
	cold   coldest
	moved  map[int]bool
	plan   Plan
}

// hot reports whether a shard has to be relieved for what it holds and serves.
func (b *round) hot(shard int) bool {
	return b.uses[shard] > min(b.policy.Full, b.plan.Mean*(1+b.policy.Start)) && b.uses[shard] > b.limit
}

func (b *round) run() {
	b.cold = coldest{uses: b.uses}
	var worst []int
	for i := range b.shards {
		if b.hot(i) {
			worst = append(worst, i)
			b.plan.Bound += b.uses[i] - b.limit
		} else if !b.shards[i].Closed {
			b.cold.shards = append(b.cold.shards, i)
		}
	}
	heap.Init(&b.cold)
	slices.SortFunc(worst, func(x, y int) int {
		return cmp.Or(cmp.Compare(b.uses[y], b.uses[x]), cmp.Compare(b.shards[x].Name, b.shards[y].Name))
	})
	for _, shard := range worst {
		b.relieve(shard)
	}
}

// relieve takes chunks off one shard until it is below the limit.
func (b *round) relieve(shard int) {
	b.splits(shard)
	candidates := slices.DeleteFunc(slices.Clone(b.on[shard]), func(c int) bool { return b.chunks[c].Fixed != "" || b.moved[c] })
	for b.uses[shard] > b.limit+b.policy.MinGain {
		if b.policy.MaxMoves > 0 && len(b.plan.Moves) >= b.policy.MaxMoves {
			b.refuse(b.shards[shard].Name, fmt.Sprintf("it stays at %.0f %%: the round's %d moves are spent", 100*b.uses[shard], b.policy.MaxMoves), "")
			return
		}
		chunk, to := b.best(shard, candidates)
		if to < 0 {
			b.refuse(b.shards[shard].Name, b.why(shard, candidates), "add a shard, or split a chunk: drover chunk split")
			return
		}
		b.plan.Moved += b.relief(chunk, shard)
		b.plan.Moves = append(b.plan.Moves, Move{
			Chunk: b.chunks[chunk].ID, From: b.shards[shard].Name, To: b.shards[to].Name,
			Bytes: b.chunks[chunk].Load.Bytes, Writes: b.chunks[chunk].Load.Writes,
			Reason: fmt.Sprintf("%s is at %.0f %% (fleet %.0f %%); this takes %.1f points off and leaves %s at %.0f %%", b.shards[shard].Name,
				100*b.uses[shard], 100*b.plan.Mean, 100*b.relief(chunk, shard), b.shards[to].Name, 100*b.after(chunk, to)),
		})
		b.move(chunk, to)
		b.moved[chunk] = true
		candidates = slices.DeleteFunc(candidates, func(c int) bool { return c == chunk })
		b.cold.fix(to)
	}
}

// leastSplit is the share of a shard below which no chunk is too large, however idle the
// others are.
const leastSplit = 0.05

// splits asks for a cut of each chunk that no shard could take whole.
func (b *round) splits(shard int) {
	for _, c := range b.on[shard] {
		take := b.share(c, shard)
		if take <= max(b.limit, leastSplit) {
			continue
		}
		b.split(c, int(take/b.limit)+1, fmt.Sprintf("it alone takes %.0f %% of %s, a shard should stay at %.0f %%", 100*take, b.shards[shard].Name, 100*b.limit))
	}
}

// split asks for a cut of a chunk, unless one key is most of it.
func (b *round) split(c, parts int, why string) {
	if b.chunks[c].HotKey > b.policy.HotKey {
		b.refuse(b.chunks[c].ID, fmt.Sprintf("no split point: one key takes %.0f %% of its operations", 100*b.chunks[c].HotKey),
			"drover chunk isolate gives it a shard of its own")
		return
	}
	b.plan.Splits = append(b.plan.Splits, Split{Chunk: b.chunks[c].ID, Parts: parts, Reason: why})
}

// best chooses the chunk to take off a shard: the largest that does not take
// more off than is too much, or else the smallest of the others; the fewest bytes
// where that is equal. to is -1 when nothing helps.
func (b *round) best(shard int, candidates []int) (chunk, to int) {
	excess := b.uses[shard] - b.limit
	order := slices.Clone(candidates)
	rank := func(c int) (over bool, distance float64) {
		d := b.relief(c, shard) - excess
		return d > 0, max(d, -d)
	}
	slices.SortFunc(order, func(x, y int) int {
		ox, dx := rank(x)
		oy, dy := rank(y)
		if ox != oy {
			if ox {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(dx, dy), cmp.Compare(b.chunks[x].Load.Bytes, b.chunks[y].Load.Bytes), cmp.Compare(b.chunks[x].ID, b.chunks[y].ID))
	})
	for _, c := range order {
		if b.relief(c, shard) < b.policy.MinGain {
			continue
		}
		if to := b.cold.first(func(t int) bool { return b.takes(c, t) }); to >= 0 {
			return c, to
		}
	}
	return -1, -1
}

// takes reports whether a shard may have a chunk and stays cool with it.
func (b *round) takes(chunk, to int) bool {
	return b.fits(chunk, to) && b.applies(chunk, to) && b.bears(chunk, to) && b.after(chunk, to) <= b.limit
}

// why says what keeps a hot shard hot.
func (b *round) why(shard int, candidates []int) string {
	fixed, small, slow, full, strained := 0, 0, 0, 0, 0
	for _, c := range b.on[shard] {
		switch {
		case b.chunks[c].Fixed != "":
			fixed++
		case !slices.Contains(candidates, c):
		case b.relief(c, shard) < b.policy.MinGain:
			small++
		case b.cold.first(func(t int) bool { return b.fits(c, t) && b.applies(c, t) && b.after(c, t) <= b.limit }) >= 0:
			strained++
		case b.cold.first(func(t int) bool { return b.fits(c, t) && b.after(c, t) <= b.limit }) >= 0:
			slow++
		default:
			full++
		}
	}
	why := fmt.Sprintf("it stays at %.0f %%: of its chunks %d may not move now, %d are too small to help, for %d no shard has room, for %d the shards with room can't apply twice their writes",
		100*b.uses[shard], fixed, small, full, slow)
	if strained > 0 {
		why += fmt.Sprintf(", for %d their CPU or latency is too near its limit", strained)
	}
	return why
}

func (b *round) refuse(subject, reason, offer string) {
	b.plan.Refusals = append(b.plan.Refusals, Refusal{Subject: subject, Reason: reason, Offer: offer})
}

// coldest is a heap of shards by use.
type coldest struct {
	shards []int
	uses   []float64
}

func (h *coldest) Len() int { return len(h.shards) }

func (h *coldest) Less(i, j int) bool {
	a, b := h.shards[i], h.shards[j]
	return h.uses[a] < h.uses[b] || h.uses[a] == h.uses[b] && a < b
}

func (h *coldest) Swap(i, j int) { h.shards[i], h.shards[j] = h.shards[j], h.shards[i] }

// Push implements [heap.Interface].
func (h *coldest) Push(x any) { h.shards = append(h.shards, x.(int)) } //nolint:forcetypeassert // only this package pushes

// Pop implements [heap.Interface].
func (h *coldest) Pop() any {
	last := h.shards[len(h.shards)-1]
	h.shards = h.shards[:len(h.shards)-1]
	return last
}

// fix puts a shard whose use has changed in its place.
func (h *coldest) fix(shard int) {
	if i := slices.Index(h.shards, shard); i >= 0 {
		heap.Fix(h, i)
	}
}

// tries is how many of the coldest shards are looked at for one chunk before all
// of them are.
const tries = 8

// first is a cold shard that is good, -1 when there is none: of the coldest few
// the first, or else the first of all.
func (h *coldest) first(good func(int) bool) int {
	var taken []int
	defer func() {
		for _, t := range taken {
			heap.Push(h, t)
		}
	}()
	for range tries {
		if h.Len() == 0 {
			return -1
		}
		t := heap.Pop(h).(int) //nolint:forcetypeassert // only shards are in it
		taken = append(taken, t)
		if good(t) {
			return t
		}
	}
	rest := slices.SortedFunc(slices.Values(h.shards), func(a, b int) int { return cmp.Or(cmp.Compare(h.uses[a], h.uses[b]), cmp.Compare(a, b)) })
	for _, t := range rest {
		if good(t) {
			return t
		}
	}
	return -1
}
