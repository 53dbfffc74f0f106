package activities

import (
	"context"
	"time"

	"drover/internal/pause"
)

// Times of a paced clean-up.
const (
	paceProbe = 20 * time.Millisecond  // between two measurements
	paceRest  = 200 * time.Millisecond // after each part, whatever the shard says
	paceMost  = 30 * time.Second       // a shard that never calms down does not keep its garbage for ever
	paceLimit = 1.2                    // of the answer time before the clean-up
	paceFloor = 2 * time.Millisecond   // below this no answer time is slow
)

// pacer lets the parts of a clean-up follow each other only when the shard answers
// about as fast as before.
type pacer struct {
	answer func(context.Context) (time.Duration, error)
	before time.Duration // the slower end of its answer times before anything was dropped
	rest   time.Duration
}

func newPacer(answer func(context.Context) (time.Duration, error)) *pacer {
	return &pacer{answer: answer, rest: paceRest}
}

// pace implements [shard.Pace].
func (p *pacer) pace(ctx context.Context) error {
	if p.before == 0 {
		slowest, err := p.slowest(ctx, 10)
		p.before = max(slowest, paceFloor)
		return err
	}
	if err := pause.For(ctx, p.rest); err != nil {
		return err
	}
	giveUp := time.Now().Add(paceMost)
	for {
		now, err := p.slowest(ctx, 5)
		if err != nil || float64(now) <= paceLimit*float64(p.before) || time.Now().After(giveUp) {
			return err
		}
	}
}

// slowest measures n times.
func (p *pacer) slowest(ctx context.Context, n int) (slowest time.Duration, err error) {
	for range n {
		took, err := p.answer(ctx)
		if err != nil {
			return 0, err
		}
		slowest = max(slowest, took)
		if err := pause.For(ctx, paceProbe); err != nil {
			return 0, err
		}
	}
	return slowest, nil
}
