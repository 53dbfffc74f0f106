package activities

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/remediation"
)

// defaultSilence is how old health data may be.
const defaultSilence = 10 * time.Minute

// SurveyFleet reads every shard that has a layout, plans for those that are not
// well, and keeps since when. A shard that does not let itself be read is not
// seen: after a while its silence is an alarm.
func (m *Remedier) SurveyFleet(ctx context.Context, in contract.WatchInput) (contract.Survey, error) {
	out := contract.Survey{}
	all, err := m.Ledger.DeclaredLayouts(ctx)
	if err != nil {
		return out, err
	}
	out.Shards = len(all)
	err = beating(ctx, func() any { return len(all) }, func(ctx context.Context) error {
		var mu sync.Mutex
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(surveyAtOnce)
		for _, row := range all {
			g.Go(func() error { return m.see(ctx, row, &mu, &out) })
		}
		return g.Wait()
	})
	if err != nil {
		return out, err
	}
	silence := time.Duration(in.Silence)
	if silence <= 0 {
		silence = defaultSilence
	}
	if out.Silent, err = m.Ledger.Silent(ctx, silence); err != nil {
		return out, err
	}
	if err := m.begun(ctx, &out); err != nil {
		return out, err
	}
	out.Now = time.Now().UTC()
	return out, nil
}

// Unusable gives what is wrong with declared layouts, by field: an older version, or
// another hand, may have written what this one cannot work with. Such a shard is not
// looked at; the others are.
func (m *Remedier) Unusable(ctx context.Context) ([]error, error) {
	all, err := m.Ledger.DeclaredLayouts(ctx)
	if err != nil {
		return nil, err
	}
	var found []error
	for _, row := range all {
		d, err := decodeDeclared(row)
		if err == nil {
			if err = errors.Join(d.layout.Validate(), d.layout.MetBy(d.machines)); err != nil {
				err = failure.New(failure.Invalid, "layout.invalid", "shard %s: %w", row.Shard, err).
					WithHint("`drover shard layout set %s -f FILE --replace` declares it anew", row.Shard)
			}
		}
		if err != nil {
			found = append(found, err)
		}
	}
	return found, nil
}

// see looks at one shard. Only the metadata's errors end the survey.
func (m *Remedier) see(ctx context.Context, row metadata.Declared, mu *sync.Mutex, out *contract.Survey) error {
	look, cancel := context.WithTimeout(ctx, surveyLook)
	defer cancel()
	p, err := m.examine(look, row)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.Logger.WarnContext(ctx, "A shard does not let itself be read", slog.String("shard", row.Shard), slog.Any("error", err))
		return nil
	}
	h, err := m.Ledger.SeeHealth(ctx, metadata.Sighting{
		Shard: row.Shard, Unhealthy: len(p.Steps) > 0 || !p.Full, Cost: p.Cost, Health: p.From.String(), Why: p.Why,
	})
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	switch {
	case h.UnhealthySince == nil:
		out.Healthy++
	case len(p.Steps) == 0:
		out.Persons = append(out.Persons, row.Shard)
	default:
		out.Candidates = append(out.Candidates, remediation.Candidate{
			Shard: row.Shard, Domain: row.Domain, Health: p.From, Since: h.UnhealthySince.UTC(), Cost: p.Cost,
		})
	}
	if h.Grown >= growsAfter {
		out.Growing = append(out.Growing, row.Shard)
	}
	return nil
}

// examine reads a shard and plans.
func (m *Remedier) examine(ctx context.Context, row metadata.Declared) (p contract.ShardPlan, err error) {
	d, err := decodeDeclared(row)
	if err != nil {
		return p, err
	}
	if d.shard, err = m.Ledger.Shard(ctx, row.Shard); err != nil {
		return p, err
	}
	err = m.with(ctx, d, func(e *remediation.Executor) error {
		v, err := e.Look(ctx)
		if err != nil {
			return err
		}
		return p.Fill(e.Planner, v)
	})
	return p, err
}

// begun adds the runs that go on or began within the hour, and the stop switch.
func (m *Remedier) begun(ctx context.Context, out *contract.Survey) error {
	runs, err := m.Ledger.Remediations(ctx, time.Hour)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if r.EndedAt == nil {
			if r, err = m.outlived(ctx, r); err != nil {
				return err
			}
		}
		out.Started = append(out.Started, remediation.Started{
			Shard: r.Shard, Domain: r.Domain, At: r.StartedAt.UTC(), Cost: r.Cost, Ended: r.EndedAt != nil, Waiting: r.Waiting,
		})
	}
	stop, err := m.Ledger.RemediationStop(ctx)
	if err == nil && stop != nil {
		out.Stopped = "by " + stop.By + ": " + stop.Reason
	}
	return err
}

// outlived closes the record of a run whose workflow is gone, as one that was
// terminated: it would count for the rates for ever.
func (m *Remedier) outlived(ctx context.Context, r metadata.Remediation) (metadata.Remediation, error) {
	if m.Running == nil {
		return r, nil
	}
	runs, err := m.Running(ctx, r.WorkflowID)
	if err != nil || runs {
		return r, err
	}
	now := time.Now()
	r.Waiting, r.EndedAt = false, &now
	r.Verdict, r.Attention = string(remediation.Failed), "its workflow was ended from outside"
	m.Logger.WarnContext(ctx, "A remediation's workflow is gone", slog.String("workflow_id", r.WorkflowID))
	return r, m.Ledger.RecordRemediation(ctx, r)
}

// RecordWatch shows a look in metrics.
func (m *Remedier) RecordWatch(_ context.Context, in contract.WatchResult) (contract.None, error) {
	m.Metrics.watched(in)
	return contract.None{}, nil
}
