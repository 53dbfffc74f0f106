package demo

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"drover/devstack"
	"drover/shard"
)

// child is a worker or a proxy in a process of its own.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// gateSettings are the gate's limits where the environment says nothing. The
// defaults are for shards with machines of their own; here the application, all
// servers and the move share one, and the gate would wait for a calm that never
// comes.
var gateSettings = []struct{ name, value string }{ //nolint:gochecknoglobals // constants
	{"DROVER_GATE_LAG", "1s"}, {"DROVER_GATE_LATENCY", "5s"}, {"DROVER_GATE_ELECTION_QUIET", "0s"},
}

// spawn starts the drover binary with the stack's settings.
func (d *demo) spawn(name string, args ...string) (*child, error) {
	logs := filepath.Join(d.o.Dir, "log")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(logs, name+".log")) //nolint:gosec // below the stack's folder
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()       // the child has its own
	cmd := exec.Command(d.o.Self, args...) //nolint:gosec,noctx // our own binary; it is stopped by hand
	cmd.Env = append(os.Environ(), "DROVER_STACK="+filepath.Join(d.o.Dir, devstack.StateFile))
	for _, s := range gateSettings {
		if _, set := d.o.LookupEnv(s.name); !set {
			cmd.Env = append(cmd.Env, s.name+"="+s.value)
		}
	}
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(c.done)
	}()
	d.children = append(d.children, c)
	return c, nil
}

// stop ends a child gracefully, then for good.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(15 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// workerProcesses is how many workers run: one may die.
const workerProcesses = 2

// startProcesses registers the shards and starts two workers and two proxies.
func (d *demo) startProcesses(ctx context.Context) error {
	for _, s := range d.stack.Shards {
		sh, err := shard.Bootstrap(ctx, s.AdminURI, s.Name, d.stack.Secret, shard.BootstrapOptions{AllowOtherWriters: true})
		if err != nil {
			return err
		}
		if err := d.store.AddShard(ctx, sh); err != nil {
			return err
		}
		if err := d.starter.EnsureCapture(ctx, s.Name); err != nil {
			return err
		}
	}
	for i := range workerProcesses {
		if _, err := d.spawn(fmt.Sprintf("worker-%d", i+1), "worker", "--child"); err != nil {
			return err
		}
	}
	for i := range 2 {
		addr, err := freeAddress(ctx)
		if err != nil {
			return err
		}
		args := []string{"proxy", "--child", "--listen", addr, "--name", fmt.Sprintf("proxy-%d", i+1)}
		if d.o.DeafProxy && i == 1 {
			args = append(args, "--deaf")
		}
		if _, err := d.spawn(fmt.Sprintf("proxy-%d", i+1), args...); err != nil {
			return err
		}
		d.proxies = append(d.proxies, addr)
	}
	for _, addr := range d.proxies {
		if err := awaitPort(ctx, addr); err != nil {
			return err
		}
	}
	d.say("two workers and two proxies run")
	return nil
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// awaitPort waits until something listens.
func awaitPort(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing listens on %s: %w", addr, err)
		case <-tick.C:
		}
	}
}
