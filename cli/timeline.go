package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
)

// timelineJSON is what migrate timeline prints of each attempt as JSON.
type timelineJSON struct {
	Attempt chunk.AttemptID         `json:"attempt"`
	From    string                  `json:"from"`
	To      string                  `json:"to"`
	State   chunk.AttemptState      `json:"state"`
	Reason  string                  `json:"reason,omitempty"`
	States  []metadata.Moment       `json:"states"`          // by Postgres' clock
	Steps   []contract.TimelineMark `json:"steps,omitempty"` // by the coordinator's clock
}

func newMigrateTimeline(a *app) *cobra.Command {
	var only int64
	var all bool
	c := &cobra.Command{
		Use: "timeline CHUNK", Short: "Show where the switches of a chunk spent their time", Args: cobra.ExactArgs(1),
		Long: "Show where the newest switch of a chunk spent its time, step by step; --all shows every attempt of its newest move. An attempt whose\n" +
			"coordinator died has only its states.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				t, err := timelines(ctx, store, chunk.ID(args[0]))
				if err != nil {
					return err
				}
				if only != 0 {
					t = slices.DeleteFunc(t, func(x timelineJSON) bool { return int64(x.Attempt) != only })
				} else if !all && len(t) > 0 {
					t = t[len(t)-1:]
				}
				if len(t) == 0 {
					return failure.New(failure.Invalid, "attempt.unknown", "chunk %s has no such attempt", args[0]).
						WithHint("drover migrate timeline %s --all shows those of its newest move", args[0])
				}
				return a.print(t, nil, func() [][]string { return timelineRows(t) })
			})
		},
	}
	c.Flags().Int64Var(&only, "attempt", 0, "this attempt only")
	c.Flags().BoolVar(&all, "all", false, "every attempt of the newest move")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// timelines reads the attempts of a chunk's newest move, oldest first.
func timelines(ctx context.Context, store *metadata.Store, id chunk.ID) ([]timelineJSON, error) {
	moves, err := store.Migrations(ctx, metadata.MigrationFilter{Chunk: id, Limit: 1})
	if err != nil || len(moves) == 0 {
		return nil, err
	}
	attempts, err := store.Attempts(ctx, moves[0].ID)
	if err != nil {
		return nil, err
	}
	var out []timelineJSON
	for _, at := range attempts {
		x := timelineJSON{Attempt: at.ID, From: at.Source.Shard, To: at.Target.Shard, State: at.State, Reason: at.Reason, States: at.Timeline}
		raw, ok, err := store.Steps(ctx, at.ID)
		if err != nil {
			return nil, err
		}
		if ok {
			if err := json.Unmarshal(raw, &x.Steps); err != nil {
				return nil, fmt.Errorf("read the steps of attempt %d: %w", at.ID, err)
			}
		}
		out = append(out, x)
	}
	return out, nil
}

// timelineRows shows timelines to people.
func timelineRows(all []timelineJSON) (rows [][]string) {
	for _, t := range all {
		rows = append(rows, []string{fmt.Sprintf("attempt %d", t.Attempt), t.From + " to " + t.To, string(t.State), t.Reason})
		var last time.Time
		for _, m := range t.States {
			took := ""
			if !last.IsZero() {
				took = "+" + millis(m.At.Sub(last).Microseconds())
			}
			rows = append(rows, []string{"  " + string(m.State), m.At.UTC().Format("15:04:05.000"), took, m.Reason})
			last = m.At
		}
		before := int64(0)
		for _, s := range t.Steps {
			rows = append(rows, []string{"    " + s.Step, millis(s.AtUS), "+" + millis(s.AtUS-before), s.Note})
			before = s.AtUS
		}
	}
	return rows
}

// millis writes microseconds as milliseconds.
func millis(us int64) string { return fmt.Sprintf("%.1f ms", float64(us)/1000) }

// slowest names the steps that took longest, at most three.
func slowest(t []contract.TimelineMark) string {
	type part struct {
		step string
		us   int64
	}
	var parts []part
	before := int64(0)
	for _, m := range t {
		if strings.HasPrefix(m.Step, "row:") { // the states of the row, by another clock
			continue
		}
		parts = append(parts, part{m.Step, m.AtUS - before})
		before = m.AtUS
	}
	slices.SortStableFunc(parts, func(a, b part) int { return int(b.us - a.us) })
	var out []string
	for _, p := range parts[:min(3, len(parts))] {
		out = append(out, p.step+" "+millis(p.us))
	}
	return strings.Join(out, ", ")
}
