package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drover/bulkimport"
	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

func newMigrateCommand(a *app) *cobra.Command {
	return group("migrate", "Move a chunk, and steer a move",
		newMigrateStart(a), newMigrateBatch(a), newMigrateStatus(a), newMigrateWatch(a), newMigrateList(a),
		newMigrateGate(a), newMigrateSwitch(a), newMigrateTimeline(a), newMigrateMismatches(a), newMigrateStragglers(a), newMigrateQuarantine(a), newMigrateMirror(a),
		a.verb(contract.ApproveUpdate, "Go on with the switch that waits for a person"),
		a.verb(contract.PauseUpdate, "Stop the lanes and the step; the source serves on"),
		a.verb(contract.ResumeUpdate, "End a pause, or try again what failed"),
		a.verb(contract.AbortUpdate, "Give up: the source serves on, the target's copy is removed"),
		a.verb(contract.RollbackUpdate, "During burn-in: let the old placement serve again"),
		a.verb(contract.DrillUpdate, "During burn-in: switch back and forth again, and compare both placements each time"),
		a.verb(contract.CompleteUpdate, "End burn-in now and drop the placement that does not serve"),
	)
}

func newMigrateStart(a *app) *cobra.Command {
	in := contract.MigrateInput{}
	var burnIn, waitForOpen, watchFor time.Duration
	var watch, dryRun bool
	var sorts []string
	c := &cobra.Command{
		Use: "start CHUNK --to SHARD", Short: "Start to move a chunk", Args: cobra.ExactArgs(1),
		Example: "  drover migrate start flights/0003 --to shard-c --watch",
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Chunk, in.BurnIn = chunk.ID(args[0]), contract.Duration(burnIn)
			in.WaitForOpen, in.AfterSwitchFor = contract.Duration(waitForOpen), contract.Duration(watchFor)
			var err error
			if in.Sort, err = parseSorts(sorts); err != nil {
				return &usageError{err}
			}
			if in.RequestedBy == "" {
				in.RequestedBy = a.user()
			}
			if dryRun {
				return a.planMove(cmd, in)
			}
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				run, err := s.Migrate(ctx, in)
				if err != nil {
					return err
				}
				registered, err := a.registered(ctx, s, run)
				if err != nil {
					return err
				}
				if watch {
					return a.watch(ctx, s, in.Chunk)
				}
				return a.print(run, nil, func() [][]string {
					return [][]string{{"workflow", run.WorkflowID}, {"run", run.RunID}, {"state", registered}, {"next", "drover migrate watch " + args[0]}}
				})
			})
		},
	}
	f := c.Flags()
	f.StringVar(&in.To, "to", "", "target shard (needed)")
	f.StringVar(&in.Approval, "approval", contract.Automatic, "automatic, or manual: wait for drover migrate approve before the switch")
	f.StringVar(&in.Window, "window", "", "switch only within this part of the day, UTC, as 22:00-04:00; approve switches before")
	f.DurationVar(&waitForOpen, "wait-for-open", 0, "the gate waits while a transaction or cursor on the source is older; 0 only shows them")
	f.StringVar(&in.AfterSwitch, "after-switch", contract.AfterSwitchPage, "when errors or p99 of the chunk are worse than before: page, rollback or off")
	f.DurationVar(&watchFor, "after-switch-for", 5*time.Minute, "how long that is watched after each switch")
	f.StringVar(&in.Complete, "complete", contract.Automatic, "automatic: drop the old placement after burn-in; manual: wait for drover migrate complete")
	f.StringVar(&in.Kind, "kind", contract.MoveKind, "move, upgrade or bin-pack: how long burn-in lasts by default (24h, 168h, 1h)")
	f.DurationVar(&burnIn, "burn-in", 0, "how long the old placement is kept current for a rollback; 0: as --kind says")
	f.StringVar(&in.OnMismatch, "on-mismatch", contract.BlockOnMismatch, "a document that differs after the validation: block the move, repair it from the source, restart-slice: copy its part of the import anew, or page an operator")
	f.StringArrayVar(&sorts, "sort", nil, "COLLECTION=FIELDS: load it in this order, as orders=origin,date desc; may be repeated. Default: what fits most of its indexes")
	f.BoolVar(&in.PrimaryReads, "allow-primary-reads", false, "read the source's primary while no secondary of it is healthy")
	onDDLFlag(f, &in.OnDDL, contract.StopOnDDL)
	f.BoolVar(&in.NoQueue, "no-queue", false, "begin whatever else converges on the target; else the move waits until it was seen to apply twice all of it")
	f.StringVar(&in.Reason, "reason", "", "shown to people")
	f.BoolVar(&watch, "watch", false, "follow the move until it ends")
	f.BoolVar(&dryRun, "dry-run", false, "start nothing: check everything, and estimate import, catch-up and space. Exit status 3: something speaks against it")
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(f, config.Common)
	return c
}

// parseSorts reads what --sort says, by collection.
func parseSorts(given []string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	out := map[string]string{}
	for _, s := range given {
		name, fields, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf(`--sort %q: want COLLECTION=FIELDS, as "orders=origin,date desc"`, s)
		}
		if _, err := bulkimport.ParseOrder(fields); err != nil {
			return nil, err
		}
		out[name] = fields
	}
	return out, nil
}

// onDDLFlag makes the flag for the policy on DDL that nobody told Drover of.
func onDDLFlag(f *pflag.FlagSet, policy *string, usual string) {
	f.StringVar(policy, "on-ddl", usual, "when indexes or options of the chunk are changed on the shard itself: stop the move, or follow; anything else that is changed there stops it")
}

// registerPatience bounds the wait for a worker that registers a move.
const registerPatience = 20 * time.Second

// registered waits for a move's registration, so that a refusal is seen where the
// move was started, and says in words how far it is.
func (a *app) registered(ctx context.Context, s *starter.Starter, run starter.Run) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, registerPatience)
	defer cancel()
	ok, err := s.Registered(ctx, run)
	if err != nil {
		return "", err
	}
	if !ok {
		return fmt.Sprintf("no worker has taken it within %s; it waits for one: drover worker", registerPatience), nil
	}
	return "registered", nil
}

// verb makes the command of one update.
func (a *app) verb(name, short string) *cobra.Command {
	in := contract.UpdateInput{}
	var yes bool
	destroys := destroying[name]
	c := &cobra.Command{
		Use: name + " CHUNK", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.By = a.user()
			if destroys != "" {
				if err := a.load(cmd, config.Common); err != nil {
					return err
				}
				if err := a.confirm(yes, fmt.Sprintf(destroys, args[0]), args[0]); err != nil {
					return err
				}
			}
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				st, err := a.ask(ctx, s, chunk.ID(args[0]), name, in)
				if err != nil {
					return err
				}
				return a.printStatus(statusJSON{Status: st})
			})
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "kept in the workflow's history")
	if destroys != "" {
		yesFlag(c, &yes)
	}
	if name == contract.ResumeUpdate {
		onDDLFlag(c.Flags(), &in.OnDDL, "")
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// ask sends an update. Where no move goes by the chunk's name it looks for one that the
// chunk is part of.
func (a *app) ask(ctx context.Context, s *starter.Starter, id chunk.ID, update string, in contract.UpdateInput) (contract.Status, error) {
	st, err := s.Ask(ctx, id, update, in)
	if !failure.HasCode(err, "migration.not_running") {
		return st, err
	}
	store, openErr := a.openStore(ctx)
	if openErr != nil {
		return st, err
	}
	defer store.Close()
	return st, partOf(ctx, store, id, update, err)
}

// partOf says which move a chunk is part of that has none of its own: a split or merge
// goes by the name of its first chunk. Where there is none it gives unknown.
func partOf(ctx context.Context, store *metadata.Store, id chunk.ID, update string, unknown error) error {
	m, moving, err := store.OpenMigration(ctx, id)
	of := strings.TrimPrefix(m.WorkflowID, starter.MigrateID(""))
	if err != nil || !moving || of == string(id) {
		return unknown
	}
	return failure.New(failure.Invalid, "migration.part_of", "chunk %s is part of the move of %s, which is %s", id, of, m.Phase).
		WithHint("drover migrate %s %s", update, of)
}

// destroying says what the verbs that remove a copy of data do.
var destroying = map[string]string{ //nolint:gochecknoglobals // a constant table
	contract.AbortUpdate:    "removes the target's copy of %s",
	contract.CompleteUpdate: "drops the placement of %s that does not serve, and with it the way back",
}

// user is who runs the command, for the history.
func (a *app) user() string {
	if u, ok := a.env.LookupEnv("USER"); ok && u != "" {
		return u
	}
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return "somebody on " + host
}

func newMigrateStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status CHUNK", Short: "Show where a move is and why it waits", Args: cobra.ExactArgs(1),
		Long: "Show where a move is and why it waits. Exit status 3: it waits for a person.",
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := a.moveStatus(cmd, chunk.ID(args[0]))
			if err != nil {
				return err
			}
			if err := a.printStatus(st); err != nil {
				return err
			}
			if st.Attention != "" || st.Paused {
				return &exitError{exitWaits}
			}
			return nil
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newMigrateWatch(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "watch CHUNK", Short: "Follow a move until it ends", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				return a.watch(ctx, s, chunk.ID(args[0]))
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// watch prints a line whenever something changed, at most once a second, and
// ends with the move.
func (a *app) watch(ctx context.Context, s *starter.Starter, id chunk.ID) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, blind := "", false
	for {
		st, err := s.Status(ctx, id)
		if err != nil {
			return err
		}
		shown := statusJSON{Status: st}
		err = a.beside(ctx, &shown)
		if err != nil && !blind {
			a.blind(err)
		}
		blind = err != nil
		if line := watchLine(st, shown.Progress); line != last {
			last = line
			if a.output == "json" {
				err = writeJSON(a.env.Stdout, shown)
			} else {
				_, err = fmt.Fprintln(a.env.Stdout, time.Now().Format(time.TimeOnly), line)
			}
			if err != nil {
				return err
			}
		}
		running, err := s.Running(ctx, id)
		if err != nil {
			return err
		}
		if !running {
			_, err := s.Result(ctx, id)
			return err
		}
		select {
		case <-ctx.Done():
			return &exitError{exitFailed} // a person has seen enough; nothing is to be said
		case <-tick.C:
		}
	}
}
