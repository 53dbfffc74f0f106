package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/internal/config"
	"drover/metadata"
	"drover/shard"
	"drover/starter"
	"drover/workers"
)

func newShardCommand(a *app) *cobra.Command {
	return group("shard", "Register replica sets and look at them", newShardAdd(a), newShardList(a), newShardCheck(a), newShardRemediate(a), newLayoutCommand(a), newShardDrain(a), newShardRemove(a), newShardUpgrade(a))
}

func newShardAdd(a *app) *cobra.Command {
	var uri string
	var others bool
	c := &cobra.Command{
		Use: "add NAME [--uri mongodb://ROOT:PASSWORD@HOST]", Short: "Register a replica set and start its capture", Args: cobra.ExactArgs(1),
		Long: "Register a replica set and start its capture. The credentials are used once, to make Drover's users, and never stored.\n" +
			"Running it again repairs what is missing. A shard of the dev stack needs no --uri.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if uri == "" {
				uri = a.stackShard(args[0])
			}
			if uri == "" {
				return &usageError{errors.New("--uri must be given: the dev stack has no shard " + args[0])}
			}
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				sh, err := shard.Bootstrap(ctx, uri, args[0], a.cfg.Secret, shard.BootstrapOptions{AllowOtherWriters: others})
				if err != nil {
					return err
				}
				if err := store.AddShard(ctx, sh); err != nil {
					return err
				}
				if err := a.startCapture(ctx, args[0]); err != nil {
					return err
				}
				return a.printShards([]chunk.Shard{sh})
			})
		},
	}
	c.Flags().StringVar(&uri, "uri", "", "connection string with an administrator's credentials; empty: of the dev stack's shard of that name")
	c.Flags().BoolVar(&others, "allow-other-writers", false, "register although other users may write to it")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// stackShard is the administrator's address of a shard of the dev stack, empty when
// there is none of that name.
func (a *app) stackShard(name string) string {
	s := a.runningStack()
	if s == nil {
		return ""
	}
	access, _ := s.Shard(name)
	return access.AdminURI
}

// startCapture makes sure that a shard's capture runs.
func (a *app) startCapture(ctx context.Context, name string) error {
	c, err := starter.Dial(ctx, a.cfg.TemporalAddress, a.cfg.TemporalNamespace, a.quiet())
	if err != nil {
		return err
	}
	defer c.Close()
	return starter.New(c).EnsureCapture(ctx, name)
}

func newShardList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the registered shards", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.Shards(ctx)
				if err != nil {
					return err
				}
				return a.printShards(all)
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func (a *app) printShards(all []chunk.Shard) error {
	return a.print(all, []string{"NAME", "VERSION", "SET", "MEMBERS", "URI"}, func() (rows [][]string) {
		for _, s := range all {
			rows = append(rows, []string{s.Name, s.Capabilities.Version, s.Capabilities.SetName, strconv.Itoa(s.Capabilities.Members), s.URI})
		}
		return rows
	})
}

func newShardCheck(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "check SHARD", Short: "Try what a shard's servers can do, and say what is wrong", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				sh, err := store.Shard(ctx, args[0])
				if err != nil {
					return err
				}
				clients := shard.NewClients(a.cfg.Secret, shard.Options{})
				defer func() { clients.Close(context.WithoutCancel(ctx)) }()
				set, err := clients.Set(sh)
				if err != nil {
					return err
				}
				r, err := set.Check(ctx)
				if err != nil {
					return err
				}
				if err := store.SetCapabilities(ctx, args[0], r.Capabilities); err != nil {
					return err
				}
				err = a.print(r, []string{"LEVEL", "CODE", "WHAT", "WHAT TO DO"}, func() [][]string { return checkRows(r) })
				if err == nil && !r.OK() {
					return &exitError{exitFailed}
				}
				return err
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func checkRows(r shard.Report) (rows [][]string) {
	for _, f := range r.Findings {
		rows = append(rows, []string{f.Level, f.Code, f.What, f.Hint})
	}
	return rows
}

func newDBCommand(a *app) *cobra.Command {
	return group("db", "Create logical databases and look at them", newDBCreate(a), newDBList(a), newDBPolicy(a), newDBClients(a), newDBAdopt(a))
}

// dbFlags are what db create is told.
type dbFlags struct {
	collections, shards, indexes, splits []string
	shardKey, keySpace                   string
	chunks                               int
}

func newDBCreate(a *app) *cobra.Command {
	var f dbFlags
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a logical database, its chunks and their placements", Args: cobra.ExactArgs(1),
		Example: "  drover db create flights --collections flights,bookings --shard-key origin --chunks 8 --shards shard-a,shard-b \\\n" +
			`    --index 'bookings:{"key":{"origin":1,"ref":1},"name":"origin_ref","unique":true}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				db, chunks, err := f.plan(args[0])
				if err != nil {
					return &usageError{err}
				}
				routes, err := workers.CreateDatabase(ctx, store, a.cfg.Secret, db, chunks)
				if err != nil {
					return err
				}
				return a.printRoutes(routes)
			})
		},
	}
	fs := c.Flags()
	fs.StringSliceVar(&f.collections, "collections", nil, "names of the collections, separated by commas (needed)")
	fs.StringVar(&f.shardKey, "shard-key", "_id", "field path whose value places a document; several with commas between them, as origin,date")
	fs.StringVar(&f.keySpace, "key-space", string(chunk.Hashed), "hashed, or range")
	fs.IntVar(&f.chunks, "chunks", 8, "number of chunks (hashed)")
	fs.StringArrayVar(&f.splits, "split", nil, "boundary between chunks as extended JSON, a value of the shard key or an array with values of its first fields, in order (range); may be repeated")
	fs.StringSliceVar(&f.shards, "shards", nil, "shards to spread the chunks over, in turn (needed)")
	fs.StringArrayVar(&f.indexes, "index", nil, "COLLECTION:SPEC with the index as extended JSON; may be repeated")
	_ = c.MarkFlagRequired("collections")
	_ = c.MarkFlagRequired("shards")
	a.cfg.Flags(fs, config.Common)
	return c
}

// plan turns flags into a database; every error names the flag.
func (f *dbFlags) plan(name string) (chunk.Database, []metadata.NewChunk, error) {
	db := chunk.Database{Name: name, KeySpace: chunk.KeySpace(f.keySpace)}
	specs, err := indexSpecs(f.indexes)
	if err != nil {
		return db, nil, err
	}
	for _, c := range f.collections {
		db.Collections = append(db.Collections, chunk.Collection{Name: c, ShardKey: f.shardKey, Indexes: specs[c]})
		delete(specs, c)
	}
	for c := range specs {
		return db, nil, fmt.Errorf("--index names collection %q, which is not among --collections %s", c, strings.Join(f.collections, ","))
	}
	var ranges []chunk.Range
	switch db.KeySpace {
	case chunk.Hashed:
		if f.chunks < 1 {
			return db, nil, fmt.Errorf("--chunks is %d; want 1 or more", f.chunks)
		}
		ranges = db.KeySpace.Split(f.chunks)
	case chunk.Ranged:
		if ranges, err = splitRanges(f.splits); err != nil {
			return db, nil, err
		}
	default:
		return db, nil, fmt.Errorf("--key-space is %q; want hashed or range", f.keySpace)
	}
	out := make([]metadata.NewChunk, 0, len(ranges))
	for i, r := range ranges {
		out = append(out, metadata.NewChunk{Range: r, Shard: f.shards[i%len(f.shards)]})
	}
	return db, out, nil
}

func newDBList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List the logical databases", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.Databases(ctx)
				if err != nil {
					return err
				}
				return a.print(all, []string{"NAME", "KEY SPACE", "COLLECTIONS"}, func() (rows [][]string) {
					for _, d := range all {
						var names []string
						for _, c := range d.Collections {
							names = append(names, c.Name+" by "+c.ShardKey)
						}
						rows = append(rows, []string{d.Name, string(d.KeySpace), strings.Join(names, ", ")})
					}
					return rows
				})
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newChunkCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "list [DATABASE]", Short: "List chunks and where they are served", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				db := ""
				if len(args) == 1 {
					db = args[0]
				}
				routes, err := store.Routes(ctx, db)
				if err != nil {
					return err
				}
				return a.printRoutes(routes)
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return group("chunk", "Look at chunks, split and merge them", c, newChunkSplit(a), newChunkMerge(a), newChunkPack(a), newChunkIsolate(a), newChunkClone(a), newChunkClones(a))
}

// routeJSON is one chunk in the JSON output; bounds are hexadecimal.
type routeJSON struct {
	Chunk     chunk.ID          `json:"chunk"`
	Lo        string            `json:"lo"`
	Hi        string            `json:"hi"`
	Shard     string            `json:"shard"`
	Database  string            `json:"database"`
	Placement chunk.PlacementID `json:"placement"`
	Token     chunk.Token       `json:"token"`
}

func (a *app) printRoutes(routes []chunk.Route) error {
	out := make([]routeJSON, 0, len(routes))
	for _, r := range routes {
		out = append(out, routeJSON{
			Chunk: r.Chunk.ID, Lo: fmt.Sprintf("%x", string(r.Chunk.Range.Lo)), Hi: fmt.Sprintf("%x", string(r.Chunk.Range.Hi)),
			Shard: r.Placement.Shard, Database: r.Placement.Database, Placement: r.Placement.ID, Token: r.Token,
		})
	}
	return a.print(out, []string{"CHUNK", "FROM", "TO", "SHARD", "DATABASE", "TOKEN"}, func() (rows [][]string) {
		for _, r := range out {
			rows = append(rows, []string{string(r.Chunk), short(r.Lo), short(r.Hi), r.Shard, r.Database, strconv.FormatInt(int64(r.Token), 10)})
		}
		return rows
	})
}

// short keeps a bound within a terminal.
func short(hex string) string {
	if len(hex) > 12 {
		return hex[:12] + "…"
	}
	return hex
}
