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
	"drover/internal/config"
	"drover/metadata"
	"drover/starter"
)

// moveFlags are the flags of whatever starts a move.
type moveFlags struct {
	in     contract.MigrateInput
	burnIn time.Duration
	watch  bool
}

// add makes the flags.
func (m *moveFlags) add(f *pflag.FlagSet) {
	f.StringVar(&m.in.Approval, "approval", contract.Automatic, "automatic, or manual: wait for drover migrate approve before the switch")
	f.StringVar(&m.in.Complete, "complete", contract.Automatic, "automatic: drop the old placements after burn-in; manual: wait for drover migrate complete")
	f.DurationVar(&m.burnIn, "burn-in", time.Hour, "how long the old placements are kept current for a rollback")
	onDDLFlag(f, &m.in.OnDDL, contract.StopOnDDL)
	f.StringVar(&m.in.Reason, "reason", "", "shown to people")
	f.BoolVar(&m.watch, "watch", false, "follow it until it ends")
}

// start starts what the flags and in say.
func (m *moveFlags) start(cmd *cobra.Command, a *app) error {
	m.in.BurnIn, m.in.RequestedBy = contract.Duration(m.burnIn), a.user()
	return a.withStarter(cmd, func(ctx context.Context, s *starter.Starter) error {
		run, err := s.Migrate(ctx, m.in)
		if err != nil {
			return err
		}
		if m.watch {
			return a.watch(ctx, s, m.in.Chunk)
		}
		return a.print(run, nil, func() [][]string {
			return [][]string{{"workflow", run.WorkflowID}, {"run", run.RunID}, {"next", "drover migrate watch " + string(m.in.Chunk)}}
		})
	})
}

func newChunkSplit(a *app) *cobra.Command {
	var m moveFlags
	r := contract.Reshape{}
	var at []string
	c := &cobra.Command{
		Use: "split CHUNK (--into N | --at KEY...) --to SHARD,...", Short: "Replace a chunk by several that hold its keys", Args: cobra.ExactArgs(1),
		Long: "Replace a chunk by several that hold its keys, in one switch. Without --at the boundaries are chosen by size, from a sample.\n" +
			"One shard takes all new chunks; or name one for each, in the order of the key space. The chunk's own shard may be among them.",
		Example: "  drover chunk split flights/0003 --into 2 --to shard-a,shard-c\n  drover chunk split users/0001 --at '\"m\"' --to shard-b",
		RunE: func(cmd *cobra.Command, args []string) error {
			m.in.Chunk = chunk.ID(args[0])
			if (len(at) > 0) == (r.Parts > 0) {
				return &usageError{errors.New("want one of --into and --at")}
			}
			if len(at) > 0 {
				points, err := a.points(cmd, m.in.Chunk, at)
				if err != nil {
					return err
				}
				r.At = points
			}
			if len(r.Shards) == 1 {
				m.in.To, r.Shards = r.Shards[0], nil
			}
			m.in.Reshape = &r
			return m.start(cmd, a)
		},
	}
	f := c.Flags()
	f.IntVar(&r.Parts, "into", 0, "number of new chunks; the boundaries are chosen by size")
	f.BoolVar(&r.Even, "even", false, "with --into, in a hashed key space: of equal width, without a sample")
	f.StringArrayVar(&at, "at", nil, "boundary as extended JSON, a value of the shard key that begins the next chunk, in order; may be repeated")
	f.StringSliceVar(&r.Shards, "to", nil, "shards of the new chunks: one for all, or one for each in order (needed)")
	m.add(f)
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
	var m moveFlags
	c := &cobra.Command{
		Use: "merge CHUNK CHUNK... --to SHARD", Short: "Replace chunks that lie side by side by one that holds their keys", Args: cobra.MinimumNArgs(2),
		Example: "  drover chunk merge flights/0003 flights/0004 --to shard-c",
		RunE: func(cmd *cobra.Command, args []string) error {
			m.in.Chunk, m.in.Reshape = chunk.ID(args[0]), &contract.Reshape{}
			for _, id := range args[1:] {
				m.in.Reshape.With = append(m.in.Reshape.With, chunk.ID(id))
			}
			return m.start(cmd, a)
		},
	}
	f := c.Flags()
	f.StringVar(&m.in.To, "to", "", "shard of the new chunk (needed)")
	m.add(f)
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
	_ = f.MarkHidden("watch")
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
