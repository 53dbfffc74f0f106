package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
)

// statusJSON is what migrate status and watch print as JSON.
type statusJSON struct {
	contract.Status
	Progress     *contract.Progress `json:"progress,omitempty"`
	Verification string             `json:"verification,omitempty"` // of what changes since the validation
	Cleanups     []string           `json:"cleanups,omitempty"`     // what is done of those that have begun and not ended
}

func (a *app) printStatus(st statusJSON) error {
	return a.print(st, nil, func() [][]string {
		p := st.Progress
		rows := [][]string{
			{"chunk", string(st.Chunk)},
			{"phase", string(st.Phase)},
			{"step", st.Step + " for " + ageText(st.StepSince) + expectedText(st.Expected)},
			{"from", place(st.Source)},
			{"to", place(st.Target)},
			{"serving", place(st.Serving)},
		}
		if p != nil {
			rows = append(rows, []string{"progress", progressText(*p)})
			if p.Pace != "" {
				rows = append(rows, []string{"pace", p.Pace})
			}
		}
		switch {
		case p != nil && p.Sort != "":
			rows = append(rows, []string{"loads", p.Sort})
		case st.Import != nil && st.Import.Sort != "":
			rows = append(rows, []string{"loaded", st.Import.Sort})
		}
		if st.Verification != "" {
			rows = append(rows, []string{"verification", st.Verification})
		}
		for _, c := range st.Cleanups {
			rows = append(rows, []string{"clean-up", c})
		}
		if st.WaitingFor != "" {
			rows = append(rows, []string{"waiting for", st.WaitingFor})
		}
		for _, f := range st.Failing {
			rows = append(rows, []string{"FAILS", f.String()})
		}
		if st.Attention != "" {
			rows = append(rows, []string{"ATTENTION", st.Attention})
		}
		if contract.Overdue(time.Since(st.StepSince), time.Duration(st.Expected)) {
			rows = append(rows, []string{"OVERDUE", st.Why(p)}, []string{"what to do", st.Remedy()})
		}
		for _, s := range st.Switches {
			rows = append(rows, []string{fmt.Sprintf("attempt %d", s.Attempt), switchText(s)})
		}
		rows = append(rows, drillRows(st.Drills)...)
		if len(st.Updates) > 0 {
			rows = append(rows, []string{"you may", strings.Join(st.Updates, ", ")})
		}
		return rows
	})
}

// expectedText says how long a step should take.
func expectedText(d contract.Duration) string {
	if d == 0 {
		return ""
	}
	return ", expected " + time.Duration(d).Round(time.Second).String()
}

// drillRows shows what drills found.
func drillRows(drills []contract.DrillReport) (rows [][]string) {
	for _, d := range drills {
		for _, l := range d.Legs {
			rows = append(rows, []string{"drill", fmt.Sprintf("%s to %s: window %.1f ms, %d tries, %d documents compared, %d differ",
				l.From, l.To, l.WindowMS, l.Attempts, l.Documents, l.Mismatches)})
		}
		rows = append(rows, []string{"drill of " + d.StartedAt.UTC().Format(time.DateTime), d.Outcome})
	}
	return rows
}

func place(p chunk.Placement) string {
	if p.ID == 0 {
		return "-"
	}
	return p.Shard + " (" + p.Database + ")"
}

func switchText(s contract.SwitchResult) string {
	switch {
	case s.Published && s.WindowMS == 0: // the metadata tells no window
		return "published"
	case s.Published:
		text := fmt.Sprintf("published, window %.1f ms", s.WindowMS)
		if longest := slowest(s.Timeline); longest != "" {
			text += " (longest: " + longest + ")"
		}
		return text
	}
	return "went back: " + s.Reason
}

// progressText is one line for people.
func progressText(p contract.Progress) string {
	var parts []string
	if f := p.Fraction(); f >= 0 {
		parts = append(parts, fmt.Sprintf("%.0f%%", 100*f))
	}
	if p.Step == "replicate" {
		parts = append(parts, fmt.Sprintf("%d events, %.0f/s, %s, p99 %.1f ms", p.Documents, p.PerSecond, p.LagText(), p.LatencyP99MS))
	} else {
		parts = append(parts, fmt.Sprintf("%d documents, %.0f/s, %s, %s/s", p.Documents, p.PerSecond, bytesText(p.Bytes), bytesText(int64(p.BytesPerSecond))))
		if left, ok := p.Remaining(); ok {
			parts = append(parts, "ETA "+left.String())
		}
		if p.Limit != "" {
			parts = append(parts, "held by "+p.Limit)
		}
	}
	if p.Detail != "" {
		parts = append(parts, p.Detail)
	}
	return strings.Join(parts, ", ")
}

// watchLine is one line of migrate watch.
func watchLine(st contract.Status, p *contract.Progress) string {
	parts := []string{string(st.Phase), st.Step}
	if p != nil && !st.Phase.Final() {
		parts = append(parts, progressText(*p))
	}
	if n := len(st.Switches); n > 0 {
		parts = append(parts, switchText(st.Switches[n-1]))
	}
	if st.WaitingFor != "" {
		parts = append(parts, "waits for "+st.WaitingFor)
	}
	for _, f := range st.Failing {
		parts = append(parts, f.String())
	}
	if st.Attention != "" {
		parts = append(parts, "ATTENTION: "+st.Attention)
	}
	return strings.Join(parts, " | ")
}

// listed is one move of a list.
type listed struct {
	metadata.Migration
	Health string `json:"health"`
}

// newMigrateList makes migrate list.
func newMigrateList(a *app) *cobra.Command {
	var f metadata.MigrationFilter
	var id, step, health string
	c := &cobra.Command{
		Use: "list", Short: "List moves, newest first, by chunk, shard, step or health", Args: cobra.NoArgs,
		Long: "List moves, newest first, by chunk, shard, step or health: attention (a person is wanted), overdue (the step takes more than twice its\n" +
			"time), paused, ok. A filter of health is for moves that are not done.",
		Example: "  drover migrate list --unfinished\n  drover migrate list --shard shard-a --step importing --health overdue",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("step", step, chunk.Phases()...); err != nil {
				return err
			}
			if err := oneOf("health", health, contract.AttentionHealth, contract.OverdueHealth, contract.PausedHealth, contract.GoodHealth); err != nil {
				return err
			}
			f.Chunk, f.Unfinished = chunk.ID(id), f.Unfinished || health != ""
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				now, err := store.Now(ctx)
				if err != nil {
					return err
				}
				all, err := store.Migrations(ctx, f)
				if err != nil {
					return err
				}
				return a.printMigrations(choose(all, now, chunk.Phase(step), health))
			})
		},
	}
	c.Flags().BoolVar(&f.Unfinished, "unfinished", false, "only those that are not done")
	c.Flags().StringVar(&id, "chunk", "", "only those of this chunk")
	c.Flags().StringVar(&f.Database, "db", "", "only those of this logical database")
	c.Flags().StringVar(&f.Shard, "shard", "", "only those from or to this shard")
	c.Flags().StringVar(&step, "step", "", "only those in this step")
	c.Flags().StringVar(&health, "health", "", "only those of this health: attention, overdue, paused or ok")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// oneOf refuses a value of a flag that is none of some.
func oneOf[T ~string](flag, value string, all ...T) error {
	if value == "" || slices.Contains(all, T(value)) {
		return nil
	}
	return &usageError{fmt.Errorf("--%s is %q; want one of %v", flag, value, all)}
}

// listMost is how many moves a list has.
const listMost = 200

// choose judges moves and keeps those in a step and of a health, where one is given.
func choose(all []metadata.Migration, now time.Time, step chunk.Phase, health string) []listed {
	out := []listed{}
	for _, m := range all {
		l := listed{Migration: m}
		if !m.Phase.Final() {
			l.Health = contract.MoveHealth(m.Attention, m.Paused, now.Sub(m.PhaseAt), m.Expected)
		}
		if (step == "" || m.Phase == step) && (health == "" || l.Health == health) && len(out) < listMost {
			out = append(out, l)
		}
	}
	return out
}

// printMigrations shows a list of moves.
func (a *app) printMigrations(all []listed) error {
	return a.print(all, []string{"ID", "CHUNK", "FROM", "TO", "STEP", "FOR", "HEALTH", "ATTENTION"}, func() (rows [][]string) {
		for _, m := range all {
			rows = append(rows, []string{
				fmt.Sprint(m.ID), string(m.Chunk.ID), m.Source.Shard, m.Target.Shard, string(m.Phase), ageText(m.PhaseAt), m.Health, m.Attention,
			})
		}
		return rows
	})
}
