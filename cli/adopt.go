package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"drover/chunk"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
	"drover/workers"
)

// adoptFlags are what db adopt is told.
type adoptFlags struct {
	from, keySpace   string
	shardKeys        []string
	check, undo, yes bool
	force            bool
}

func newDBAdopt(a *app) *cobra.Command {
	var f adoptFlags
	c := &cobra.Command{
		Use: "adopt NAME (--from SHARD/DATABASE | --check | --undo)", Short: "Make an existing database, in place, the one placement of a new logical database", Args: cobra.ExactArgs(1),
		Long: "Make an existing database, in place and under its own name, the one placement of a new logical database: no document is copied, and\n" +
			"applications may go on writing to it directly while they are moved to the proxies one by one. Without --yes it is only looked at: what\n" +
			"forbids it, who may write to it, and the steps in their order (exit status 3). --check says afterwards who is still beside the proxies;\n" +
			"--undo takes the adoption back, as long as nothing was moved. docs/adoption.md has it step by step.",
		Example: "  drover db adopt shop --from shard-a/shop --shard-key customer --shard-key audit=_id\n" +
			"  drover db adopt shop --from shard-a/shop --shard-key customer --yes\n  drover db adopt shop --check\n  drover db adopt shop --undo --yes",
		RunE: func(cmd *cobra.Command, args []string) error { return a.adopt(cmd, args[0], &f) },
	}
	fs := c.Flags()
	fs.StringVar(&f.from, "from", "", "SHARD/DATABASE that is adopted")
	fs.StringArrayVar(&f.shardKeys, "shard-key", nil, "field path of the shard key, or COLLECTION=PATH for one collection; may be repeated; without it _id")
	fs.StringVar(&f.keySpace, "key-space", string(chunk.Hashed), "hashed, or range")
	fs.BoolVar(&f.check, "check", false, "say who is still beside the proxies, and whether the collections are as they were")
	fs.BoolVar(&f.undo, "undo", false, "take the adoption back; the database stays as it is")
	fs.BoolVar(&f.force, "force", false, "with --undo: although the proxies served requests within the last minute")
	fs.BoolVar(&f.yes, "yes", false, "do it; without it is only shown")
	a.cfg.Flags(fs, config.Common)
	return c
}

// adopt is what the three forms of the command do.
func (a *app) adopt(cmd *cobra.Command, name string, f *adoptFlags) error {
	forms := 0
	for _, set := range []bool{f.from != "", f.check, f.undo} {
		if set {
			forms++
		}
	}
	if forms != 1 {
		return &usageError{errors.New("want one of --from, --check and --undo")}
	}
	in, err := f.adoption(name)
	if err != nil {
		return &usageError{err}
	}
	return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		switch {
		case f.undo:
			return a.unadopt(ctx, store, name, f)
		case f.check:
			return a.checkAdopted(ctx, store, name)
		default:
			return a.adoptNow(ctx, store, in, f.yes)
		}
	})
}

// adoption turns flags into what is to be adopted; every error names the flag.
func (f *adoptFlags) adoption(name string) (workers.Adoption, error) {
	in := workers.Adoption{Name: name, KeySpace: chunk.KeySpace(f.keySpace)}
	if f.from != "" {
		var ok bool
		if in.Shard, in.Database, ok = strings.Cut(f.from, "/"); !ok || in.Shard == "" || in.Database == "" {
			return in, fmt.Errorf("--from is %q; want SHARD/DATABASE", f.from)
		}
	}
	if in.KeySpace != chunk.Hashed && in.KeySpace != chunk.Ranged {
		return in, fmt.Errorf("--key-space is %q; want hashed or range", f.keySpace)
	}
	all, byName := "_id", map[string]string{}
	for _, k := range f.shardKeys {
		collection, path, one := strings.Cut(k, "=")
		if err := chunk.CheckShardKey(cmp.Or(path, k)); err != nil {
			return in, fmt.Errorf("--shard-key %q: %w", k, err)
		}
		if !one {
			all = k
			continue
		}
		if collection == "" || path == "" {
			return in, fmt.Errorf("--shard-key is %q; want PATH or COLLECTION=PATH", k)
		}
		byName[collection] = path
	}
	in.ShardKey = func(collection string) string {
		if path, ok := byName[collection]; ok {
			return path
		}
		return all
	}
	return in, nil
}

// adopted is what an adoption says to people.
type adopted struct {
	Name  string   `json:"name"`
	From  string   `json:"from"`
	State string   `json:"state"`
	Chunk chunk.ID `json:"chunk,omitempty"`
	shard.Adoption
	Drift []shard.Difference `json:"drift,omitempty"`
	Steps []string           `json:"steps"`
}

// adoptNow looks, and adopts where that was confirmed.
func (a *app) adoptNow(ctx context.Context, store *metadata.Store, in workers.Adoption, yes bool) error {
	out := adopted{Name: in.Name, From: in.Shard + "/" + in.Database, State: "only looked at: nothing was changed; --yes adopts it"}
	if !yes {
		var err error
		if out.Adoption, err = workers.CheckAdoption(ctx, store, a.cfg.Secret, in); err != nil {
			return err
		}
		out.Steps = steps(in.Name, out.From, out.Adoption)
		if err := a.printAdopted(out); err != nil {
			return err
		}
		if !out.OK() {
			return &exitError{exitFailed}
		}
		return &exitError{exitWaits}
	}
	seen, r, err := workers.Adopt(ctx, store, a.cfg.Secret, in)
	out.Adoption = seen
	if failure.HasCode(err, "adoption.refused") {
		out.State = "refused: nothing was changed"
		return errors.Join(a.printAdopted(out), err)
	}
	if err != nil {
		return err
	}
	out.State, out.Chunk = "adopted: the proxies serve it", r.Chunk.ID
	out.Steps = steps(in.Name, out.From, seen)[1:]
	return a.printAdopted(out)
}

// checkAdopted says how far the writers of an adopted database are.
func (a *app) checkAdopted(ctx context.Context, store *metadata.Store, name string) error {
	r, err := store.Adopted(ctx, name)
	if err != nil {
		return err
	}
	db, err := store.Database(ctx, name)
	if err != nil {
		return err
	}
	out := adopted{Name: name, From: r.Placement.Shard + "/" + r.Placement.Database, Chunk: r.Chunk.ID}
	if out.Adoption, out.Drift, err = workers.CheckAdopted(ctx, store, a.cfg.Secret, r, db); err != nil {
		return err
	}
	loads, err := store.Loads(ctx)
	if err != nil {
		return err
	}
	out.State = fmt.Sprintf("the proxies sent it %.1f requests/s within the last minute; ", loads[r.Placement.ID])
	done := len(out.Writers) == 0 && len(out.Seen) == 0 && len(out.Drift) == 0
	if done {
		out.State += "nobody else may write to it: its chunks can be moved"
	} else {
		out.State += "its chunks cannot be moved yet"
		out.Steps = steps(name, out.From, out.Adoption)[1:]
	}
	if err := a.printAdopted(out); err != nil || done {
		return err
	}
	return &exitError{exitWaits}
}

// unadopt takes an adoption back where that was confirmed.
func (a *app) unadopt(ctx context.Context, store *metadata.Store, name string, f *adoptFlags) error {
	r, err := store.Adopted(ctx, name)
	if err != nil {
		return err
	}
	from := r.Placement.Shard + "/" + r.Placement.Database
	row := [][]string{{"database", from + " stays as it is"}, {"the proxies", "no longer know " + name + "; Drover's grants on it go"}}
	if !f.yes {
		err := a.print(map[string]string{"name": name, "from": from, "state": "only shown; --yes takes the adoption back"}, nil, func() [][]string {
			return append(row, []string{"state", "only shown; --yes takes the adoption back"})
		})
		return errors.Join(err, &exitError{exitWaits})
	}
	if _, err := workers.Release(ctx, store, a.cfg.Secret, name, f.force); err != nil {
		return err
	}
	return a.print(map[string]string{"name": name, "from": from, "state": "taken back"}, nil, func() [][]string {
		return append(row, []string{"state", "taken back"})
	})
}

// steps is the order in which applications are moved to the proxies, each with its
// way back.
func steps(name, from string, seen shard.Adoption) []string {
	out := []string{
		fmt.Sprintf("adopt it: drover db adopt %s --from %s ... --yes (back: drover db adopt %s --undo --yes)", name, from, name),
		fmt.Sprintf("from now on change collections and indexes through the proxies only; give each application a user: drover user add APP --grant %s:read,write", name),
		fmt.Sprintf("point readers at the proxies, database %s (back: their old address)", name),
		"point writers at the proxies, one application after the other; both ways reach the same documents (back: their old address)",
		fmt.Sprintf("until nobody is left: drover db adopt %s --check", name),
	}
	for _, w := range seen.Writers {
		user, db, _ := strings.Cut(w.User, "@")
		out = append(out, fmt.Sprintf("take the write roles of %s away on the shard: db.getSiblingDB(%q).revokeRolesFromUser(%q, %s) (back: grantRolesToUser with the same)", w.User, db, user, rolesText(w.Roles)))
	}
	return append(out, fmt.Sprintf("then it can be moved: drover migrate start %s --to SHARD (back: drover migrate rollback, during burn-in)", chunk.NewID(name, 1)))
}

// rolesText writes roles as a shell of MongoDB's takes them.
func rolesText(roles []string) string {
	out := make([]string, 0, len(roles))
	for _, r := range roles {
		role, db, _ := strings.Cut(r, "@")
		out = append(out, fmt.Sprintf("{role: %q, db: %q}", role, db))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// printAdopted shows what was found and what comes next.
func (a *app) printAdopted(o adopted) error {
	return a.print(o, nil, func() [][]string {
		rows := [][]string{{"database", o.From + " as " + o.Name}, {"holds", fmt.Sprintf("%d collections, %d documents, %s", len(o.Collections), o.Documents, bytesText(o.Bytes))}}
		for _, f := range o.Findings {
			rows = append(rows, []string{f.Level, f.Code + ": " + f.What})
			if f.Hint != "" {
				rows = append(rows, []string{"", f.Hint})
			}
		}
		for _, d := range o.Drift {
			rows = append(rows, []string{"error", "adoption.drift: " + d.String() + " (the source is what Drover knows)"})
		}
		for i, s := range o.Steps {
			rows = append(rows, []string{"step " + strconv.Itoa(i+1), s})
		}
		return append(rows, []string{"state", o.State})
	})
}
