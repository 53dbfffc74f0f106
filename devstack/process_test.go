package devstack

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newProcess describes a shell script in a folder of the test's own.
func newProcess(t *testing.T, script string) (*process, program) {
	t.Helper()
	p := &process{name: "script", dir: t.TempDir(), stop: syscall.SIGTERM, wait: 300 * time.Millisecond}
	t.Cleanup(func() { require.NoError(t, p.kill(context.WithoutCancel(t.Context()))) })
	return p, program{path: "/bin/sh", args: []string{"-c", script}}
}

// started says nil once the script has written its file.
func started(p *process) func(context.Context) error {
	return func(context.Context) error {
		_, err := os.Stat(filepath.Join(p.dir, "started"))
		return err
	}
}

// A server that does not answer the polite request must not outlive `down`.
func TestStubbornProcessIsKilled(t *testing.T) {
	t.Parallel()
	p, prog := newProcess(t, `trap '' TERM; touch "$DROVER_PART/started"; while :; do sleep 0.05; done`)
	require.NoError(t, p.start(t.Context(), prog, started(p)))
	pid := p.pid()
	require.NotZero(t, pid)
	require.NoError(t, p.end(t.Context()))
	require.False(t, alive(pid))
	require.Zero(t, p.pid())
}

func TestProcessThatEndsShowsTheEndOfItsLog(t *testing.T) {
	t.Parallel()
	p, prog := newProcess(t, `for i in $(seq 1 100); do echo "line $i"; done; exit 3`)
	err := p.start(t.Context(), prog, func(context.Context) error { return errors.New("not yet") })
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "line 100")
	require.NotContains(t, err.Error(), "line 80\n")
}

// An older run's last words must not be shown as this one's.
func TestTailBeginsWithThisStart(t *testing.T) {
	t.Parallel()
	p, prog := newProcess(t, `exit 1`)
	require.NoError(t, os.WriteFile(p.logFile(), []byte("old words\n"), 0o600))
	err := p.start(t.Context(), prog, func(context.Context) error { return errors.New("not yet") })
	require.ErrorContains(t, err, "its log is empty")
}

// After a crash of the machine the number in a pid file may belong to anybody.
func TestPidOfAnotherProcessIsNotBelieved(t *testing.T) {
	t.Parallel()
	p, _ := newProcess(t, "")
	other := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, other.Start())
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	require.NoError(t, os.WriteFile(p.pidFile(), []byte(strconv.Itoa(other.Process.Pid)), 0o600))
	require.Zero(t, p.pid())
	require.NoError(t, p.end(t.Context()))
	require.True(t, alive(other.Process.Pid), "a stranger was killed")
}

// A child that died without being waited for still takes signals.
func TestZombieIsNotAlive(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "true")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return !alive(cmd.Process.Pid) }, 5*time.Second, time.Millisecond)
	require.NoError(t, cmd.Wait())
}

func TestGiantLogIsPutAside(t *testing.T) {
	t.Parallel()
	p, prog := newProcess(t, `touch "$DROVER_PART/started"; exec sleep 60`)
	require.NoError(t, os.WriteFile(p.logFile(), nil, 0o600))
	require.NoError(t, os.Truncate(p.logFile(), logLimit+1))
	require.NoError(t, p.start(t.Context(), prog, started(p)))
	info, err := os.Stat(p.logFile())
	require.NoError(t, err)
	require.Zero(t, info.Size())
	require.FileExists(t, p.logFile()+".1")
}

// The set-up script and this package must name the same folder, or each start
// asks for a set-up that was done.
func TestSetupBuildsTheServerThatIsLookedFor(t *testing.T) {
	t.Parallel()
	root := checkout(".")
	if wd, err := os.Getwd(); err == nil {
		root = checkout(wd)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "setup.sh"), "temporal-folder").Output()
	require.NoError(t, err)
	folder, err := temporalFolder(filepath.Join(root, "devstack", "temporal"))
	require.NoError(t, err)
	require.Equal(t, folder, strings.TrimSpace(string(out)))
}

// A real server is preferred; without one here, its command line is what can
// be checked.
func TestMongodRunsAsAReplicaSetWithAuthentication(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "mongod"), []byte("#!/bin/sh\n"), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	tools := Tools{Cache: t.TempDir()}
	s, err := NewShard(t.TempDir(), "shard-a", tools)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(s.dir, 0o755))
	prog, err := s.program()
	require.NoError(t, err)
	line := strings.Join(prog.args, " ")
	require.Contains(t, line, "--replSet shard-a")
	require.Contains(t, line, "--auth --keyFile "+filepath.Join(s.dir, "keyfile"))
	info, err := os.Stat(filepath.Join(s.dir, "keyfile"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o400), info.Mode().Perm(), "mongod refuses a key that others can read")
}
