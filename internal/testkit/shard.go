package testkit

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"drover/devstack"
)

// startTimeout is how long a shard may take to start on a busy machine.
const startTimeout = 60 * time.Second

// ShardServer is a shard of a test's own, with authentication on, which the
// test may kill. It keeps its address and data over restarts.
type ShardServer struct{ server *devstack.ShardServer }

// Shard starts a shard and stops it after the test.
func Shard(t testing.TB) *ShardServer {
	t.Helper()
	SkipShort(t)
	tools, err := devstack.NewTools()
	if err != nil {
		Unavailable(t, err.Error())
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for attempt := 1; ; attempt++ {
		name := fmt.Sprintf("shard-%d", attempt)
		server, err := devstack.NewShard(dir, name, tools)
		if err != nil {
			t.Fatal(err)
		}
		s := &ShardServer{server: server}
		err = s.start()
		if err == nil {
			t.Cleanup(func() { s.Stop(t) })
			return s
		}
		if attempt == 3 { // a port may have been taken since it was chosen, but not thrice
			Unavailable(t, err.Error())
		}
	}
}

// start runs the server and tells the reaper about it.
func (s *ShardServer) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := s.server.Start(ctx); err != nil {
		return err
	}
	return reap(s.server.PID(), s.server.Dir())
}

// URI is the address without credentials.
func (s *ShardServer) URI() string { return s.server.Access().URI }

// AdminURI is the address with the root user's credentials.
func (s *ShardServer) AdminURI() string { return s.server.Access().AdminURI }

// Kill ends the shard as a crash would.
func (s *ShardServer) Kill(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := s.server.Kill(ctx); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the shard in order; one that does not run is no error.
func (s *ShardServer) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*cleanupTimeout)
	defer cancel()
	if err := s.server.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

// Restart stops the shard if it runs and starts it with its data where it was.
func (s *ShardServer) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// The reaper ends the shards of a test process that was killed, or that ended
// by a time-out, before it could do so itself.
var reaper struct {
	once  sync.Once
	stdin io.WriteCloser
	err   error
}

// reaperScript reads "pid folder" lines until this process ends, and then
// kills those that are still what they were.
const reaperScript = `trap '' INT TERM HUP
lines=
while read -r line; do lines="$lines$line
"; done
printf %s "$lines" | while read -r pid dir; do
	if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF "DROVER_PART=$dir"; then kill -9 "$pid"; fi
done`

// reap puts a process into the care of the reaper.
func reap(pid int, dir string) error {
	reaper.once.Do(func() {
		cmd := exec.Command("sh", "-c", reaperScript) //nolint:noctx // it outlives every test
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if reaper.stdin, reaper.err = cmd.StdinPipe(); reaper.err == nil {
			reaper.err = cmd.Start()
		}
	})
	if reaper.err != nil {
		return fmt.Errorf("start the reaper of test shards: %w", reaper.err)
	}
	_, err := fmt.Fprintf(reaper.stdin, "%d %s\n", pid, dir)
	return err
}
