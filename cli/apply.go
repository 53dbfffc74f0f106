package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drover/activities"
	"drover/contract"
	"drover/fleet"
	"drover/internal/config"
	"drover/metadata"
	"drover/proxy/admission"
	"drover/proxy/auth"
	"drover/shard"
	"drover/workers"
)

// readFleet reads a fleet file and all that only its consumers can check.
func (a *app) readFleet(name string) (*fleet.File, []byte, error) {
	content, err := a.contentOf(name)
	if err != nil {
		return nil, nil, err
	}
	f, err := fleet.Parse(content)
	if err != nil {
		return nil, nil, err
	}
	var problems []error
	for _, d := range f.Databases {
		if d.Policy != nil {
			if _, err := admission.ParsePolicy(d.Policy); err != nil {
				problems = append(problems, fmt.Errorf("line %d: %s.quota: %w", d.PolicyLine, d.Name, err))
			}
		}
		if err := shard.CheckUnique(d.Name, d.Plain()); err != nil {
			problems = append(problems, fmt.Errorf("line %d: %w", d.Line, err))
		}
	}
	for _, u := range f.Users {
		if err := auth.CheckName(u.Name); err != nil {
			problems = append(problems, fmt.Errorf("line %d: users: %w", u.Line, err))
		}
		for db, actions := range u.Grants {
			for _, x := range actions {
				if !slices.Contains(auth.Actions(), auth.Action(x)) {
					problems = append(problems, fmt.Errorf("line %d: users: %s: action %q on %s: want of %v", u.Line, u.Name, x, db, auth.Actions()))
				}
			}
		}
	}
	return f, content, errors.Join(problems...)
}

// printDiff shows what a file changes.
func (a *app) printDiff(d fleet.Diff) error {
	if a.output == "json" {
		return writeJSON(a.env.Stdout, d)
	}
	rows := make([][]string, 0, len(d.Changes))
	for _, c := range d.Changes {
		rows = append(rows, []string{c.Kind, c.Subject, c.What, strconv.Itoa(c.Line)})
	}
	if len(rows) == 0 {
		_, _ = fmt.Fprintln(a.env.Stdout, "everything that the file lists is there")
	} else if err := writeTable(a.env.Stdout, []string{"CHANGE", "OF", "WHAT", "LINE"}, rows); err != nil {
		return err
	}
	for _, x := range d.Left {
		_, _ = fmt.Fprintln(a.env.Stdout, "left alone:", x)
	}
	return nil
}

func newDiffCommand(a *app) *cobra.Command {
	var p planFlags
	var name string
	c := &cobra.Command{
		Use: "diff -f FILE", Short: "Show what a fleet file would change; it changes nothing", Args: cobra.NoArgs,
		Long: "Show what a fleet file would change; it changes nothing. Exit status 3: there are changes.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.applyFile(cmd, &p, name) },
	}
	c.Flags().StringVarP(&name, "file", "f", "", "the fleet file; - reads the standard input (needed)")
	_ = c.MarkFlagRequired("file")
	p.add(c.Flags())
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newApplyCommand(a *app) *cobra.Command {
	var p planFlags
	var name string
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "Bring the fleet to what a file says; without --yes it is only shown", Args: cobra.NoArgs,
		Long: "Bring the fleet to what a file says: make what is missing, then start the moves that the placement rules ask for. Without --yes\n" +
			"both are only shown, with exit status 3. A file that would empty, orphan or overlap anything is refused as a whole, with line and\n" +
			"field. What was applied is kept with its history. One that was interrupted is finished by running it again.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.applyFile(cmd, &p, name) },
	}
	c.Flags().StringVarP(&name, "file", "f", "", "the fleet file; - reads the standard input (needed)")
	_ = c.MarkFlagRequired("file")
	p.add(c.Flags())
	p.addYes(c.Flags())
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// applyFile compares, makes what is missing where --yes was given, and then plans
// the moves of the placement rules.
func (a *app) applyFile(cmd *cobra.Command, p *planFlags, name string) error {
	if err := p.check(); err != nil {
		return err
	}
	f, content, err := a.readFleet(name)
	if err != nil {
		return err
	}
	var d fleet.Diff
	err = a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
		now, err := workers.Present(ctx, store)
		if err != nil {
			return err
		}
		if d, err = f.Diff(now); err != nil {
			return err
		}
		if err := a.printDiff(d); err != nil || !p.yes {
			return err
		}
		if err := a.make(ctx, store, f, d); err != nil {
			return err
		}
		changes, err := json.Marshal(d)
		if err != nil {
			return err
		}
		return a.keepFile(ctx, store, metadata.DesiredState{Content: string(content), Changes: changes, AppliedBy: a.user()})
	})
	if err != nil {
		return err
	}
	pending := !p.yes && len(d.Changes) > 0
	if pending && slices.ContainsFunc(d.Changes, func(c fleet.Change) bool { return c.Kind == fleet.AddShard }) {
		_, _ = fmt.Fprintln(a.env.Stderr, "the moves are planned once the new shards are registered")
		return &exitError{exitWaits}
	}
	err = a.carryOutOver(cmd, p, contract.ReconcileIntent, "", f, func(_ context.Context, _ *metadata.Store, v fleet.View) (contract.FleetPlan, error) {
		return v.Reconcile(), nil
	})
	if err == nil && pending {
		return &exitError{exitWaits}
	}
	return err
}

// keepFile adds a file to the history unless it is the newest there.
func (a *app) keepFile(ctx context.Context, store *metadata.Store, d metadata.DesiredState) error {
	last, err := store.DesiredStates(ctx, 1)
	if err != nil || len(last) > 0 && last[0].Content == d.Content {
		return err
	}
	_, err = store.KeepDesiredState(ctx, d)
	return err
}

// make makes what is missing, one change after the other; each can be repeated.
func (a *app) make(ctx context.Context, store *metadata.Store, f *fleet.File, d fleet.Diff) error {
	for _, c := range d.Changes {
		if err := a.makeOne(ctx, store, f, c); err != nil {
			return fmt.Errorf("%s %s (line %d), everything before it is done, apply again to go on: %w", c.Kind, c.Subject, c.Line, err)
		}
	}
	return nil
}

// makeOne makes one change.
func (a *app) makeOne(ctx context.Context, store *metadata.Store, f *fleet.File, c fleet.Change) error {
	switch c.Kind {
	case fleet.AddShard:
		return a.makeShard(ctx, store, f, c.Subject)
	case fleet.AddUser:
		return a.makeUser(ctx, store, f, c.Subject)
	default:
		return workers.MakeChange(ctx, store, a.cfg.Secret, f, c)
	}
}

// secretOf reads what a file only names.
func (a *app) secretOf(variable string) (string, error) {
	v, ok := a.env.LookupEnv(variable)
	if !ok || v == "" {
		return "", &usageError{fmt.Errorf("the environment has no %s", variable)}
	}
	return v, nil
}

// makeShard registers a shard.
func (a *app) makeShard(ctx context.Context, store *metadata.Store, f *fleet.File, name string) error {
	at := slices.IndexFunc(f.Shards, func(s fleet.FileShard) bool { return s.Name == name })
	uri, err := a.secretOf(f.Shards[at].URIEnv)
	if err != nil {
		return err
	}
	sh, err := shard.Bootstrap(ctx, uri, name, a.cfg.Secret, shard.BootstrapOptions{})
	if err != nil {
		return err
	}
	if err := store.AddShard(ctx, sh); err != nil {
		return err
	}
	return a.startCapture(ctx, name)
}

// makeUser makes a user; its grants are changes of their own.
func (a *app) makeUser(ctx context.Context, store *metadata.Store, f *fleet.File, name string) error {
	at := slices.IndexFunc(f.Users, func(u fleet.FileUser) bool { return u.Name == name })
	password, err := a.secretOf(f.Users[at].PasswordEnv)
	if err != nil {
		return err
	}
	credentials, err := auth.Derive(password)
	if err != nil {
		return err
	}
	return store.PutProxyUser(ctx, userOf(name, credentials), false)
}

func newPlacementCommand(a *app) *cobra.Command {
	var database string
	explain := &cobra.Command{
		Use: "explain KEY --db DATABASE", Short: "Say where a key belongs by the placement rules that were applied, which rule won, and where it is",
		Args: cobra.ExactArgs(1), Example: `  drover placement explain '"c-17"' --db shop`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				r, k, err := whichChunk(ctx, store, nil, database, args[0])
				if err != nil {
					return err
				}
				f, _, err := activities.Desired(ctx, store)
				if err != nil {
					return err
				}
				if f == nil {
					f = &fleet.File{}
				}
				db, err := store.Database(ctx, database)
				if err != nil {
					return err
				}
				return a.explain(f.Explain(r, *k, db))
			})
		},
	}
	explain.Flags().StringVar(&database, "db", "", "logical database (needed)")
	_ = explain.MarkFlagRequired("db")
	a.cfg.Flags(explain.Flags(), config.Common)
	return group("placement", "Say where things belong, and why", explain)
}

// explain shows where a key belongs.
func (a *app) explain(e fleet.Explanation) error {
	return a.print(e, nil, func() [][]string {
		rows := [][]string{{"chunk", string(e.Chunk)}, {"is on", e.Shard + ", " + e.Place}, {"belongs on", e.Target}, {"by", e.Rule}}
		for _, x := range e.Lost {
			rows = append(rows, []string{"over", x})
		}
		return append(rows, []string{"in place", e.InPlace})
	})
}

func newFleetCommand(a *app) *cobra.Command {
	var show int64
	history := &cobra.Command{
		Use: "history", Short: "List the fleet files that were applied, or show one", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.DesiredStates(ctx, 1000)
				if err != nil {
					return err
				}
				if show > 0 {
					at := slices.IndexFunc(all, func(d metadata.DesiredState) bool { return d.Version == show })
					if at < 0 {
						return fmt.Errorf("version %d is not among the newest %d", show, len(all))
					}
					return a.printText(all[at], all[at].Content)
				}
				return a.print(all, []string{"VERSION", "AT", "BY"}, func() (rows [][]string) {
					for _, d := range all {
						rows = append(rows, []string{strconv.FormatInt(d.Version, 10), d.AppliedAt.UTC().Format(time.RFC3339), d.AppliedBy})
					}
					return rows
				})
			})
		},
	}
	history.Flags().Int64Var(&show, "show", 0, "version to print as it was applied")
	a.cfg.Flags(history.Flags(), config.Common)
	return group("fleet", "Look at the desired state, and upgrade all shards", history, newFleetUpgrade(a), newFleetReconcile(a))
}
