package testkit

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

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
	return Shards(t, 1)[0]
}

// Shards starts several shards, all at once, and stops them after the test.
func Shards(t testing.TB, n int) []*ShardServer {
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
	all := make([]*ShardServer, n)
	t.Cleanup(func() {
		var stopped sync.WaitGroup
		for _, s := range all {
			if s != nil {
				stopped.Go(func() { s.Stop(t) })
			}
		}
		stopped.Wait()
	})
	var started errgroup.Group
	for i := range all {
		started.Go(func() (err error) {
			all[i], err = newShard(filepath.Join(dir, strconv.Itoa(i)), tools)
			return err
		})
	}
	if err := started.Wait(); err != nil {
		Unavailable(t, err.Error())
	}
	return all
}

// newShard starts a shard below dir.
func newShard(dir string, tools devstack.Tools) (*ShardServer, error) {
	for attempt := 1; ; attempt++ {
		server, err := devstack.NewShard(dir, fmt.Sprintf("shard-%d", attempt), tools)
		if err != nil {
			return nil, err
		}
		s := &ShardServer{server: server}
		err = s.start()
		if err == nil || attempt == 3 { // a port may have been taken since it was chosen, but not thrice
			return s, err
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
	return Reap(s.server.PID(), s.server.Dir())
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
		t.Error(err)
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

// Marked adds to an environment what the reaper knows a process by, with a path of
// the process's own.
func Marked(env []string, path string) []string {
	return append(slices.Clone(env), devstack.MarkVariable+"="+path)
}

// Port gives a port that nobody listens on now, and that no connection is given.
func Port() (int, error) { return devstack.FreePort() }

// The reaper ends the servers of a test process that was killed, or that ended
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

// Reap lets a process whose environment was [Marked] with a path end with this one.
func Reap(pid int, path string) error {
	reaper.once.Do(func() {
		cmd := exec.Command("sh", "-c", reaperScript) //nolint:noctx // it outlives every test
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if reaper.stdin, reaper.err = cmd.StdinPipe(); reaper.err == nil {
			reaper.err = cmd.Start()
		}
	})
	if reaper.err != nil {
		return fmt.Errorf("start the reaper of test servers: %w", reaper.err)
	}
	_, err := fmt.Fprintf(reaper.stdin, "%d %s\n", pid, path)
	return err
}
