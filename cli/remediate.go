package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/remediation"
	"drover/starter"
)

func newShardRemediate(a *app) *cobra.Command {
	in := contract.RemediateInput{}
	var file string
	var wait time.Duration
	var status, abort bool
	c := &cobra.Command{
		Use: "remediate SHARD", Short: "Plan how a shard gets healthy, and with --execute do it", Args: cobra.ExactArgs(1),
		Long: "Plan how a shard gets healthy. With --execute take its exclusive lease and do it, one operation after the other.\n" +
			"Exit status 3: no plan leads to full health, a person is needed.",
		Example: "  drover shard remediate shard-a\n  drover shard remediate shard-a --execute",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Shard, in.RequestedBy, in.LeaseWait = args[0], a.user(), contract.Duration(wait)
			if file != "" {
				f, err := readLayout(file, args[0])
				if err != nil {
					return err
				}
				l, _, err := f.layout()
				if err != nil {
					return err
				}
				in.Layout = &l
			}
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				switch {
				case status:
					st, err := s.RemediationStatus(ctx, in.Shard)
					if err != nil {
						return err
					}
					return a.printRemediation(st)
				case abort:
					st, err := s.AbortRemediation(ctx, in.Shard, contract.UpdateInput{By: a.user(), Reason: in.Reason})
					if err != nil {
						return err
					}
					return a.printRemediation(st)
				default:
					return a.remediate(ctx, s, in)
				}
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&in.Execute, "execute", false, "do it; without it the plan is only printed")
	f.StringVar(&file, "layout", "", "file with a layout that counts instead of the declared one")
	f.DurationVar(&wait, "lease-wait", 30*time.Minute, "how long switches and others that hold the shard are waited for")
	f.StringVar(&in.Reason, "reason", "", "shown to people")
	f.BoolVar(&status, "status", false, "show the newest run instead of starting one")
	f.BoolVar(&abort, "abort", false, "end the run after the operation that goes on")
	c.MarkFlagsMutuallyExclusive("execute", "status", "abort")
	a.cfg.Flags(f, config.Common)
	return c
}

// remediate starts a run and waits for its end.
func (a *app) remediate(ctx context.Context, s *starter.Starter, in contract.RemediateInput) error {
	run, err := s.Remediate(ctx, in)
	if err != nil {
		return err
	}
	r, err := s.RemediationResult(ctx, run)
	if err != nil {
		return err
	}
	err = a.print(r, nil, func() [][]string {
		rows := [][]string{{"shard", r.Shard}, {"verdict", string(r.Verdict)}, {"from", r.From.String()}}
		rows = append(rows, planRows("done", r.Done)...)
		rows = append(rows, planRows("step", r.Plan)...)
		rows = append(rows, []string{"to", r.To.String()}, []string{"why", r.Why}, []string{"workflow", run.WorkflowID})
		if r.Verdict == remediation.Unexecuted {
			rows = append(rows, []string{"next", "drover shard remediate " + r.Shard + " --execute"})
		}
		return rows
	})
	if err == nil && r.Verdict != remediation.Finished && r.Verdict != remediation.Unexecuted {
		return &exitError{exitWaits}
	}
	return err
}

// planRows lists steps with their reasons.
func planRows(title string, steps []contract.PlannedStep) (rows [][]string) {
	for i, s := range steps {
		text := s.Text
		if s.Destroys {
			text += " (gives a copy up)"
		}
		rows = append(rows, []string{fmt.Sprintf("%s %d", title, i+1), text, s.Reason})
	}
	return rows
}

func (a *app) printRemediation(st contract.RemediationStatus) error {
	return a.print(st, nil, func() [][]string {
		rows := [][]string{{"shard", st.Shard}, {"step", st.Step + " for " + ageText(st.StepSince)}}
		if st.WaitingFor != "" {
			rows = append(rows, []string{"waiting for", st.WaitingFor})
		}
		for _, f := range st.Failing {
			rows = append(rows, []string{"FAILS", f.String()})
		}
		if st.Attention != "" {
			rows = append(rows, []string{"ATTENTION", st.Attention})
		}
		for _, c := range st.Conditions {
			rows = append(rows, []string{"alarm", c})
		}
		rows = append(rows, planRows("done", st.Done)...)
		if st.Plan != nil {
			rows = append(rows, planRows("step", st.Plan.Steps)...)
			rows = append(rows, []string{"why", st.Plan.Why})
		}
		return rows
	})
}

func newRemediationCommand(a *app) *cobra.Command {
	return group("remediation", "Steer the remediation of the whole fleet",
		newRemediationStatus(a), newRemediationStop(a), newRemediationResume(a), newRemediationWatch(a), newRemediationUnwatch(a))
}

func newRemediationStop(a *app) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "stop", Short: "Let no operation begin any more, on any shard", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := store.StopRemediation(ctx, a.user(), reason); err != nil {
					return err
				}
				return a.told("remediation is stopped: no operation begins any more in the fleet %s", a.fleet())
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "shown to people")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newRemediationResume(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "resume", Short: "End a stop; runs that it ended are started again by the watch or by hand", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := store.ResumeRemediation(ctx); err != nil {
					return err
				}
				return a.told("remediation may begin operations again in the fleet %s", a.fleet())
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newRemediationWatch(a *app) *cobra.Command {
	in := contract.WatchInput{Rates: remediation.DefaultRates}
	var every, silence time.Duration
	c := &cobra.Command{
		Use: "watch", Short: "Look at the fleet again and again; with --execute mend what the rates allow", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Silence = contract.Duration(silence)
			if err := in.Rates.Validate(); err != nil {
				return &usageError{err}
			}
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				if err := s.Watch(ctx, every, in); err != nil {
					return err
				}
				return a.told("the fleet is looked at every %s; drover remediation status shows what is found", every)
			})
		},
	}
	f := c.Flags()
	f.DurationVar(&every, "every", time.Minute, "time between two looks")
	f.BoolVar(&in.Execute, "execute", false, "start remediations; without it each look only reports")
	f.IntVar(&in.Rates.AtOnce, "at-once", in.Rates.AtOnce, "shards under remediation at the same time; of one failure domain never more than one")
	f.IntVar(&in.Rates.PerHour, "per-hour", in.Rates.PerHour, "weight of the plans that are started within an hour; a copy weighs 33")
	f.DurationVar(&in.Rates.Settle, "settle", in.Rates.Settle, "how long a shard must have been unhealthy")
	f.DurationVar(&silence, "silence", 10*time.Minute, "health data older than that is an alarm")
	a.cfg.Flags(f, config.Common)
	return c
}

func newRemediationUnwatch(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "unwatch", Short: "Look at the fleet no more; what runs goes on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				if err := s.Unwatch(ctx); err != nil {
					return err
				}
				return a.told("the fleet is not looked at any more")
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// remediationJSON is what remediation status prints as JSON.
type remediationJSON struct {
	Stop *metadata.Stop         `json:"stop,omitempty"`
	Look *contract.WatchResult  `json:"look,omitempty"`
	Runs []metadata.Remediation `json:"runs"`
}

func newRemediationStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status", Short: "Show the stop switch, the last look at the fleet, and the runs of the last day", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var out remediationJSON
			err := a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) (err error) {
				out.Look, err = s.LastWatch(ctx)
				return err
			})
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) (err error) {
				if out.Stop, err = store.RemediationStop(ctx); err != nil {
					return err
				}
				if out.Runs, err = store.Remediations(ctx, 24*time.Hour); err != nil {
					return err
				}
				return a.print(out, nil, out.rows)
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// rows is the status for people.
func (r *remediationJSON) rows() (rows [][]string) {
	if r.Stop != nil {
		rows = append(rows, []string{"STOPPED", fmt.Sprintf("by %s %s ago: %s", r.Stop.By, ageText(r.Stop.At), r.Stop.Reason)})
	}
	if w := r.Look; w != nil {
		mode := "executes"
		if w.DryRun {
			mode = "dry run"
		}
		rows = append(rows, []string{"last look", ageText(w.Survey.Now) + " ago, " + mode},
			[]string{"healthy", fmt.Sprintf("%d of %d", w.Survey.Healthy, w.Survey.Shards)})
		for _, s := range w.Admitted {
			rows = append(rows, []string{"admitted", s})
		}
		for _, h := range w.Held {
			rows = append(rows, []string{"held", h.Shard + ": " + h.Reason})
		}
		for _, s := range w.Survey.Persons {
			rows = append(rows, []string{"needs a person", s})
		}
		for _, s := range w.Survey.Silent {
			rows = append(rows, []string{"silent", s})
		}
		for _, c := range w.Conditions {
			rows = append(rows, []string{"alarm", c})
		}
	} else {
		rows = append(rows, []string{"last look", "none; drover remediation watch looks again and again"})
	}
	for _, m := range r.Runs {
		state := m.Verdict
		if m.EndedAt == nil {
			state = "runs"
			if m.Waiting {
				state = "waits for the lease"
			}
		}
		rows = append(rows, []string{"run", m.Shard + ": " + state, fmt.Sprintf("%d operations, by %s, %s ago", m.Steps, m.RequestedBy, ageText(m.StartedAt)), m.Attention})
	}
	return rows
}
