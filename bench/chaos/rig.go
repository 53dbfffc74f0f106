package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"log/slog"

	"drover/chunk"
	"drover/contract"
	"drover/demo/workload"
	"drover/devstack"
	"drover/metadata"
	"drover/shard"
	"drover/starter"
	"drover/workers"
)

// rig is a fleet of its own: a stack, one worker, two proxies and an application.
type rig struct {
	dir     string // of the stack
	binary  string
	stack   *devstack.Stack
	store   *metadata.Store
	starter *starter.Starter
	work    *workload.Workload
	regs    *registers
	hot     chunk.Route
	worker  *process
	proxies []*process
	started int // processes, for names of logs and files
	closers []func()
}

// process is a worker or a proxy.
type process struct {
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// database is what the application works in.
const database = "app"

// newRig starts everything but the worker.
func newRig(ctx context.Context, dir, binary string, rate, clients int) (r *rig, err error) {
	r = &rig{dir: dir, binary: binary}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	opts := r.options()
	if err := devstack.Reset(ctx, opts, quiet); err != nil {
		return r, err
	}
	if r.stack, err = devstack.Up(ctx, opts, quiet); err != nil {
		return r, err
	}
	if r.store, err = metadata.Open(ctx, r.stack.Postgres.DSN); err != nil {
		return r, err
	}
	r.closers = append(r.closers, r.store.Close)
	if err := r.store.Migrate(ctx); err != nil {
		return r, err
	}
	c, err := starter.Dial(ctx, r.stack.Temporal.Address, r.stack.Temporal.Namespace, slog.New(slog.DiscardHandler))
	if err != nil {
		return r, err
	}
	r.closers = append(r.closers, c.Close)
	r.starter = starter.New(c)
	for _, s := range r.stack.Shards {
		sh, err := shard.Bootstrap(ctx, s.AdminURI, s.Name, r.stack.Secret, shard.BootstrapOptions{AllowOtherWriters: true})
		if err != nil {
			return r, err
		}
		if err := r.store.AddShard(ctx, sh); err != nil {
			return r, err
		}
		if err := r.starter.EnsureCapture(ctx, s.Name); err != nil {
			return r, err
		}
	}
	return r, r.startApplication(ctx, rate, clients)
}

func quiet(string, string) {}

func (r *rig) options() devstack.Options {
	return devstack.Options{Dir: r.dir, Self: []string{r.binary, "dev", "embedded-kafka"}}
}

// startApplication starts the proxies, makes the database and lets clients run.
func (r *rig) startApplication(ctx context.Context, rate, clients int) error {
	var addresses []string
	for i := range 2 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		address := l.Addr().String()
		if err := l.Close(); err != nil {
			return err
		}
		p, err := r.start("proxy", "--child", "--listen", address, "--name", fmt.Sprintf("proxy-%d", i+1))
		if err != nil {
			return err
		}
		r.proxies, addresses = append(r.proxies, p), append(addresses, address)
	}
	for _, a := range addresses {
		if err := until(ctx, "a proxy listens at "+a, func() (bool, error) { return answers(ctx, a), nil }); err != nil {
			return err
		}
	}
	hot, cold, err := r.createDatabase(ctx)
	if err != nil {
		return err
	}
	uri := "mongodb://" + strings.Join(addresses, ",") + "/"
	if r.regs, err = newRegisters(uri, hot[0]); err != nil {
		return err
	}
	r.work, err = workload.Start(ctx, workload.Config{
		URI: uri, Database: database, Clients: clients, Rate: rate, Origins: cold, HotOrigins: hot, HotShare: 0.6,
		Documents: 40, Guarded: true, Seed: 11,
	})
	return err
}

// answers reports whether somebody listens.
func answers(ctx context.Context, address string) bool {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// createDatabase provisions the application's database over two shards and sorts
// shard-key values by whether they live in the chunk that moves.
func (r *rig) createDatabase(ctx context.Context) (hot, cold []string, err error) {
	index, err := bson.Marshal(bson.D{
		{Key: "key", Value: bson.D{{Key: "origin", Value: int32(1)}, {Key: "ref", Value: int32(1)}}},
		{Key: "name", Value: "origin_ref"}, {Key: "unique", Value: true},
	})
	if err != nil {
		return nil, nil, err
	}
	db := chunk.Database{Name: database, KeySpace: chunk.Hashed, Collections: []chunk.Collection{
		{Name: workload.Collection, ShardKey: "origin", Indexes: []bson.Raw{index}},
		{Name: registerCollection, ShardKey: "origin"},
	}}
	var parts []metadata.NewChunk
	for i, rg := range chunk.Hashed.Split(4) {
		parts = append(parts, metadata.NewChunk{Range: rg, Shard: r.stack.Shards[i%2].Name})
	}
	routes, err := workers.CreateDatabase(ctx, r.store, r.stack.Secret, db, parts)
	if err != nil {
		return nil, nil, err
	}
	r.hot = routes[0]
	for i := range 40 {
		origin := fmt.Sprintf("O%02d", i)
		raw, err := bson.Marshal(bson.D{{Key: "origin", Value: origin}})
		if err != nil {
			return nil, nil, err
		}
		p, err := chunk.Hashed.DocumentPoint(raw, "origin")
		if err != nil {
			return nil, nil, err
		}
		if r.hot.Chunk.Range.Contains(p) {
			hot = append(hot, origin)
		} else {
			cold = append(cold, origin)
		}
	}
	return hot, cold, nil
}

// start runs the binary with the stack's settings.
func (r *rig) start(args ...string) (*process, error) {
	logs := filepath.Join(r.dir, "log")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return nil, err
	}
	r.started++
	f, err := os.Create(filepath.Join(logs, fmt.Sprintf("%03d-%s.log", r.started, args[0]))) //nolint:gosec // below the stack's folder
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()       // the process has its own
	cmd := exec.Command(r.binary, args...) //nolint:gosec,noctx // our own binary; it is ended by hand
	cmd.Env = append(os.Environ(), "DROVER_STACK="+filepath.Join(r.dir, devstack.StateFile),
		"DROVER_AUTH=false", "DROVER_GATE_LAG=1s", "DROVER_GATE_LATENCY=1m", "DROVER_GATE_ELECTION_QUIET=0s") // a switch must be tried, also on a machine that is busy
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

// kill ends a process as a power cut would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// restartWorker replaces the worker by one that holds at point; "" holds nowhere.
// file is where it tells that it is there.
func (r *rig) restartWorker(point string) (file string, err error) {
	if r.worker != nil {
		r.worker.kill()
	}
	args := []string{"worker", "--child"}
	if point != "" {
		file = filepath.Join(r.dir, fmt.Sprintf("hold-%03d", r.started))
		args = append(args, "--hold-at", point+"="+file)
	}
	r.worker, err = r.start(args...)
	return file, err
}

// killPart ends a server of the stack as a power cut would.
func (r *rig) killPart(ctx context.Context, name string) error {
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
func (r *rig) heal(ctx context.Context) error {
	if _, err := devstack.Up(ctx, r.options(), quiet); err != nil {
		return err
	}
	for i, p := range r.proxies {
		select {
		case <-p.done:
			again, err := r.start(p.args...)
			if err != nil {
				return err
			}
			r.proxies[i] = again
		default:
		}
	}
	select {
	case <-r.worker.done:
		_, err := r.restartWorker("")
		return err
	default:
		return nil
	}
}

// close ends everything.
func (r *rig) close() {
	if r.work != nil {
		r.work.Stop()
		_ = r.work.Close(context.Background())
	}
	if r.regs != nil {
		r.regs.close()
	}
	for _, p := range append(r.proxies, r.worker) {
		if p != nil {
			p.kill()
		}
	}
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	if r.stack != nil {
		_ = devstack.Down(context.Background(), r.options(), quiet) // the report is written; what stays is found by dev status
	}
}

// patience bounds every wait; it is no expectation.
const patience = 2 * time.Minute

var errImpatient = errors.New("it did not come within " + patience.String())

// until waits for a condition.
func until(ctx context.Context, what string, is func() (bool, error)) error {
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := is()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s: %w", what, errImpatient)
		case <-tick.C:
		}
	}
}

// await waits until the move is in a state. Errors of asking count as "not yet":
// what answers may be what was killed.
func (r *rig) await(ctx context.Context, what string, is func(contract.Status) bool) error {
	var last contract.Status
	err := until(ctx, what, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		st, err := r.starter.Status(ctx, r.hot.Chunk.ID)
		if err != nil {
			return false, nil //nolint:nilerr // asked again
		}
		last = st
		return is(st), nil
	})
	if err != nil {
		return fmt.Errorf("%w (it is at %q, waiting for %q, attention %q)", err, last.Step, last.WaitingFor, last.Attention)
	}
	return nil
}

// ask sends an update; what does not answer is asked again.
func (r *rig) ask(ctx context.Context, update string) error {
	return until(ctx, update, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := r.starter.Ask(ctx, r.hot.Chunk.ID, update, contract.UpdateInput{By: "chaos"})
		return err == nil, nil
	})
}
