package activities

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/metadata"
	"drover/remediation"
)

// The lease of a remediation, and how it is waited for.
const (
	leaseLasts   = time.Minute
	leaseRenew   = 10 * time.Second
	leasePoll    = 500 * time.Millisecond
	surveyAtOnce = 16
	surveyLook   = 20 * time.Second // for one shard
	growsAfter   = 3                // looks in a row with a dearer plan
)

// RemedyLedger is what remediation needs of the metadata.
type RemedyLedger interface {
	Shard(ctx context.Context, name string) (chunk.Shard, error)
	DeclaredLayout(ctx context.Context, shard string) (metadata.Declared, error)
	DeclaredLayouts(ctx context.Context) ([]metadata.Declared, error)
	SeeHealth(ctx context.Context, x metadata.Sighting) (metadata.ShardHealth, error)
	Silent(ctx context.Context, longer time.Duration) ([]string, error)
	Observation(ctx context.Context, shard string) (json.RawMessage, error)
	KeepObservation(ctx context.Context, shard string, moved json.RawMessage) error
	TakeLease(ctx context.Context, r metadata.LeaseRequest) (metadata.Lease, error)
	RenewLease(ctx context.Context, l metadata.Lease, ttl time.Duration) (metadata.Lease, error)
	ReleaseLease(ctx context.Context, l metadata.Lease) error
	StopWaiting(ctx context.Context, shard, holder string) error
	Migrations(ctx context.Context, f metadata.MigrationFilter) ([]metadata.Migration, error)
	RecordRemediation(ctx context.Context, r metadata.Remediation) error
	Remediations(ctx context.Context, within time.Duration) ([]metadata.Remediation, error)
	RemediationStop(ctx context.Context) (*metadata.Stop, error)
}

// RemedyShard is one shard as remediation reads and changes it.
type RemedyShard interface {
	remediation.Shard
	Close(ctx context.Context) error
}

// Remedier serves the activities of remediation.
type Remedier struct {
	Ledger   RemedyLedger
	Open     func(s chunk.Shard, machines []remediation.Machine) (RemedyShard, error)
	Patience remediation.Patience
	Costs    remediation.Costs
	// Raise lets no switch fence on a shard any more under a lease older than this
	// epoch; nil where shards have no fences.
	Raise func(ctx context.Context, s chunk.Shard, epoch int64) error
	// Running reports whether a workflow runs; nil takes every one for running.
	Running func(ctx context.Context, workflowID string) (bool, error)
	Metrics *RemedyMetrics
	Stops   *stoppoint.Points
	Logger  *slog.Logger
}

// Register serves the activities that the queues name.
func (m *Remedier) Register(r contract.Registry, queue string) {
	switch queue {
	case contract.ControlQueue:
		contract.PlanShard.Register(r, m.PlanShard)
		contract.ReleaseShard.Register(r, m.ReleaseShard)
		contract.RecordRemediation.Register(r, m.RecordRemediation)
		contract.RecordWatch.Register(r, m.RecordWatch)
	case contract.BulkQueue:
		contract.LeaseShard.Register(r, m.LeaseShard)
		contract.PerformOperation.Register(r, m.PerformOperation)
		contract.SurveyFleet.Register(r, m.SurveyFleet)
	}
}

// declared is a shard's layout as it is wanted, and its machines.
type declared struct {
	shard    chunk.Shard
	domain   string
	layout   remediation.Layout
	machines []remediation.Machine
}

// wanted reads a declaration; another layout may take the place of its own.
func (m *Remedier) wanted(ctx context.Context, shard string, instead *remediation.Layout) (declared, error) {
	row, err := m.Ledger.DeclaredLayout(ctx, shard)
	if err != nil {
		return declared{}, err
	}
	d, err := decodeDeclared(row)
	if err != nil {
		return d, err
	}
	if instead != nil {
		d.layout = *instead
	}
	d.shard, err = m.Ledger.Shard(ctx, shard)
	return d, err
}

// decodeDeclared reads the JSON of a row.
func decodeDeclared(row metadata.Declared) (declared, error) {
	d := declared{domain: row.Domain}
	err := errors.Join(json.Unmarshal(row.Layout, &d.layout), json.Unmarshal(row.Machines, &d.machines))
	if err != nil {
		return d, failure.New(failure.Invalid, "layout.unreadable", "layout of shard %s: %w", row.Shard, err).
			WithHint("declare it again with `drover shard layout set %s -f FILE --replace`", row.Shard)
	}
	return d, nil
}

// PlanShard reads a shard and plans. It changes nothing.
func (m *Remedier) PlanShard(ctx context.Context, in contract.PlanInput) (contract.ShardPlan, error) {
	var out contract.ShardPlan
	d, err := m.wanted(ctx, in.Shard, in.Layout)
	if err != nil {
		return out, err
	}
	stop, err := m.Ledger.RemediationStop(ctx)
	if err != nil {
		return out, err
	}
	if stop != nil {
		out.Stopped = "by " + stop.By + ": " + stop.Reason
	}
	err = m.with(ctx, d, func(e *remediation.Executor) error {
		v, err := e.Look(ctx)
		if err != nil {
			return err
		}
		return out.Fill(e.Planner, v)
	})
	return out, err
}

// LeaseShard takes the exclusive lease, waiting for those that hold it. While it
// waits no new switch gets it.
func (m *Remedier) LeaseShard(ctx context.Context, in contract.LeaseInput) (contract.LeaseResult, error) {
	var out contract.LeaseResult
	if err := m.Ledger.RecordRemediation(ctx, metadata.Remediation{WorkflowID: in.Holder, Shard: in.Shard, Waiting: true}); err != nil {
		return out, err
	}
	began, refusal := time.Now(), error(nil)
	err := beating(ctx, func() any { return in.Shard }, func(ctx context.Context) error {
		tick := time.NewTicker(leasePoll)
		defer tick.Stop()
		for {
			l, err := m.Ledger.TakeLease(ctx, metadata.LeaseRequest{
				Shard: in.Shard, Holder: in.Holder, Mode: metadata.ExclusiveLease, TTL: leaseLasts, Reason: in.Reason,
			})
			if err == nil {
				out.Lease = contract.ShardLease{Shard: l.Shard, Holder: l.Holder, Epoch: l.Epoch}
				return nil
			}
			if !failure.Is(err, failure.Transient) {
				return err
			}
			refusal = err
			m.Metrics.waits(in.Shard, time.Since(began))
			if time.Since(began) > time.Duration(in.Wait) {
				return failure.New(failure.Invalid, "remediation.lease_timeout", "waited %s for shard %s: %w", time.Duration(in.Wait), in.Shard, refusal).
					WithHint("`drover lease list` shows who holds the shard; start the remediation again when they are done")
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-tick.C:
			}
		}
	})
	m.Metrics.waits(in.Shard, 0)
	out.WaitedMS = time.Since(began).Milliseconds()
	if err != nil {
		if !errors.Is(err, errStopping) { // another worker goes on waiting
			err = errors.Join(err, m.Ledger.StopWaiting(context.WithoutCancel(ctx), in.Shard, in.Holder))
		}
		return out, err
	}
	if err := m.Ledger.RecordRemediation(ctx, metadata.Remediation{WorkflowID: in.Holder, Shard: in.Shard}); err != nil {
		return out, err
	}
	out.Moves, err = m.moves(ctx, in.Shard)
	return out, err
}

// moves lists the moves that go on beside a remediation.
func (m *Remedier) moves(ctx context.Context, shard string) ([]string, error) {
	all, err := m.Ledger.Migrations(ctx, metadata.MigrationFilter{Unfinished: true, Limit: 10_000})
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, x := range all {
		copying := slices.Contains([]chunk.Phase{chunk.Importing, chunk.Replicating, chunk.Validating}, x.Phase)
		if copying && (x.Source.Shard == shard || x.Target.Shard == shard) {
			ids = append(ids, x.WorkflowID)
		}
	}
	return ids, nil
}

// PerformOperation performs one operation and waits until the shard shows its
// effect.
//
// Before: the lease is held, no stop switch is on, the shard is as the plan had it.
// After: the shard was read again. If interrupted: run again; a step that took
// already shows as a difference, and a new plan starts from what is seen.
func (m *Remedier) PerformOperation(ctx context.Context, in contract.OperationInput) (contract.OperationResult, error) {
	var out contract.OperationResult
	d, err := m.wanted(ctx, in.Lease.Shard, in.Layout)
	if err != nil {
		return out, err
	}
	if err := m.unstopped(ctx); err != nil {
		return out, err
	}
	op, err := in.Step.Order.Operation()
	if err != nil {
		return out, failure.New(failure.Invalid, "remediation.unknown_operation", "%w", err)
	}
	step := remediation.Step{Operation: op, After: op.Next(in.Before), Cost: in.Step.Cost, Reason: in.Step.Reason}
	lease := metadata.Lease{Shard: in.Lease.Shard, Holder: in.Lease.Holder, Mode: metadata.ExclusiveLease, Epoch: in.Lease.Epoch}
	err = beating(ctx, func() any { return in.Step.Text }, func(ctx context.Context) error {
		return m.holding(ctx, lease, func(ctx context.Context) error {
			if err := m.raise(ctx, d.shard, lease.Epoch, in.Before); err != nil {
				return err
			}
			return m.with(ctx, d, func(e *remediation.Executor) error {
				e.Guard = func(ctx context.Context) error { return m.allowed(ctx, lease) }
				var err error
				out.After, out.Deviates, err = e.Do(ctx, in.Before, step)
				return err
			})
		})
	})
	m.Metrics.operated(op.Name(), out.Deviates, err)
	return out, err
}

// holding runs work for as long as the lease is held: a lost lease ends it.
func (m *Remedier) holding(ctx context.Context, l metadata.Lease, work func(context.Context) error) error {
	if _, err := m.Ledger.RenewLease(ctx, l, leaseLasts); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	g := errgroup.Group{}
	g.Go(func() error {
		tick := time.NewTicker(leaseRenew)
		defer tick.Stop()
		renewed := time.Now()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			_, err := m.Ledger.RenewLease(ctx, l, leaseLasts)
			switch {
			case err == nil:
				renewed = time.Now()
			case failure.Is(err, failure.Lost) || time.Since(renewed) > leaseLasts-2*leaseRenew: // it may expire before the next word
				cancel(failure.New(failure.Lost, "lease.lost", "the lease of shard %s could not be renewed: %w", l.Shard, err))
				return nil
			}
		}
	})
	err := work(ctx)
	lost := context.Cause(ctx)
	cancel(nil)
	_ = g.Wait()
	if failure.HasCode(lost, "lease.lost") {
		return lost
	}
	return err
}

// ReleaseShard gives the lease back.
func (m *Remedier) ReleaseShard(ctx context.Context, in contract.ShardLease) (contract.None, error) {
	return contract.None{}, m.Ledger.ReleaseLease(ctx, metadata.Lease{Shard: in.Shard, Holder: in.Holder, Epoch: in.Epoch})
}

// RecordRemediation keeps what became of a run.
func (m *Remedier) RecordRemediation(ctx context.Context, in contract.RemediationRecord) (contract.None, error) {
	m.Metrics.ran(in)
	return contract.None{}, m.Ledger.RecordRemediation(ctx, metadata.Remediation{
		WorkflowID: in.WorkflowID, Shard: in.Shard, RequestedBy: in.RequestedBy, Cost: in.Cost, Steps: in.Steps,
		Verdict: string(in.Verdict), Attention: in.Attention,
	})
}
