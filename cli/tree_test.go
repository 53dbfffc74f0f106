package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"drover/contract"
)

// updateTree writes testdata/commands.txt instead of comparing it.
var updateTree = flag.Bool("update", false, "write testdata/commands.txt")

// run runs a command line without any setting, and gives its status and what it wrote.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()

	var out, errs bytes.Buffer
	code = Main(t.Context(), Env{
		Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		LookupEnv: func(name string) (string, bool) { return "/nonexistent/stack.json", name == "DROVER_STACK" },
	})
	return code, out.String(), errs.String()
}

// tree gives every command that people see.
func tree(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			all = append(append(all, sub), tree(sub)...)
		}
	}
	return all
}

// words splits a line as a shell would, as far as examples need it.
func words(line string) (out []string) {
	line, _, _ = strings.Cut(line, " < ")
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`).FindAllString(line, -1) {
		out = append(out, strings.Trim(w, "'\""))
	}
	return out
}

func TestEveryCommandIsExplained(t *testing.T) {
	t.Parallel()

	seen := 0
	root := newRoot(&app{env: Env{Stderr: io.Discard, Stdout: io.Discard}})
	for _, c := range tree(root) {
		path := c.CommandPath()
		require.NotEmpty(t, c.Short, path)
		require.NotContains(t, c.Short[len(c.Short)-1:], ".", "%s: a short text has no full stop", path)
		require.NotNil(t, c.RunE, path)
		require.NotNil(t, c.Args, "%s takes any arguments", path)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, "%s --%s", path, f.Name) })
		if c.HasSubCommands() {
			continue
		}
		require.NotEmpty(t, c.Example, "%s shows no example", path)
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			seen++
			args := words(strings.TrimSpace(line))
			require.Equal(t, "drover", args[0], "%s: %s", path, line)
			fresh := newRoot(&app{})
			found, rest, err := fresh.Find(args[1:])
			require.NoError(t, err, "%s: %s", path, line)
			require.Equal(t, path, found.CommandPath(), line)
			require.NoError(t, found.ParseFlags(rest), "%s: %s", path, line)
			require.NoError(t, found.Args(found, found.Flags().Args()), "%s: %s", path, line)
			require.NoError(t, checkFlags(found), "%s: %s", path, line)
		}
	}
	require.Greater(t, seen, 40)
	for path := range examples {
		require.True(t, slices.ContainsFunc(tree(root), func(c *cobra.Command) bool { return pathOf(c) == path }), "an example for %q, which is no command", path)
	}
}

// The tree of commands and flags is in a file, so that a change of it is seen.
func TestCommandTree(t *testing.T) {
	t.Parallel()

	var b strings.Builder
	for _, c := range tree(newRoot(&app{})) {
		fmt.Fprintf(&b, "%s\n", c.CommandPath()+strings.TrimPrefix(c.Use, c.Name()))
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && c.InheritedFlags().Lookup(f.Name) == nil {
				fmt.Fprintf(&b, "    --%s %s\n", f.Name, f.Value.Type())
			}
		})
	}
	const file = "testdata/commands.txt"
	if *updateTree {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "go test ./cli -run TestCommandTree -update writes it anew")
}

// A wrong command line ends with 2, whoever finds it, and says where to read on.
func TestMisuse(t *testing.T) {
	t.Parallel()

	for line, says := range map[string]string{
		"nonsense":                                     `there is no command "nonsense"`,
		"migrat":                                       "did you mean migrate?",
		"migrate":                                      "Usage:",
		"migrate strat":                                "did you mean start",
		"migrate start":                                "accepts 1 arg(s)",
		"migrate start flights/0001":                   "--to must be given",
		"migrate start flights/0001 --too a":           "unknown flag: --too",
		"shard add nowhere":                            "--uri must be given",
		"migrate status a b":                           "see drover migrate status --help",
		"version --output yaml":                        `--output "yaml": want table or json`,
		"shard remediate a --execute --abort":          "none of the others can be",
		"chunk list --no-such":                         "unknown flag",
		"migrate list --unfinished=perhaps":            "invalid argument",
		"migrate complete flights/0001 --postgres-dsn": "flag needs an argument",
		"chunk list --config /nonexistent.yaml":        "nonexistent.yaml",
	} {
		code, out, errs := run(t, strings.Fields(line)...)
		require.Equal(t, exitMisused, code, "drover %s: %s%s", line, out, errs)
		require.Contains(t, out+errs, says, "drover %s", line)
	}
}

// With --output json an error is JSON too, on the error stream.
func TestErrorsAsJSON(t *testing.T) {
	t.Parallel()

	code, out, errs := run(t, "migrate", "start", "flights/0001", "--output", "json")
	require.Equal(t, exitMisused, code)
	require.Empty(t, out)
	require.JSONEq(t, `{"error":"drover migrate start: --to must be given; see drover migrate start --help","exitStatus":2}`, errs)
}

// What removes a copy of data asks, names the fleet, and does nothing when nobody
// can be asked.
func TestDestroyingVerbsAsk(t *testing.T) {
	t.Parallel()

	settings := []string{"--postgres-dsn", "postgres://ann:hidden@127.0.0.1:1/fleet9?sslmode=disable&connect_timeout=1", "--secret", "s", "--temporal-address", "127.0.0.1:1", "--kafka-brokers", "127.0.0.1:1"}
	for _, verb := range []string{contract.CompleteUpdate, contract.AbortUpdate} {
		code, _, errs := run(t, append([]string{"migrate", verb, "flights/0001"}, settings...)...)
		require.Equal(t, exitMisused, code, errs)
		require.Contains(t, errs, "fleet 127.0.0.1:1/fleet9")
		require.Contains(t, errs, "flights/0001")
		require.Contains(t, errs, "--yes")
		require.NotContains(t, errs, "hidden")
	}
}

// What cannot be reached is named, with what to do about it, and is no misuse.
func TestUnreachableServersHaveHints(t *testing.T) {
	t.Parallel()

	settings := []string{"--postgres-dsn", "postgres://ann:hidden@127.0.0.1:1/fleet9?sslmode=disable&connect_timeout=1", "--secret", "s", "--temporal-address", "127.0.0.1:1", "--kafka-brokers", "127.0.0.1:1"}
	const metadata, temporal = "reach the metadata at 127.0.0.1:1/fleet9", "connect to Temporal at 127.0.0.1:1"
	for line, names := range map[string][]string{
		"chunk list": {metadata}, "shard list": {metadata}, "db list": {metadata}, "migrate list": {metadata}, "lease list": {metadata},
		"migrate timeline f/1": {metadata}, "balancer status": {metadata},
		"migrate status f/1": {temporal, metadata}, "migrate watch f/1": {temporal}, "migrate gate f/1": {temporal},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()

			code, out, errs := run(t, append(strings.Fields(line), settings...)...)
			require.Equal(t, exitFailed, code)
			require.Empty(t, out)
			for _, name := range names {
				require.Contains(t, errs, name)
			}
			require.Contains(t, errs, "hint: ")
			require.NotContains(t, errs, "hidden")
		})
	}
}

// Every command takes --output, and those that need no server answer in JSON.
func TestOutputJSON(t *testing.T) {
	t.Parallel()

	root := newRoot(&app{})
	for _, c := range tree(root) {
		require.NotNil(t, c.InheritedFlags().Lookup("output"), c.CommandPath())
	}
	for _, line := range []string{"version", "config show"} {
		code, out, errs := run(t, append(strings.Fields(line), "--output", "json")...)
		require.Equal(t, exitDone, code, errs)
		require.Contains(t, "[{", out[:1], line)
	}
}
