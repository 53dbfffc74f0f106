package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drover/contract"
	"drover/internal/config"
	"drover/starter"
	"drover/workers"
)

// planMove prints what a move would meet; status 3 when something speaks against it.
func (a *app) planMove(cmd *cobra.Command, in contract.MigrateInput) error {
	if err := a.loadAs(cmd, config.Worker); err != nil {
		return err
	}
	store, err := a.openStore(cmd.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	plan, err := workers.PlanMove(cmd.Context(), &a.cfg, store, a.quiet(), in)
	if err != nil {
		return err
	}
	if c := a.planTemporal(cmd.Context()); c.Name != "" {
		plan.Checks = append(plan.Checks, c)
		plan.Go = plan.Go && c.Verdict == contract.PlanGood
	}
	if err := a.print(plan, nil, func() [][]string { return movePlanRows(plan) }); err != nil {
		return err
	}
	if !plan.Go {
		return &exitError{exitWaits}
	}
	return nil
}

// loadAs fills in the settings of a role whose flags the command does not have: its
// limits are those that a worker started from here would have.
func (a *app) loadAs(cmd *cobra.Command, r config.Role) error {
	fs := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	given := map[string]string{}
	cmd.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = f.Value.String() })
	a.cfg.Flags(fs, r)
	for name, value := range given {
		if fs.Lookup(name) == nil {
			continue
		}
		if err := fs.Set(name, strings.Trim(value, "[]")); err != nil {
			return &usageError{err}
		}
	}
	full := &cobra.Command{Use: cmd.Use}
	full.Flags().AddFlagSet(fs)
	return a.load(full, r)
}

// planTemporal asks whether a move could be started at all.
func (a *app) planTemporal(ctx context.Context) contract.PlanCheck {
	c, err := starter.Dial(ctx, a.cfg.TemporalAddress, a.cfg.TemporalNamespace, a.quiet())
	if err != nil {
		return contract.PlanCheck{Name: "Temporal", Verdict: contract.PlanUnknown, Value: err.Error(), Hint: "--temporal-address names another server"}
	}
	c.Close()
	return contract.PlanCheck{Name: "Temporal", Verdict: contract.PlanGood, Value: a.cfg.TemporalAddress}
}

// movePlanRows is a plan for people.
func movePlanRows(p contract.MovePlan) [][]string {
	verdict := "nothing speaks against it"
	if !p.Go {
		verdict = "NOT AS IT STANDS: see what is refused or unknown"
	}
	rows := [][]string{{"move", fmt.Sprintf("%s from %s to %s", p.Chunk, p.From, p.To)}, {"verdict", verdict}}
	for _, c := range p.Checks {
		text := c.Verdict + ": " + c.Value
		if c.Hint != "" && c.Verdict != contract.PlanGood {
			text += ". " + c.Hint
		}
		rows = append(rows, []string{c.Name, text})
	}
	for _, c := range p.Collections {
		rows = append(rows, []string{"collection " + c.Name, fmt.Sprintf("%d documents, %s and %s of indexes, %d slices, %s in S3, about %s; loaded %s",
			c.Documents, bytesText(c.Bytes), bytesText(c.Indexes), c.Slices, bytesText(c.Stored), time.Duration(c.Import), c.Order)})
	}
	return append(rows,
		[]string{"import", fmt.Sprintf("about %s (%s)", time.Duration(p.Import), p.Basis)},
		[]string{"catch-up", fmt.Sprintf("about %s, at %.0f requests/s", time.Duration(p.CatchUp), p.Writes)},
		[]string{"burn-in", time.Duration(p.BurnIn).String()},
		[]string{"space", bytesText(p.Space) + " on " + p.To})
}
