package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/gate"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/proxy/admission"
	"drover/starter"
)

func newOverrideCommand(a *app) *cobra.Command {
	return group("override", "Overrule the fleet for a while: pause, pin, waiver or quota; each with owner, reason and end",
		newOverrideSet(a), newOverrideList(a), newOverrideEnd(a))
}

// namesOf is how the arguments name an override.
const namesOf = "pause | pin CHUNK | waiver CHUNK CHECK | quota DATABASE"

// overrideOf reads what namesOf says.
func overrideOf(args []string) (o metadata.Override, err error) {
	o.Kind = metadata.OverrideKind(args[0])
	want := map[metadata.OverrideKind]int{metadata.PauseOverride: 1, metadata.PinOverride: 2, metadata.QuotaOverride: 2, metadata.WaiverOverride: 3}
	if len(args) != want[o.Kind] {
		return o, &usageError{errors.New("want " + namesOf)}
	}
	if len(args) > 1 {
		o.Subject = args[1]
	}
	if len(args) > 2 {
		o.Detail = args[2]
		if checks := append(gate.Waivable(), contract.RoomCheck); !slices.Contains(checks, o.Detail) {
			return o, &usageError{fmt.Errorf("%q is no check that may be waived; those are %s. The others keep data safe", o.Detail, strings.Join(checks, ", "))}
		}
	}
	return o, nil
}

func newOverrideSet(a *app) *cobra.Command {
	var reason string
	var lasting time.Duration
	var quota admission.Policy
	c := &cobra.Command{
		Use: "set (" + namesOf + ") --for 2h --reason WHY", Short: "Pause all moves, pin a chunk, waive a check of a move, or raise a quota", Args: cobra.RangeArgs(1, 3),
		Long: "Pause all moves for maintenance: those that run are paused, no other begins, and the reason is shown where they wait. Pin a chunk where\n" +
			"it is: no plan moves it. Waive a check for the move of a chunk: of the gate " + strings.Join(gate.Waivable(), ", ") + ", or room, for which a move\n" +
			"waits before its import. Raise the quota of a database above its policy. Set again an override lasts anew. Past its end it has no effect,\n" +
			"and an alarm asks its owner to take it away; moves that were paused stay so until drover override end pause.",
		Example: `  drover override set pause --for 2h --reason "switch replaced in room 4"` + "\n" + `  drover override set pin shop/0003 --for 72h --reason audit` + "\n" +
			`  drover override set waiver shop/0003 latency --for 1h --reason "slow disk, known"` + "\n" + `  drover override set quota shop --ops 4000 --for 8h --reason sale`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := overrideOf(args)
			if err != nil {
				return err
			}
			if lasting <= 0 {
				return &usageError{fmt.Errorf("--for is %s; want a positive duration", lasting)}
			}
			if raises := quota != (admission.Policy{}); raises != (o.Kind == metadata.QuotaOverride) {
				return &usageError{errors.New("--ops and --bytes say to what a quota is raised, and nothing else")}
			}
			o.Owner, o.Reason = a.user(), reason
			err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				if err := raisedQuota(ctx, store, &o, quota); err != nil {
					return err
				}
				return store.SetOverride(ctx, o, lasting)
			})
			if err != nil || o.Kind != metadata.PauseOverride {
				return err
			}
			list, err := a.askAll(cmd, contract.PauseUpdate, reason)
			if err != nil {
				return fmt.Errorf("no move begins, but those that run may not be paused yet; run it again: %w", err)
			}
			return a.printAsked(list)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "shown to everybody whom it concerns (needed)")
	c.Flags().DurationVar(&lasting, "for", 0, "how long it lasts unless it is ended before (needed)")
	c.Flags().Float64Var(&quota.OpsPerSecond, "ops", 0, "of quota: operations per second for each proxy")
	c.Flags().Float64Var(&quota.BytesPerSecond, "bytes", 0, "of quota: bytes per second for each proxy")
	_ = c.MarkFlagRequired("reason")
	_ = c.MarkFlagRequired("for")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// raisedQuota gives an override what it raises a quota to. One that raises nothing is
// a mistake: the policy says what a database gets.
func raisedQuota(ctx context.Context, store *metadata.Store, o *metadata.Override, to admission.Policy) error {
	if o.Kind != metadata.QuotaOverride {
		return nil
	}
	if err := to.Validate(); err != nil {
		return &usageError{err}
	}
	if _, err := store.Database(ctx, o.Subject); err != nil {
		return err
	}
	all, err := store.Policies(ctx)
	if err != nil {
		return err
	}
	var now admission.Policy
	if text, ok := all[o.Subject]; ok {
		if now, err = admission.ParsePolicy(text); err != nil {
			return fmt.Errorf("policy of %s: %w", o.Subject, err)
		}
	}
	if now.Raised(to) == now {
		return failure.New(failure.Invalid, "quota.not_raised", "%s may have %s operations and %s bytes a second by its policy: nothing is raised",
			o.Subject, orAny(now.OpsPerSecond), orAny(now.BytesPerSecond)).WithHint("drover db policy %s shows it and changes it for good", o.Subject)
	}
	o.Value, err = json.Marshal(to)
	return err
}

// orAny writes a quota; 0 is none.
func orAny(quota float64) string {
	if quota == 0 {
		return "any number of"
	}
	return strconv.FormatFloat(quota, 'f', -1, 64)
}

func newOverrideEnd(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "end (" + namesOf + ")", Short: "Take an override away; moves that it paused go on", Args: cobra.RangeArgs(1, 3),
		Example: "  drover override end pause\n  drover override end pin shop/0003",
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := overrideOf(args)
			if err != nil {
				return err
			}
			ended := a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				return store.EndOverride(ctx, o, a.user())
			})
			if o.Kind != metadata.PauseOverride || ended != nil && !failure.HasCode(ended, "override.none") {
				return ended
			}
			list, err := a.askAll(cmd, contract.ResumeUpdate, "the pause has ended")
			if err != nil {
				return fmt.Errorf("no pause is in force, but moves that it paused may stay so; run it again: %w", err)
			}
			if len(list) == 0 && ended != nil {
				return ended // nothing was left by one that was interrupted
			}
			return a.printAsked(list)
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

// sortAsked gives the moves that are asked for something, and those about which it is
// not known whether they may be: one that does not answer is asked to pause all the same,
// and not to go on.
func sortAsked(moves []metadata.Migration, update string, status func(chunk.ID) (contract.Status, error)) (ask, left []asked) {
	ask = []asked{}
	for _, m := range moves {
		x := asked{Chunk: m.Chunk.ID, Phase: m.Phase, Ask: update}
		switch st, err := status(m.Chunk.ID); {
		case err != nil && update != contract.PauseUpdate:
			x.Error = err.Error()
			left = append(left, x)
		case err != nil || concerns(st, update):
			ask = append(ask, x)
		}
	}
	return ask, left
}

// askAll asks every unfinished move to pause, or each that was paused so to go on. One that
// may not now (it is in its window, or about to end) is named and left alone.
func (a *app) askAll(cmd *cobra.Command, update, reason string) (list []asked, err error) {
	var moves []metadata.Migration
	err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) (err error) {
		moves, err = store.Migrations(ctx, metadata.MigrationFilter{Unfinished: true})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		ask, left := sortAsked(moves, update, func(id chunk.ID) (contract.Status, error) { return s.Status(ctx, id) })
		ask, err := (&asking{ask: askThrough(s, contract.UpdateInput{By: a.user(), Reason: reason, All: true})}).each(ctx, ask)
		list = append(ask, left...)
		return err
	})
	return list, err
}

func newOverrideList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List what people overrule now, and what has expired and was not taken away", Args: cobra.NoArgs, Example: "  drover override list",
		Long: "List what people overrule now, and what has expired and was not taken away: pauses, pins, waivers and raised quotas, and leases that were\n" +
			"taken by hand (drover lease take), which are given back by drover lease release.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.OverridesAndLeases(ctx)
				if err != nil {
					return err
				}
				return a.print(all, []string{"KIND", "OF", "OWNER", "ENDS IN", "REASON"}, func() (rows [][]string) {
					for _, o := range all {
						left := o.Left.Round(time.Second).String()
						if o.Expired {
							left = "expired"
						}
						rows = append(rows, []string{string(o.Kind), o.Of() + raisedTo(o), o.Owner, left, o.Reason})
					}
					return rows
				})
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// raisedTo says what a quota is raised to.
func raisedTo(o metadata.Override) string {
	if o.Kind != metadata.QuotaOverride {
		return ""
	}
	p, err := admission.ParsePolicy(o.Value)
	if err != nil {
		return " " + string(o.Value)
	}
	var parts []string
	if p.OpsPerSecond > 0 {
		parts = append(parts, orAny(p.OpsPerSecond)+" operations/s")
	}
	if p.BytesPerSecond > 0 {
		parts = append(parts, orAny(p.BytesPerSecond)+" bytes/s")
	}
	return ": " + strings.Join(parts, ", ")
}
