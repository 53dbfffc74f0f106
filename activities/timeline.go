package activities

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/contract"
	"drover/switchover"
)

// SwitchMetrics shows where switches spend their time.
type SwitchMetrics struct{ steps *prometheus.HistogramVec }

// NewSwitchMetrics registers the metrics; r may be nil.
func NewSwitchMetrics(r prometheus.Registerer) *SwitchMetrics {
	m := &SwitchMetrics{steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "drover_switch_step_seconds", Help: "Time of each step of a switch, from the one before it; step window is all of them.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	}, []string{"step"})}
	if r != nil {
		r.MustRegister(m.steps)
	}
	return m
}

// observe counts one timeline; whole says that the switch came to its end.
func (m *SwitchMetrics) observe(t switchover.Timeline, whole bool) {
	last := int64(0)
	for _, s := range t {
		m.steps.WithLabelValues(s.Step).Observe(float64(s.At-last) / 1e6)
		last = s.At
	}
	if whole && len(t) > 0 {
		m.steps.WithLabelValues("window").Observe(float64(last) / 1e6)
	}
}

// SwitchRoute goes through the whole window: fence, drain, catch up, close, publish,
// open. One activity, so that nothing of Temporal's is waited for while writes are:
// what came of it is in the attempt's row, and each step in its timeline. An error
// leaves the attempt to SettleAttempt, or to the watchdog at its deadline.
func (a *Activities) SwitchRoute(ctx context.Context, ref contract.AttemptRef) (contract.SwitchResult, error) {
	ctx, timeline := switchover.Timed(ctx)
	res, err := a.fenceSource(ctx, ref)
	if err == nil {
		res, err = a.publishRoute(ctx, ref)
	}
	a.keepSteps(ctx, ref.Attempt, timeline(), err == nil)
	if err != nil {
		return res, err
	}
	return a.outcome(ctx, ref.Attempt)
}

// keepSteps writes the timeline down, also of an attempt that failed; only people
// miss one that is not kept.
func (a *Activities) keepSteps(ctx context.Context, id chunk.AttemptID, t switchover.Timeline, whole bool) {
	a.Metrics.Switch.observe(t, whole)
	if len(t) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	b, err := json.Marshal(marks(t))
	if err == nil {
		err = a.Store.SetSteps(ctx, id, b)
	}
	if err != nil {
		a.Logger.WarnContext(ctx, "The timeline of an attempt is not kept", slog.Int64("attempt", int64(id)), slog.Any("error", err))
	}
}

// steps reads the timeline of an attempt; empty where none is kept.
func (a *Activities) steps(ctx context.Context, id chunk.AttemptID) ([]contract.TimelineMark, error) {
	b, ok, err := a.Store.Steps(ctx, id)
	if err != nil || !ok {
		return nil, err
	}
	var t []contract.TimelineMark
	return t, json.Unmarshal(b, &t)
}

func marks(t switchover.Timeline) []contract.TimelineMark {
	out := make([]contract.TimelineMark, 0, len(t))
	for _, m := range t {
		out = append(out, contract.TimelineMark{Step: m.Step, AtUS: m.At, Note: m.Note})
	}
	return out
}
