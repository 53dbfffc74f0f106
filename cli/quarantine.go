package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/event"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
)

// quarantineJSON is one event that a lane could not apply, with all that is known
// of it.
type quarantineJSON struct {
	Migration  chunk.MigrationID `json:"migration"`
	Direction  chunk.AttemptID   `json:"direction"`
	Partition  int32             `json:"partition"`
	Seq        int64             `json:"seq"`
	Reason     string            `json:"reason"`
	At         time.Time         `json:"at"`
	Op         event.Op          `json:"op"`
	Written    time.Time         `json:"written"` // on the source
	Collection string            `json:"collection"`
	ID         json.RawMessage   `json:"id,omitempty"` // {_id: value}
	Document   json.RawMessage   `json:"document,omitempty"`
	Update     json.RawMessage   `json:"update,omitempty"`
}

func newMigrateQuarantine(a *app) *cobra.Command {
	var release bool
	c := &cobra.Command{
		Use: "quarantine CHUNK [--release]", Short: "Show changes that could not be applied, in full", Args: cobra.ExactArgs(1),
		Long: "Show the changes that stopped the lanes of a move: why, where they stand in the log, and the whole event. The lanes stand before\n" +
			"each of them. Make the document on the target what it is on the source just before the event (drover log show tells its story), take\n" +
			"the event out with --release, and resume the move: what does not fit then is quarantined anew. Exit status 3: some are open.",
		Example: "  drover migrate quarantine flights/0003 --output json\n" +
			"  drover migrate quarantine flights/0003 --release",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return a.quarantine(ctx, store, chunk.ID(args[0]), release)
			})
		},
	}
	c.Flags().BoolVar(&release, "release", false, "the documents were mended: the gate no longer refuses because of what is shown")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// quarantine shows what is kept of the newest move of a chunk, all its legs.
func (a *app) quarantine(ctx context.Context, store *metadata.Store, id chunk.ID, release bool) error {
	moves, err := store.Migrations(ctx, metadata.MigrationFilter{Chunk: id, Limit: 1})
	if err != nil {
		return err
	}
	if len(moves) == 0 {
		return failure.New(failure.Invalid, "migration.none", "chunk %s has never been moved", id).WithHint("drover migrate list shows the moves")
	}
	legs, err := store.Legs(ctx, moves[0].ID)
	if err != nil {
		return err
	}
	shown := []quarantineJSON{}
	for _, m := range legs {
		kept, err := store.Quarantines(ctx, m.ID)
		if err != nil {
			return err
		}
		for _, q := range kept {
			s, err := quarantined(q)
			if err != nil {
				return err
			}
			shown = append(shown, s)
		}
	}
	if err := a.print(shown, []string{"LANE", "SEQ", "SINCE", "OP", "COLLECTION", "ID", "REASON", "EVENT"}, func() [][]string { return quarantineRows(shown) }); err != nil {
		return err
	}
	if len(shown) == 0 {
		return nil
	}
	if !release {
		return &exitError{exitWaits}
	}
	for _, s := range shown {
		lane := chunk.Lane{Migration: s.Migration, Direction: s.Direction, Partition: s.Partition}
		if err := store.ReleaseQuarantine(ctx, lane, s.Seq); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(a.env.Stderr, "%d released; drover migrate resume %s goes on.\n", len(shown), id)
	return err
}

// quarantined takes a kept event apart.
func quarantined(q metadata.Quarantined) (quarantineJSON, error) {
	e, err := event.Decode(q.Event)
	if err != nil {
		return quarantineJSON{}, failure.New(failure.Invalid, "quarantine.event", "read event %d of migration %d: %w", q.Seq, q.Lane.Migration, err)
	}
	return quarantineJSON{
		Migration: q.Lane.Migration, Direction: q.Lane.Direction, Partition: q.Lane.Partition, Seq: q.Seq, Reason: q.Reason, At: q.At,
		Op: e.Op, Written: e.Wall, Collection: e.Collection, ID: extended(e.Key), Document: extended(e.Document), Update: extended(e.Change),
	}, nil
}

// quarantineRows shows them to people; the event is what differs by operation.
func quarantineRows(shown []quarantineJSON) (rows [][]string) {
	for _, s := range shown {
		whole := s.Update
		if len(whole) == 0 {
			whole = s.Document
		}
		rows = append(rows, []string{
			fmt.Sprintf("m%d/d%d/p%d", s.Migration, s.Direction, s.Partition), strconv.FormatInt(s.Seq, 10), s.At.UTC().Format(time.DateTime),
			string(s.Op), s.Collection, string(s.ID), s.Reason, string(whole),
		})
	}
	return rows
}
