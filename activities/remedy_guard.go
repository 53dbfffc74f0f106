package activities

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/remediation"
)

const (
	raiseWithin  = 10 * time.Second
	observeEvery = time.Minute // while one operation is waited for
)

// with runs do with an executor of the shard. What its observer remembers is kept in
// the metadata: patience with what does not move is the fleet's, not a process's. Who
// looks at the same time may keep the older of two looks; then it only lasts longer
// until a member that does not move is noticed.
func (m *Remedier) with(ctx context.Context, d declared, do func(*remediation.Executor) error) error {
	planner, err := remediation.NewPlanner(d.layout, m.Costs, 0)
	if err != nil {
		return failure.New(failure.Invalid, "layout.invalid", "shard %s: %w", d.shard.Name, err)
	}
	kept, err := m.Ledger.Observation(ctx, d.shard.Name)
	if err != nil {
		return err
	}
	e := &remediation.Executor{Planner: planner, Patience: m.Patience, Execute: true, Stops: m.Stops}
	if len(kept) > 0 {
		if err := json.Unmarshal(kept, &e.Observer.Moved); err != nil {
			m.Logger.WarnContext(ctx, "What was seen of a shard is not readable; patience begins anew", slog.String("shard", d.shard.Name), slog.Any("error", err))
		}
	}
	s, err := m.Open(d.shard, d.machines)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close(context.WithoutCancel(ctx)) }()
	e.Shard = s
	last := time.Now()
	e.Report = func(ctx context.Context, _ remediation.Progress) error {
		if time.Since(last) > observeEvery {
			last = time.Now()
			m.observed(ctx, d.shard.Name, e)
		}
		return nil
	}
	err = do(e)
	m.observed(context.WithoutCancel(ctx), d.shard.Name, e)
	return err
}

// observed keeps what an observer remembers. Where that cannot be kept, a member
// that does not move is noticed later: no reason to give the work up.
func (m *Remedier) observed(ctx context.Context, shard string, e *remediation.Executor) {
	if e.Observer.Moved == nil {
		return
	}
	b, err := json.Marshal(e.Observer.Moved)
	if err == nil {
		err = m.Ledger.KeepObservation(ctx, shard, b)
	}
	if err != nil {
		m.Logger.WarnContext(ctx, "What was seen of a shard is not kept", slog.String("shard", shard), slog.Any("error", err))
	}
}

// raise keeps out switches that still believe in a lease from before this one. A
// set without a primary takes no such word, and no fence either: the operation
// that gives it a primary goes on, and the next one raises.
func (m *Remedier) raise(ctx context.Context, s chunk.Shard, epoch int64, before remediation.Vertex) error {
	if m.Raise == nil {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, raiseWithin)
	defer cancel()
	err := m.Raise(within, s, epoch)
	switch {
	case err == nil:
		return nil
	case failure.Is(err, failure.Lost):
		return failure.New(failure.Lost, "lease.lost", "the lease of shard %s is over: %w", s.Name, err)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case before.HasMajority() && slices.ContainsFunc(before.Members, func(x remediation.Member) bool { return x.Primary && x.State == remediation.Healthy }):
		return err
	default:
		m.Logger.InfoContext(ctx, "A set without a healthy primary takes no word about its lease", slog.String("shard", s.Name), slog.Any("error", err))
		return nil
	}
}

// allowed refuses a change when the lease is not held any more or the stop switch
// is on.
func (m *Remedier) allowed(ctx context.Context, l metadata.Lease) error {
	if err := m.unstopped(ctx); err != nil {
		return err
	}
	_, err := m.Ledger.RenewLease(ctx, l, leaseLasts)
	return err
}

// unstopped is the stop switch.
func (m *Remedier) unstopped(ctx context.Context) error {
	stop, err := m.Ledger.RemediationStop(ctx)
	if err == nil && stop != nil {
		err = failure.New(failure.Invalid, "remediation.stopped", "by %s: %s", stop.By, stop.Reason)
	}
	return err
}
