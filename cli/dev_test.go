package cli

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/internal/testkit"
)

// runDev runs a command line with nothing in the environment.
func runDev(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Main(t.Context(), Env{
		Args: append([]string{"dev"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	return status, out.String(), errs.String()
}

// A script reads the state of the stack from the JSON and from the exit status.
func TestDevTellsTheStateOfTheStack(t *testing.T) {
	t.Parallel()
	testkit.SkipShort(t)
	testkit.Stack(t) // what it is made of is installed
	dir := filepath.Join(t.TempDir(), "stack")
	flags := []string{"--dir", dir, "--part", "s3", "--output", "json"}
	t.Cleanup(func() { runDev(t, "reset", "--dir", dir) })

	status, _, stderr := runDev(t, append([]string{"up"}, flags...)...)
	require.Zero(t, status, stderr)
	require.Contains(t, stderr, "ready after")

	var report struct {
		Parts []struct {
			Name             string
			Running, Healthy bool
			PID              int
			Log              string
		}
	}
	status, stdout, _ := runDev(t, append([]string{"status"}, flags...)...)
	require.Zero(t, status)
	require.NoError(t, json.NewDecoder(strings.NewReader(stdout)).Decode(&report))
	require.Len(t, report.Parts, 1)
	require.True(t, report.Parts[0].Running && report.Parts[0].Healthy)
	require.FileExists(t, report.Parts[0].Log)

	status, _, stderr = runDev(t, "down", "--dir", dir)
	require.Zero(t, status, stderr)
	status, stdout, _ = runDev(t, "status", "--dir", dir, "--part", "s3")
	require.Equal(t, exitFailed, status, "a stopped part must show in the exit status")
	require.Contains(t, stdout, "stopped")
}

func TestDevStatusWithoutAStackSaysWhatToDo(t *testing.T) {
	t.Parallel()
	status, _, stderr := runDev(t, "status", "--dir", t.TempDir())
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "drover dev up")
}

func TestDevRefusesUnknownParts(t *testing.T) {
	t.Parallel()
	status, _, stderr := runDev(t, "up", "--dir", t.TempDir(), "--part", "mysql")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, `no part "mysql"`)
	require.Contains(t, stderr, "postgres")
}
