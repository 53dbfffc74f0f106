package balancer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Simulation describes a fleet under load that is skewed and shifts.
type Simulation struct {
	Chunks int
	Shards int
	Rounds int           // of the balancer
	Every  time.Duration // between rounds
	Seed   uint64
	Policy Policy
	// Packed shards are those of the second part: so many, each with a few chunks
	// and little use, are packed into as few as possible.
	Packed int
	Fill   float64 // up to which they are packed
	Rate   float64 // bytes per second of one move
	Moves  int     // at once
}

// Outcome is what a simulation showed. Durations in seconds, loads as shares of
// a shard's capacity.
type Outcome struct {
	Chunks        int           `json:"chunks"`
	Shards        int           `json:"shards"`
	PlanSeconds   float64       `json:"plan_seconds"` // of the slowest round
	MovedVsBound  float64       `json:"moved_vs_lower_bound"`
	WorstBefore   float64       `json:"worst_before"` // of the first round
	WorstAfter    float64       `json:"worst_after"`
	Rounds        []RoundReport `json:"rounds"`
	PackedShards  int           `json:"binpack_shards"`
	PackedUsed    int           `json:"binpack_used"`
	PackedBound   int           `json:"binpack_bound"`
	PackedVsBound float64       `json:"binpack_vs_bound"`
	PackedMoves   int           `json:"binpack_moves"`
	PackedBytes   float64       `json:"binpack_bytes"`
	PackedDays    float64       `json:"binpack_days"`
	PackedSeconds float64       `json:"binpack_plan_seconds"`
	Growth        Growth        `json:"growth"`
}

// RoundReport is one round.
type RoundReport struct {
	At       string  `json:"at"`
	Before   float64 `json:"worst_before"`
	After    float64 `json:"worst_after"`
	Mean     float64 `json:"mean"`
	Moves    int     `json:"moves"`
	Splits   int     `json:"splits"`
	Refusals int     `json:"refusals"`
}

// Validate names the bad field.
func (s Simulation) Validate() error {
	for _, x := range []struct {
		name string
		v    int
	}{{"shards", s.Shards}, {"chunks", s.Chunks}, {"rounds", s.Rounds}, {"packed", s.Packed}, {"moves", s.Moves}} {
		if x.v < 1 {
			return fmt.Errorf("%s %d must be at least 1", x.name, x.v)
		}
	}
	if s.Chunks < s.Shards {
		return fmt.Errorf("chunks %d: at least one for each of the %d shards", s.Chunks, s.Shards)
	}
	if s.Every <= 0 {
		return fmt.Errorf("every %s must be positive", s.Every)
	}
	return nil
}

// Simulate plays the rounds with virtual time. stopwatch measures how long a
// piece of planning takes in real time.
func Simulate(s Simulation, stopwatch func(func()) time.Duration) (Outcome, error) {
	if err := s.Validate(); err != nil {
		return Outcome{}, err
	}
	out := Outcome{Chunks: s.Chunks, Shards: s.Shards}
	if err := s.balance(&out, stopwatch); err != nil {
		return out, err
	}
	if err := s.pack(&out, stopwatch); err != nil {
		return out, err
	}
	var err error
	out.Growth, err = Grow(8, 12, 200_000, 240, 200)
	return out, err
}

// wave is how one chunk's load goes over the day.
type wave struct{ base, swing, phase float64 }

func (w wave) at(t time.Duration) float64 {
	return w.base * (1 + w.swing*math.Sin(2*math.Pi*(t.Hours()/24)+w.phase))
}

func (s Simulation) balance(out *Outcome, stopwatch func(func()) time.Duration) error {
	rnd := rand.New(rand.NewPCG(s.Seed, 1)) //nolint:gosec // a simulation, not a secret
	f, waves := s.fleet(rnd)
	start := time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)
	moved, bound := 0.0, 0.0
	for r := range s.Rounds {
		t := time.Duration(r) * s.Every
		f.At = start.Add(t)
		for i := range f.Chunks {
			ops := waves[i].at(t)
			f.Chunks[i].Load.Ops, f.Chunks[i].Load.Writes = ops, ops/4
		}
		for range len(f.Chunks) / 1000 { // surges: a chunk becomes several times as hot, another calms down
			waves[rnd.IntN(len(waves))].base *= 1 + 2*rnd.Float64()
			waves[rnd.IntN(len(waves))].base /= 1 + 2*rnd.Float64()
		}
		var p Plan
		var err error
		took := stopwatch(func() { p, err = Balance(f, s.Policy, f.At) })
		if err != nil {
			return err
		}
		out.PlanSeconds = max(out.PlanSeconds, took.Seconds())
		moved, bound = moved+p.Moved, bound+p.Bound
		if r == 0 {
			out.WorstBefore = p.Before
		}
		out.WorstAfter = p.After
		out.Rounds = append(out.Rounds, RoundReport{
			At: f.At.Format(time.RFC3339), Before: p.Before, After: p.After, Mean: p.Mean,
			Moves: len(p.Moves), Splits: len(p.Splits), Refusals: len(p.Refusals),
		})
		f.apply(p.Moves)
	}
	if bound > 0 {
		out.MovedVsBound = moved / bound
	}
	return nil
}

// apply carries out moves; a plan's names are those of its fleet.
func (f Fleet) apply(moves []Move) {
	shards := make(map[string]int, len(f.Shards))
	for i, s := range f.Shards {
		shards[s.Name] = i
	}
	chunks := make(map[string]int, len(f.Chunks))
	for i, c := range f.Chunks {
		chunks[c.ID] = i
	}
	for _, m := range moves {
		f.Chunks[chunks[m.Chunk]].Shard = shards[m.To]
	}
}

// fleet spreads chunks at random, with sizes and rates as skewed as real ones: a
// few large and hot, most small and idle.
func (s Simulation) fleet(rnd *rand.Rand) (Fleet, []wave) {
	const mib = 1 << 20
	var f Fleet
	total := 0.0
	waves := make([]wave, s.Chunks)
	for i := range s.Chunks {
		ops := min(math.Exp(rnd.NormFloat64()*1.2+3), 2000)
		waves[i] = wave{base: ops, swing: 0.5 * rnd.Float64(), phase: rnd.NormFloat64() * 0.7}
		total += ops
		f.Chunks = append(f.Chunks, Chunk{
			ID: "db/" + strconv.Itoa(i), Shard: rnd.IntN(s.Shards),
			Load: Load{Bytes: min(math.Exp(rnd.NormFloat64()+5.5), 20_000) * mib},
		})
	}
	bytes := 0.0
	for _, c := range f.Chunks {
		bytes += c.Load.Bytes
	}
	for i := range s.Shards {
		f.Shards = append(f.Shards, Shard{
			Name:     "shard-" + strconv.Itoa(i),
			Capacity: Load{Bytes: 2.5 * bytes / float64(s.Shards), Ops: 2 * total / float64(s.Shards)},
			Apply:    10 * total / float64(s.Shards),
		})
	}
	return f, waves
}

func (s Simulation) pack(out *Outcome, stopwatch func(func()) time.Duration) error {
	rnd := rand.New(rand.NewPCG(s.Seed, 2)) //nolint:gosec // a simulation, not a secret
	const gib = float64(1 << 30)
	f := Fleet{}
	for i := range s.Packed {
		f.Shards = append(f.Shards, Shard{Name: "shard-" + strconv.Itoa(i), Capacity: Load{Bytes: 500 * gib, Ops: 20_000}})
		for range 1 + rnd.IntN(8) {
			f.Chunks = append(f.Chunks, Chunk{
				ID: "db/" + strconv.Itoa(len(f.Chunks)), Shard: i,
				Load: Load{Bytes: min(math.Exp(rnd.NormFloat64()*0.8+2.6), 120) * gib, Ops: min(math.Exp(rnd.NormFloat64()+5.8), 4000)},
			})
		}
	}
	var p Packing
	var err error
	took := stopwatch(func() { p, err = Pack(f, s.Fill) })
	if err != nil {
		return err
	}
	out.PackedShards, out.PackedUsed, out.PackedBound = s.Packed, p.Used, p.Bound
	out.PackedVsBound = float64(p.Used) / float64(p.Bound)
	out.PackedMoves, out.PackedBytes = len(p.Moves), p.Bytes
	out.PackedDays = Days(p.Bytes, s.Rate, s.Moves)
	out.PackedSeconds = took.Seconds()
	return nil
}

// Stopwatch is real time.
func Stopwatch(work func()) time.Duration {
	began := time.Now()
	work()
	return time.Since(began)
}

// Worst lists the most used shards of a fleet, the worst first.
func (f Fleet) Worst(n int) []string {
	s := newState(f)
	order := make([]int, len(f.Shards))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if s.uses[a] != s.uses[b] {
			if s.uses[a] > s.uses[b] {
				return -1
			}
			return 1
		}
		return a - b
	})
	var out []string
	for _, i := range order[:min(n, len(order))] {
		out = append(out, fmt.Sprintf("%s %.0f%%", f.Shards[i].Name, 100*s.uses[i]))
	}
	return out
}
