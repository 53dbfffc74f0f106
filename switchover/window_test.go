package switchover_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/switchover"
)

// A switch that was asked for while the applier stands still ends at its deadline
// and goes back. What is asked is a marker's passage: an estimate of the lag would
// have let it through.
func TestLanesThatStandStillNeverPublish(t *testing.T) {
	t.Parallel()
	t.Run("far", func(t *testing.T) { // reads go on: the lanes do not have everything
		lanesStandStill(t, false, chunk.Fencing, "attempt.is_fencing")
	})
	t.Run("near", func(t *testing.T) { lanesStandStill(t, true, chunk.Closing, "attempt.deadline_passed") })
}

// lanesStandStill is a switch whose lanes do; stand is how far it comes, and refused the
// code of what a late publish is told.
func lanesStandStill(t *testing.T, near bool, stand chunk.AttemptState, refused string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(chunk.Preparing)
		f.behind = true
		s := f.switcher()
		s.Pace = &pacer{f: f, near: near}
		_, err := s.Fence(t.Context(), 1, nil)
		require.True(t, failure.HasCode(err, "switch.deadline"), "%v", err)
		require.Equal(t, stand, f.state(1))
		require.Equal(t, []chunk.PlacementID{placementA.ID}, f.forgotten, "a worker kept for ever what each fence had found")
		err = s.PublishAndOpen(t.Context(), switchover.PublishInput{Attempt: 1})
		require.True(t, failure.HasCode(err, refused), "%v", err)
		require.Equal(t, stand, f.state(1))

		w := f.watchdog()
		w.Look(t.Context())
		w.Wait()
		require.Equal(t, chunk.AttemptAborted, f.state(1))
		require.Equal(t, map[chunk.PlacementID]chunk.AttemptID{placementA.ID: 1}, f.granted, "the source serves on, and nobody else")
		err = s.PublishAndOpen(t.Context(), switchover.PublishInput{Attempt: 1})
		require.True(t, failure.Is(err, failure.Lost), "%v", err)
	})
}

// A primary that was elected between the fence and the final marker may have let
// something pass: the window begins again under it, with markers of its own.
func TestNewPrimaryStartsTheFenceAgain(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Preparing)
	f.reigns = []int64{4, 5} // at the fence, and behind the final marker
	timeline, err := f.switcher().Fence(t.Context(), 1, nil)
	require.NoError(t, err)
	require.Equal(t, chunk.Closing, f.state(1))
	require.Equal(t, []chunk.PlacementID{placementA.ID}, f.forgotten)
	var got []chunk.Marker
	for _, m := range f.markers {
		got = append(got, chunk.Marker{Kind: m.Kind, Round: m.Round})
	}
	require.Equal(t, []chunk.Marker{
		{Kind: chunk.DrainedMarker, Round: 1}, {Kind: chunk.FinalMarker, Round: 1},
		{Kind: chunk.DrainedMarker, Round: 2}, {Kind: chunk.FinalMarker, Round: 2},
	}, got)
	var steps []string
	for _, m := range timeline {
		steps = append(steps, m.Step)
	}
	require.Contains(t, steps, "again")
}

// What is to be compared under the fence is read before it, and a difference goes back.
func TestBusyDocumentsThatDifferGoBack(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Preparing)
	f.differ = failure.New(failure.Mismatch, "validation.mismatch", "one document differs")
	_, err := f.switcher().Fence(t.Context(), 1, nil)
	require.True(t, failure.Is(err, failure.Mismatch), "%v", err)
	require.Equal(t, chunk.Preparing, f.asked, "it is read while applications wait")
	require.NoError(t, f.switcher().Abandon(t.Context(), 1, "test"))
	require.Equal(t, chunk.AttemptAborted, f.state(1))
}

// pacer notes how the fleet stands when the proxies are asked for something.
type pacer struct {
	f     *fleet
	near  bool
	eased chunk.AttemptState
	held  map[chunk.PlacementID]chunk.AttemptID // grants when the proxies hear that there is no use in writes
}

func (p *pacer) Ease(context.Context, switchover.Attempt) switchover.Moment {
	p.eased = p.f.state(1)
	return switchover.Moment{Near: p.near, Shut: func(_ context.Context, at switchover.Attempt) {
		_ = p.f.locked(func() error { p.held = maps.Clone(p.f.granted); return nil })
		p.eased += "/" + at.State
	}}
}

// Where the lanes are close behind they have one marker to pass, and the reads end
// meanwhile: a read waits a little longer for it, every write less.
func TestLanesThatAreNearHaveOneMarkerToPass(t *testing.T) {
	t.Parallel()

	for near, want := range map[bool][]chunk.MarkerKind{
		true:  {chunk.FinalMarker},
		false: {chunk.DrainedMarker, chunk.FinalMarker},
	} {
		f := newFleet(chunk.Preparing)
		s := f.switcher()
		s.Pace = &pacer{f: f, near: near}
		_, err := s.Fence(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Equal(t, chunk.Closing, f.state(1))
		var got []chunk.MarkerKind
		for _, m := range f.markers {
			got = append(got, m.Kind)
		}
		require.Equal(t, want, got)
	}
}

// Reads go on while the last writes are waited for, but where the lanes are near: they
// have no marker to pass then, and reads would end right behind the writes anyway.
func TestReadsEndWhileTheLastWritesAreWaitedFor(t *testing.T) {
	t.Parallel()

	for _, near := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(chunk.Preparing)
			f.readsEnd = make(chan struct{})
			s := f.switcher()
			s.Pace = &pacer{f: f, near: near}
			_, err := s.Fence(t.Context(), 1, nil)
			if near {
				require.NoError(t, err)
				return
			}
			require.True(t, failure.HasCode(err, "switch.deadline"), "%v", err)
		})
	}
}

// Few writes are asked for before anything is taken away, and an end of them once the
// shard refuses them.
func TestProxiesArePacedAroundTheFence(t *testing.T) {
	t.Parallel()

	f := newFleet(chunk.Preparing)
	f.granted[placementA.ID] = 1
	s, p := f.switcher(), &pacer{f: f}
	s.Pace = p
	_, err := s.Fence(t.Context(), 1, nil)
	require.NoError(t, err)
	require.Equal(t, chunk.Preparing+"/"+chunk.Fencing, p.eased)
	require.NotNil(t, p.held)
	require.NotContains(t, p.held, placementA.ID, "writes were still taken")
	require.NotNil(t, f.counted)
	require.NotContains(t, f.counted, placementA.ID, "a proxy that comes now may send a write, and nobody waits for its word")
}
