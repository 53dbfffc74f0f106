package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

func newChunkClone(a *app) *cobra.Command {
	var at string
	var detach bool
	in := contract.CloneInput{}
	c := &cobra.Command{
		Use: "clone CHUNK --at TIME --to SHARD", Short: "Copy a chunk as it was at some time into a database of its own", Args: cobra.ExactArgs(1),
		Long: "Copy a chunk as it was at some time into a database of its own, which no route leads to: what an import has stored is loaded, and\n" +
			"what the captured logs say until that time is replayed on it, across moves. It begins with the newest import of a move of the chunk\n" +
			"that was over then. Indexes are those of today; its documents never expire. With --dry-run say what it would be made of.",
		Example: "  drover chunk clone flights/0003 --at 2026-11-30T03:15:00Z --to shard-c --dry-run\n" +
			"  drover chunk clone flights/0003 --at 2h --to shard-c",
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := moment("at", at, time.Now())
			if err != nil {
				return err
			}
			in.Chunk, in.At, in.RequestedBy = chunk.ID(args[0]), t.UTC(), a.user()
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				run, err := s.Clone(ctx, in)
				if err != nil {
					return err
				}
				if detach && !in.DryRun {
					return a.print(run, nil, func() [][]string {
						return [][]string{{"workflow", run.WorkflowID}, {"next", "drover chunk clones"}}
					})
				}
				r, err := s.CloneResult(ctx, run)
				if err != nil {
					return err
				}
				return a.print(r, nil, func() [][]string { return cloneRows(r) })
			})
		},
	}
	f := c.Flags()
	f.StringVar(&at, "at", "", "the time, as 2026-11-30T03:15:00Z or as 2h ago (needed)")
	f.StringVar(&in.To, "to", "", "shard that gets the clone (needed)")
	f.BoolVar(&in.DryRun, "dry-run", false, "only say what it would be made of")
	f.BoolVar(&detach, "detach", false, "do not wait for its end")
	_ = c.MarkFlagRequired("at")
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(f, config.Common)
	return c
}

// cloneRows shows a clone, or the plan of one.
func cloneRows(r contract.CloneResult) [][]string {
	rows := [][]string{
		{"chunk", string(r.Chunk)},
		{"as it was at", r.At.UTC().Format(time.RFC3339)},
		{"begins with", fmt.Sprintf("the import of migration %d: %d documents, %s, read until %s", r.Base, r.Documents, bytesText(r.Bytes), r.Stored.UTC().Format(time.RFC3339))},
		{"then the logs of", strings.Join(r.Shards, ", ") + " from " + r.Start.UTC().Format(time.RFC3339)},
	}
	if r.Clone == 0 {
		return append(rows, []string{"would be on", r.To})
	}
	return append(rows, []string{"changes replayed", strconv.FormatInt(r.Events, 10)}, []string{"clone", fmt.Sprint(r.Clone)}, []string{"database", r.Database + " on " + r.To},
		[]string{"drop it with", fmt.Sprintf("drover chunk clones --drop %d", r.Clone)})
}

func newChunkClones(a *app) *cobra.Command {
	var drop int64
	c := &cobra.Command{
		Use: "clones [--drop ID]", Short: "List clones of chunks, or drop one", Args: cobra.NoArgs,
		Example: "  drover chunk clones\n  drover chunk clones --drop 42",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if drop != 0 {
				return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
					return s.DropClone(ctx, contract.CloneEnd{Clone: chunk.MigrationID(drop)})
				})
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.Clones(ctx, false)
				if err != nil {
					return err
				}
				return a.print(all, []string{"ID", "CHUNK", "AT", "SHARD", "DATABASE", "STATE", "MADE"}, func() (rows [][]string) {
					for _, c := range all {
						rows = append(rows, []string{
							fmt.Sprint(c.ID), string(c.Chunk), c.At.UTC().Format(time.RFC3339), c.Shard, c.Database, string(c.State), c.CreatedAt.UTC().Format(time.DateTime),
						})
					}
					return rows
				})
			})
		},
	}
	c.Flags().Int64Var(&drop, "drop", 0, "drop this clone")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}
