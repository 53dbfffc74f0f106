package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

// stragglerJSON is one straggler in the JSON output, with the event in full.
type stragglerJSON struct {
	ID        int64             `json:"id"`
	Shard     string            `json:"shard"`
	Placement chunk.PlacementID `json:"placement"`
	Seq       int64             `json:"seq"`
	Kind      string            `json:"kind"`
	SeenAt    time.Time         `json:"seenAt"`
	HandledAt time.Time         `json:"handledAt,omitzero"`
	HandledBy string            `json:"handledBy,omitempty"`
	Note      string            `json:"note,omitempty"`
	Event     json.RawMessage   `json:"event"`
}

func newMigrateStragglers(a *app) *cobra.Command {
	var note string
	var all bool
	c := &cobra.Command{
		Use: "stragglers CHUNK [--acknowledge HOW]", Short: "Show writes that came to a placement after it was left", Args: cobra.ExactArgs(1),
		Long: "Show writes that came to a placement of the chunk after it was left: they are kept in full, and nothing is dropped while one\n" +
			"is open. --acknowledge records how you dealt with those that are shown. Exit status 3: some are open.",
		Example: "  drover migrate stragglers flights/0003\n" +
			`  drover migrate stragglers flights/0003 --acknowledge "replayed by hand, ticket 4711"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			acknowledge := cmd.Flags().Changed("acknowledge")
			if acknowledge && note == "" {
				return &usageError{fmt.Errorf("--acknowledge is empty; want how the writes were dealt with")}
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return a.stragglers(ctx, store, chunk.ID(args[0]), note, all)
			})
		},
	}
	c.Flags().StringVar(&note, "acknowledge", "", "record how they were dealt with")
	c.Flags().BoolVar(&all, "all", false, "those that were dealt with too")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// stragglers shows those of a chunk, and acknowledges what it shows when there is a
// note.
func (a *app) stragglers(ctx context.Context, store *metadata.Store, id chunk.ID, note string, all bool) error {
	found, err := store.StragglersOf(ctx, id)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		if err := known(ctx, store, id); err != nil {
			return err
		}
	}
	var shown []stragglerJSON
	var open []int64
	for _, g := range found {
		if g.HandledAt.IsZero() {
			open = append(open, g.ID)
		} else if !all {
			continue
		}
		event, err := bson.MarshalExtJSON(bson.Raw(g.Event), false, false)
		if err != nil {
			return failure.New(failure.Invalid, "straggler.event", "read the event of straggler %d: %w", g.ID, err)
		}
		shown = append(shown, stragglerJSON{
			ID: g.ID, Shard: g.Shard, Placement: g.Placement, Seq: g.Seq, Kind: g.Kind, SeenAt: g.SeenAt,
			HandledAt: g.HandledAt, HandledBy: g.HandledBy, Note: g.Note, Event: event,
		})
	}
	err = a.print(shown, []string{"ID", "SHARD", "PLACEMENT", "SEQ", "KIND", "SEEN", "DEALT WITH", "EVENT"}, func() (rows [][]string) {
		for _, s := range shown {
			dealt := "no"
			if !s.HandledAt.IsZero() {
				dealt = s.HandledBy + ": " + s.Note
			}
			rows = append(rows, []string{
				strconv.FormatInt(s.ID, 10), s.Shard, strconv.FormatInt(int64(s.Placement), 10), strconv.FormatInt(s.Seq, 10),
				s.Kind, s.SeenAt.UTC().Format(time.DateTime), dealt, string(s.Event),
			})
		}
		return rows
	})
	if err != nil || len(open) == 0 {
		return err
	}
	if note == "" {
		return &exitError{exitWaits}
	}
	n, err := store.AcknowledgeStragglers(ctx, open, a.operator(), note)
	if err != nil {
		return err
	}
	m, moving, err := store.OpenMigration(ctx, id)
	if err != nil {
		return err
	}
	next := ""
	if moving { // a merge goes by the name of one of its chunks
		next = "; drover migrate resume " + strings.TrimPrefix(m.WorkflowID, starter.MigrateID("")) + " goes on with a drop that waits for it"
	}
	_, err = fmt.Fprintf(a.env.Stderr, "%d acknowledged%s.\n", n, next)
	return err
}

// known is "chunk.unknown" for a chunk that serves nobody and never did: one that
// was split or merged has a history only.
func known(ctx context.Context, store *metadata.Store, id chunk.ID) error {
	past, err := store.RouteHistory(ctx, id)
	if err == nil && len(past) == 0 {
		_, err = store.Route(ctx, id)
	}
	return err
}
