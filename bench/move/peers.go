package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bench/loads"
	"drover/devstack"
	"drover/internal/pause"
)

// onPath reports whether all programs are there and wanted.
func (b *bench) onPath(programs ...string) bool {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			b.say("%s is not on PATH: not compared", p)
			return false
		}
	}
	return b.o.peers
}

// dumpRestore copies the collection with mongodump and mongorestore into a server of
// its own and gives the documents per second, 0 where the tools are not there. With
// indexes, they are in place before.
func (b *bench) dumpRestore(ctx context.Context, s *loads.Servers, source devstack.ShardAccess, cache int, indexes []bson.D) (float64, error) {
	if !b.onPath("mongodump", "mongorestore") {
		return 0, nil
	}
	to, access, err := s.Shard(ctx, "restored", cache)
	if err != nil {
		return 0, err
	}
	if len(indexes) > 0 {
		if err := loads.Provision(ctx, to.Database(loads.SourceDB), indexes); err != nil {
			return 0, err
		}
	}
	limited, cancel := context.WithTimeout(ctx, b.o.limit)
	defer cancel()
	c := watch(ctx, to)
	defer c.stop()
	began := time.Now()
	dump := exec.CommandContext(limited, "mongodump", "--uri", source.AdminURI, "--db", loads.SourceDB, "--collection", loads.Collection, "--archive", "--quiet")
	restore := exec.CommandContext(limited, "mongorestore", "--uri", access.AdminURI, "--archive", "--numInsertionWorkersPerCollection", "4", "--quiet") //nolint:gosec // our own server
	err = pipe(dump, restore)
	took := time.Since(began)
	if err != nil && limited.Err() == nil {
		return 0, fmt.Errorf("mongodump | mongorestore: %w", err)
	}
	n, err := c.end()
	if err != nil && limited.Err() == nil {
		return 0, err
	}
	b.say("mongodump | mongorestore: %d documents in %s, %.0f/s", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
	return float64(n) / took.Seconds(), s.StopShard(ctx, access.Name)
}

// counted is how many documents a tool has brought, as far as its server says. One whose
// cache is too small may say nothing any more.
type counted struct {
	stop context.CancelFunc
	done chan struct{}
	n    int64 // what it said last
	err  error // of the last question
}

// answerWithin is how long a server may take to count.
const answerWithin = 10 * time.Second

// watch begins to count.
func watch(ctx context.Context, to *mongo.Client) *counted {
	watching, stop := context.WithCancel(ctx)
	c := &counted{stop: stop, done: make(chan struct{})}
	count := func() {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		var n int64
		if n, c.err = to.Database(loads.SourceDB).Collection(loads.Collection).EstimatedDocumentCount(ctx); c.err == nil {
			c.n = n
		}
	}
	go func() {
		defer close(c.done)
		for pause.For(watching, time.Second) == nil {
			count()
		}
		count()
	}()
	return c
}

// end counts once more and gives what there is; with an error, what there was when the
// server answered last.
func (c *counted) end() (int64, error) {
	c.stop()
	<-c.done
	return c.n, c.err
}

// pipe runs two programs, the output of the first being the input of the second.
func pipe(from, to *exec.Cmd) error {
	r, w := io.Pipe()
	from.Stdout, to.Stdin = w, r
	from.Stderr, to.Stderr = os.Stderr, os.Stderr
	if err := to.Start(); err != nil {
		return err
	}
	err := from.Run()
	_ = w.CloseWithError(err) // end of file when it went well
	err = errors.Join(err, to.Wait())
	_ = r.Close()
	return err
}

// pcsm is a running Percona ClusterSync.
type pcsm struct {
	cmd  *exec.Cmd
	port int
	log  *os.File
}

// startPCSM starts it between two shards.
func (b *bench) startPCSM(ctx context.Context, s *loads.Servers, source, target devstack.ShardAccess) (*pcsm, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener
	if err := l.Close(); err != nil {
		return nil, err
	}
	p := &pcsm{port: port}
	if p.log, err = os.Create(filepath.Join(s.Dir, "pcsm.log")); err != nil {
		return nil, err
	}
	p.cmd = exec.Command("pcsm", "--source", source.AdminURI, "--target", target.AdminURI, "--port", strconv.Itoa(port), "--reset-state") //nolint:gosec,noctx // stopped by hand
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	return p, p.cmd.Start()
}

// stop ends it.
func (p *pcsm) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	ended := make(chan struct{})
	go func() {
		_ = p.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-ended
	}
	_ = p.log.Close()
}

// pcsmStatus is what it says of itself.
type pcsmStatus struct {
	State   string `json:"state"`
	Error   string `json:"error"`
	Applied int64  `json:"eventsApplied"`
	Initial struct {
		Cloned bool `json:"cloneCompleted"`
	} `json:"initialSync"`
}

// status asks it.
func (p *pcsm) status(ctx context.Context) (st pcsmStatus, err error) {
	err = p.call(ctx, http.MethodGet, "status", nil, &st)
	return st, err
}

// call makes one request.
func (p *pcsm) call(ctx context.Context, method, path string, body io.Reader, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://127.0.0.1:%d/%s", p.port, path), body)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return json.NewDecoder(res.Body).Decode(answer)
}

// until asks the status until it is as wanted.
func (p *pcsm) until(ctx context.Context, wanted func(pcsmStatus) bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := p.status(ctx)
		if err == nil && st.State == "failed" {
			return fmt.Errorf("pcsm: %s", st.Error)
		}
		if err == nil && wanted(st) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// begin starts the copy of the measured collection.
func (p *pcsm) begin(ctx context.Context, flags ...string) error {
	if err := p.until(ctx, func(pcsmStatus) bool { return true }); err != nil {
		return err
	}
	args := append([]string{"start", "--port", strconv.Itoa(p.port), "--include-namespaces", loads.SourceDB + "." + loads.Collection}, flags...)
	out, err := exec.CommandContext(ctx, "pcsm", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pcsm start: %w: %s", err, out)
	}
	return nil
}

// pcsmCopy copies the collection with Percona ClusterSync into a server of its own
// and gives the documents per second, 0 where it is not there.
func (b *bench) pcsmCopy(ctx context.Context, s *loads.Servers, source devstack.ShardAccess, cache int) (float64, error) {
	if !b.onPath("pcsm") {
		return 0, nil
	}
	to, access, err := s.Shard(ctx, "synced", cache)
	if err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeout(ctx, b.o.limit)
	defer cancel()
	p, err := b.startPCSM(limited, s, source, access)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if err := p.begin(limited); err != nil {
		return 0, err
	}
	c := watch(ctx, to)
	defer c.stop()
	began := time.Now()
	err = p.until(limited, func(st pcsmStatus) bool { return st.Initial.Cloned })
	took := time.Since(began)
	if err != nil && limited.Err() == nil {
		return 0, err
	}
	n, err := c.end()
	if err != nil && limited.Err() == nil {
		return 0, err
	}
	b.say("pcsm: %d documents in %s, %.0f/s", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
	return float64(n) / took.Seconds(), nil
}

// pcsmApply gives the rate at which Percona ClusterSync applies updates that were
// written while it was paused, 0 where it is not there.
func (b *bench) pcsmApply(ctx context.Context, s *loads.Servers, write func(context.Context, *mongo.Client) (int, error), from *mongo.Client, source devstack.ShardAccess) (float64, error) {
	if !b.onPath("pcsm") {
		return 0, nil
	}
	_, access, err := s.Shard(ctx, "synced", 512)
	if err != nil {
		return 0, err
	}
	limited, cancel := context.WithTimeout(ctx, b.o.limit)
	defer cancel()
	p, err := b.startPCSM(limited, s, source, access)
	if err != nil {
		return 0, err
	}
	defer p.stop()
	if err := p.begin(limited, "--pause-on-initial-sync"); err != nil {
		return 0, err
	}
	if err := p.until(limited, func(st pcsmStatus) bool { return st.State == "paused" }); err != nil {
		return 0, err
	}
	before, err := p.status(limited)
	if err != nil {
		return 0, err
	}
	n, err := write(limited, from)
	if err != nil {
		return 0, err
	}
	if out, err := exec.CommandContext(limited, "pcsm", "resume", "--port", strconv.Itoa(p.port)).CombinedOutput(); err != nil { //nolint:gosec // a port
		return 0, fmt.Errorf("pcsm resume: %w: %s", err, out)
	}
	began := time.Now()
	if err := p.until(limited, func(st pcsmStatus) bool { return st.Applied-before.Applied >= int64(n) }); err != nil {
		return 0, err
	}
	rate := float64(n) / time.Since(began).Seconds()
	b.say("pcsm applied %d updates, %.0f/s", n, rate)
	return rate, nil
}
