package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"drover/devstack"
)

// process is a worker or a proxy.
type process struct {
	args   []string
	cmd    *exec.Cmd
	done   chan struct{}
	paused bool
}

// start runs the binary with the stack's settings.
func (r *Rig) start(args ...string) (*process, error) {
	logs := filepath.Join(r.o.Dir, "log")
	for _, dir := range []string{logs, r.drillDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	r.started++
	f, err := os.Create(filepath.Join(logs, fmt.Sprintf("%03d-%s.log", r.started, args[0]))) //nolint:gosec // below the stack's folder
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()         // the process has its own
	cmd := exec.Command(r.o.Binary, args...) //nolint:gosec,noctx // our own binary; it is ended by hand
	cmd.Env = append(os.Environ(), "DROVER_STACK="+filepath.Join(r.o.Dir, devstack.StateFile),
		"DROVER_AUTH=false", "DROVER_GATE_LAG=1s", "DROVER_GATE_LATENCY=1m", "DROVER_GATE_ELECTION_QUIET=0s",
		"DROVER_IMPORT_LATENCY=0") // a switch must be tried, also on a machine that is busy
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	p := &process{args: args, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

func (r *Rig) startWorker() (*process, error) {
	return r.start("worker", "--child", "--hold-in", r.drillDir())
}

// kill ends a process as a power cut would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// pause stops a process where it stands; resume lets it go on as if nothing had been.
func (p *process) pause() error {
	p.paused = true
	return p.cmd.Process.Signal(syscall.SIGSTOP)
}

func (p *process) resume() error {
	p.paused = false
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

// lives reports whether the process runs or is paused.
func (p *process) lives() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// worker gives the worker of a process id.
func (r *Rig) worker(pid int) (*process, error) {
	for _, p := range r.workers {
		if p.cmd.Process.Pid == pid {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no worker has process id %d", pid)
}

// killPart ends a server of the stack as a power cut would.
func (r *Rig) killPart(ctx context.Context, name string) error {
	_, parts, err := devstack.Status(ctx, r.options())
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Name != name {
			continue
		}
		if p.PID == 0 {
			return fmt.Errorf("%s does not run", name)
		}
		return syscall.Kill(-p.PID, syscall.SIGKILL)
	}
	return fmt.Errorf("the stack has no part %s", name)
}

// heal starts again what was killed.
func (r *Rig) heal(ctx context.Context) error {
	if _, err := devstack.Up(ctx, r.options(), quiet); err != nil {
		return err
	}
	return r.revive()
}

// revive starts again the workers and proxies that were killed.
func (r *Rig) revive() error {
	for _, all := range [][]*process{r.proxies, r.workers} {
		for i, p := range all {
			if p.lives() {
				continue
			}
			again, err := r.start(p.args...)
			if err != nil {
				return err
			}
			all[i] = again
		}
	}
	return nil
}
