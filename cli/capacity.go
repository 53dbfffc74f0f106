package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drover/contract"
	"drover/fleet"
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

func newCapacityCommand(a *app) *cobra.Command {
	return group("capacity", "Let the fleet grow on to spare shards before a season, and shrink after it",
		newCapacityPlan(a), newCapacityStatus(a), newCapacityStop(a))
}

// seasonPlanned is what the plan of a season says to people.
type seasonPlanned struct {
	Season   contract.SeasonInput `json:"season"`
	Expand   planned              `json:"expand"`
	BeginsAt time.Time            `json:"beginsAt"`
	Lead     contract.Duration    `json:"lead"`
	Shrink   planned              `json:"shrink"`
	Started  *starter.Run         `json:"started,omitempty"`
	State    string               `json:"state,omitempty"`
}

// seasonFlags are the flags of a season's plan.
type seasonFlags struct {
	planFlags
	at, until string
	spare     []string
	lead      time.Duration
	season    contract.SeasonInput
}

func newCapacityPlan(a *app) *cobra.Command {
	var p seasonFlags
	c := &cobra.Command{
		Use: "plan --factor N --at DATE --until DATE", Short: "Plan for a time of more load; without --yes the plan is only shown", Args: cobra.NoArgs,
		Long: "Plan for a time at which the fleet serves FACTOR times the operations of now: which chunks move on to how few spare shards before it, when\n" +
			"that must begin, and what leads back afterwards. The pool is the shards that the fleet file declares spare, those of --spare, or the empty\n" +
			"ones. With --yes a workflow holds the pool and does both at their times, each time by a plan of the fleet as it is then; it begins so\n" +
			"early as the measured rates of imports ask for. Dates without a time are midnight, UTC.",
		Example: "  drover capacity plan --factor 3 --at 2026-12-20 --until 2027-01-07\n" +
			"  drover capacity plan --factor 2 --at 2026-12-20T06:00:00Z --until 2026-12-27 --spare shard-x,shard-y --yes",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.planSeason(cmd, &p) },
	}
	p.add(c.Flags())
	p.addYes(c.Flags())
	f := c.Flags()
	f.Float64Var(&p.season.Factor, "factor", 0, "so many times the operations of now (needed)")
	f.StringVar(&p.at, "at", "", "when the load comes, as 2026-12-20 or 2026-12-20T06:00:00Z (needed)")
	f.StringVar(&p.until, "until", "", "when it is over (needed)")
	f.StringVar(&p.season.Name, "name", "", "of the season; empty: the day when it begins")
	f.StringSliceVar(&p.spare, "spare", nil, "the pool, instead of what the fleet file declares spare")
	f.DurationVar(&p.lead, "lead", 0, "begin so long before; 0: by the measured rates of imports")
	f.Float64Var(&p.fill, "fill", 0.7, "up to which use shards are filled, 0 to 1")
	for _, name := range []string{"factor", "at", "until"} {
		_ = c.MarkFlagRequired(name)
	}
	a.cfg.Flags(f, config.Common)
	return c
}

// date reads a moment that people plan for.
func date(flag, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, &usageError{fmt.Errorf("--%s is %q; want it as 2026-12-20 or 2026-12-20T06:00:00Z", flag, text)}
}

// dates reads when the season is.
func (p *seasonFlags) dates(now time.Time) (err error) {
	if p.season.At, err = date("at", p.at); err != nil {
		return err
	}
	if p.season.Until, err = date("until", p.until); err != nil {
		return err
	}
	switch {
	case p.season.Factor <= 1:
		return &usageError{fmt.Errorf("--factor is %g; want more than 1", p.season.Factor)}
	case p.lead < 0:
		return &usageError{fmt.Errorf("--lead is %s; want 0 or longer", p.lead)}
	case !p.season.At.Before(p.season.Until):
		return &usageError{errors.New("--until does not lie behind --at")}
	case p.season.Until.Before(now):
		return &usageError{errors.New("--until has passed")}
	}
	if p.season.Name == "" {
		p.season.Name = p.season.At.Format(time.DateOnly)
	}
	return nil
}

// planSeason shows what a season needs, and starts it where --yes was given.
func (a *app) planSeason(cmd *cobra.Command, p *seasonFlags) error {
	if err := p.check(); err != nil {
		return err
	}
	if err := p.dates(time.Now()); err != nil {
		return err
	}
	settings := p.settings
	settings.CoolDown = -1
	var out seasonPlanned
	err := a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		v, err := a.view(ctx, cmd, store, settings, nil)
		if err != nil {
			return err
		}
		s, err := v.Season(p.spare, p.season.Factor, p.fill)
		if err != nil {
			return err
		}
		out.Expand, out.Shrink = p.expect(v, s.Expand), p.expect(v, s.Shrink)
		p.season.Spare = s.Spare
		return nil
	})
	if err != nil {
		return err
	}
	out.Expand.Kind, out.Shrink.Kind = contract.ExpandIntent, contract.ShrinkIntent
	if out.Lead = contract.Duration(p.lead); p.lead == 0 {
		out.Lead = contract.Duration(fleet.Lead(time.Duration(out.Expand.Expected)))
	}
	out.BeginsAt = p.season.At.Add(-time.Duration(out.Lead))
	in := &p.season
	in.Fill, in.Lead, in.MoveRate, in.Settings, in.FiguresAt, in.RequestedBy = p.fill, contract.Duration(p.lead), p.moveRate, p.settings, out.Expand.FiguresAt, a.user()
	in.AtOnce, in.BurnIn, in.Approval, in.Complete, in.Reason = p.in.AtOnce, contract.Duration(p.burnIn), p.in.Approval, p.in.Complete, p.in.Reason
	out.Season = *in
	if p.yes {
		if err := a.startSeason(cmd, &out); err != nil {
			return err
		}
	}
	if err := a.printSeason(out); err != nil {
		return err
	}
	if !p.yes {
		return &exitError{exitWaits}
	}
	return nil
}

// startSeason starts a season and waits until it is admitted.
func (a *app) startSeason(cmd *cobra.Command, out *seasonPlanned) error {
	return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		run, err := s.Season(ctx, out.Season)
		if err != nil {
			return err
		}
		out.Started = &run
		out.State, err = opened(ctx, s, run)
		return err
	})
}

// printSeason shows both plans of a season.
func (a *app) printSeason(s seasonPlanned) error {
	if a.output == "json" {
		return writeJSON(a.env.Stdout, s)
	}
	part := func(title string, p planned) error {
		a.say("%s", title)
		err := a.printMoves(p.FleetPlan)
		a.say("%d moves, %s, about %s of copying\n", len(p.Moves), bytesText(p.Bytes), time.Duration(p.Expected))
		return err
	}
	if err := part(fmt.Sprintf("before %s, from %s on (lead %s):", s.Season.At.Format(time.RFC3339), s.BeginsAt.Format(time.RFC3339), time.Duration(s.Lead)), s.Expand); err != nil {
		return err
	}
	if err := part(fmt.Sprintf("after %s, as it looks now:", s.Season.Until.Format(time.RFC3339)), s.Shrink); err != nil {
		return err
	}
	if err := a.printFigures(s.Expand.Figures); err != nil {
		return err
	}
	a.say("read at %s; each time the fleet is read and planned anew", s.Expand.FiguresAt.UTC().Format(time.RFC3339))
	if s.Started == nil {
		a.say("nothing was started; --yes starts it")
	} else {
		a.say("%s as %s; drover capacity status %s", s.State, s.Started.WorkflowID, s.Season.Name)
	}
	return nil
}

func newCapacityStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status NAME", Short: "Show in which stage a season is, and what it waits for", Args: cobra.ExactArgs(1),
		Example: "  drover capacity status 2026-12-20\n  drover capacity status winter --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				st, err := s.SeasonStatus(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printSeasonState(st)
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// printSeasonState shows how far a season is.
func (a *app) printSeasonState(st contract.SeasonState) error {
	return a.print(st, nil, func() [][]string {
		rows := [][]string{{"season", st.ID}, {"stage", st.Stage}, {"waiting for", st.WaitingFor}}
		if !st.LookedAt.IsZero() {
			rows = append(rows, []string{"looked at", st.LookedAt.UTC().Format(time.RFC3339)},
				[]string{"to move", fmt.Sprintf("%d chunks, %s, about %s of copying", st.Planned, bytesText(st.Bytes), time.Duration(st.Expected))})
		}
		for _, x := range []struct{ name, value string }{
			{"held up by", st.Held}, {"expanded by", st.Expanded}, {"shrunk by", st.Shrunk}, {"stopped", st.Stopped},
		} {
			if x.value != "" {
				rows = append(rows, []string{x.name, x.value})
			}
		}
		for _, k := range st.Kept {
			rows = append(rows, []string{"not emptied of " + k.Subject, k.Reason + " (" + k.Offer + ")"})
		}
		return rows
	})
}

func newCapacityStop(a *app) *cobra.Command {
	var in contract.UpdateInput
	c := &cobra.Command{
		Use: "stop NAME", Short: "End a season as it stands: nothing more is started, and its spare shards are let go", Args: cobra.ExactArgs(1),
		Long: "End a season as it stands: nothing more is started, and its spare shards are let go. Moves that run go on (drover rebalance stop), and\n" +
			"what is on spare shards stays there: drover shard drain empties them.",
		Example: "  drover capacity stop 2026-12-20 --reason 'the sale is off'",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.By = a.user()
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				st, err := s.StopSeason(ctx, args[0], in)
				if err != nil {
					return err
				}
				return a.printSeasonState(st)
			})
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "kept in the workflow's history")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}
