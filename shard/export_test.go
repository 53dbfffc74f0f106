package shard

import (
	"context"

	"drover/chunk"
)

// LandedBetween probes a placement, writes, and probes again: whether each probe
// found that a change came before it.
func (s *Set) LandedBetween(ctx context.Context, p chunk.Placement, write func() error) (before, after bool, err error) {
	stream, err := s.watchQuiet(ctx, p)
	if err != nil {
		return false, false, err
	}
	defer func() { _ = stream.Close(context.WithoutCancel(ctx)) }()
	if before, err = s.probeQuiet(ctx, stream, p.ID); err != nil {
		return before, false, err
	}
	if err := write(); err != nil {
		return before, false, err
	}
	after, err = s.probeQuiet(ctx, stream, p.ID)
	return before, after, err
}
