package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drover/contract"
	"drover/internal/config"
	"drover/starter"
)

func newFleetReconcile(a *app) *cobra.Command {
	return group("reconcile", "Let a schedule bring the fleet to the file that was applied last", newReconcileStart(a), newReconcileStop(a), newReconcileStatus(a))
}

func newReconcileStart(a *app) *cobra.Command {
	var p planFlags
	var every time.Duration
	var in contract.ReconcileInput
	c := &cobra.Command{
		Use: "start", Short: "Compare now and then by a schedule, and mend what differs; a dry run without --execute", Args: cobra.NoArgs,
		Long: "Compare the fleet with the file that was applied last, now and then by a schedule; run again to change it. With --execute what is missing is\n" +
			"made (databases, collections, indexes, quotas, grants), and the moves that the placement rules ask for are started as the intent\n" +
			"rebalance/reconcile. New shards and users need secrets that only whoever applies the file has: they are named.",
		Example: "  drover fleet reconcile start\n  drover fleet reconcile start --every 10m --execute",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < time.Minute {
				return &usageError{fmt.Errorf("--every is %s; want 1m or more", every)}
			}
			if err := p.check(); err != nil {
				return err
			}
			in.Settings, in.AtOnce, in.BurnIn = p.settings, p.in.AtOnce, contract.Duration(p.burnIn)
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				if err := s.Reconcile(ctx, every, in); err != nil {
					return err
				}
				return a.told("the fleet is compared every %s; drover fleet reconcile status shows what was found", every)
			})
		},
	}
	f := c.Flags()
	p.addCapacities(f)
	f.DurationVar(&every, "every", 10*time.Minute, "between runs")
	f.BoolVar(&in.Execute, "execute", false, "mend what differs; without it each run only reports")
	f.IntVar(&p.in.AtOnce, "at-once", 4, "moves that copy at once")
	f.DurationVar(&p.burnIn, "burn-in", 0, "how long old placements are kept current for a rollback; 0: the default of a move")
	a.cfg.Flags(f, config.Common)
	return c
}

func newReconcileStop(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "stop", Short: "Compare no more; what runs goes on", Args: cobra.NoArgs,
		Example: "  drover fleet reconcile stop",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error { return s.Unreconcile(ctx) })
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newReconcileStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status", Short: "Show what the newest run found and did, or why it failed", Args: cobra.NoArgs,
		Example: "  drover fleet reconcile status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				r, failed, err := s.LastReconcile(ctx)
				if err != nil {
					return err
				}
				if failed != nil {
					return fmt.Errorf("the newest run failed: %w", failed)
				}
				if r == nil {
					return a.told("no run has ended: drover fleet reconcile start lets a schedule make them")
				}
				return a.print(r, []string{"WHAT", "OF", "WHY"}, func() [][]string { return reconcileRows(*r) })
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// reconcileRows is one line for each thing that a run found or did.
func reconcileRows(r contract.FleetReconciled) (rows [][]string) {
	for _, c := range r.Made {
		rows = append(rows, []string{"made " + c.Kind, c.Subject, c.What})
	}
	for _, c := range r.Look.Missing {
		rows = append(rows, []string{"missing " + c.Kind, c.Subject, c.What})
	}
	for _, x := range append(r.Look.Refusals, r.Plan.Refusals...) {
		rows = append(rows, []string{"not done", x.Subject, x.Reason})
	}
	for _, m := range r.Plan.Moves {
		rows = append(rows, []string{"move to " + m.To, string(m.Chunk), m.Reason})
	}
	if r.Started != "" {
		return append(rows, []string{"started", r.Started, strconv.Itoa(len(r.Plan.Moves)) + " moves"})
	}
	return append(rows, []string{"no moves started", "", r.Held})
}
