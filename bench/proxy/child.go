package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/bench/proxy/forward"
	"drover/proxy"
)

// roleVariable makes this program one of the parts that are measured: each runs
// in a process of its own, so that its memory is its own too.
const roleVariable = "DROVER_BENCH_ROLE"

// runRole is the main of a part. Its standard input says what to do, line by
// line, and ends it.
func runRole(ctx context.Context, role string) error {
	in := bufio.NewReader(os.Stdin)
	first, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	switch role {
	case "forward":
		return runForward(ctx, strings.TrimSpace(string(first)), in)
	case "proxy":
		return runProxy(ctx, first, in)
	default:
		return fmt.Errorf("unknown role %q", role)
	}
}

// runForward is the forwarder's process.
func runForward(ctx context.Context, to string, in *bufio.Reader) error {
	f, err := forward.Listen(ctx, "127.0.0.1:0", to)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	fmt.Println(f.Addr())
	_, _ = io.Copy(io.Discard, in)
	stop()
	return <-done
}

// runProxy is the proxy's process.
func runProxy(ctx context.Context, line []byte, in *bufio.Reader) error {
	var set settings
	if err := json.Unmarshal(line, &set); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if set.Profile != "" {
		out, err := os.Create(set.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			_ = out.Close()
		}()
	}
	fl := newFleet(set)
	p := proxy.New(proxy.Config{
		ID: "bench", Listen: "127.0.0.1:0", Registerer: prometheus.NewRegistry(),
	}, fl.ports())
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	select {
	case <-p.Ready():
	case err := <-done:
		return err
	}
	fmt.Println(p.Addr())
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			stop()
			return <-done
		}
		if err != nil {
			return err
		}
		fmt.Println(fl.obey(strings.Fields(line)))
	}
}

// obey does what a line says and gives the answer.
func (f *fleet) obey(words []string) string {
	switch words[0] {
	case "mallocs":
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return strconv.FormatUint(m.Mallocs, 10)
	case "fence":
		f.fence(words[1])
	case "lift":
		f.lift(words[1])
	}
	return "ok"
}

// part is a child process that is measured.
type part struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	address string
}

// startPart runs this program as a part and waits for its address.
func startPart(ctx context.Context, role string, settings []byte) (*part, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &part{cmd: exec.CommandContext(ctx, self)} //nolint:gosec // this very program
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.address, err = p.tell(string(settings))
	return p, err
}

// tell sends a line and gives the answer.
func (p *part) tell(line string) (string, error) {
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		return "", err
	}
	answer, err := p.out.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// stop ends the part.
func (p *part) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// rss is the part's resident memory in bytes.
func (p *part) rss() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()), err
}

// settle gives the part's memory once it has not grown for a while.
func (p *part) settle(ctx context.Context) (float64, error) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var last float64
	for {
		now, err := p.rss()
		if err != nil || now <= last {
			return now, err
		}
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
