package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/internal/config"
)

// A configuration with several faults was refused for the first kind of them only: who
// had mended unknown keys was then told what was missing, and then whose name it was.
func TestAllFaultsComeAtStart(t *testing.T) {
	t.Chdir(t.TempDir()) // no dev stack
	file := filepath.Join(t.TempDir(), "drover.yaml")
	require.NoError(t, os.WriteFile(file, []byte("lisen: 127.0.0.1:1\nswitch-wait: soon\nlinger: -1s\nlog-level: {}\n"), 0o600))
	a := &app{file: file, env: Env{LookupEnv: func(string) (string, bool) { return "", false }}}
	cmd := newProxyCommand(a)
	cmd.SetContext(t.Context())
	require.NoError(t, cmd.ParseFlags([]string{"--tls-cert", "none.pem"}))

	err := a.serve(cmd, config.Proxy, false, func(context.Context) error { return errors.New("the name is taken") }, nil)
	for _, want := range []string{
		`unknown setting "lisen"`, "switch-wait from", "linger is -1s", "log-level is neither", "postgres-dsn is not set", "secret is not set",
		"tls-cert and tls-key go together", "none.pem", "the name is taken",
	} {
		require.ErrorContains(t, err, want)
	}
	_, ok := errors.AsType[*usageError](err)
	require.True(t, ok, "the exit status says that it was misused")

	a.file = "no such file"
	cmd = newProxyCommand(a)
	require.NotContains(t, a.load(cmd, config.Proxy).Error(), "postgres-dsn", "nobody knows what the file would have set")
}
