package activities

import (
	"context"
	"log/slog"
	"time"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/switchover"
)

// How a window comes to a good moment. What is asked for at the end of the time is waited
// for: a question that is cut off loses a connection that the window needs, and its marker
// may land behind the window's own.
const (
	nearWithin = 100 * time.Millisecond // a marker that is through so soon has lanes behind it that are close
	calmWithin = 400 * time.Millisecond
	easeFor    = 500 * time.Millisecond // at most: the fence ends it
	easeShare  = 0.3                    // of the writes that a proxy sent lately
	easeLeast  = 50                     // writes per second and proxy that go on in any case
)

// Pace gives the switch protocol its way to ask the proxies for few writes.
func (a *Activities) Pace() switchover.Pace {
	return pace{notices: a.Store, lag: a.probeAll, logger: a.Logger}
}

// pace implements [switchover.Pace].
type pace struct {
	notices notices
	lag     func(context.Context, contract.DirectionInput) (time.Duration, error) // of all lanes, now
	logger  *slog.Logger
}

// notices are what the proxies are told of attempts.
type notices interface {
	Attempt(ctx context.Context, id chunk.AttemptID) (metadata.Attempt, error)
	Announce(ctx context.Context, n chunk.Notice) error
}

// Ease implements [switchover.Pace]: it looks how far the lanes are behind, and where they
// are not far waits until they are as close as they come while the proxies send few
// writes: what lanes have to catch up with under the fence is what every write waits
// for. The gate has said that the switch may begin: no look begins after [calmWithin].
func (p pace) Ease(ctx context.Context, attempt switchover.Attempt) switchover.Moment {
	ctx, cancel := context.WithTimeout(ctx, calmWithin+answerPatience)
	defer cancel()
	at, err := p.notices.Attempt(ctx, attempt.ID)
	n := at.Notice()
	var newest time.Duration
	if err == nil {
		in := contract.DirectionInput{Ref: contract.Ref{Chunk: at.Chunk, Migration: at.Migration}, From: at.Source, To: at.Target, Direction: at.Direction}
		began, eased := time.Now(), false
		err = untilCalm(func() (lag time.Duration, more bool, err error) {
			lag, err = p.lag(ctx, in)
			newest, more = lag, time.Since(began) < calmWithin
			if err == nil && more && !eased {
				eased = true
				e := n
				e.Ease = &chunk.Ease{Share: easeShare, Least: easeLeast, ForMS: easeFor.Milliseconds()}
				err = p.notices.Announce(ctx, e)
			}
			return lag, more, err
		})
	}
	p.grumble(ctx, "No calm moment was found", attempt.ID, err)
	return switchover.Moment{
		Near: err == nil && newest <= nearWithin,
		Shut: func(ctx context.Context, now switchover.Attempt) {
			if n.Attempt == 0 {
				return // the row was not read: whose it is cannot be said
			}
			n.State, n.DeadlineUnixMS, n.Shut = now.State, now.Deadline.UnixMilli(), true
			p.grumble(ctx, "The proxies were not told that the source is shut", now.ID, p.notices.Announce(ctx, n))
		},
	}
}

// grumble logs what only costs time.
func (p pace) grumble(ctx context.Context, what string, id chunk.AttemptID, err error) {
	if err != nil {
		p.logger.DebugContext(ctx, what, slog.Int64("attempt", int64(id)), slog.Any("error", err))
	}
}

// Bounds of [untilCalm].
const (
	calmLooks = 1  // first, to learn what is usual now
	calmTries = 12 // at most, with the first ones
)

// untilCalm measures the lag again and again, until it is no more than a quarter above
// the least that was seen, or probe wants no more.
func untilCalm(probe func() (lag time.Duration, more bool, err error)) error {
	var least time.Duration
	for i := range calmTries {
		lag, more, err := probe()
		if err != nil || !more || i >= calmLooks && lag <= least+least/4 {
			return err
		}
		if i == 0 || lag < least {
			least = lag
		}
	}
	return nil
}
