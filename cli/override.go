package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drover/contract"
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

func newOverrideCommand(a *app) *cobra.Command {
	return group("override", "Overrule the fleet for a while: pause all moves, pin a chunk; each with owner, reason and end",
		newOverrideSet(a), newOverrideList(a), newOverrideEnd(a))
}

// overrideOf reads KIND [CHUNK].
func overrideOf(args []string) (o metadata.Override, err error) {
	o.Kind = metadata.OverrideKind(args[0])
	switch {
	case o.Kind == metadata.PauseOverride && len(args) == 1:
	case o.Kind == metadata.PinOverride && len(args) == 2:
		o.Subject = args[1]
	default:
		return o, &usageError{errors.New("want pause, or pin CHUNK")}
	}
	return o, nil
}

func newOverrideSet(a *app) *cobra.Command {
	var reason string
	var lasting time.Duration
	c := &cobra.Command{
		Use: "set (pause | pin CHUNK) --for 2h --reason WHY", Short: "Pause all moves for maintenance, or pin a chunk where it is", Args: cobra.RangeArgs(1, 2),
		Long: "Pause all moves for maintenance: those that run are paused, no other begins, and the reason is shown where they wait. Or pin a chunk where\n" +
			"it is: no plan moves it. Set again it lasts anew. Past its end an override has no effect, and an alarm asks its owner to take it away;\n" +
			"moves that were paused stay so until drover override end pause.",
		Example: `  drover override set pause --for 2h --reason "switch replaced in room 4"` + "\n" + `  drover override set pin shop/0003 --for 72h --reason audit`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := overrideOf(args)
			if err != nil {
				return err
			}
			if lasting <= 0 {
				return &usageError{fmt.Errorf("--for is %s; want a positive duration", lasting)}
			}
			o.Owner, o.Reason = a.user(), reason
			err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error { return store.SetOverride(ctx, o, lasting) })
			if err != nil || o.Kind != metadata.PauseOverride {
				return err
			}
			return a.askAll(cmd, contract.PauseUpdate, reason)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "shown to everybody whom it concerns (needed)")
	c.Flags().DurationVar(&lasting, "for", 0, "how long it lasts unless it is ended before (needed)")
	_ = c.MarkFlagRequired("reason")
	_ = c.MarkFlagRequired("for")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newOverrideEnd(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "end (pause | pin CHUNK)", Short: "Take an override away; moves that it paused go on", Args: cobra.RangeArgs(1, 2),
		Example: "  drover override end pause\n  drover override end pin shop/0003",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := overrideOf(args)
			if err != nil {
				return err
			}
			err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return store.EndOverride(ctx, o.Kind, o.Subject, a.user())
			})
			if err != nil || o.Kind != metadata.PauseOverride {
				return err
			}
			return a.askAll(cmd, contract.ResumeUpdate, "the pause has ended")
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// concerns tells whether a move is asked. One that somebody paused by itself stays
// so when the pause of all ends.
func concerns(st contract.Status, update string) bool {
	if update == contract.PauseUpdate {
		return !st.Paused
	}
	return st.Paused && st.PausedAll
}

// askAll asks every unfinished move to pause, or each that was paused so to go on. One that
// may not now (it is in its window, or about to end) is named and left alone.
func (a *app) askAll(cmd *cobra.Command, update, reason string) error {
	var moves []metadata.Migration
	err := a.withStore(cmd, func(ctx context.Context, store *metadata.Store) (err error) {
		moves, err = store.Migrations(ctx, metadata.MigrationFilter{Unfinished: true})
		return err
	})
	if err != nil {
		return err
	}
	list := []asked{}
	err = a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		for _, m := range moves {
			st, err := s.Status(ctx, m.Chunk.ID)
			if err == nil && !concerns(st, update) {
				continue
			}
			list = append(list, asked{Chunk: m.Chunk.ID, Phase: m.Phase, Ask: update})
		}
		askEach(ctx, s, list, contract.UpdateInput{By: a.user(), Reason: reason, All: true})
		return nil
	})
	if err != nil {
		return err
	}
	return a.printAsked(list)
}

func newOverrideList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the overrides that are in force, or have expired and were not taken away", Args: cobra.NoArgs, Example: "  drover override list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.Overrides(ctx)
				if err != nil {
					return err
				}
				return a.print(all, []string{"KIND", "OF", "OWNER", "ENDS IN", "REASON"}, func() (rows [][]string) {
					for _, o := range all {
						left := o.Left.Round(time.Second).String()
						if o.Left <= 0 {
							left = "expired"
						}
						rows = append(rows, []string{string(o.Kind), o.Subject, o.Owner, left, o.Reason})
					}
					return rows
				})
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}
