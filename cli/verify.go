package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
)

// mismatchJSON is one difference in the JSON output.
type mismatchJSON struct {
	Collection string          `json:"collection"`
	ID         json.RawMessage `json:"id,omitempty"` // {_id: value} as extended JSON
	Path       string          `json:"path,omitempty"`
	Kind       string          `json:"kind"`
	FirstSeen  time.Time       `json:"firstSeen"`
	LastSeen   time.Time       `json:"lastSeen"`
}

// newMigrateMismatches lists what differs.
func newMigrateMismatches(a *app) *cobra.Command {
	limit := 100
	c := &cobra.Command{
		Use: "mismatches CHUNK", Short: "List the documents that differ between the two sides of a move", Args: cobra.ExactArgs(1),
		Long: "List the documents that differ between the two sides of a move: kind, field and age, oldest first. Exit status 3: there are some.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				m, err := newestMigration(ctx, store, chunk.ID(args[0]))
				if err != nil {
					return err
				}
				found, total, err := store.OpenMismatches(ctx, m.ID, limit)
				if err != nil {
					return err
				}
				return a.printMismatches(found, total)
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", limit, "how many to list")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// newestMigration gives a chunk's newest move.
func newestMigration(ctx context.Context, store *metadata.Store, id chunk.ID) (metadata.Migration, error) {
	all, err := store.Migrations(ctx, metadata.MigrationFilter{Chunk: id, Limit: 1})
	if err != nil {
		return metadata.Migration{}, err
	}
	if len(all) == 0 {
		return metadata.Migration{}, &usageError{fmt.Errorf("chunk %s was never moved; see drover migrate list", id)}
	}
	return all[0], nil
}

// printMismatches shows differences and says by the exit status that there are some.
func (a *app) printMismatches(found []metadata.Mismatch, total int64) error {
	out := make([]mismatchJSON, 0, len(found))
	for _, m := range found {
		j := mismatchJSON{Collection: m.Collection, Path: m.Path, Kind: m.Kind, FirstSeen: m.FirstSeen, LastSeen: m.LastSeen}
		if len(m.ID) > 0 {
			if text, err := bson.MarshalExtJSON(bson.Raw(m.ID), true, false); err == nil {
				j.ID = text
			}
		}
		out = append(out, j)
	}
	err := a.print(struct {
		Total      int64          `json:"total"`
		Mismatches []mismatchJSON `json:"mismatches"`
	}{total, out}, []string{"COLLECTION", "DOCUMENT", "KIND", "FIELD", "SEEN FOR"}, func() (rows [][]string) {
		for _, m := range out {
			rows = append(rows, []string{m.Collection, string(m.ID), m.Kind, m.Path, ageText(m.FirstSeen)})
		}
		if more := total - int64(len(out)); more > 0 {
			rows = append(rows, []string{fmt.Sprintf("and %d more", more)})
		}
		return rows
	})
	if err == nil && total > 0 {
		return &exitError{exitWaits}
	}
	return err
}

// verificationText is one line about what is verified while a move goes on.
func verificationText(v contract.Verification, age time.Duration) string {
	text := fmt.Sprintf("%d changes the same in %d rounds, %d looked at again, %d left for the fence, %d differ, last round %s ago",
		v.Verified, v.Rounds, v.Pending, v.Hot+v.TooHot, v.Mismatched, age.Round(time.Second))
	if v.Behind {
		text += ", catching up"
	}
	for _, d := range v.Catalog {
		text += "; " + d
	}
	return text
}

// cleanups says how far the clean-ups of a move have come that have not ended.
func cleanups(ctx context.Context, store *metadata.Store, ref contract.Ref) (out []string, err error) {
	all, err := store.Cleanups(ctx)
	for _, c := range all {
		if c.Migration == ref.Migration {
			out = append(out, cleanupText(c))
		}
	}
	return out, err
}

// cleanupText is one line about a placement on its way out.
func cleanupText(c metadata.Cleanup) string {
	done := "nothing is"
	if len(c.Done) > 0 {
		done = strings.Join(c.Done, ", ")
	}
	return fmt.Sprintf("of placement %d, begun %s ago: %s done", c.Placement, ageText(c.BeganAt), done)
}

// verification reads what the newest verification of a move says, "" when there
// is none.
func verification(ctx context.Context, store *metadata.Store, ref contract.Ref) (string, error) {
	attempts, err := store.Attempts(ctx, ref.Migration)
	if err != nil {
		return "", err
	}
	var direction chunk.AttemptID
	for _, at := range attempts {
		if at.Token != 0 {
			direction = max(direction, at.ID)
		}
	}
	v, ok, err := store.Verification(ctx, ref.Migration, direction)
	if err != nil || !ok {
		return "", err
	}
	var r contract.Verification
	if err := json.Unmarshal(v.Report, &r); err != nil || r.Rounds == 0 {
		return "", nil //nolint:nilerr // nothing was reported yet
	}
	return verificationText(r, v.Age), nil
}
