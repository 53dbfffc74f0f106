package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"drover/activities"
	"drover/chunk"
	"drover/internal/config"
	"drover/metadata"
	"drover/shard"
	"drover/starter"
	"drover/workers"
)

func newShardRemove(a *app) *cobra.Command {
	var uri string
	var gone, yes bool
	c := &cobra.Command{
		Use: "remove SHARD [--yes (--uri mongodb://ROOT:PASSWORD@HOST | --gone)]", Short: "Remove a shard on which nothing lives any more; without --yes it is only shown", Args: cobra.ExactArgs(1),
		Long: "Remove a shard on which nothing lives any more: its capture, Drover's users, roles and database on its servers, the topic of its log, the\n" +
			"archive of that and the rows of the shard go, in this order. What uses it still is named, and keeps it. The history of moves stays.\n" +
			"An interrupted removal is finished by running it again, and taken back, before the rows are gone, by drover shard add.",
		Example: "  drover shard remove shard-a\n  drover shard remove shard-a --yes --uri mongodb://root:secret@host-1,host-2/?replicaSet=a",
		RunE: func(cmd *cobra.Command, args []string) error {
			if yes && (uri == "") == !gone {
				return &usageError{errors.New("want --uri with an administrator's credentials, or --gone when the servers no longer exist")}
			}
			return a.removeShard(cmd, args[0], uri, yes)
		},
	}
	c.Flags().StringVar(&uri, "uri", "", "the address that the shard was registered with, with an administrator's credentials: used once, never stored")
	c.Flags().BoolVar(&gone, "gone", false, "the servers no longer exist")
	c.Flags().BoolVar(&yes, "yes", false, "remove it; without it is only shown")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// removal is what a removal says to people.
type removal struct {
	Shard    string           `json:"shard"`
	Uses     []string         `json:"uses"` // what keeps it
	Declared bool             `json:"declared"`
	Capture  string           `json:"capture"` // the workflow that is ended
	Removes  *workers.Leaving `json:"removes,omitempty"`
	State    string           `json:"state"`
}

// removeShard shows what a removal would do, and does it where that was confirmed.
func (a *app) removeShard(cmd *cobra.Command, name, uri string, yes bool) error {
	return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		sh, err := store.Shard(ctx, name)
		if err != nil {
			return err
		}
		out := removal{Shard: name, State: "only shown; --yes removes it", Capture: starter.CaptureID(name)}
		if out.Uses, err = store.InUse(ctx, name); err != nil {
			return err
		}
		f, _, err := activities.Desired(ctx, store)
		if err != nil {
			return err
		}
		if f != nil {
			out.Declared = f.Declares(name)
		}
		if !yes && len(out.Uses) == 0 {
			l, err := workers.LeavingOf(ctx, store, &a.cfg, sh)
			if err != nil {
				return err
			}
			out.Removes = &l
		}
		switch {
		case len(out.Uses) > 0 && !yes:
			out.State = "cannot be removed"
			return errors.Join(a.printRemoval(out), &exitError{exitFailed})
		case !yes:
			return errors.Join(a.printRemoval(out), &exitError{exitWaits})
		}
		if uri != "" {
			if clean, err := shard.StripCredentials(uri); err != nil || clean != sh.URI {
				return errors.Join(err, &usageError{fmt.Errorf("--uri is not the address %s that shard %s was registered with", sh.URI, name)})
			}
		}
		if err := store.BeginRemoval(ctx, name); err != nil {
			return err
		}
		err = a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
			return s.EndCapture(ctx, name, "shard "+name+" is removed by "+a.user())
		})
		if err != nil {
			return err
		}
		n, err := workers.RemoveShard(ctx, store, &a.cfg, name, uri)
		if err != nil {
			return fmt.Errorf("remove %s; what came before is done, run it again: %w", name, err)
		}
		out.State = fmt.Sprintf("removed; %d archived objects were deleted", n)
		return a.printRemoval(out)
	})
}

// printRemoval shows what a removal takes away, or what keeps it.
func (a *app) printRemoval(r removal) error {
	return a.print(r, nil, func() [][]string {
		var rows [][]string
		for _, x := range r.Uses {
			rows = append(rows, []string{"in use", x})
		}
		if len(r.Uses) > 0 {
			rows = append(rows, []string{"instead", "drover shard drain " + r.Shard + " moves its chunks away; wait for their burn-in to end"})
		} else if r.Removes != nil {
			rows = append(rows, []string{"ends", "workflow " + r.Capture})
			rows = append(rows, leavingRows(*r.Removes)...)
		}
		if r.Declared {
			rows = append(rows, []string{"note", "the fleet file that was applied last lists it: take it out, or the next apply wants it"})
		}
		return append(rows, []string{"state", r.State})
	})
}

// shownObjects is how many objects of an archive people are shown one by one; all are
// in the JSON output.
const shownObjects = 20

// leavingRows shows what goes with a shard.
func leavingRows(l workers.Leaving) (rows [][]string) {
	say := func(format string, args ...any) {
		rows = append(rows, []string{"removes", fmt.Sprintf(format, args...)})
	}
	for _, x := range l.Users {
		say("user %s", x)
	}
	for _, x := range l.Roles {
		say("role %s", x)
	}
	for _, x := range slices.Sorted(maps.Keys(l.Collections)) {
		say("collection %s.%s, %d documents", chunk.SystemDatabase, x, l.Collections[x])
	}
	if l.Partitions > 0 {
		say("topic %s, %d partitions, %d records", l.Topic, l.Partitions, l.Records)
	}
	bytes := int64(0)
	for i, x := range l.Objects {
		bytes += x.Bytes
		if i < shownObjects {
			say("object %s, %s", x.Key, bytesText(x.Bytes))
		}
	}
	if n := len(l.Objects) - shownObjects; n > 0 {
		say("and %d objects more (--output json names them)", n)
	}
	if len(l.Objects) > 0 {
		say("%d objects of the archive, %s", len(l.Objects), bytesText(bytes))
	}
	for _, x := range slices.Sorted(maps.Keys(l.Rows)) {
		say("%d rows of %s", l.Rows[x], x)
	}
	for _, x := range l.Unknown {
		rows = append(rows, []string{"not known", x})
	}
	return rows
}
