package activities

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
	"drover/metadata"
	"drover/switchover"
)

func TestASwitchBeginsInACalmMoment(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lags []int // milliseconds; below zero fails, from 1,000 on there is no time for more
		want int   // probes
		err  bool
	}{
		"even":                     {[]int{10, 12, 1}, 2, false},
		"the first are only looks": {[]int{10, 60, 12, 1}, 3, false},
		"waits for the burst":      {[]int{10, 40, 90, 90, 90, 80, 12, 1}, 7, false},
		"better than before":       {[]int{90, 20, 1}, 2, false},
		"never calm":               {[]int{10, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90, 1}, calmTries, false},
		"takes too long":           {[]int{10, 1000, 1}, 2, false},
		"lanes that stand still":   {[]int{10, 40, -1, 1}, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 0
			err := untilCalm(func() (time.Duration, bool, error) {
				lag := time.Duration(tt.lags[n]) * time.Millisecond
				n++
				if lag < 0 {
					return 0, true, errors.New("not passed")
				}
				return lag, lag < time.Second, nil
			})
			require.Equal(t, tt.want, n)
			require.Equal(t, tt.err, err != nil)
		})
	}
}

// told are notices that are only kept.
type told struct {
	attempt     metadata.Attempt
	unread      error // reading the attempt fails with it
	unannounced error // announcing does
	notices     []chunk.Notice
}

// Attempt implements [notices].
func (s *told) Attempt(context.Context, chunk.AttemptID) (metadata.Attempt, error) {
	if s.unread != nil {
		return metadata.Attempt{}, s.unread
	}
	return s.attempt, nil
}

// Announce implements [notices].
func (s *told) Announce(_ context.Context, n chunk.Notice) error {
	s.notices = append(s.notices, n)
	return s.unannounced
}

// TestWhatIsAnnouncedAheadOfAFence: few writes are asked for once, and only where the
// lanes are looked at again afterwards; that the source is shut is said whatever the
// looks came to, but of no attempt that could not be read.
func TestWhatIsAnnouncedAheadOfAFence(t *testing.T) {
	t.Parallel()
	const eased, shut = "eased", "shut"
	broken := errors.New("not now")
	for name, tt := range map[string]struct {
		told   told
		lag    time.Duration
		takes  time.Duration // each look
		behind error
		want   []string
		near   bool
		logged []string
	}{
		"close behind":        {lag: nearWithin, want: []string{eased, shut}, near: true},
		"not close behind":    {lag: nearWithin + 1, want: []string{eased, shut}},
		"looks take too long": {lag: calmWithin, takes: calmWithin, want: []string{shut}},
		"lanes stand still":   {behind: broken, want: []string{shut}, logged: []string{"No calm moment was found"}},
		"the attempt cannot be read": {
			told: told{unread: broken}, logged: []string{"No calm moment was found"},
		},
		"nobody can be told": {
			told: told{unannounced: broken}, want: []string{eased, shut},
			logged: []string{"No calm moment was found", "The proxies were not told that the source is shut"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := metadata.Attempt{ID: 7, Migration: 3, Chunk: "c", State: chunk.Preparing, Direction: 5}
				a.Source.ID, a.Target.ID = 1, 2
				store := tt.told
				store.attempt = a
				var log bytes.Buffer
				p := pace{
					notices: &store, logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
					lag: func(_ context.Context, in contract.DirectionInput) (time.Duration, error) {
						require.Equal(t, contract.DirectionInput{
							Ref: contract.Ref{Chunk: a.Chunk, Migration: a.Migration}, From: a.Source, To: a.Target, Direction: a.Direction,
						}, in)
						<-time.After(tt.takes)
						return tt.lag, tt.behind
					},
				}
				moment := p.Ease(t.Context(), switchover.Attempt{ID: a.ID})
				require.Equal(t, tt.near, moment.Near)
				deadline := time.Now().Add(time.Second)
				moment.Shut(t.Context(), switchover.Attempt{ID: a.ID, State: chunk.Closing, Deadline: deadline})

				ease, last := a.Notice(), a.Notice()
				ease.Ease = &chunk.Ease{Share: easeShare, Least: easeLeast, ForMS: easeFor.Milliseconds()}
				last.State, last.DeadlineUnixMS, last.Shut = chunk.Closing, deadline.UnixMilli(), true
				var want []chunk.Notice
				for _, what := range tt.want {
					want = append(want, map[string]chunk.Notice{eased: ease, shut: last}[what])
				}
				require.Equal(t, want, store.notices)
				for _, line := range tt.logged {
					require.Contains(t, log.String(), line)
				}
				require.Equal(t, len(tt.logged), bytes.Count(log.Bytes(), []byte("\n")), log.String())
			})
		})
	}
}
