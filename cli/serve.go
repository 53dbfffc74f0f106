package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"

	"drover/internal/config"
	"drover/internal/logging"
	"drover/internal/stoppoint"
	"drover/internal/tracing"
	"drover/proxy"
	"drover/starter"
	"drover/workers"
)

func newWorkerCommand(a *app) *cobra.Command {
	var child bool
	var point, hold string
	c := &cobra.Command{
		Use: "worker", Short: "Run workflows, activities and the watchdog", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serve(cmd, config.Worker, child, nil, func(ctx context.Context, registry *prometheus.Registry, logger *slog.Logger) error {
				host, _ := os.Hostname() //nolint:errcheck // a name for people
				spans, err := tracing.New(ctx, "drover-worker", fmt.Sprintf("%s/%d", host, os.Getpid()), a.env.LookupEnv)
				if err != nil {
					return &usageError{err}
				}
				o := workers.Options{Registry: registry, Logger: logger, Stops: stopAt(point, hold), Version: Version}
				var shown []interceptor.ClientInterceptor
				if spans != nil {
					defer a.lastSpans(ctx, spans.Shutdown, logger)
					tracer := spans.Tracer("drover/worker")
					o.Commands = tracing.Commands(tracer)
					if shown, err = tracing.Interceptors(tracer); err != nil {
						return err
					}
				}
				w, err := workers.New(ctx, &a.cfg, o)
				if err != nil {
					return err
				}
				defer w.Close(context.WithoutCancel(ctx))
				return w.Run(ctx, func(ctx context.Context) (client.Client, error) {
					return starter.Dial(ctx, a.cfg.TemporalAddress, a.cfg.TemporalNamespace, logger, shown...)
				})
			})
		},
	}
	c.Flags().BoolVar(&child, "child", false, "end when the parent process ends")
	c.Flags().StringVar(&point, "die-at", "", "drill: kill this process where it first passes the named stop point")
	_ = c.Flags().MarkHidden("child")
	c.Flags().StringVar(&hold, "hold-in", "", "drill: DIR: where DIR/POINT exists when the stop point is passed, rename it to DIR/POINT.PID, and wait there until DIR/POINT.PID.go exists")
	_ = c.Flags().MarkHidden("die-at")
	_ = c.Flags().MarkHidden("hold-in")
	a.cfg.Flags(c.Flags(), config.Worker)
	return c
}

// serve runs a long-lived part with its settings, metrics and logger. A child
// ends with its parent. Where settings are wrong, faults says what else is, so that all
// comes at once; it may be nil.
func (a *app) serve(cmd *cobra.Command, r config.Role, child bool, faults func(context.Context) error,
	run func(context.Context, *prometheus.Registry, *slog.Logger) error,
) error {
	if err := a.load(cmd, r); err != nil {
		if faults != nil {
			err = errors.Join(err, faults(cmd.Context()))
		}
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if child {
		go parentDies(ctx, cancel)
	}
	logger, err := logging.NewVar(a.env.Stderr, &a.level, a.cfg.LogLevel)
	if err != nil {
		return &usageError{err}
	}
	registry := newRegistry()
	stop, err := a.admin.serve(ctx, a.cfg.MetricsListen, registry, logger)
	if err != nil {
		return err
	}
	defer stop()
	return run(ctx, registry, logger)
}

// stopAt makes the stop points of a drill, nil when there is none: at die the
// process is killed, as a power cut would; in the folder hold files say where it
// waits, see [waitThere].
func stopAt(die, hold string) *stoppoint.Points {
	if die == "" && hold == "" {
		return nil
	}
	return stoppoint.New(func(ctx context.Context, name string) error {
		if name == die {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if hold == "" {
			return nil
		}
		return waitThere(ctx, filepath.Join(hold, name))
	})
}

// waitThere does nothing unless a file of the point's name exists. Of all who pass
// the point one takes it, by giving it the number of its process, and waits until
// it is told to go on; then the file is gone.
func waitThere(ctx context.Context, file string) error {
	mine := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := os.Rename(file, mine); err != nil {
		return nil //nolint:nilerr // nobody asked, or another one was first
	}
	defer func() { _ = os.Remove(mine) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(mine + ".go"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func newProxyCommand(a *app) *cobra.Command {
	var child bool
	c := &cobra.Command{
		Use: "proxy", Short: "Serve applications as a mongos would", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.serve(cmd, config.Proxy, child, a.proxyFaults, func(ctx context.Context, registry *prometheus.Registry, logger *slog.Logger) error {
				a.cfg.Linger = a.linger(cmd, &a.cfg)
				spans, err := tracing.New(ctx, "drover-proxy", a.cfg.ProxyName, a.env.LookupEnv)
				if err != nil {
					return &usageError{err}
				}
				o := workers.ProxyOptions{Registry: registry, Logger: logger}
				var f *follower
				o.Started = func(p *proxy.Proxy) {
					a.admin.show(p)
					f = a.newFollower(cmd, p, logger)
					go f.run(ctx)
				}
				o.Settings = func(ctx context.Context, content string) error { return f.ofFleet(ctx, content) }
				if spans != nil {
					o.Tracer = spans.Tracer("drover/proxy")
					defer a.lastSpans(ctx, spans.Shutdown, logger)
				}
				return workers.RunProxy(ctx, &a.cfg, o)
			})
		},
	}
	c.Flags().BoolVar(&child, "child", false, "end when the parent process ends")
	_ = c.Flags().MarkHidden("child")
	a.cfg.Flags(c.Flags(), config.Proxy)
	return c
}

// proxyFaults is what is wrong with a proxy besides its settings.
func (a *app) proxyFaults(ctx context.Context) error { return workers.ProxyFaults(ctx, &a.cfg) }

// lastSpansTimeout bounds what a process waits at its end for its spans to leave.
const lastSpansTimeout = 5 * time.Second

// lastSpans sends the spans that have not left yet.
func (a *app) lastSpans(ctx context.Context, shutdown func(context.Context) error, logger *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpansTimeout)
	defer cancel()
	if err := shutdown(ctx); err != nil {
		logger.WarnContext(ctx, "The last spans were not sent", slog.Any("error", err))
	}
}
