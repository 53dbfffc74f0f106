package workers

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"drover/chunk"
	"drover/contract"
	"drover/internal/config"
	"drover/validation"
)

// Comparison is what comparing a chunk by itself has come to.
type Comparison struct {
	Direction contract.DirectionInput
	Result    validation.Result
	Audit     *validation.AuditResult
}

// ValidateNow compares both placements of a chunk that is being moved, in this
// process, and audits them too when asked.
func ValidateNow(ctx context.Context, cfg *config.Config, l *slog.Logger, id chunk.ID, audit bool, progress func(context.Context, validation.Progress)) (c Comparison, err error) {
	w, err := New(ctx, cfg, Options{Registry: prometheus.NewRegistry(), Logger: l})
	if err != nil {
		return c, err
	}
	defer w.Close(context.WithoutCancel(ctx))
	if c.Direction, err = w.activities.Present(ctx, id); err != nil {
		return c, err
	}
	if c.Result, err = w.activities.Compare(ctx, c.Direction, progress); err != nil || !audit {
		return c, err
	}
	r, err := w.activities.Audit(ctx, c.Direction)
	c.Audit = &r
	return c, err
}
