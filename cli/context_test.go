package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/internal/config"
)

// TestContextChoosesTheFleet: what a command acts on, and what it says of it, follows
// the fleet in use; what is named for one command counts more.
func TestContextChoosesTheFleet(t *testing.T) {
	t.Parallel()

	home := t.TempDir()
	env := map[string]string{"HOME": home}
	run := func(args ...string) (status int, stdout, stderr string) {
		var out, errs bytes.Buffer
		status = Main(t.Context(), Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, LookupEnv: func(name string) (string, bool) {
			v, ok := env[name]
			return v, ok
		}})
		return status, out.String(), errs.String()
	}
	settings := func(host string) string {
		file := filepath.Join(t.TempDir(), "settings.yaml")
		require.NoError(t, os.WriteFile(file, []byte("postgres-dsn: postgres://drover@"+host+":5432/drover\nsecret: s3cret-of-the-tests-16\n"), 0o600))
		return file
	}
	shown := func() string {
		status, stdout, stderr := run("config", "show", "-o", "json")
		require.Zero(t, status, stderr)
		return stdout
	}
	require.NotContains(t, shown(), ".config/drover")
	for _, host := range []string{"east", "west"} {
		status, _, stderr := run("context", "add", host, "-f", settings(host))
		require.Zero(t, status, stderr)
	}
	status, _, stderr := run("context", "use", "north")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, `no fleet is known as "north"`)
	status, _, _ = run("context", "add", "../east", "-f", settings("x"))
	require.Equal(t, exitMisused, status)
	status, stdout, _ := run("context", "use", "east")
	require.Zero(t, status)
	require.Equal(t, "commands act on the fleet east\n", stdout)
	require.Contains(t, shown(), "contexts/east.yaml")
	_, stdout, _ = run("context", "list")
	require.Regexp(t, `(?m)^east +yes +/`, stdout)

	env[contextEnv] = "west"
	require.Contains(t, shown(), "contexts/west.yaml")
	env["DROVER_STACK"] = filepath.Join(home, "none.json")
	require.NotContains(t, shown(), ".config/drover")
	delete(env, "DROVER_STACK")
	delete(env, contextEnv)
	info, err := os.Stat(filepath.Join(home, ".config/drover/contexts/east.yaml"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it holds secrets")

	a := &app{context: "east", cfg: config.Config{PostgresDSN: "postgres://drover@east:5432/drover"}}
	require.Equal(t, "east (east:5432/drover)", a.fleet(), "questions before something is destroyed name it")
	_, stdout, _ = run("__complete", "context", "use", "")
	require.Contains(t, stdout, "east\nwest\n", "shells complete names of fleets")
	_, stdout, _ = run("context", "add", "north", "-f", settings("north"), "-o", "json")
	require.JSONEq(t, `{"done": "the fleet north is known; drover context use north lets commands act on it"}`, stdout)
	_, stdout, _ = run("context", "use", "north", "-o", "json")
	require.JSONEq(t, `{"done": "commands act on the fleet north"}`, stdout)
	_, stdout, _ = run("context", "use", "-", "-o", "json")
	require.JSONEq(t, `{"done": "commands act on no fleet that is known here"}`, stdout)
	require.NotContains(t, shown(), ".config/drover")
}
