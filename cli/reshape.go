package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/contract"
	"drover/fleet"
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

// moveFlags are the flags of whatever starts single moves.
type moveFlags struct {
	in     contract.MigrateInput
	burnIn time.Duration
}

// add makes the flags.
func (m *moveFlags) add(f *pflag.FlagSet) {
	f.StringVar(&m.in.Approval, "approval", contract.Automatic, "automatic, or manual: wait for drover migrate approve before the switch")
	f.StringVar(&m.in.Complete, "complete", contract.Automatic, "automatic: drop the old placements after burn-in; manual: wait for drover migrate complete")
	f.DurationVar(&m.burnIn, "burn-in", time.Hour, "how long the old placements are kept current for a rollback")
	onDDLFlag(f, &m.in.OnDDL, contract.StopOnDDL)
	f.StringVar(&m.in.Reason, "reason", "", "shown to people")
}

// addReshape makes the flags of a split or merge.
func (p *planFlags) addReshape(f *pflag.FlagSet) {
	p.add(f)
	p.addYes(f)
	onDDLFlag(f, &p.in.OnDDL, contract.StopOnDDL)
	p.burnIn = time.Hour
	f.Lookup("burn-in").DefValue = p.burnIn.String()
	f.Lookup("burn-in").Usage = "how long the old placements are kept current for a rollback"
}

func newChunkSplit(a *app) *cobra.Command {
	var p planFlags
	cut := contract.Reshape{}
	var at []string
	var allowed bool
	c := &cobra.Command{
		Use: "split CHUNK (--into N | --at KEY...) --to SHARD,...", Short: "Replace a chunk by several that hold its keys; without --yes the plan is only shown",
		Args: cobra.ExactArgs(1),
		Long: "Replace a chunk by several that hold its keys, in one switch. Without --at the boundaries are chosen by size, from a sample.\n" +
			"One shard takes all new chunks; or name one for each, in the order of the key space. The chunk's own shard may be among them.\n" +
			"The plan shows how many chunks its requests concern, as proxies saw them within the last minute, and how many they would afterwards.\n" +
			"A split by which the median rises is refused. Without --yes it is only shown, with exit status 3.",
		Example: "  drover chunk split flights/0003 --into 2 --to shard-a,shard-c --yes\n  drover chunk split users/0001 --at '\"m\"' --to shard-b",
		RunE: func(cmd *cobra.Command, args []string) error {
			id := chunk.ID(args[0])
			if (len(at) > 0) == (cut.Parts > 0) {
				return &usageError{errors.New("want one of --into and --at")}
			}
			if len(at) > 0 {
				points, err := a.points(cmd, id, at)
				if err != nil {
					return err
				}
				cut.At = points
			}
			to := ""
			if len(cut.Shards) == 1 {
				to, cut.Shards = cut.Shards[0], nil
			}
			return a.carryOut(cmd, &p, contract.SplitIntent, args[0], func(ctx context.Context, store *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				r, err := store.Route(ctx, id)
				if err != nil {
					return contract.FleetPlan{}, err
				}
				now, err := store.FanOut(ctx, r.Placement.ID)
				if err != nil {
					return contract.FleetPlan{}, err
				}
				return v.Split(id, cut, to, now, allowed)
			})
		},
	}
	f := c.Flags()
	f.IntVar(&cut.Parts, "into", 0, "number of new chunks; the boundaries are chosen by size, or as --by says")
	f.StringVar(&cut.By, "by", "", "with --into: cut by size (the default), or by heat: by what was written within the last hour")
	f.BoolVar(&cut.Even, "even", false, "with --into, in a hashed key space: of equal width, without a sample")
	f.StringArrayVar(&at, "at", nil, "boundary as extended JSON, a value of the shard key that begins the next chunk, in order; may be repeated")
	f.StringSliceVar(&cut.Shards, "to", nil, "shards of the new chunks: one for all, or one for each in order (needed)")
	f.BoolVar(&allowed, "allow-fan-out", false, "split even if the median of its requests would concern more chunks than now")
	p.addReshape(f)
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(f, config.Common)
	return c
}

// points turns values of a shard key into points of a chunk's key space.
func (a *app) points(cmd *cobra.Command, id chunk.ID, values []string) (out []string, err error) {
	err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		r, err := store.Route(ctx, id)
		if err != nil {
			return err
		}
		db, err := store.Database(ctx, r.Chunk.Database)
		if err != nil {
			return err
		}
		for _, s := range values {
			var d struct {
				V bson.RawValue `bson:"v"`
			}
			if err := bson.UnmarshalExtJSON([]byte(`{"v":`+s+`}`), false, &d); err != nil {
				return &usageError{fmt.Errorf(`--at %q: want one value as extended JSON, as "m" or {"$oid":"..."}: %w`, s, err)}
			}
			k, err := db.KeySpace.Border(d.V)
			if err != nil {
				return &usageError{fmt.Errorf("--at %q: %w", s, err)}
			}
			if !r.Chunk.Range.Contains(k) || k == r.Chunk.Range.Lo {
				return &usageError{fmt.Errorf("--at %q does not lie inside chunk %s, from %x to %x", s, id, string(r.Chunk.Range.Lo), string(r.Chunk.Range.Hi))}
			}
			out = append(out, hex.EncodeToString([]byte(k)))
		}
		return nil
	})
	return out, err
}

func newChunkMerge(a *app) *cobra.Command {
	var p planFlags
	var to string
	c := &cobra.Command{
		Use: "merge CHUNK CHUNK... --to SHARD", Short: "Replace chunks that lie side by side by one that holds their keys; without --yes the plan is only shown",
		Args: cobra.MinimumNArgs(2), Example: "  drover chunk merge flights/0003 flights/0004 --to shard-c --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			ids := make([]chunk.ID, 0, len(args))
			for _, id := range args {
				ids = append(ids, chunk.ID(id))
			}
			return a.carryOut(cmd, &p, contract.MergeIntent, args[0], func(_ context.Context, _ *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
				return v.Merge(ids, to)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&to, "to", "", "shard of the new chunk (needed)")
	p.addReshape(f)
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(f, config.Common)
	return c
}

func newChunkPack(a *app) *cobra.Command {
	var m moveFlags
	c := &cobra.Command{
		Use: "pack CHUNK... --to SHARD", Short: "Start to move many chunks to one shard, each on its own", Args: cobra.MinimumNArgs(1),
		Example: "  drover chunk pack flights/0003 flights/0005 users/0001 --to shard-c",
		RunE: func(cmd *cobra.Command, args []string) error {
			inputs := make([]contract.MigrateInput, 0, len(args))
			for _, id := range args {
				in := m.in
				in.Chunk, in.BurnIn = chunk.ID(id), contract.Duration(m.burnIn)
				inputs = append(inputs, in)
			}
			return a.startAll(cmd, inputs)
		},
	}
	f := c.Flags()
	f.StringVar(&m.in.To, "to", "", "target shard (needed)")
	m.add(f)
	_ = c.MarkFlagRequired("to")
	a.cfg.Flags(f, config.Common)
	return c
}

func newMigrateBatch(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "batch FILE", Short: "Start the moves, splits and merges that a file lists", Args: cobra.ExactArgs(1),
		Long: `Start what a JSON file lists ("-" reads the standard input): one object, or an array of objects with the fields of a move, as` + "\n" +
			`  [{"chunk":"flights/0003","to":"shard-c"}, {"chunk":"flights/0004","to":"shard-b","reshape":{"parts":2,"shards":["shard-a","shard-b"]}}]` + "\n" +
			"Each is a move of its own. One that is refused does not keep the others; the exit status tells that one was.",
		RunE: func(cmd *cobra.Command, args []string) error {
			inputs, err := a.readInputs(args[0])
			if err != nil {
				return &usageError{err}
			}
			return a.startAll(cmd, inputs)
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// readInputs reads one move or several from a file.
func (a *app) readInputs(name string) ([]contract.MigrateInput, error) {
	var content []byte
	var err error
	if name == "-" {
		content, err = io.ReadAll(a.env.Stdin)
	} else {
		content, err = os.ReadFile(name) //nolint:gosec // the operator names it
	}
	if err != nil {
		return nil, err
	}
	var many []json.RawMessage
	if json.Unmarshal(content, &many) != nil {
		many = []json.RawMessage{content}
	}
	inputs := make([]contract.MigrateInput, 0, len(many))
	for i, one := range many {
		var in contract.MigrateInput
		d := json.NewDecoder(bytes.NewReader(one))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil {
			return nil, fmt.Errorf("move %d of %s: %w", i+1, name, err)
		}
		inputs = append(inputs, in)
	}
	return inputs, nil
}

// started is one line of what was started.
type started struct {
	Chunk    chunk.ID `json:"chunk"`
	Workflow string   `json:"workflow,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// startAll starts moves, each on its own, and tells which were refused.
func (a *app) startAll(cmd *cobra.Command, inputs []contract.MigrateInput) error {
	return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		var out []started
		refused := 0
		for _, in := range inputs {
			if in.RequestedBy == "" {
				in.RequestedBy = a.user()
			}
			line := started{Chunk: in.Chunk}
			run, err := s.Migrate(ctx, in)
			if err != nil {
				line.Error = err.Error()
				refused++
			}
			line.Workflow = run.WorkflowID
			out = append(out, line)
		}
		err := a.print(out, []string{"CHUNK", "WORKFLOW", "REFUSED"}, func() (rows [][]string) {
			for _, l := range out {
				rows = append(rows, []string{string(l.Chunk), l.Workflow, l.Error})
			}
			return rows
		})
		if err == nil && refused > 0 {
			err = fmt.Errorf("%d of %d were refused", refused, len(out))
		}
		return err
	})
}
