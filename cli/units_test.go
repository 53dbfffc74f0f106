package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// unitsDir has the units for systemd.
const unitsDir = "../deploy/systemd"

// installed is where units expect the program.
const installed = "/usr/local/bin/drover"

// units reads the units by their names.
func units(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(unitsDir + "/*.service")
	require.NoError(t, err)
	require.Len(t, files, 2)
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f) //nolint:gosec // of this repository
		require.NoError(t, err)
		out[filepath.Base(f)] = string(b)
	}
	return out
}

// setting gives a setting of a unit.
func setting(t *testing.T, unit, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, m, "no %s in\n%s", name, unit)
	return m[1]
}

// What units start are commands with flags that exist, and they leave these the time
// that they need to end.
func TestUnitsStartCommandsThatExist(t *testing.T) {
	t.Parallel()

	proxy, _, err := newRoot(&app{}).Find([]string{"proxy"})
	require.NoError(t, err)
	linger, err := proxy.Flags().GetDuration("linger")
	require.NoError(t, err)
	ends := map[string]time.Duration{"proxy": 2 * linger, "worker": 20 * time.Second} // twice what they take
	for name, unit := range units(t) {
		args := words(setting(t, unit, "ExecStart"))
		require.Equal(t, installed, args[0], name)
		found, rest, err := newRoot(&app{}).Find(args[1:])
		require.NoError(t, err, name)
		require.Equal(t, "drover-"+found.Name()+".service", name)
		require.NoError(t, found.ParseFlags(rest), name)
		require.NoError(t, found.Args(found, found.Flags().Args()), name)
		require.NoError(t, checkFlags(found), name)
		stop, err := time.ParseDuration(setting(t, unit, "TimeoutStopSec") + "s")
		require.NoError(t, err)
		require.GreaterOrEqual(t, stop, ends[found.Name()], name)
		if dir := found.Flags().Lookup("state-dir"); dir != nil && dir.Changed {
			require.Equal(t, dir.Value.String(), "/var/lib/"+setting(t, unit, "StateDirectory"), "%s: the rest of the disk is read-only", name)
		}
	}
}

// systemd finds nothing to complain about in the units, where there is one to ask.
func TestSystemdTakesUnits(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	program, err := os.Executable() // any that exists
	require.NoError(t, err)
	analyze, err := exec.LookPath("systemd-analyze")
	for name, unit := range units(t) {
		text := strings.ReplaceAll(unit, installed, program)
		require.NotEqual(t, unit, text)
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			continue // a machine without systemd: their flags are looked at above
		}
		out, failed := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput() //nolint:gosec // found above
		require.NoError(t, failed, "%s", out)
		require.NotContains(t, string(out), name+":", "%s", out)
	}
}

// Whatever builds a binary to be run elsewhere stamps its version, makes it static, and
// does so with the Go that go.mod asks for.
func TestBuildsStampTheVersion(t *testing.T) {
	t.Parallel()

	require.NotEmpty(t, Version, "a build sets it as drover/cli.Version")
	read := func(name string) string {
		b, err := os.ReadFile("../" + name) //nolint:gosec // of this repository
		require.NoError(t, err)
		return string(b)
	}
	for _, name := range []string{"Makefile", "scripts/release.sh", "scripts/mixed.sh", "deploy/Dockerfile"} {
		require.Contains(t, read(name), "-X drover/cli.Version=$", name)
	}
	release, image := read("scripts/release.sh"), read("deploy/Dockerfile")
	require.Contains(t, release, "amd64 arm64")
	for _, text := range []string{release, image} {
		require.Contains(t, text, "CGO_ENABLED=0")
		require.Contains(t, text, "./cmd/drover")
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read("go.mod"))
	require.NotNil(t, version)
	require.Contains(t, image, "FROM golang:"+version[1]+"-")
}
