package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
)

// mirrorJSON is what is asked and known of mirrored reads.
type mirrorJSON struct {
	Chunk    chunk.ID              `json:"chunk"`
	Percent  float64               `json:"percent"`
	Required int64                 `json:"required"`
	Report   contract.MirrorReport `json:"report"`
}

// newMigrateMirror sets and shows the mirroring of a chunk's reads.
func newMigrateMirror(a *app) *cobra.Command {
	var percent float64
	var required int64
	c := &cobra.Command{
		Use: "mirror CHUNK [--percent P [--require N]]", Short: "Let the other side of a move answer a share of the reads too, and compare", Args: cobra.ExactArgs(1),
		Long: "Let both placements of a chunk that is being moved answer a share of its reads, beside the applications, from its validation on and in\n" +
			"burn-in, and compare the answers where nothing changed between them. Without --percent: show what came of it. With --require the\n" +
			"gate passes only when so many reads were compared and none differs. Each --percent begins the count anew; 0 ends it.\n" +
			"Exit status 3: reads differ, or not enough are compared.",
		Example: "  drover migrate mirror flights/0003 --percent 5 --require 1000\n" +
			"  drover migrate mirror flights/0003",
		RunE: func(cmd *cobra.Command, args []string) error {
			set := cmd.Flags().Changed("percent")
			switch {
			case percent < 0 || percent > 100:
				return &usageError{fmt.Errorf("--percent is %g; want 0 to 100", percent)}
			case required < 0 || required > 0 && percent == 0:
				return &usageError{fmt.Errorf("--require is %d; want a number of reads, with --percent above 0", required)}
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return a.mirror(ctx, store, chunk.ID(args[0]), set, percent, required)
			})
		},
	}
	c.Flags().Float64Var(&percent, "percent", 0, "share of the reads, 0 to 100")
	c.Flags().Int64Var(&required, "require", 0, "compared reads that the gate asks for")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// mirror does it.
func (a *app) mirror(ctx context.Context, store *metadata.Store, id chunk.ID, set bool, percent float64, required int64) error {
	m, err := newestMigration(ctx, store, id)
	if err != nil {
		return err
	}
	if set {
		legs, err := store.Legs(ctx, m.ID)
		if err != nil {
			return err
		}
		if len(legs) > 1 {
			return failure.New(failure.Invalid, "migration.not_mirrored", "%s is split or merged: neither side alone answers its reads", id).
				WithHint("drover validate compares every document")
		}
		if err := store.SetMirror(ctx, m.ID, percent, required); err != nil {
			return err
		}
	}
	kept, err := store.Mirror(ctx, m.ID)
	if err != nil {
		return err
	}
	out := mirrorJSON{Chunk: id, Percent: kept.Percent, Required: kept.Required}
	if len(kept.Report) > 0 {
		if err := json.Unmarshal(kept.Report, &out.Report); err != nil {
			return fmt.Errorf("read what came of the mirrored reads: %w", err)
		}
	}
	if err := a.print(out, nil, func() [][]string { return mirrorRows(out) }); err != nil {
		return err
	}
	if !set && (out.Report.Different > 0 || out.Report.Missing(out.Required) != "") {
		return &exitError{exitWaits}
	}
	return nil
}

// mirrorRows is the report for people.
func mirrorRows(m mirrorJSON) [][]string {
	rows := [][]string{
		{"chunk", string(m.Chunk)}, {"share", fmt.Sprintf("%g %% of the reads", m.Percent)},
		{"compared", fmt.Sprintf("%d, %d differ, %d undecided", m.Report.Compared, m.Report.Different, m.Report.Undecided)},
	}
	if m.Required > 0 {
		rows = append(rows, []string{"the gate asks for", fmt.Sprint(m.Required)})
	}
	if !m.Report.At.IsZero() {
		rows = append(rows, []string{"answered in", fmt.Sprintf("p50 %.1f ms, p99 %.1f ms by the source; %.1f, %.1f by the target",
			m.Report.SourceP50, m.Report.SourceP99, m.Report.TargetP50, m.Report.TargetP99)})
	}
	for _, x := range m.Report.Examples {
		rows = append(rows, []string{"differs", x})
	}
	return rows
}
