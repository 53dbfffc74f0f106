package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

// asked is one move that is asked for something.
type asked struct {
	Chunk chunk.ID    `json:"chunk"`
	Phase chunk.Phase `json:"phase"`
	Ask   string      `json:"ask"`
	Error string      `json:"error,omitempty"`
}

// newRebalanceAsk makes rebalance rollback and rebalance complete.
func newRebalanceAsk(a *app, update string) *cobra.Command {
	in := contract.UpdateInput{}
	var yes bool
	short := "Let the old placements of an intent's moves serve again, and give up what has not switched; without --yes it is only shown"
	long := short + ".\nWhat went back is kept current as a copy; run it again to remove those copies."
	if update == contract.CompleteUpdate {
		long = ""
		short = "Drop the old placements of an intent's moves: from then on there is no way back; without --yes it is only shown"
	}
	c := &cobra.Command{
		Use: update + " ID", Short: short, Long: long, Args: cobra.ExactArgs(1), Example: "  drover rebalance " + update + " rebalance/upgrade/shard-a --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.By = a.user()
			return a.askMoves(cmd, args[0], update, in, yes)
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "kept in the workflows' histories")
	c.Flags().BoolVar(&yes, "yes", false, "do it; without it is only shown")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// askMoves asks every open move of an intent, newest or open, for something. A
// rollback stops the intent first: it begins no further move meanwhile.
func (a *app) askMoves(cmd *cobra.Command, id, update string, in contract.UpdateInput, yes bool) error {
	var list []asked
	err := a.withStore(cmd, func(ctx context.Context, store *metadata.Store) (err error) {
		list, err = movesOf(ctx, store, id, update)
		return err
	})
	if err != nil {
		return err
	}
	if yes {
		err := a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
			if update == contract.RollbackUpdate {
				if _, err := s.StopRebalance(ctx, id, in); err != nil && !failure.HasCode(err, "rebalance.not_running") {
					return err
				}
			}
			askEach(ctx, s, list, in)
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := a.printAsked(list); err != nil || yes || len(list) == 0 {
		return err
	}
	return &exitError{exitWaits}
}

// askEach asks each move; one that refuses keeps nobody else from being asked.
func askEach(ctx context.Context, s *starter.Starter, list []asked, in contract.UpdateInput) {
	for i := range list {
		if _, err := s.Ask(ctx, list[i].Chunk, list[i].Ask, in); err != nil {
			list[i].Error = err.Error()
		}
	}
}

// printAsked shows what each move was asked for; it fails when one refused.
func (a *app) printAsked(list []asked) error {
	failed := 0
	for _, x := range list {
		if x.Error != "" {
			failed++
		}
	}
	err := a.print(list, []string{"CHUNK", "PHASE", "ASKS FOR", "REFUSED"}, func() (rows [][]string) {
		for _, x := range list {
			rows = append(rows, []string{string(x.Chunk), string(x.Phase), x.Ask, x.Error})
		}
		return rows
	})
	if err == nil && failed > 0 {
		return fmt.Errorf("%d of %d refused", failed, len(list))
	}
	return err
}

// movesOf lists the unfinished moves of the newest intent of an id, with what each
// can be asked for.
func movesOf(ctx context.Context, store *metadata.Store, id, update string) ([]asked, error) {
	all, err := store.Intents(ctx, 1000)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(i metadata.Intent) bool { return i.WorkflowID == id }) // open ones come first, then the newest
	if at < 0 {
		return nil, failure.New(failure.Invalid, "rebalance.unknown", "there was no intent %s", id).WithHint("drover rebalance status lists the intents")
	}
	var planned []contract.PlannedMove
	if err := json.Unmarshal(all[at].Plan, &planned); err != nil {
		return nil, fmt.Errorf("read the plan of %s: %w", id, err)
	}
	var out []asked
	for _, p := range planned {
		m, ok, err := store.OpenMigration(ctx, p.Chunk)
		if err != nil {
			return nil, err
		}
		if !ok || m.CreatedAt.Before(all[at].OpenedAt) {
			continue
		}
		x := asked{Chunk: p.Chunk, Phase: m.Phase, Ask: update}
		r, err := store.Route(ctx, p.Chunk)
		if err != nil {
			return nil, err
		}
		switch {
		case r.Placement.ID != m.Source.ID && m.Phase == chunk.BurnIn:
		case update == contract.RollbackUpdate:
			x.Ask = contract.AbortUpdate // it has not switched, or went back already: its copy goes
		default:
			continue
		}
		out = append(out, x)
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Invalid, "rebalance.nothing_open", "no move of %s is open", id).WithHint("its old placements are gone, or it never began one")
	}
	return out, nil
}
