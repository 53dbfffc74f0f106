package workers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"drover/contract"
	"drover/internal/pause"
	"drover/metadata"
)

// sweepEvery is how often open intents are compared with their workflows, and sweepLook
// how long Temporal may take to answer for all of them.
const (
	sweepEvery = time.Minute
	sweepLook  = 20 * time.Second
)

// sweeper closes the intents of workflows that ended without closing them: somebody
// terminated them, or they timed out. Until then they would hold their chunks and shards.
// Moves that they started go on.
type sweeper struct {
	ledger interface {
		OpenIntents(ctx context.Context) ([]metadata.Intent, error)
		CloseIntent(ctx context.Context, run string, outcome json.RawMessage) error
	}
	ended func(ctx context.Context, workflowID, firstRun string) (how string, err error) // "": it runs
	log   *slog.Logger
}

// Run sweeps now and then until ctx ends.
func (s *sweeper) Run(ctx context.Context) {
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "Open intents were not compared with their workflows", slog.Any("error", err))
		}
		if pause.For(ctx, sweepEvery) != nil {
			return
		}
	}
}

// sweep looks once. An intent whose workflow cannot be asked for stays open.
func (s *sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepLook)
	defer cancel()
	open, err := s.ledger.OpenIntents(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, i := range open {
		how, err := s.ended(ctx, i.WorkflowID, i.Run)
		if err != nil || how == "" {
			errs = append(errs, err)
			continue
		}
		outcome, err := json.Marshal(contract.RebalanceResult{Stopped: how})
		if err == nil {
			err = s.ledger.CloseIntent(ctx, i.Run, outcome)
		}
		if err == nil {
			s.log.WarnContext(ctx, "An intent was closed that its workflow left open", slog.String("workflow_id", i.WorkflowID), slog.String("reason", how))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
