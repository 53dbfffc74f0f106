package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"drover/internal/failure"
)

const (
	// MarkVariable is set in the environment of each part to the part's folder.
	// A pid from a pid file is believed only where the process still carries it:
	// after a crash the number may belong to somebody else.
	MarkVariable = "DROVER_PART"

	// logTail is how many lines of a part's log an error shows.
	logTail = 20

	// logLimit is the size from which a log is put aside at the next start.
	logLimit = 32 << 20

	// pollEvery is the pause between two looks at a process or a server.
	pollEvery = 25 * time.Millisecond
)

// program is what a process runs.
type program struct {
	path       string
	args       []string
	env        []string
	credential *syscall.Credential // nil: as the caller
}

// process is one detached child: it has its own session, and its pid file
// tells the next command where it is.
type process struct {
	name string
	dir  string
	stop syscall.Signal // asks it to end
	wait time.Duration  // how long it may take to end before it is killed
}

func (p *process) pidFile() string { return filepath.Join(p.dir, "pid") }
func (p *process) logFile() string { return filepath.Join(p.dir, "log") }

// pid is the running process, or 0.
func (p *process) pid() int {
	raw, err := os.ReadFile(p.pidFile())
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || !alive(pid) || !marked(pid, p.dir) {
		return 0
	}
	return pid
}

// alive reports whether pid runs. A child that has died and that nobody has
// waited for is not alive, although a signal still reaches it.
func alive(pid int) bool {
	if pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) || !hasProc()
	}
	// The name in parentheses may hold anything; the state follows the last one.
	_, rest, ok := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	return !ok || !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// hasProc reports whether the system shows its processes as files.
func hasProc() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}

// marked reports whether pid is a part that lives in dir. Where that cannot be
// seen, the pid file is believed.
func marked(pid int, dir string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(env) == 0 {
		return true
	}
	for entry := range strings.SplitSeq(string(env), "\x00") {
		if entry == MarkVariable+"="+dir {
			return true
		}
	}
	return false
}

// start runs prog and waits until ready says nil. A process that ends or does
// not become ready within the time of ctx is an error with the end of its log.
func (p *process) start(ctx context.Context, prog program, ready func(context.Context) error) error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	log, from, err := p.openLog()
	if err != nil {
		return err
	}
	defer log.Close()

	// It must outlive ctx, so the command is not bound to it.
	cmd := exec.Command(prog.path, prog.args...) //nolint:noctx // the process outlives its starter
	cmd.Dir = "/"
	cmd.Env = append(baseEnvironment(), prog.env...)
	cmd.Env = append(cmd.Env, MarkVariable+"="+p.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: prog.credential}
	if err := cmd.Start(); err != nil {
		return failure.New(failure.Invalid, "devstack.start", "start %s: %w", p.name, err).
			WithHint("run `make setup`, which installs what the stack needs")
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := writeFile(p.pidFile(), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644); err != nil {
		_ = cmd.Process.Kill()
		return err
	}
	if err := p.await(ctx, ended, ready); err != nil {
		_ = p.end(context.WithoutCancel(ctx))
		return failure.New(failure.Transient, "devstack.not-ready", "%s did not become ready: %w%s", p.name, err, p.tail(from)).
			WithHint("the whole log is %s", p.logFile())
	}
	return nil
}

// await asks ready until it says nil or the process ends.
func (p *process) await(ctx context.Context, ended <-chan error, ready func(context.Context) error) error {
	var last error
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ready(attempt)
		cancel()
		if err == nil {
			select {
			case err := <-ended: // somebody else answered at its address
				return fmt.Errorf("it ended at once (%s)", exitText(err))
			default:
				return nil
			}
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended (%s)", exitText(err))
		case <-ctx.Done():
			if last == nil {
				last = context.Cause(ctx)
			}
			return last
		case <-time.After(pollEvery):
		}
	}
}

// watch gives a channel that tells when pid, which need not be a child of this
// process, has ended. It stops watching with ctx.
func watch(ctx context.Context, pid int) <-chan error {
	ended := make(chan error, 1)
	go func() {
		for alive(pid) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pollEvery):
			}
		}
		ended <- errGone
	}()
	return ended
}

// errGone is how a process ends whose status nobody knows.
var errGone = errors.New("status unknown")

// exitText says how a process ended.
func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// end asks the process to end, kills it when it takes too long, and returns
// when it has gone. A process that does not run is no error.
func (p *process) end(ctx context.Context) error {
	pid := p.pid()
	if pid == 0 {
		return removeIfExists(p.pidFile())
	}
	if err := syscall.Kill(pid, p.stop); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	if gone(ctx, pid, p.wait) {
		return removeIfExists(p.pidFile())
	}
	return p.kill(ctx)
}

// kill ends the process at once, as a crash would, and returns when it has gone.
func (p *process) kill(ctx context.Context) error {
	pid := p.pid()
	if pid == 0 {
		return removeIfExists(p.pidFile())
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	if !gone(ctx, pid, 10*time.Second) {
		return failure.New(failure.Transient, "devstack.will-not-die", "%s (pid %d) is still there after SIGKILL", p.name, pid)
	}
	return removeIfExists(p.pidFile())
}

// gone waits until pid has ended and reports whether it has.
func gone(ctx context.Context, pid int, bound time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for alive(pid) {
		select {
		case <-ctx.Done():
			return !alive(pid)
		case <-time.After(pollEvery):
		}
	}
	return true
}

// openLog opens the log for appending and tells where this start begins in it.
func (p *process) openLog() (*os.File, int64, error) {
	if info, err := os.Stat(p.logFile()); err == nil && info.Size() > logLimit {
		if err := os.Rename(p.logFile(), p.logFile()+".1"); err != nil {
			return nil, 0, err
		}
	}
	f, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// tail is the end of the log since offset from, ready to follow a message.
func (p *process) tail(from int64) string {
	f, err := os.Open(p.logFile())
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return ""
	}
	raw, err := io.ReadAll(io.LimitReader(f, logLimit))
	if err != nil || len(raw) == 0 {
		return "; its log is empty"
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(lines) > logTail {
		lines = lines[len(lines)-logTail:]
	}
	return "; its log ends:\n    " + strings.Join(lines, "\n    ")
}

// baseEnvironment is what every part inherits. Variables that configure a
// server (PGPORT and its like) must not leak into it.
func baseEnvironment() []string {
	env := []string{"LC_ALL=C.UTF-8", "TZ=UTC"}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "JAVA_HOME"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// writeFile replaces the file at path in one step.
func writeFile(path string, data []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, removeIfExists(tmp.Name()))
	}
	return nil
}

// removeIfExists removes a file that may be absent.
func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
