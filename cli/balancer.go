package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

func newBalancerCommand(a *app) *cobra.Command {
	return group("balancer", "Let rounds of the balancer run by a schedule, and read what they decided",
		newBalancerStart(a), newBalancerStop(a), newBalancerStatus(a))
}

// roundFlags are the settings of the balancer's rounds.
type roundFlags struct {
	planFlags
	every, coolDown time.Duration
	execute         bool
}

// add makes the flags.
func (p *roundFlags) add(f *pflag.FlagSet) {
	p.addCapacities(f)
	p.addPolicy(f)
	f.DurationVar(&p.every, "every", 5*time.Minute, "between rounds")
	f.DurationVar(&p.coolDown, "cool-down", time.Hour, "a chunk that moved stays for so long")
	f.BoolVar(&p.execute, "execute", false, "start what a round plans")
	f.IntVar(&p.in.AtOnce, "at-once", 4, "moves that copy at once")
	f.DurationVar(&p.burnIn, "burn-in", 0, "how long old placements are kept current for a rollback; 0: the default of a move")
}

// input gives what each round is started with.
func (p *roundFlags) input() (contract.RoundInput, error) {
	if p.every < time.Minute {
		return contract.RoundInput{}, fmt.Errorf("every is %s; want 1m or more: figures are means of a minute", p.every)
	}
	if err := p.check(); err != nil {
		return contract.RoundInput{}, err
	}
	s := p.settings
	s.CoolDown = contract.Duration(p.coolDown)
	return contract.RoundInput{Execute: p.execute, Settings: s, AtOnce: p.in.AtOnce, BurnIn: contract.Duration(p.burnIn)}, nil
}

func newBalancerStart(a *app) *cobra.Command {
	var p roundFlags
	c := &cobra.Command{
		Use: "start", Short: "Run a round now and then by a schedule; a dry run without --execute", Args: cobra.NoArgs,
		Long: "Run a round now and then by a schedule; run again to change it. Each round reads the fleet, plans, and keeps what it decided and why.\n" +
			"Without --execute nothing is moved. A round does not overlap with the one before, and starts nothing while its own moves run.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := p.input()
			if err != nil {
				return &usageError{err}
			}
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				if err := s.Balance(ctx, p.every, in); err != nil {
					return err
				}
				mode := "dry run"
				if p.execute {
					mode = "moves are started"
				}
				return a.print(in, nil, func() [][]string {
					return [][]string{{"every", p.every.String()}, {"mode", mode}, {"next", "drover balancer status"}}
				})
			})
		},
	}
	p.add(c.Flags())
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newBalancerStop(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "stop", Short: "Run no further round; moves that run go on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error { return s.Unbalance(ctx) })
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newBalancerStatus(a *app) *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "status", Short: "Show what the newest rounds decided, and why", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.BalanceRounds(ctx, limit)
				if err != nil {
					return err
				}
				if a.output == "json" {
					return writeJSON(a.env.Stdout, all)
				}
				rows, err := roundRows(all)
				if err != nil {
					return err
				}
				return writeTable(a.env.Stdout, []string{"ROUND", "AT", "WORST", "AFTER", "WHAT", "WHY"}, rows)
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", 5, "so many rounds")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// strainsShown is of how many shards a round's line says how they bear their load.
const strainsShown = 3

// strainText says how a shard bears its load.
func strainText(s contract.ShardStrain) string {
	text := "CPU unknown"
	if s.CPU != nil {
		text = fmt.Sprintf("%.0f %% of its CPU is busy", 100**s.CPU)
	}
	if s.Write != nil {
		text += ", a write takes " + time.Duration(*s.Write).Round(10*time.Microsecond).String()
	}
	if s.Unknown != "" {
		text += " (" + s.Unknown + ")"
	}
	return text
}

// roundRows is one line for each decision and refusal of each round.
func roundRows(all []metadata.BalanceRound) (rows [][]string, _ error) {
	percent := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	for _, b := range all {
		var r contract.RoundResult
		if err := json.Unmarshal(b.Result, &r); err != nil {
			return nil, fmt.Errorf("read round %d: %w", b.ID, err)
		}
		head := []string{strconv.FormatInt(b.ID, 10), b.At.UTC().Format(time.RFC3339), percent(r.Plan.Before), percent(r.Plan.After)}
		line := func(what, why string) { rows = append(rows, append(append([]string{}, head...), what, why)) }
		if r.Started != "" {
			line("started "+r.Started, strconv.Itoa(len(r.Plan.Moves))+" moves")
		} else {
			line("started nothing", r.Held)
		}
		for _, s := range r.Plan.Shards[:min(len(r.Plan.Shards), strainsShown)] {
			line("saw "+s.Shard, strainText(s))
		}
		for _, m := range r.Plan.Moves {
			line(fmt.Sprintf("move %s to %s", m.Chunk, m.To), m.Reason)
		}
		for _, s := range r.Plan.Splits {
			line(fmt.Sprintf("split %s into %d", s.Chunk, s.Parts), s.Reason)
		}
		for _, x := range r.Plan.Refusals {
			line("not "+x.Subject, x.Reason)
		}
	}
	return rows, nil
}
