package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"

	"drover/activities"
	"drover/chunk"
	"drover/internal/config"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/metadata"
	"drover/remediation"
	"drover/shard"
	"drover/shard/replset"
)

// newRemedier wires remediation to MongoDB's own commands, and to the operator's
// commands for what no command of MongoDB can do.
func newRemedier(cfg *config.Config, store *metadata.Store, shards *shard.Clients, r prometheus.Registerer, stops *stoppoint.Points, l *slog.Logger) *activities.Remedier {
	nodes := replset.Exec{RebuildCommand: cfg.RemedyRebuild, ProvisionCommand: cfg.RemedyProvision, ReleaseCommand: cfg.RemedyRelease}
	return &activities.Remedier{
		Ledger: store, Costs: remediation.DefaultCosts, Metrics: activities.NewRemedyMetrics(r), Stops: stops, Logger: l,
		Raise: func(ctx context.Context, s chunk.Shard, epoch int64) error {
			set, err := shards.Set(s)
			if err != nil {
				return err
			}
			return set.RaiseLease(ctx, epoch)
		},
		Running: running,
		Open: func(s chunk.Shard, machines []remediation.Machine) (activities.RemedyShard, error) {
			return replset.Open(s, cfg.Secret, replset.Options{
				Nodes:    nodes,
				Machines: func(context.Context) ([]remediation.Machine, error) { return machines, nil },
			})
		},
	}
}

// running asks Temporal whether a workflow runs, from within an activity.
func running(ctx context.Context, workflowID string) (bool, error) {
	d, err := activity.GetClient(ctx).DescribeWorkflowExecution(ctx, workflowID, "")
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for workflow %s: %w", workflowID, err)
	}
	return d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, nil
}

// RaiseLease lets no switch fence on a shard any more under a lease older than the
// given one.
func RaiseLease(ctx context.Context, store *metadata.Store, secret string, l metadata.Lease) error {
	set, end, err := setOf(ctx, store, secret, l.Shard)
	if err != nil {
		return err
	}
	defer end()
	return set.RaiseLease(ctx, l.Epoch)
}

// CheckMachines refuses machines that are not those of a shard: each member must
// be among them. It changes nothing; a shard that does not answer is refused.
func CheckMachines(ctx context.Context, store *metadata.Store, secret, name string, machines []remediation.Machine) error {
	set, end, err := setOf(ctx, store, secret, name)
	if err != nil {
		return err
	}
	defer end()
	st, err := set.Status(ctx)
	if err != nil {
		return failure.New(failure.Invalid, "layout.unreachable", "shard %s does not answer: %w", name, err).
			WithHint("a layout is compared with the members that the shard has; nothing was changed")
	}
	for _, m := range st.Members {
		if !slices.ContainsFunc(machines, func(x remediation.Machine) bool { return x.Host == m.Host }) {
			return failure.New(failure.Invalid, "layout.foreign_set", "machines: %s is a member of shard %s and not among them", m.Host, name).
				WithHint("name every member as its configuration does, or check that the file is for this shard; nothing was changed")
		}
	}
	return nil
}
