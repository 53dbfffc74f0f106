package scenario_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/testkit"
)

// process is a worker, a proxy or a console.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // its file
	done chan struct{}
}

// start runs the binary. It ends with the fleet, or with this process however that
// ends; what it said goes to the test's log when the test fails.
func (f *fleet) start(name string, args ...string) *process {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), name+".log")
	log, err := os.Create(path) //nolint:gosec // a test's own folder
	require.NoError(f.t, err)
	defer func() { _ = log.Close() }()     // the process has its own
	cmd := exec.Command(f.binary, args...) //nolint:gosec,noctx // our own binary, ended by stop
	cmd.Env, cmd.Stdout, cmd.Stderr = testkit.Marked(f.env, path), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(f.t, cmd.Start())
	p := &process{name: name, cmd: cmd, log: path, done: make(chan struct{})}
	f.parts[name] = p
	f.started = append(f.started, p)
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	require.NoError(f.t, testkit.Reap(cmd.Process.Pid, path))
	return p
}

// ends waits until a process has ended by itself, and without a failure.
func (p *process) ends(t *testing.T) {
	t.Helper()
	require.True(t, eventually(t, p.ended), "process %d does not end", p.cmd.Process.Pid)
	require.Zero(t, p.cmd.ProcessState.ExitCode())
}

// ended reports whether a process has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends a process at once.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// dumpBegins is the line behind which a Go program writes the stacks of its goroutines.
const dumpBegins = "SIGQUIT: quit\n"

// dump lets a process that still runs write the stacks of its goroutines into
// its log, and end: a test that waited in vain must say where it waited.
func (p *process) dump(t *testing.T) {
	t.Helper()
	if p.ended() || p.cmd.Process.Signal(syscall.SIGQUIT) != nil {
		return
	}
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		t.Logf("process %d does not dump its stacks", p.cmd.Process.Pid)
	}
}

// How much of what a process said is shown: the end of its log, and of its stacks
// those that run our code.
const (
	shownLog    = 12_000
	shownStacks = 8_000
)

// show writes what a process said into the test's log.
func (p *process) show(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil {
		t.Logf("--- %s: %v", p.name, err)
		return
	}
	log, dump, _ := bytes.Cut(b, []byte(dumpBegins))
	t.Logf("--- %s says ---\n%s", p.name, worthShowing(log, shownLog))
	if stacks := ourStacks(dump); len(stacks) > 0 {
		t.Logf("--- %s stands at ---\n%s", p.name, stacks[:min(len(stacks), shownStacks)])
	}
}

// worthShowing is the end of a log without the lines that any move writes when it
// cancels what runs beside it.
func worthShowing(log []byte, most int) string {
	var kept []string
	size := 0
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	for i := len(lines) - 1; i >= 0 && size < most; i-- {
		if !strings.Contains(lines[i], "RecordActivityHeartbeat with error") {
			kept, size = append([]string{lines[i]}, kept...), size+len(lines[i])
		}
	}
	return strings.Join(kept, "\n")
}

// ourStacks are the goroutines of a dump that run our code, each by the names of the
// functions that it is in.
func ourStacks(dump []byte) string {
	var out strings.Builder
	for block := range strings.SplitSeq(string(dump), "\n\n") {
		if !strings.Contains(block, "\ndrover/") {
			continue
		}
		for line := range strings.Lines(block) {
			if name, _, call := strings.Cut(line, "({"); strings.HasPrefix(line, "goroutine ") || strings.HasPrefix(line, "drover/") {
				out.WriteString(strings.TrimSpace(name))
				if call {
					out.WriteString("(…)")
				}
				out.WriteByte('\n')
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// stop ends all processes, and of a test that failed shows what there is to see:
// first where the move stands, for which its workers must still run.
func (f *fleet) stop() {
	f.t.Helper()
	if f.t.Failed() {
		f.showMove()
		for _, p := range f.started {
			if p.cmd.Args[1] == "worker" { // nobody else holds a move up without saying so
				p.dump(f.t)
			}
		}
	}
	defer f.reached("everything has ended")
	var all sync.WaitGroup
	for _, p := range f.started {
		all.Go(p.kill)
	}
	all.Wait()
	if f.t.Failed() {
		for _, p := range f.started {
			p.show(f.t)
		}
	}
}

func (f *fleet) startWorker(name string, args ...string) *process {
	f.t.Helper()
	return f.start(name, append([]string{"worker"}, args...)...)
}

// startProxy starts a proxy, and waits until it listens.
func (f *fleet) startProxy(name string, args ...string) {
	f.t.Helper()
	addr := f.startListening(name, proxyArgs(name, args...)...)
	f.proxies = append(f.proxies, addr)
}

// proxyArgs are a proxy's but for its address.
func proxyArgs(name string, more ...string) []string {
	return append([]string{"proxy", "--auth=false", "--name", name}, more...)
}

// startListening starts something at a free address, and waits until it listens
// there. Somebody else may take the address first, but not thrice.
func (f *fleet) startListening(name string, args ...string) (addr string) {
	f.t.Helper()
	for range 3 {
		port, err := testkit.Port()
		require.NoError(f.t, err)
		addr = fmt.Sprintf("127.0.0.1:%d", port)
		if f.startListeningAt(addr, name, args...) {
			return addr
		}
	}
	f.t.Fatalf("%s does not listen", name)
	return ""
}

// startListeningAt starts something at an address, and reports whether it came to
// listen there before it ended.
func (f *fleet) startListeningAt(addr, name string, args ...string) (listens bool) {
	f.t.Helper()
	p := f.start(name, append(args, "--listen", addr)...)
	require.True(f.t, eventually(f.t, func() bool {
		said, err := os.ReadFile(p.log)
		listens = err == nil && strings.Contains(string(said), addr) && !strings.Contains(string(said), "address already in use")
		return listens || p.ended()
	}), "%s does not listen at %s", name, addr)
	return listens
}

// eventually is require.Eventually without its end of the test.
func eventually(t *testing.T, is func() bool) bool {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
	return true
}
