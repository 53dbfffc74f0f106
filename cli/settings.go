package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drover/internal/config"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

// settings are what is kept for the whole fleet, by flag name.
type settings struct {
	proxy    map[string]string
	balancer map[string]string
	rounds   *roundFlags // nil: the file says nothing of the balancer
}

// parseSettings reads a file of settings for the whole fleet and says all that is wrong
// with it, each with line and field.
func parseSettings(content []byte) (settings, error) {
	var out settings
	sections, problems := config.Sections(content, "proxy", "balancer")
	proxy, more := config.ParseLive("proxy", sections["proxy"])
	out.proxy, problems = proxy, append(problems, more...)
	if values, ok := sections["balancer"]; ok {
		out.rounds, out.balancer = &roundFlags{}, map[string]string{}
		fs := pflag.NewFlagSet("balancer", pflag.ContinueOnError)
		out.rounds.add(fs)
		more := config.SetAll(fs, "balancer", values)
		if _, err := out.rounds.input(); err != nil && len(more) == 0 {
			more = append(more, fmt.Errorf("balancer: %w", err))
		}
		problems = append(problems, more...)
		for _, v := range values {
			out.balancer[v.Name] = v.Text
		}
	}
	if len(problems) > 0 {
		return out, failure.New(failure.Invalid, "settings.bad_file", "the file is refused as a whole:\n  %s",
			strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "\n  "))
	}
	return out, nil
}

// settingChange is one value that a file changes.
type settingChange struct {
	Setting string `json:"setting"`
	From    string `json:"from"`
	To      string `json:"to"`
}

// notSet is a value that a file does not have.
const notSet = "(not set)"

// changes compares settings with those before.
func (s settings) changes(before settings) (out []settingChange) {
	section := func(name string, was, now map[string]string) {
		all := maps.Clone(was)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, now)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			c := settingChange{Setting: name + "." + key, From: notSet, To: notSet}
			if v, ok := was[key]; ok {
				c.From = v
			}
			if v, ok := now[key]; ok {
				c.To = v
			}
			if c.From != c.To {
				out = append(out, c)
			}
		}
	}
	section("proxy", before.proxy, s.proxy)
	section("balancer", before.balancer, s.balancer)
	return out
}

// change is a file over the live version.
type change struct {
	live    metadata.Settings
	content string
	now     settings
	Changes []settingChange `json:"changes"`
	Over    int64           `json:"over"` // version that is live
}

// readChange reads a file and compares it with what is live.
func (a *app) readChange(ctx context.Context, store *metadata.Store, content string) (c change, err error) {
	if c.now, err = parseSettings([]byte(content)); err != nil {
		return c, err
	}
	if c.live, err = store.SettingsOf(ctx, ""); err != nil {
		return c, err
	}
	before, err := parseSettings([]byte(c.live.Content))
	if err != nil {
		return c, fmt.Errorf("read version %d: %w", c.live.Version, err)
	}
	c.content, c.Over, c.Changes = content, c.live.Version, c.now.changes(before)
	return c, nil
}

// proxies reports whether a change concerns the proxies.
func (c change) proxies() bool {
	return slices.ContainsFunc(c.Changes, func(x settingChange) bool { return strings.HasPrefix(x.Setting, "proxy.") })
}

// balancer reports whether a change concerns the balancer. One that changes nothing does
// so where the file says something of it: its schedule may not be as the live version has
// it.
func (c change) balancer() bool {
	return len(c.Changes) == 0 && c.now.rounds != nil || slices.ContainsFunc(c.Changes, func(x settingChange) bool { return strings.HasPrefix(x.Setting, "balancer.") })
}

// printChanges shows what a file changes.
func (a *app) printChanges(c change) error {
	return a.print(c, []string{"SETTING", "FROM", "TO"}, func() (rows [][]string) {
		for _, x := range c.Changes {
			rows = append(rows, []string{x.Setting, x.From, x.To})
		}
		if len(rows) == 0 {
			rows = append(rows, []string{"nothing changes", "", ""})
		}
		return rows
	})
}

// changeOf reads a file that a person names, and compares it.
func (a *app) changeOf(ctx context.Context, store *metadata.Store, name string) (change, error) {
	content, err := a.contentOf(name)
	if err != nil {
		return change{}, err
	}
	return a.readChange(ctx, store, string(content))
}

func newConfigDiff(a *app) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "diff -f FILE", Short: "Show what a file changes of the settings that are kept for the whole fleet", Args: cobra.NoArgs,
		Long:    "Show what a file changes of the settings that are kept for the whole fleet; it changes nothing. Exit status 3: there are changes.",
		Example: "  drover config diff -f settings.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				c, err := a.changeOf(ctx, store, name)
				if err != nil {
					return err
				}
				if err := a.printChanges(c); err != nil || len(c.Changes) == 0 {
					return err
				}
				return &exitError{exitWaits}
			})
		},
	}
	c.Flags().StringVarP(&name, "file", "f", "", "the file; - reads the standard input (needed)")
	_ = c.MarkFlagRequired("file")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newConfigApply(a *app) *cobra.Command {
	var name, reason string
	var yes bool
	var t trial
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "Keep settings of proxies and balancer for the whole fleet, tried on one proxy first; without --yes they are only shown",
		Args: cobra.NoArgs,
		Long: "Keep settings of proxies and balancer for the whole fleet. Those of proxies are tried on one of them first: it must go on living and hearing,\n" +
			"and not answer worse than before (failed requests, p99). Then all proxies take them over; a trial that fails, or that is interrupted, goes\n" +
			"back by itself. What was said to a proxy by flag, variable or file stays as it was said. Each version is kept: drover config history.",
		Example: "  drover config apply -f settings.yaml\n  drover config apply -f settings.yaml --on proxy-1 --watch 5m --yes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				c, err := a.changeOf(ctx, store, name)
				if err != nil {
					return err
				}
				if err := a.printChanges(c); err != nil {
					return err
				}
				switch {
				case len(c.Changes) == 0 && (!yes || !c.balancer()):
					return nil
				case len(c.Changes) == 0:
					return a.everywhere(ctx, cmd, store, c.Over, c)
				case !yes:
					return &exitError{exitWaits}
				}
				if t.watch < 0 {
					return &usageError{fmt.Errorf("--watch is %s; want 0 or longer", t.watch)}
				}
				t.store, t.say = store, a.tell
				version, err := t.keep(ctx, metadata.Settings{Content: c.content, AppliedBy: a.user(), Reason: reason}, c)
				if err != nil {
					return err
				}
				return a.everywhere(ctx, cmd, store, version, c)
			})
		},
	}
	f := c.Flags()
	f.StringVarP(&name, "file", "f", "", "the file; - reads the standard input (needed)")
	_ = c.MarkFlagRequired("file")
	f.StringVar(&t.on, "on", "", "the proxy that tries it; empty: the one with the most requests")
	f.DurationVar(&t.watch, "watch", time.Minute, "how long that proxy is watched; its figures are those of the minute before")
	f.StringVar(&reason, "reason", "", "shown to people")
	f.BoolVar(&yes, "yes", false, "try and keep it; without it the changes are only shown")
	a.cfg.Flags(f, config.Common)
	return c
}

// tell writes progress to the error stream: the output is the result.
func (a *app) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(a.env.Stderr, format+"\n", args...)
}

// everywhere lets the balancer take its part over, and waits until all proxies have
// taken over theirs.
func (a *app) everywhere(ctx context.Context, cmd *cobra.Command, store *metadata.Store, version int64, c change) error {
	if c.balancer() {
		if err := a.reschedule(cmd, c.now); err != nil {
			return fmt.Errorf("version %d is live, but the balancer's schedule is as it was; apply that version again (`drover config history --show %d` prints it): %w", version, version, err)
		}
	}
	var behind []string
	if c.proxies() {
		var err error
		if behind, err = waitForAll(ctx, store, version); err != nil {
			return err
		}
	}
	out := struct {
		Version int64    `json:"version"`
		Behind  []string `json:"behind,omitempty"`
	}{version, behind}
	return a.print(out, nil, func() [][]string {
		rows := [][]string{{"live", "version " + strconv.FormatInt(version, 10)}}
		if len(behind) > 0 {
			rows = append(rows, []string{"not yet on", strings.Join(behind, ", ")})
		}
		return append(rows, []string{"the way back", "drover config rollback"})
	})
}

// reschedule lets rounds of the balancer run as settings say; without any word of them
// they are left as they are.
func (a *app) reschedule(cmd *cobra.Command, s settings) error {
	if s.rounds == nil {
		a.tell("the balancer's schedule is left as it is: the file says nothing of it")
		return nil
	}
	in, err := s.rounds.input()
	if err != nil {
		return err
	}
	return a.withStarter(cmd, func(ctx context.Context, st *starter.Starter) error { return st.Balance(ctx, s.rounds.every, in) })
}

func newConfigRollback(a *app) *cobra.Command {
	var to int64
	var reason string
	c := &cobra.Command{
		Use: "rollback", Short: "Let the settings that were live before be live again, everywhere and at once", Args: cobra.NoArgs,
		Long:    "Let the settings that were live before be live again, as a new version. They were tried then: all proxies take them over at once.",
		Example: "  drover config rollback --reason 'timeouts in checkout'\n  drover config rollback --to 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				old, err := liveBefore(ctx, store, to)
				if err != nil {
					return err
				}
				c, err := a.readChange(ctx, store, old.Content)
				if err != nil {
					return err
				}
				if err := a.printChanges(c); err != nil || len(c.Changes) == 0 {
					return err
				}
				kept := metadata.Settings{Content: old.Content, AppliedBy: a.user(), Reason: strings.TrimSpace(fmt.Sprintf("back to version %d: %s", old.Version, reason))}
				version, err := store.KeepSettings(ctx, kept, c.Over, 0)
				if err != nil {
					return err
				}
				return a.everywhere(ctx, cmd, store, version, c)
			})
		},
	}
	c.Flags().Int64Var(&to, "to", 0, "version; 0: the one that was live before this one")
	c.Flags().StringVar(&reason, "reason", "", "shown to people")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// liveBefore finds a version that was live: the one that is named, or the newest that
// differs from what is live now. Before the first there is nothing: every proxy has its
// own settings only.
func liveBefore(ctx context.Context, store *metadata.Store, to int64) (metadata.Settings, error) {
	all, err := store.AllSettings(ctx, 1000)
	if err != nil {
		return metadata.Settings{}, err
	}
	all = slices.DeleteFunc(all, func(s metadata.Settings) bool { return s.State != metadata.SettingsLive })
	switch {
	case to != 0:
		if at := slices.IndexFunc(all, func(s metadata.Settings) bool { return s.Version == to }); at >= 0 {
			return all[at], nil
		}
		return metadata.Settings{}, failure.New(failure.Invalid, "settings.unknown", "version %d never was live", to).WithHint("drover config history shows all versions")
	case len(all) == 0:
		return metadata.Settings{}, failure.New(failure.Invalid, "settings.unknown", "nothing is kept for the whole fleet").WithHint("drover config apply")
	}
	for _, s := range all[1:] {
		if s.Content != all[0].Content {
			return s, nil
		}
	}
	return metadata.Settings{}, nil
}

func newConfigHistory(a *app) *cobra.Command {
	var show int64
	c := &cobra.Command{
		Use: "history", Short: "List the versions of the fleet's settings with what became of them, or print one", Args: cobra.NoArgs,
		Example: "  drover config history\n  drover config history --show 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := store.AllSettings(ctx, 1000)
				if err != nil {
					return err
				}
				if show > 0 {
					at := slices.IndexFunc(all, func(s metadata.Settings) bool { return s.Version == show })
					if at < 0 {
						return failure.New(failure.Invalid, "settings.unknown", "there is no version %d", show).WithHint("drover config history shows all versions")
					}
					return a.printText(all[at], all[at].Content)
				}
				return a.print(all, []string{"VERSION", "STATE", "TRIED ON", "AT", "BY", "REASON", "OUTCOME"}, func() (rows [][]string) {
					for _, s := range all {
						rows = append(rows, []string{
							strconv.FormatInt(s.Version, 10), s.State, s.Canary, s.AppliedAt.UTC().Format(time.RFC3339), s.AppliedBy, s.Reason, s.Outcome,
						})
					}
					return rows
				})
			})
		},
	}
	c.Flags().Int64Var(&show, "show", 0, "version to print as it was applied")
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

func newConfigStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status", Short: "Show which version of the fleet's settings each live proxy runs, and how it does", Args: cobra.NoArgs,
		Example: "  drover config status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, store *metadata.Store) error {
				all, err := states(ctx, store)
				if err != nil {
					return err
				}
				return a.print(all, []string{"PROXY", "VERSION", "HEARS", "REQUESTS", "FAILED", "P99"}, func() (rows [][]string) {
					for _, p := range all {
						rows = append(rows, []string{
							p.ID, strconv.FormatInt(p.Version, 10), strconv.FormatBool(p.Hears), strconv.FormatInt(p.Health.Requests, 10),
							fmt.Sprintf("%.2f %%", 100*p.Health.ErrorRate()), fmt.Sprintf("%.1f ms", p.Health.P99MS),
						})
					}
					return rows
				})
			})
		},
	}
	a.cfg.Flags(c.Flags(), config.Common)
	return c
}

// contentOf reads a file that a person names; - is the standard input.
func (a *app) contentOf(name string) (content []byte, err error) {
	if name == "-" {
		content, err = io.ReadAll(a.env.Stdin)
	} else {
		content, err = os.ReadFile(name) //nolint:gosec // the operator names it
	}
	if err != nil {
		return nil, &usageError{err}
	}
	return content, nil
}
