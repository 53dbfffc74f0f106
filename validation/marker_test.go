package validation_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/internal/failure"
	"drover/validation"
)

// lateMarkers is a world whose first markers are never seen to be passed.
type lateMarkers struct {
	*world
	unseen int // so many; negative: all
	waited int
	lost   int // so many are written and not captured in time
}

// Write implements [validation.Markers].
func (l *lateMarkers) Write(ctx context.Context) (validation.Mark, error) {
	if l.lost > 0 {
		l.lost--
		return validation.Mark{}, failure.New(failure.Transient, validation.Uncaptured, "nothing was captured")
	}
	return l.world.Write(ctx)
}

// Passed implements [validation.Markers].
func (l *lateMarkers) Passed(ctx context.Context, m validation.Mark) error {
	l.waited++
	if l.unseen < 0 || l.waited <= l.unseen {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return l.world.Passed(context.WithoutCancel(ctx), m)
}

// A marker that is not captured or not passed in time is not waited for: a newer
// one takes its place, and what changed since the last one that was passed counts.
func TestLateMarkerIsWrittenAnew(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(25)...)
	late := &lateMarkers{world: w, unseen: 2, lost: 1}
	v := w.validator()
	v.Markers, v.Settings.MarkerPatience = late, time.Millisecond
	result := w.run(t, v, "c")
	require.True(t, result.Clean(), "%v", result)
	require.Greater(t, late.waited, 2)
	require.Zero(t, late.lost)
}

// Lanes that do not get through end the comparison, in words that an operator
// reads; it says nothing about the documents.
func TestLanesThatPassNothingEndTheComparison(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.both("c", docs(5)...)
	v := w.validator()
	v.Markers = &lateMarkers{world: w, unseen: -1}
	v.Settings.MarkerPatience, v.Settings.LanesPatience = time.Millisecond, 2*time.Millisecond
	_, err := v.Run(t.Context(), []string{"c"})
	require.True(t, failure.HasCode(err, "validation.lanes_behind"), "%v", err)
	require.True(t, failure.Is(err, failure.Transient))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = v.Run(ctx, []string{"c"})
	require.ErrorIs(t, err, context.Canceled, "who is told to stop is not late")
}
