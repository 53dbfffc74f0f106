package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/starter"
)

func newMigrateGate(a *app) *cobra.Command {
	var wait time.Duration
	c := &cobra.Command{
		Use: "gate CHUNK", Short: "Measure now whether a switch may begin, and why not", Args: cobra.ExactArgs(1),
		Long: "Measure now whether a switch may begin, and why not: each check with its value, its limit and where that comes from.\n" +
			"It only reads: the lag is what the lanes say. Exit status 3: the gate refuses.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.planSwitch(cmd, chunk.ID(args[0]), wait, func(p contract.SwitchPlan) error {
				return a.print(p.Gate, nil, func() [][]string { return gateRows(p.Gate) })
			})
		},
	}
	c.Flags().DurationVar(&wait, "wait-for-open", 0, "judge as a move started with this policy would")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newMigrateSwitch(a *app) *cobra.Command {
	var dry bool
	in := contract.UpdateInput{}
	c := &cobra.Command{
		Use: "switch CHUNK", Short: "Switch now, as approve does, or show every step that it would take", Args: cobra.ExactArgs(1),
		Long: "Switch now, without waiting for an approval or a window; the gate still decides. With --dry-run show the gate and every\n" +
			"step with its values, and change nothing.",
		RunE: func(cmd *cobra.Command, args []string) error {
			id := chunk.ID(args[0])
			if dry {
				return a.planSwitch(cmd, id, 0, func(p contract.SwitchPlan) error {
					return a.print(p, nil, func() [][]string { return append(gateRows(p.Gate), stepRows(p.Steps)...) })
				})
			}
			in.By = a.user()
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				st, err := a.ask(ctx, s, id, contract.ApproveUpdate, in)
				if err != nil {
					return err
				}
				return a.printStatus(statusJSON{Status: st})
			})
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only show what would be done")
	c.Flags().StringVar(&in.Reason, "reason", "", "kept in the workflow's history")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// planSwitch asks the workers about a switch and shows what they say. The exit
// status tells whether the gate would let it through.
func (a *app) planSwitch(cmd *cobra.Command, id chunk.ID, wait time.Duration, show func(contract.SwitchPlan) error) error {
	return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		st, err := s.Status(ctx, id)
		if err != nil {
			return err
		}
		if st.Migration == 0 || st.Phase.Final() {
			return failure.New(failure.Invalid, "migration.not_now", "the move of %s is %s: there is nothing to switch", id, st.Phase).WithHint("drover migrate status %s says what it waits for", id)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		plan, err := s.PlanSwitch(ctx, st, contract.Duration(wait))
		if err != nil {
			return err
		}
		if err := show(plan); err != nil {
			return err
		}
		if !plan.Gate.Go {
			return &exitError{exitWaits}
		}
		return nil
	})
}

// gateRows shows a report to people.
func gateRows(r contract.GateReport) [][]string {
	rows := [][]string{{"CHECK", "", "MEASURED", "LIMIT", "LIMIT FROM", "READ FROM"}}
	for _, c := range r.Checks {
		word := "ok"
		switch {
		case !c.OK:
			word = "REFUSES"
		case c.Skipped != "":
			word = "-"
		case c.Waived != "":
			word = "waived"
		}
		rows = append(rows, []string{fmt.Sprintf("(%d) %s", c.Number, c.Name), word, c.Value, c.Limit, c.LimitSource, c.Source})
	}
	for _, l := range r.Limits {
		if l.Name == "fence-deadline" {
			rows = append(rows, []string{l.Name, "", "", l.Value, l.Source, ""})
		}
	}
	if r.Open != nil {
		for _, o := range r.Open.Items {
			rows = append(rows, []string{"open " + o.Kind, "", time.Duration(o.Age).Round(time.Millisecond).String(), "", "", o.Where})
		}
	}
	for _, c := range r.Checks {
		if c.Waived != "" {
			rows = append(rows, []string{"passed " + c.Name, c.Waived})
		}
		if !c.OK {
			rows = append(rows, []string{"to pass " + c.Name, c.Hint})
		}
	}
	return rows
}

// stepRows shows the steps of a switch that is not made.
func stepRows(steps []contract.SwitchStep) [][]string {
	rows := [][]string{{""}, {"STEP", "ON", "DOES"}}
	for i, s := range steps {
		rows = append(rows, []string{fmt.Sprintf("%d %s", i, s.Step), s.On, s.Does})
		rows = append(rows, []string{"", "", "  " + strings.Join(s.Values, "; ")})
	}
	return rows
}
