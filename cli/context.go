package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"drover/internal/failure"
)

// contextEnv names a fleet for one command.
const contextEnv = "DROVER_CONTEXT"

// contextName is what a fleet may be called.
var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// without are the commands that no person's context is for: parts that run on by
// themselves, and what has no fleet.
var without = []string{"worker", "proxy", "dev", "demo", "sim", "version", "context", "completion", "__complete", "help"}

// contextDir is where a person's fleets are, empty where there is no home.
func (a *app) contextDir() string {
	if dir, ok := a.env.LookupEnv("XDG_CONFIG_HOME"); ok && dir != "" {
		return filepath.Join(dir, "drover", "contexts")
	}
	if home, ok := a.env.LookupEnv("HOME"); ok && home != "" {
		return filepath.Join(home, ".config", "drover", "contexts")
	}
	return ""
}

// current gives the fleet in use, empty when none is. The variable counts more than
// `drover context use`.
func (a *app) current() (string, error) {
	if name, ok := a.env.LookupEnv(contextEnv); ok {
		return name, nil
	}
	dir := a.contextDir()
	if dir == "" {
		return "", nil
	}
	b, err := os.ReadFile(filepath.Join(dir, "current")) //nolint:gosec // the user's own
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// followContext takes the settings of the fleet in use, unless the command names a
// file or a dev stack itself.
func (a *app) followContext(cmd *cobra.Command) error {
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	if _, named := a.env.LookupEnv("DROVER_STACK"); named || a.file != "" || slices.Contains(without, top.Name()) {
		return nil
	}
	name, err := a.current()
	if err != nil || name == "" {
		return err
	}
	file, err := a.contextFile(name)
	if err != nil {
		return err
	}
	a.file, a.context = file, name
	return nil
}

// contextFile is the file with the settings of a fleet that is known.
func (a *app) contextFile(name string) (string, error) {
	unknown := func() error {
		return failure.New(failure.Invalid, "context.unknown", "no fleet is known as %q", name).
			WithHint("drover context list shows those that are; drover context add NAME -f FILE adds one")
	}
	if !contextName.MatchString(name) || a.contextDir() == "" {
		return "", unknown()
	}
	file := filepath.Join(a.contextDir(), name+".yaml")
	if _, err := os.Stat(file); err != nil {
		return "", unknown()
	}
	return file, nil
}

func newContextCommand(a *app) *cobra.Command {
	return group("context", "Choose the fleet that commands act on", newContextList(a), newContextUse(a), newContextAdd(a))
}

// contextJSON is one fleet in the JSON output.
type contextJSON struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	File    string `json:"file"`
}

func newContextList(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the fleets that are known here", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			used, err := a.current()
			if err != nil {
				return err
			}
			files, err := filepath.Glob(filepath.Join(a.contextDir(), "*.yaml"))
			if err != nil {
				return err
			}
			all := []contextJSON{}
			for _, f := range files {
				name := strings.TrimSuffix(filepath.Base(f), ".yaml")
				all = append(all, contextJSON{Name: name, Current: name == used, File: f})
			}
			return a.print(all, []string{"FLEET", "IN USE", "SETTINGS"}, func() (rows [][]string) {
				for _, c := range all {
					rows = append(rows, []string{c.Name, map[bool]string{true: "yes"}[c.Current], c.File})
				}
				return rows
			})
		},
	}
}

func newContextUse(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "use FLEET", Short: "Let commands act on a fleet from now on; - is none", Args: cobra.ExactArgs(1),
		Long: "Let commands act on a fleet from now on. Questions before something is destroyed name it. --config, DROVER_STACK and " + contextEnv + "\n" +
			"count more; workers and proxies take no notice of it. - goes back to none.",
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "-" {
				err := os.Remove(filepath.Join(a.contextDir(), "current"))
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				return a.told("commands act on no fleet that is known here")
			}
			if _, err := a.contextFile(args[0]); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(a.contextDir(), "current"), []byte(args[0]+"\n"), 0o600); err != nil {
				return err
			}
			return a.told("commands act on the fleet %s", args[0])
		},
	}
}

func newContextAdd(a *app) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "add NAME -f FILE", Short: "Keep the settings of a fleet under a name", Args: cobra.ExactArgs(1),
		Long: "Keep the settings of a fleet under a name. The file is as for --config, and is copied so that only you may read it: it holds secrets.",
		RunE: func(_ *cobra.Command, args []string) error {
			if !contextName.MatchString(args[0]) {
				return &usageError{fmt.Errorf("name %q: want letters, digits, dots, dashes and underscores", args[0])}
			}
			if a.contextDir() == "" {
				return &usageError{errors.New("neither HOME nor XDG_CONFIG_HOME is set: there is no place to keep it")}
			}
			b, err := os.ReadFile(file) //nolint:gosec // the operator names the file
			if err != nil {
				return fmt.Errorf("read settings: %w", err)
			}
			if err := yaml.Unmarshal(b, &map[string]string{}); err != nil {
				return failure.New(failure.Invalid, "context.invalid", "%s: %w", file, err).WithHint("want lines of SETTING: VALUE, see docs/configuration.md")
			}
			if err := os.MkdirAll(a.contextDir(), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(a.contextDir(), args[0]+".yaml"), b, 0o600); err != nil {
				return err
			}
			return a.told("the fleet %s is known; drover context use %s lets commands act on it", args[0], args[0])
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the settings, by flag name (needed)")
	_ = c.MarkFlagRequired("file")
	return c
}
