package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/internal/config"
	"drover/validation"
	"drover/workers"
)

// validateJSON is what a comparison prints as JSON.
type validateJSON struct {
	Chunk  chunk.ID                `json:"chunk"`
	From   chunk.Placement         `json:"from"`
	To     chunk.Placement         `json:"to"`
	Clean  bool                    `json:"clean"`
	Result validation.Result       `json:"result"`
	Audit  *validation.AuditResult `json:"audit,omitempty"`
}

// newValidateCommand compares a chunk by itself.
func newValidateCommand(a *app) *cobra.Command {
	var audit bool
	c := &cobra.Command{
		Use: "validate CHUNK", Short: "Compare both placements of a chunk that is being moved", Args: cobra.ExactArgs(1),
		Long: "Compare every document of both placements of a chunk, at any time while it is being moved or in burn-in, in the direction in which\n" +
			"changes flow now. Writers and lanes go on. Exit status 3: there are differences, or not everything could be compared.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.load(cmd, config.Audit); err != nil {
				return err
			}
			progress := func(_ context.Context, p validation.Progress) {
				if a.output == "table" {
					_, _ = fmt.Fprintf(a.env.Stderr, "%s, round %d: %d documents, %d busy, %d to be checked again, %d differ\n",
						p.Collection, p.Round, p.Documents, p.Busy, p.Pending, p.Mismatches)
				}
			}
			r, err := workers.ValidateNow(cmd.Context(), &a.cfg, a.quiet(), chunk.ID(args[0]), audit, progress)
			if err != nil {
				return err
			}
			out := validateJSON{Chunk: chunk.ID(args[0]), From: r.Direction.From, To: r.Direction.To, Result: r.Result, Audit: r.Audit}
			out.Clean = r.Result.Clean() && (r.Audit == nil || len(r.Audit.Differences) == 0)
			if err := a.print(out, nil, func() [][]string { return validateRows(out) }); err != nil {
				return err
			}
			if !out.Clean {
				return &exitError{exitWaits}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&audit, "audit", false, "ask other questions too: definitions listed anew, counts and sums through every index, and some documents through the proxy of --audit-proxy")
	a.cfg.Flags(c.Flags(), config.Audit)
	return c
}

// validateRows is a comparison for people.
func validateRows(v validateJSON) [][]string {
	verdict := "the same"
	if !v.Clean {
		verdict = "NOT THE SAME"
	}
	rows := [][]string{
		{"chunk", string(v.Chunk)}, {"from", place(v.From)}, {"to", place(v.To)}, {"verdict", verdict},
		{"documents", fmt.Sprintf("%d on the source, %d on the target, %s", v.Result.Documents, v.Result.Target, bytesText(v.Result.Bytes))},
		{"took", fmt.Sprintf("%.1f s, %d rounds, %d read again", float64(v.Result.SecondsTaken), v.Result.Rounds, v.Result.Reread)},
	}
	if n := int64(len(v.Result.Busy)) + v.Result.TooBusy; n > 0 {
		rows = append(rows, []string{"busy", fmt.Sprintf("%d documents changed whenever they were read", n)})
	}
	for _, k := range slices.Sorted(maps.Keys(v.Result.Kinds)) {
		rows = append(rows, []string{"differ: " + string(k), fmt.Sprint(v.Result.Kinds[k])})
	}
	for _, m := range v.Result.Mismatches[:min(len(v.Result.Mismatches), 20)] {
		rows = append(rows, []string{m.Collection, fmt.Sprintf("%s %s %s", m.ID, m.Kind, m.Path)})
	}
	for _, d := range v.Result.Catalog {
		rows = append(rows, []string{"definition", d.What})
	}
	if v.Audit != nil {
		rows = append(rows, []string{"audit", fmt.Sprintf("%d documents through %d ways, %d left out, server hashes %t, %d canaries", v.Audit.Documents, v.Audit.Ways, v.Audit.LeftOut, v.Audit.Hashed, v.Audit.Canaries)})
		for _, d := range v.Audit.Differences {
			rows = append(rows, []string{"audit differs", d})
		}
	}
	return rows
}
