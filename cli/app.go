package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"drover/devstack"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/internal/logging"
	"drover/metadata"
	"drover/starter"
)

// app is one run of the command line.
type app struct {
	env     Env
	output  string
	file    string
	context string // the fleet in use, where its settings are what counts
	cfg     config.Config
	admin   admin
	level   slog.LevelVar // of a long-lived part's log
}

// load fills the settings of a command from where they were not set by flag.
func (a *app) load(cmd *cobra.Command, r config.Role) error {
	src := config.Source{LookupEnv: a.env.LookupEnv, File: a.file}
	if s := a.runningStack(); s != nil {
		src.DevStack = stackSettings(s)
	}
	var err error
	a.cfg.Sources, err = config.Load(cmd.Flags(), r, src)
	if a.cfg.Sources != nil { // else it is not known what is set
		err = errors.Join(err, a.cfg.Validate(r))
	}
	if err != nil {
		return &usageError{err}
	}
	return nil
}

// runningStack is the dev stack of this folder, nil when there is none.
func (a *app) runningStack() *devstack.Stack {
	path, ok := a.env.LookupEnv("DROVER_STACK")
	if !ok {
		path = filepath.Join(".drover", devstack.StateFile)
	}
	s, err := devstack.Load(path)
	if err != nil {
		return nil
	}
	return s
}

// stackSettings is a dev stack's address book by flag name.
func stackSettings(s *devstack.Stack) map[string]string {
	return map[string]string{
		"postgres-dsn": s.Postgres.DSN, "kafka-brokers": strings.Join(s.Kafka.Brokers, ","),
		"s3-endpoint": s.S3.Endpoint, "s3-region": s.S3.Region, "s3-bucket": s.S3.Bucket,
		"s3-access-key": s.S3.AccessKey, "s3-secret-key": s.S3.SecretKey,
		"temporal-address": s.Temporal.Address, "temporal-namespace": s.Temporal.Namespace, "secret": s.Secret,
		// Whoever reaches a dev stack has its state file, with every password.
		"auth": "false",
	}
}

// logger writes to the error stream: the output is the result.
func (a *app) logger() (*slog.Logger, error) { return logging.New(a.env.Stderr, a.cfg.LogLevel) }

// quiet is the logger of short commands.
func (a *app) quiet() *slog.Logger {
	l, err := logging.New(a.env.Stderr, "error")
	if err != nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// withStore runs do with the metadata.
func (a *app) withStore(cmd *cobra.Command, do func(context.Context, *metadata.Store) error) error {
	if err := a.load(cmd, config.Common); err != nil {
		return err
	}
	store, err := a.openStore(cmd.Context())
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.Migrate(cmd.Context()); err != nil {
		return err
	}
	return do(cmd.Context(), store)
}

// openStore connects to the metadata, and says what may be done when that fails.
func (a *app) openStore(ctx context.Context) (*metadata.Store, error) {
	store, err := metadata.Open(ctx, a.cfg.PostgresDSN)
	if err == nil {
		return store, nil
	}
	if _, told := errors.AsType[*failure.Error](err); told || ctx.Err() != nil {
		return nil, err
	}
	return nil, failure.New(failure.Transient, "metadata.unreachable", "reach the metadata at %s: %w", a.fleet(), err).
		WithHint("drover dev status shows the dev stack; --postgres-dsn names another server; drover config show tells where the setting comes from")
}

// withStarter runs do with Temporal.
func (a *app) withStarter(cmd *cobra.Command, do func(context.Context, *starter.Starter) error) error {
	if err := a.load(cmd, config.Common); err != nil {
		return err
	}
	c, err := starter.Dial(cmd.Context(), a.cfg.TemporalAddress, a.cfg.TemporalNamespace, a.quiet())
	if err != nil {
		return err
	}
	defer c.Close()
	return do(cmd.Context(), starter.New(c))
}

// newRegistry is a process's metrics.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// parentDies ends a process whose parent is gone; the demo's children use it.
func parentDies(ctx context.Context, cancel context.CancelFunc) {
	parent := os.Getppid()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if os.Getppid() != parent {
				cancel()
				return
			}
		}
	}
}
