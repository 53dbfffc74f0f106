package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/activities"
	"drover/chunk"
	"drover/contract"
	"drover/fleet"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
	"drover/starter"
	"drover/workers"
)

// planFlags are the flags of whatever plans several moves.
type planFlags struct {
	settings contract.BalanceSettings
	in       contract.RebalanceInput
	burnIn   time.Duration
	moveRate float64
	fill     float64
	yes      bool
}

// add makes the flags.
func (p *planFlags) add(f *pflag.FlagSet) {
	p.addCapacities(f)
	f.Float64Var(&p.moveRate, "move-rate", 0, "bytes per second of one move, for the expected time; 0: as imports to the shards were measured")
	f.IntVar(&p.in.AtOnce, "at-once", 4, "moves that copy at once")
	f.DurationVar(&p.burnIn, "burn-in", 0, "how long old placements are kept current for a rollback; 0: the default of the kind of move")
	f.StringVar(&p.in.Approval, "approval", contract.Automatic, "automatic, or manual: each switch waits for drover migrate approve")
	f.StringVar(&p.in.Complete, "complete", contract.Automatic, "automatic, or manual: each old placement is kept until drover migrate complete")
	f.StringVar(&p.in.Reason, "reason", "", "shown to people")
}

// addCapacities makes the flags that say what a shard can take.
func (p *planFlags) addCapacities(f *pflag.FlagSet) {
	f.Float64Var(&p.settings.ShardBytes, "shard-bytes", 0, "bytes that a shard may hold; 0: what is rebuilt within two hours")
	f.Float64Var(&p.settings.ShardOps, "shard-ops", 0, "requests per second that a shard may serve; 0: 20000")
	f.Float64Var(&p.settings.ShardApply, "shard-apply", 0, "changes per second that a shard can apply beside its own work; 0: is not asked")
	f.Float64Var(&p.settings.CPULimit, "cpu-limit", 0, "a shard of which more of its CPU is busy, 0 to 1, is relieved, and filled up to four fifths of that; 0: 0.8")
	f.DurationVar((*time.Duration)(&p.settings.WriteLimit), "latency-limit", 0, "the same for the mean of a write; 0: 100ms")
	f.DurationVar((*time.Duration)(&p.settings.HalfLife), "half-life", 0, "what was measured so long ago counts half; 0: 15m")
	f.DurationVar((*time.Duration)(&p.settings.Ahead), "ahead", 0, "operations are foreseen for so long, from those of yesterday; 0: 1h, negative: not at all")
}

// check refuses what no plan can be made with.
func (p *planFlags) check() error {
	for _, x := range []struct {
		name  string
		v     float64
		shown any
		want  string
	}{
		{"move-rate", p.moveRate, p.moveRate, "bytes per second, or 0 for what was measured"},
		{"at-once", float64(p.in.AtOnce), p.in.AtOnce, "a number of moves, or 0 for the default"},
		{"burn-in", float64(p.burnIn), p.burnIn, "a time, or 0 for the default of the kind of move"},
	} {
		if !(x.v >= 0) || math.IsInf(x.v, 0) {
			return &usageError{fmt.Errorf("%s is %v; want %s", x.name, x.shown, x.want)}
		}
	}
	if err := fleet.CheckSettings(p.settings); err != nil {
		return &usageError{err}
	}
	return nil
}

// addYes makes the flag that starts what is planned.
func (p *planFlags) addYes(f *pflag.FlagSet) {
	f.BoolVar(&p.yes, "yes", false, "start the plan; without it the plan is only shown")
}

// view reads the fleet with what the flags say, over a fleet file: nil is the one
// that was applied last.
func (a *app) view(ctx context.Context, cmd *cobra.Command, store *metadata.Store, s contract.BalanceSettings, file *fleet.File) (fleet.View, error) {
	clients := shard.NewClients(a.cfg.Secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	r := fleet.Reader{Metadata: store, Sizes: workers.Sizes(clients), Counting: workers.Counting(clients), Settings: s, Sources: map[string]string{}}
	for flag, name := range map[string]string{"shard-bytes": "shardBytes", "shard-ops": "shardOps", "shard-apply": "shardApply"} {
		if cmd.Flags().Changed(flag) {
			r.Sources[name] = "flag --" + flag
		}
	}
	r.File = file
	if file == nil {
		var err error
		if r.File, _, err = activities.Desired(ctx, store); err != nil {
			return fleet.View{}, err
		}
	}
	return r.Read(ctx)
}

// planned is what a plan says to people.
type planned struct {
	contract.FleetPlan
	Kind     string            `json:"kind"`
	Subject  string            `json:"subject,omitempty"`
	Bytes    int64             `json:"bytes"`
	Expected contract.Duration `json:"expected"`
	Started  *starter.Run      `json:"started,omitempty"`
	State    string            `json:"state,omitempty"`
}

// planFunc makes a plan of a view.
type planFunc func(context.Context, *metadata.Store, fleet.View) (contract.FleetPlan, error)

// carryOut is carryOutOver the fleet file that was applied last.
func (a *app) carryOut(cmd *cobra.Command, p *planFlags, kind, subject string, plan planFunc) error {
	return a.carryOutOver(cmd, p, kind, subject, nil, plan)
}

// carryOutOver shows a plan, and starts it where --yes was given. Exit status 3: it
// has moves and was not started.
func (a *app) carryOutOver(cmd *cobra.Command, p *planFlags, kind, subject string, file *fleet.File, make planFunc) error {
	if err := p.check(); err != nil {
		return err
	}
	settings := p.settings
	settings.CoolDown = -1 // what a person asks for is not held up by it
	var out planned
	err := a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		v, err := a.view(ctx, cmd, store, settings, file)
		if err != nil {
			return err
		}
		plan, err := make(ctx, store, v)
		out = p.expect(v, plan)
		return err
	})
	if err != nil {
		return err
	}
	out.Kind, out.Subject = kind, subject
	plan := out.FleetPlan
	if p.yes && len(plan.Moves) > 0 {
		if err := a.startPlan(cmd, p, &out); err != nil {
			return err
		}
	}
	if err := a.printPlan(out); err != nil {
		return err
	}
	if !p.yes && len(plan.Moves) > 0 && cmd.Flags().Lookup("yes") != nil {
		return &exitError{exitWaits}
	}
	return nil
}

// expect adds to a plan how much it copies and how long that takes.
func (p *planFlags) expect(v fleet.View, plan contract.FleetPlan) planned {
	expected, rate := v.Expect(plan.Moves, p.moveRate, p.in.AtOnce)
	plan.Figures = append(plan.Figures, rate)
	out := planned{FleetPlan: plan, Expected: contract.Duration(expected)}
	for _, m := range plan.Moves {
		out.Bytes += m.Bytes
	}
	return out
}

// startPlan starts a plan and waits until it is admitted.
func (a *app) startPlan(cmd *cobra.Command, p *planFlags, out *planned) error {
	in := p.in
	in.Kind, in.Subject, in.Moves, in.Emptied, in.FiguresAt = out.Kind, out.Subject, out.Moves, out.Emptied, out.FiguresAt
	in.BurnIn, in.RequestedBy = contract.Duration(p.burnIn), a.user()
	return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		run, err := s.Rebalance(ctx, in)
		if err != nil {
			return err
		}
		out.Started = &run
		out.State, err = opened(ctx, s, run)
		return err
	})
}

// opened waits until an intent or a season is admitted, and says whether it was.
func opened(ctx context.Context, s *starter.Starter, run starter.Run) (state string, err error) {
	wait, cancel := context.WithTimeout(ctx, registerPatience)
	defer cancel()
	ok, err := s.Opened(wait, run)
	if err == nil && !ok {
		return fmt.Sprintf("no worker has taken it within %s; it waits for one: drover worker", registerPatience), nil
	}
	return "started", err
}

// printPlan shows a plan: moves with reasons, what is refused, and what it relies on.
func (a *app) printPlan(p planned) error {
	if a.output == "json" {
		return writeJSON(a.env.Stdout, p)
	}
	if err := a.printMoves(p.FleetPlan); err != nil {
		return err
	}
	a.say("%d moves, %s, about %s of copying; read at %s", len(p.Moves), bytesText(p.Bytes), time.Duration(p.Expected), p.FiguresAt.UTC().Format(time.RFC3339))
	if err := a.printFigures(p.Figures); err != nil {
		return err
	}
	switch {
	case p.Started != nil:
		a.say("%s as %s; drover rebalance status %s", p.State, p.Started.WorkflowID, p.Started.WorkflowID)
	case len(p.Moves) > 0:
		a.say("nothing was started; --yes starts it")
	}
	return nil
}

// say writes one line for people.
func (a *app) say(format string, args ...any) { _, _ = fmt.Fprintf(a.env.Stdout, format+"\n", args...) }

// printFigures shows what a plan relies on.
func (a *app) printFigures(all []contract.Figure) error {
	rows := make([][]string, 0, len(all))
	for _, f := range all {
		rows = append(rows, []string{f.Name, f.Value, f.Source})
	}
	return writeTable(a.env.Stdout, []string{"FIGURE", "VALUE", "FROM"}, rows)
}

// printMoves shows the moves of a plan with their reasons, and what it refuses.
func (a *app) printMoves(p contract.FleetPlan) error {
	rows := make([][]string, 0, len(p.Moves))
	for _, m := range p.Moves {
		what := "move"
		if m.Reshape != nil && len(m.Reshape.With) > 0 {
			what = "merge"
		} else if m.Reshape != nil {
			what = "cut and move"
		}
		to := m.To
		if m.Reshape != nil && len(m.Reshape.Shards) > 0 {
			to = strings.Join(m.Reshape.Shards, ", ")
		}
		rows = append(rows, []string{string(m.Chunk), what, m.From, to, bytesText(m.Bytes), m.Reason})
	}
	if len(rows) == 0 {
		a.say("nothing has to move")
	} else if err := writeTable(a.env.Stdout, []string{"CHUNK", "WHAT", "FROM", "TO", "BYTES", "WHY"}, rows); err != nil {
		return err
	}
	for _, x := range p.Splits {
		a.say("split %s into %d: %s (drover chunk split %s --into %d --to SHARD)", x.Chunk, x.Parts, x.Reason, x.Chunk, x.Parts)
	}
	for _, x := range p.Refusals {
		a.say("not done: %s: %s", x.Subject, x.Reason)
		if x.Offer != "" {
			a.say("          instead: %s", x.Offer)
		}
	}
	if err := a.printStrains(p.Shards); err != nil {
		return err
	}
	if p.Before > 0 {
		a.say("worst shard %.1f %% before, %.1f %% after; the fleet %.1f %%", 100*p.Before, 100*p.After, 100*p.Mean)
	}
	return nil
}

// printStrains shows how the shards bear their load, those nearest to a limit first.
func (a *app) printStrains(all []contract.ShardStrain) error {
	if len(all) == 0 {
		return nil
	}
	mean := func(d *contract.Duration) string {
		if d == nil {
			return "unknown"
		}
		return time.Duration(*d).Round(10 * time.Microsecond).String()
	}
	rows := make([][]string, 0, len(all))
	for _, s := range all {
		cpu := "unknown"
		if s.CPU != nil {
			cpu = fmt.Sprintf("%.0f %%", 100**s.CPU)
		}
		rows = append(rows, []string{s.Shard, cpu, mean(s.Write), mean(s.Read), s.Unknown})
	}
	return writeTable(a.env.Stdout, []string{"SHARD", "CPU", "A WRITE", "A READ", "UNKNOWN BECAUSE"}, rows)
}

func newRebalanceCommand(a *app) *cobra.Command {
	return group("rebalance", "Plan and run moves that level the fleet, and follow what was started",
		newRebalancePlan(a, false), newRebalancePlan(a, true), newRebalanceStatus(a), newRebalanceStop(a),
		newRebalanceAsk(a, contract.RollbackUpdate), newRebalanceAsk(a, contract.CompleteUpdate))
}

// newRebalancePlan makes rebalance plan and rebalance start.
func newRebalancePlan(a *app, start bool) *cobra.Command {
	var p planFlags
	use, short := "plan", "Show which moves would relieve the worst shards, and why"
	if start {
		use, short = "start", "Start the moves that relieve the worst shards; without --yes they are only shown"
	}
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		Long: short + ".\nThe fleet is read anew; figures older than five minutes are not acted on. A move that would fight an open intent is refused by name.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.carryOut(cmd, &p, contract.RebalanceIntent, "", func(_ context.Context, _ *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				return v.Balance(p.settings, v.Fleet.At)
			})
		},
	}
	p.add(c.Flags())
	p.addPolicy(c.Flags())
	if start {
		p.addYes(c.Flags())
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// addPolicy makes the flags that say when a shard is relieved.
func (p *planFlags) addPolicy(f *pflag.FlagSet) {
	f.Float64Var(&p.settings.Start, "start-at", 0, "a shard is relieved when its use lies so much above the mean; 0: 0.20")
	f.Float64Var(&p.settings.Stop, "stop-at", 0, "and down to so much above it; 0: 0.05")
	f.Float64Var(&p.settings.Full, "full", 0, "or when its use is above this, 0 to 1; 0: 0.85")
	f.Float64Var(&p.settings.MinGain, "min-gain", 0, "a move that takes less of a shard's use off is not made; 0: 0.002")
	f.IntVar(&p.settings.MaxMoves, "max-moves", 0, "of one plan; 0: no limit")
}

func newShardDrain(a *app) *cobra.Command {
	var p planFlags
	c := &cobra.Command{
		Use: "drain SHARD", Short: "Move everything off a shard; without --yes the plan is only shown", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.carryOut(cmd, &p, contract.DrainIntent, args[0], func(_ context.Context, _ *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				return v.Drain(args[0], p.fill)
			})
		},
	}
	p.add(c.Flags())
	p.addYes(c.Flags())
	c.Flags().Float64Var(&p.fill, "fill", 0.85, "up to which use other shards are filled, 0 to 1")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newBinPack(a *app) *cobra.Command {
	var p planFlags
	c := &cobra.Command{
		Use: "binpack", Short: "Empty as many shards as possible; without --yes the plan is only shown", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.carryOut(cmd, &p, contract.BinPackIntent, "", func(_ context.Context, _ *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				return v.Pack(p.fill)
			})
		},
	}
	p.add(c.Flags())
	p.addYes(c.Flags())
	c.Flags().Float64Var(&p.fill, "fill", 0.7, "up to which use shards are filled, 0 to 1")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newChunkIsolate(a *app) *cobra.Command {
	var p planFlags
	var to, key, database string
	var back bool
	c := &cobra.Command{
		Use: "isolate CHUNK | --db DATABASE --key VALUE, --to SHARD | --back", Short: "Give a chunk, or one key, a shard of its own; without --yes the plan is only shown",
		Args: cobra.MaximumNArgs(1),
		Long: "Give a chunk, or one key, a shard of its own. A key is cut out of its chunk first. Chunks that live on the shard already are named and stay.\n" +
			"The way back is drover migrate rollback during burn-in. Afterwards --back merges the key with the chunks beside it, on their shard.",
		Example: "  drover chunk isolate shop/0003 --to shard-c --yes\n  drover chunk isolate --db shop --key '\"c-17\"' --to shard-c\n  drover chunk isolate --db shop --key '\"c-17\"' --back",
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (key != "") || (key != "") != (database != "") {
				return &usageError{errors.New("want a chunk, or --db and --key")}
			}
			if back == (to != "") {
				return &usageError{errors.New("want one of --to and --back")}
			}
			subject := database + "/" + key
			if len(args) == 1 {
				subject = args[0]
			}
			return a.carryOut(cmd, &p, contract.IsolateIntent, subject, func(ctx context.Context, store *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				r, point, err := whichChunk(ctx, store, args, database, key)
				if err != nil {
					return contract.FleetPlan{}, err
				}
				if back {
					return v.Rejoin(r)
				}
				return v.Isolate(r, point, to)
			})
		},
	}
	p.add(c.Flags())
	p.addYes(c.Flags())
	c.Flags().StringVar(&to, "to", "", "the shard")
	c.Flags().BoolVar(&back, "back", false, "take it back: merge it with the chunks beside it, on their shard")
	c.Flags().StringVar(&database, "db", "", "logical database of --key")
	c.Flags().StringVar(&key, "key", "", "value of the shard key as extended JSON")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// whichChunk finds the chunk that is named, or the one that holds a key with its point.
func whichChunk(ctx context.Context, store *metadata.Store, args []string, database, key string) (chunk.Route, *chunk.Key, error) {
	if len(args) == 1 {
		r, err := store.Route(ctx, chunk.ID(args[0]))
		return r, nil, err
	}
	db, err := store.Database(ctx, database)
	if err != nil {
		return chunk.Route{}, nil, err
	}
	k, err := keyPoint(db.KeySpace, key)
	if err != nil {
		return chunk.Route{}, nil, err
	}
	routes, err := store.Routes(ctx, database)
	if err != nil {
		return chunk.Route{}, nil, err
	}
	for _, r := range routes {
		if r.Chunk.Range.Contains(k) {
			return r, &k, nil
		}
	}
	return chunk.Route{}, nil, fmt.Errorf("no chunk of %s holds %s", database, key)
}

// keyPoint gives the point of a value that is written as extended JSON.
func keyPoint(space chunk.KeySpace, text string) (chunk.Key, error) {
	var d struct {
		V bson.RawValue `bson:"v"`
	}
	if err := bson.UnmarshalExtJSON([]byte(`{"v":`+text+`}`), false, &d); err != nil {
		return "", &usageError{fmt.Errorf(`%q: want one value as extended JSON, as "m" or {"$oid":"..."}: %w`, text, err)}
	}
	k, err := space.Border(d.V)
	if err != nil {
		return "", &usageError{fmt.Errorf("%q: %w", text, err)}
	}
	return k, nil
}

func newRebalanceStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status [ID]", Short: "List the intents, or show how far each move of one is", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
					st, err := s.RebalanceStatus(ctx, args[0])
					if err != nil {
						return err
					}
					return a.printIntent(st)
				})
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.Intents(ctx, 50)
				if err != nil {
					return err
				}
				return a.print(all, []string{"ID", "MOVES", "BY", "OPENED", "ENDED", "REASON"}, func() (rows [][]string) {
					for _, i := range all {
						ended := "runs"
						if i.EndedAt != nil {
							ended = i.EndedAt.UTC().Format(time.RFC3339)
						}
						rows = append(rows, []string{i.WorkflowID, strconv.Itoa(len(i.Chunks)), i.RequestedBy, i.OpenedAt.UTC().Format(time.RFC3339), ended, i.Reason})
					}
					return rows
				})
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// printIntent shows how far an intent is.
func (a *app) printIntent(st contract.RebalanceState) error {
	return a.print(st, []string{"CHUNK", "FROM", "TO", "STATE", "WHY"}, func() (rows [][]string) {
		for _, m := range st.Moves {
			why := m.Why
			if why == "" {
				why = m.Reason
			}
			rows = append(rows, []string{string(m.Chunk), m.From, m.To, m.State, why})
		}
		return append(rows, []string{"waiting for", st.WaitingFor}, []string{"stopped", st.Stopped})
	})
}

func newRebalanceStop(a *app) *cobra.Command {
	in := contract.UpdateInput{}
	c := &cobra.Command{
		Use: "stop ID", Short: "Start no further move of an intent; those that run go on", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.By = a.user()
			return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
				st, err := s.StopRebalance(ctx, args[0], in)
				if failure.HasCode(err, "rebalance.not_running") {
					return a.closeLost(cmd, args[0], in, err)
				}
				if err != nil {
					return err
				}
				return a.printIntent(st)
			})
		},
	}
	c.Flags().StringVar(&in.Reason, "reason", "", "kept in the workflow's history")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// closeLost ends an intent whose workflow was terminated before it could.
func (a *app) closeLost(cmd *cobra.Command, id string, in contract.UpdateInput, notRunning error) error {
	return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		all, err := store.Intents(ctx, 1000)
		if err != nil {
			return err
		}
		for _, i := range all {
			if i.WorkflowID != id || i.EndedAt != nil {
				continue
			}
			outcome, err := json.Marshal(contract.RebalanceResult{Stopped: "by " + in.By + ": its workflow was gone"})
			if err != nil {
				return err
			}
			if err := store.CloseIntent(ctx, i.Run, outcome); err != nil {
				return err
			}
			return a.told("%s is closed: its workflow was gone; moves that it started go on", id)
		}
		return notRunning
	})
}
