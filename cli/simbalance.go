package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drover/balancer"
)

func newSimBalance(a *app) *cobra.Command {
	s := balancer.Simulation{Chunks: 100_000, Shards: 2000, Rounds: 6, Every: time.Hour, Seed: 1, Packed: 8000, Fill: 0.85, Rate: 50e6, Moves: 200}
	out := ""
	c := &cobra.Command{
		Use: "balance", Short: "Balance a fleet under skewed, shifting load; pack another one; grow a third", Args: cobra.NoArgs,
		Long: "Plan for fleets that do not exist, with the planner that balances real ones: rounds over a fleet whose load is skewed and shifts,\n" +
			"a packing of underused shards into as few as possible, and the share of keys that moves when 8 shards become 12.",
		Example: "  drover sim balance --chunks 100000 --shards 2000",
		RunE: func(*cobra.Command, []string) error {
			if err := s.Validate(); err != nil {
				return &usageError{err}
			}
			o, err := balancer.Simulate(s, balancer.Stopwatch)
			if err != nil {
				return err
			}
			if out != "" {
				if err := writeReport(out, o); err != nil {
					return err
				}
			}
			return a.print(o, nil, func() [][]string { return balanceRows(o) })
		},
	}
	f := c.Flags()
	f.IntVar(&s.Chunks, "chunks", s.Chunks, "chunks of the fleet that is balanced")
	f.IntVar(&s.Shards, "shards", s.Shards, "its shards")
	f.IntVar(&s.Rounds, "rounds", s.Rounds, "rounds of the balancer")
	f.DurationVar(&s.Every, "every", s.Every, "virtual time between rounds, in which the load shifts")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "the same seed gives the same run")
	f.IntVar(&s.Packed, "packed", s.Packed, "underused shards that are packed")
	f.Float64Var(&s.Fill, "fill", s.Fill, "share of its capacity up to which a shard is packed")
	f.IntVar(&s.Moves, "moves", s.Moves, "moves at once, for the days that the packing takes")
	f.Float64Var(&s.Rate, "rate", s.Rate, "bytes per second of one move")
	f.StringVar(&out, "out", "", "file for the figures as JSON")
	return c
}

// balanceRows tells people what a simulation showed.
func balanceRows(o balancer.Outcome) [][]string {
	percent := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	rows := [][]string{{"balance", fmt.Sprintf("%d chunks on %d shards", o.Chunks, o.Shards)}}
	for _, r := range o.Rounds {
		rows = append(rows, []string{"  " + r.At, fmt.Sprintf("worst shard %s, then %s (mean %s); %d moves, %d splits, %d refusals",
			percent(r.Before), percent(r.After), percent(r.Mean), r.Moves, r.Splits, r.Refusals)})
	}
	return append(rows,
		[]string{"  slowest plan", fmt.Sprintf("%.2f s", o.PlanSeconds)},
		[]string{"  moved", fmt.Sprintf("%.3f times what any plan must move", o.MovedVsBound)},
		[]string{"packing", fmt.Sprintf("%d shards into %d; no packing needs fewer than %d (%.3f times)", o.PackedShards, o.PackedUsed, o.PackedBound, o.PackedVsBound)},
		[]string{"  its moves", fmt.Sprintf("%d, %s, %.1f days, planned in %.2f s", o.PackedMoves, bytesText(int64(o.PackedBytes)), o.PackedDays, o.PackedSeconds)},
		[]string{"growth", fmt.Sprintf("%d shards become %d: keys that move", o.Growth.From, o.Growth.To)},
		[]string{"  modulo", percent(o.Growth.Modulo)},
		[]string{fmt.Sprintf("  ring of %d nodes", o.Growth.Nodes), percent(o.Growth.Ring)},
		[]string{fmt.Sprintf("  plan over %d chunks", o.Growth.Chunks), percent(o.Growth.Plan)},
		[]string{"  bound", percent(o.Growth.Bound)},
	)
}
