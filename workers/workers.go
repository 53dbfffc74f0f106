// Package workers wires adapters to activities, and activities to Temporal's
// workers. It is the only place that knows all.
package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"drover/activities"
	"drover/bulkimport"
	"drover/cdc"
	"drover/contract"
	"drover/gate"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/internal/pause"
	"drover/internal/stoppoint"
	"drover/internal/tracing"
	"drover/metadata"
	"drover/proxy"
	"drover/replication"
	"drover/shard"
	"drover/starter"
	"drover/switchover"
	"drover/workflows"
)

// watchdogEvery is how often the watchdog looks, as the design has it.
const watchdogEvery = 100 * time.Millisecond

// Worker is one worker process: task queues, and the watchdog beside them.
type Worker struct {
	cfg        *config.Config
	store      *metadata.Store
	shards     *shard.Clients
	log        *cdc.Log
	activities *activities.Activities
	remedier   *activities.Remedier
	balancer   *activities.Balancer
	reconciler *activities.Reconciler
	watchdog   *switchover.Watchdog
	logger     *slog.Logger
	identity   string
}

// Options are what tests may add.
type Options struct {
	Registry prometheus.Registerer
	Logger   *slog.Logger
	Stops    *stoppoint.Points
	Commands *event.CommandMonitor // of commands to shards; nil: none
	Version  string                // of this binary, shown beside what the worker did
}

// New connects to everything but Temporal.
func New(ctx context.Context, cfg *config.Config, o Options) (*Worker, error) {
	store, err := metadata.Open(ctx, cfg.PostgresDSN)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		store.Close()
		return nil, err
	}
	log, err := cdc.NewLog(cfg.KafkaBrokers)
	if err != nil {
		store.Close()
		return nil, err
	}
	log.LogTo(o.Logger)
	o.Registry.MustRegister(fleetCollector{store.Figures, cfg.SwitchObjective})
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	owner := fmt.Sprintf("%s/%d", host, os.Getpid())
	clients := shard.NewClients(cfg.Secret, shard.Options{Commands: o.Commands})
	sides := activities.NewSides(store, clients, cfg.KafkaPartitions)
	a := &activities.Activities{
		Store: store, Shards: clients, Secret: cfg.Secret, Log: log, Brokers: cfg.KafkaBrokers, S3: S3(cfg), Bucket: cfg.S3Bucket, Sides: sides,
		Settings: activities.Settings{
			Gate: gateLimits(cfg), Worse: worse(cfg), SyncLag: cfg.SyncLag, Partitions: cfg.KafkaPartitions, ArchiveRetention: cfg.ArchiveRetention,
			ImportBounds: importBounds(cfg), ImportMemory: bulkimport.NewBudget(importMemory),
		},
		Owner: owner,
		Metrics: activities.Metrics{
			Capture: cdc.NewCaptureMetrics(o.Registry), Archive: cdc.NewArchiveMetrics(o.Registry), Lanes: replication.NewMetrics(o.Registry),
			Gate: gate.NewMetrics(o.Registry), Switch: activities.NewSwitchMetrics(o.Registry), Import: bulkimport.NewMetrics(o.Registry),
		},
		Stops: o.Stops, Logger: o.Logger, LatencyEdge: proxy.TrafficEdge, AnswerEdge: proxy.AnswerEdge,
	}
	protocol := switchover.Defaults()
	protocol.FenceDeadline, protocol.ProxyGrace = cfg.FenceDeadline, cfg.ProxyGrace
	if a.Proxy, err = auditProxy(cfg); err != nil {
		log.Close()
		store.Close()
		return nil, err
	}
	a.Switcher = &switchover.Switcher{
		Config: protocol, Ledger: activities.Ledger{Store: store, Owner: owner}, Shards: sides,
		Proxies: activities.Words{Store: store}, Busy: a, Pace: a.Pace(), Stops: o.Stops, Log: o.Logger,
	}
	balancer := newBalancer(store, clients)
	balancer.HotKey = a.HotKey
	return &Worker{
		cfg: cfg, store: store, shards: clients, log: log, activities: a, logger: o.Logger,
		identity: identity(cmp.Or(o.Version, "dev"), os.Getpid(), host),
		remedier: newRemedier(cfg, store, clients, o.Registry, o.Stops, o.Logger), balancer: balancer, reconciler: newReconciler(balancer, store, cfg.Secret),
		watchdog: &switchover.Watchdog{Switcher: a.Switcher, Every: watchdogEvery, Metrics: switchover.NewWatchdogMetrics(o.Registry)},
	}, nil
}

// auditProxy connects to the proxy that audits read through, if there is one.
func auditProxy(cfg *config.Config) (*mongo.Client, error) {
	if cfg.AuditProxy == "" {
		return nil, nil //nolint:nilnil // none is asked for
	}
	c, err := mongo.Connect(options.Client().ApplyURI(cfg.AuditProxy).SetAppName("drover-audit"))
	if err != nil {
		return nil, failure.New(failure.Invalid, "config.audit_proxy", "--audit-proxy: %w", err).WithHint("a connection string as applications have it")
	}
	return c, nil
}

// gateLimits are the gate's bounds with where they come from.
func gateLimits(cfg *config.Config) gate.Limits {
	bound := func(name string, v time.Duration) gate.Bound {
		return gate.Bound{Name: name, Value: v, Source: cfg.SourceOf(name)}
	}
	return gate.Limits{
		Lag: bound("gate-lag", cfg.GateLag), Latency: bound("gate-latency", cfg.GateLatency),
		ElectionQuiet: bound("gate-election-quiet", cfg.GateElectionQuiet), SecondaryLag: bound("gate-secondary-lag", cfg.GateSecondaryLag),
		FenceDeadline: bound("fence-deadline", cfg.FenceDeadline),
	}
}

// importMemory is what all imports of a worker hold: about half of the 512 MB that
// a worker is given, whatever the size and number of its moves.
const importMemory = 224 * bulkimport.MiB

// mostActivities is how many activities a worker runs at once: a move has up to
// four in the bulk queue, which mostly wait, and there is no cap on moves.
const mostActivities = 20_000

// importBounds are those within which imports work.
func importBounds(cfg *config.Config) bulkimport.Bounds {
	if cfg.ImportPace == config.PaceFull {
		return bulkimport.Bounds{}
	}
	b := bulkimport.DefaultBounds()
	b.Felt = cfg.ImportLatency
	return b
}

// worse is what a chunk may be worse off after a switch.
func worse(cfg *config.Config) gate.Worse {
	rate := func(name string, v float64) gate.Rate {
		return gate.Rate{Name: name, Value: v, Source: cfg.SourceOf(name)}
	}
	return gate.Worse{
		Errors: rate("after-switch-errors", cfg.AfterSwitchErrors), Latency: rate("after-switch-latency", cfg.AfterSwitchLatency),
	}
}

// S3 makes the client of the bucket.
func S3(cfg *config.Config) *s3.Client {
	return s3.New(s3.Options{
		Region: cfg.S3Region, UsePathStyle: true, BaseEndpoint: endpoint(cfg.S3Endpoint),
		Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(cfg.S3AccessKey, cfg.S3SecretKey, "")),
	})
}

func endpoint(url string) *string {
	if url == "" {
		return nil
	}
	return &url
}

// Close ends the connections.
func (w *Worker) Close(ctx context.Context) {
	w.activities.Sides.Close(ctx)
	if w.activities.Proxy != nil {
		_ = w.activities.Proxy.Disconnect(ctx)
	}
	w.shards.Close(ctx)
	w.log.Close()
	w.store.Close()
}

// identity is how Temporal names this process in histories: while versions are mixed,
// it tells which of them did a step.
func identity(version string, pid int, host string) string {
	return fmt.Sprintf("drover %s, %d@%s", version, pid, host)
}

// queues are the options of each task queue.
func queues(identity string, stopTimeout time.Duration) map[string]worker.Options {
	base := worker.Options{
		Identity:                     identity,
		Interceptors:                 []interceptor.WorkerInterceptor{&tracing.Budget{}, &Failures{}},
		WorkerStopTimeout:            stopTimeout,
		StickyScheduleToStartTimeout: time.Second, // a dead process costs its workflows this once
		DisableRegistrationAliasing:  true,
	}
	bulk, fence := base, base
	bulk.DisableWorkflowWorker, fence.DisableWorkflowWorker = true, true
	bulk.MaxHeartbeatThrottleInterval = 2 * time.Second
	fence.MaxHeartbeatThrottleInterval = 500 * time.Millisecond // a quarter of flow.Fence's: one that is late is no dead coordinator
	bulk.MaxConcurrentActivityExecutionSize = mostActivities
	return map[string]worker.Options{contract.ControlQueue: base, contract.BulkQueue: bulk, contract.FenceQueue: fence}
}

// Times of waiting for a Temporal that does not answer.
const (
	firstDialAgain = 250 * time.Millisecond
	mostDialAgain  = 10 * time.Second
)

// Run serves the queues that the configuration names until ctx ends. The watchdog runs
// from the beginning: it needs no Temporal, which is dialled until it answers.
func (w *Worker) Run(ctx context.Context, dial func(context.Context) (client.Client, error)) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return w.watchdog.Run(ctx) })
	all.Go(func() error {
		c, err := w.connect(ctx, dial)
		if err != nil {
			return err
		}
		defer c.Close()
		return w.serve(ctx, c)
	})
	if err := all.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// connect dials Temporal until it answers, and says so as long as it does not.
func (w *Worker) connect(ctx context.Context, dial func(context.Context) (client.Client, error)) (client.Client, error) {
	for again := firstDialAgain; ; again = min(2*again, mostDialAgain) {
		c, err := dial(ctx)
		if err == nil {
			return c, nil
		}
		if ctx.Err() == nil {
			w.logger.ErrorContext(ctx, "Temporal does not answer: nothing moves; the watchdog works meanwhile", slog.Any("error", err))
		}
		if pause.For(ctx, again) != nil {
			return nil, ctx.Err()
		}
	}
}

// serve serves the queues until ctx ends.
func (w *Worker) serve(ctx context.Context, c client.Client) error {
	all := queues(w.identity, 10*time.Second)
	var started []worker.Worker
	stop := func() {
		var g errgroup.Group
		for _, x := range started {
			g.Go(func() error { x.Stop(); return nil })
		}
		_ = g.Wait()
	}
	defer stop()
	for _, q := range w.cfg.Queues {
		name := "drover-" + q
		x := worker.New(c, name, all[name])
		if name == contract.ControlQueue {
			RegisterWorkflows(x)
		}
		w.activities.Register(registry{x}, name)
		w.remedier.Register(registry{x}, name)
		w.balancer.Register(registry{x}, name)
		w.reconciler.Register(registry{x}, name)
		if err := x.Start(); err != nil {
			return fmt.Errorf("serve queue %s: %w", name, err)
		}
		started = append(started, x)
	}
	unusable, err := w.remedier.Unusable(ctx)
	if err != nil {
		return err
	}
	for _, problem := range unusable { // moves do not need it, so it keeps nobody from starting
		w.logger.ErrorContext(ctx, "A declared layout cannot be used: its shard is not looked at", slog.Any("error", problem))
	}
	w.logger.InfoContext(ctx, "Worker serves", slog.String("queues", strings.Join(w.cfg.Queues, ",")))
	if slices.Contains(w.cfg.Queues, strings.TrimPrefix(contract.ControlQueue, "drover-")) {
		sweep := sweeper{ledger: w.store, ended: starter.New(c).Ended, log: w.logger}
		sweep.Run(ctx)
	}
	<-ctx.Done()
	return nil
}

// registry narrows a worker to what contract needs.
type registry struct{ worker.Worker }

// RegisterActivityWithOptions implements [contract.Registry].
func (r registry) RegisterActivityWithOptions(fn any, o activity.RegisterOptions) {
	r.Worker.RegisterActivityWithOptions(fn, o)
}

// RegisterWorkflows registers every workflow under its wire name.
func RegisterWorkflows(r worker.WorkflowRegistry) {
	r.RegisterWorkflowWithOptions(workflows.MigrateChunk, workflow.RegisterOptions{Name: contract.MigrateChunkWorkflow})
	r.RegisterWorkflowWithOptions(workflows.PlanSwitch, workflow.RegisterOptions{Name: contract.PlanSwitchWorkflow})
	r.RegisterWorkflowWithOptions(workflows.CloneChunk, workflow.RegisterOptions{Name: contract.CloneChunkWorkflow})
	r.RegisterWorkflowWithOptions(workflows.DropClone, workflow.RegisterOptions{Name: contract.DropCloneWorkflow})
	r.RegisterWorkflowWithOptions(workflows.CaptureShard, workflow.RegisterOptions{Name: contract.CaptureShardWorkflow})
	r.RegisterWorkflowWithOptions(workflows.RemediateShard, workflow.RegisterOptions{Name: contract.RemediateShardWorkflow})
	r.RegisterWorkflowWithOptions(workflows.WatchFleet, workflow.RegisterOptions{Name: contract.WatchFleetWorkflow})
	r.RegisterWorkflowWithOptions(workflows.Rebalance, workflow.RegisterOptions{Name: contract.RebalanceWorkflow})
	r.RegisterWorkflowWithOptions(workflows.BalanceRound, workflow.RegisterOptions{Name: contract.BalanceRoundWorkflow})
	r.RegisterWorkflowWithOptions(workflows.PrepareSeason, workflow.RegisterOptions{Name: contract.SeasonWorkflow})
	r.RegisterWorkflowWithOptions(workflows.ReconcileFleet, workflow.RegisterOptions{Name: contract.ReconcileWorkflow})
}
