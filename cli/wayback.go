package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/internal/pause"
	"drover/metadata"
	"drover/starter"
)

// asked is one move that is asked for something.
type asked struct {
	Chunk chunk.ID    `json:"chunk"`
	Phase chunk.Phase `json:"phase"`
	Ask   string      `json:"ask"`
	Error string      `json:"error,omitempty"`

	move    chunk.MigrationID // that leads; 0: whichever runs
	refusal error             // whose text Error is
}

// answered takes what came of asking.
func (x *asked) answered(err error) {
	x.refusal, x.Error = err, ""
	if err != nil {
		x.Error = err.Error()
	}
}

// notNow reports whether a move refuses for where it is.
func (x *asked) notNow() bool { return failure.HasCode(x.refusal, "migration.not_now") }

// newRebalanceAsk makes rebalance rollback and rebalance complete.
func newRebalanceAsk(a *app, update string) *cobra.Command {
	in := contract.UpdateInput{}
	var yes bool
	var wait time.Duration
	short := "Let the old placements of an intent's moves serve again, and give up what has not switched; without --yes it is only shown"
	long := short + ".\nA move in the middle of its switch is asked when that has ended. What went back is kept current as a copy; run it again to remove those copies."
	if update == contract.CompleteUpdate {
		long = ""
		short = "Drop the old placements of an intent's moves: from then on there is no way back; without --yes it is only shown"
	}
	c := &cobra.Command{
		Use: update + " ID", Short: short, Long: long, Args: cobra.ExactArgs(1), Example: "  drover rebalance " + update + " rebalance/upgrade/shard-a --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 {
				return &usageError{fmt.Errorf("--wait is %s; want 0 or longer", wait)}
			}
			in.By = a.user()
			return a.askMoves(cmd, args[0], update, in, yes, wait)
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "kept in the workflows' histories")
	c.Flags().BoolVar(&yes, "yes", false, "do it; without it is only shown")
	if update == contract.RollbackUpdate {
		c.Flags().DurationVar(&wait, "wait", time.Minute, "at most so long for the end of switches that are under way")
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// askMoves asks every open move of an intent, newest or open, for something. A
// rollback stops the intent first: it begins no further move meanwhile. It waits for the end
// of switches that are under way.
func (a *app) askMoves(cmd *cobra.Command, id, update string, in contract.UpdateInput, yes bool, wait time.Duration) error {
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
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				q := asking{
					ask:   askThrough(s, in),
					again: func(ctx context.Context, id chunk.ID) (asked, error) { return moveOf(ctx, store, id, update) },
					wait:  wait, tell: a.tell,
				}
				list, err = q.each(ctx, list)
				return err
			})
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

// asking asks moves for something.
type asking struct {
	ask   func(ctx context.Context, x asked) error
	again func(ctx context.Context, id chunk.ID) (asked, error) // what a move can be asked for by now; nil: nobody looks again
	wait  time.Duration                                         // for the end of switches
	tell  func(format string, args ...any)
}

// askThrough asks one move through Temporal.
func askThrough(s *starter.Starter, in contract.UpdateInput) func(context.Context, asked) error {
	return func(ctx context.Context, x asked) error {
		in.Migration = x.move
		_, err := s.Ask(ctx, x.Chunk, x.Ask, in)
		return err
	}
}

// askAgain is how often a move in its switch is asked.
const askAgain = time.Second

// each asks each move; one that refuses keeps nobody else from being asked. A move that refuses
// may be further than the list says: it is looked at again, and asked for what is possible now. In the
// middle of its switch, which takes seconds, it can neither be given up nor taken back: it is
// asked again until it can, or the wait is over.
func (q *asking) each(ctx context.Context, list []asked) ([]asked, error) {
	until := time.Now().Add(q.wait)
	for i := range list {
		list[i].answered(q.ask(ctx, list[i]))
	}
	for first := true; ; first = false {
		waiting := 0
		for i := range list {
			q.lookAgain(ctx, &list[i], !first)
			if list[i].notNow() && list[i].Phase == chunk.Switching {
				waiting++
			}
		}
		if waiting == 0 || !time.Now().Before(until) {
			return list, nil
		}
		if first {
			q.tell("%d moves are in the middle of a switch: waiting for its end, at most %s", waiting, q.wait)
		}
		if err := pause.For(ctx, askAgain); err != nil {
			return list, err
		}
	}
}

// lookAgain asks a move that refused for what is possible by now. Where it is where it was the
// refusal stands, except that of a switch which was waited for. A move that cannot be looked at
// keeps nobody else from being asked, and another one of its chunk is left alone.
func (q *asking) lookAgain(ctx context.Context, x *asked, waited bool) {
	if q.again == nil || !x.notNow() {
		return
	}
	now, err := q.again(ctx, x.Chunk)
	switch {
	case err != nil:
		x.answered(fmt.Errorf("look again at the move of %s: %w", x.Chunk, err))
		return
	case now.move != x.move:
		x.answered(failure.New(failure.Invalid, contract.OtherMove, "this move of %s is over, and another one has begun", x.Chunk).
			WithHint("drover migrate list shows both; the newer one was asked for nothing"))
		return
	}
	moved := now.Phase != x.Phase || now.Ask != x.Ask
	x.Phase, x.Ask = now.Phase, now.Ask
	switch {
	case x.Ask == contract.AbortUpdate && (x.Phase == chunk.Aborting || x.Phase == chunk.Aborted):
		x.answered(nil) // it went back by itself
	case x.Phase.Final():
	case moved, waited && x.Phase == chunk.Switching:
		x.answered(q.ask(ctx, *x))
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

// intents finds what was intended, and what became of it.
type intents interface {
	routes
	Intents(ctx context.Context, limit int) ([]metadata.Intent, error)
	OpenMigration(ctx context.Context, id chunk.ID) (metadata.Migration, bool, error)
}

// movesOf lists the unfinished moves of the newest intent of an id, with what each
// can be asked for.
func movesOf(ctx context.Context, store intents, id, update string) ([]asked, error) {
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
		r, err := served(ctx, store, p.Chunk)
		if err != nil {
			return nil, err
		}
		if update == contract.RollbackUpdate || m.Phase == chunk.BurnIn && r.Placement.ID != m.Source.ID {
			out = append(out, askOf(m, r, update))
		}
	}
	if len(out) == 0 {
		return nil, failure.New(failure.Invalid, "rebalance.nothing_open", "no move of %s is open", id).WithHint("its old placements are gone, or it never began one")
	}
	return out, nil
}

// moveOf gives what the newest move of a chunk can be asked for.
func moveOf(ctx context.Context, store *metadata.Store, id chunk.ID, update string) (asked, error) {
	m, err := newestMigration(ctx, store, id)
	if err != nil {
		return asked{}, err
	}
	r, err := served(ctx, store, id)
	if err != nil {
		return asked{}, err
	}
	return askOf(m, r, update), nil
}

// routes finds who serves a chunk.
type routes interface {
	Route(ctx context.Context, id chunk.ID) (chunk.Route, error)
}

// served is the route of a chunk; without a placement when others serve what it was split or
// merged into.
func served(ctx context.Context, from routes, id chunk.ID) (chunk.Route, error) {
	r, err := from.Route(ctx, id)
	if failure.HasCode(err, "chunk.unknown") {
		return chunk.Route{}, nil
	}
	return r, err
}

// askOf gives what a move is asked for: where the way back is wanted, one that has not
// switched, or went back already, is given up, and its copy goes.
func askOf(m metadata.Migration, r chunk.Route, update string) asked {
	x := asked{Chunk: m.Chunk.ID, Phase: m.Phase, Ask: update, move: m.Lead}
	past := m.Phase == chunk.BurnIn || m.Phase == chunk.Completing || m.Phase == chunk.Done
	if update == contract.RollbackUpdate && (!past || r.Placement.ID == m.Source.ID) {
		x.Ask = contract.AbortUpdate
	}
	return x
}
