package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"drover/chunk"
	"drover/internal/pause"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	perKind = 2                     // requests of a kind
	long    = time.Minute           // nobody waits for so long in a test
	brief   = 50 * time.Millisecond // of holds that are to end
)

// start makes a fleet for a test.
func start(t *testing.T, s settings) *fleet {
	t.Helper()
	f, err := newFleet(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.close()) })
	return f
}

// bothWays runs a test with a proxy that knows of switches and with one that does not.
func bothWays(t *testing.T, test func(t *testing.T, known bool)) {
	t.Helper()
	for _, known := range []bool{true, false} {
		t.Run(knowledge(known), func(t *testing.T) {
			t.Parallel()
			test(t, known)
		})
	}
}

// A fence that ends while the proxy holds is nothing to any application: every
// request waits, is sent once by its driver, and succeeds.
func TestFenceWithinHoldIsNoError(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, known bool) {
		f := start(t, settings{known: known, sure: long, live: long, profiles: profiles(long, brief)})
		rows, err := f.hold(t.Context(), perKind, func(ctx context.Context, up *fenced) error {
			for {
				n, err := f.waiting()
				if err != nil {
					return err
				}
				if n == perKind*len(kinds)*len(f.profiles) {
					return up.release()
				}
				if err := pause.For(ctx, time.Millisecond); err != nil {
					return err
				}
			}
		}, nil)
		require.NoError(t, err)
		require.Len(t, rows, len(kinds)*len(f.profiles))
		for _, x := range rows {
			require.Zero(t, x.Errors, "%+v", x)
			require.Equal(t, 1, x.MostTries, "%+v", x)
			require.Empty(t, x.Codes, "%+v", x)
			require.Zero(t, x.AppliedMore, "%+v", x)
		}
	})
}

// A fence that outlasts the hold reaches each application as ExceededTimeLimit, in
// a form that says that nothing ran, after as many tries as its profile makes.
func TestFenceBeyondHoldIsOneCode(t *testing.T) {
	t.Parallel()
	tries := map[string]int{noRetry: 1, quickRetry: 2, byDefault: 2, backOff: mostTries}
	bothWays(t, func(t *testing.T, known bool) {
		f := start(t, settings{known: known, sure: brief, live: brief, profiles: profiles(10*brief, brief/10)})
		rows, err := f.hold(t.Context(), perKind, func(context.Context, *fenced) error { return nil }, nil)
		require.NoError(t, err)
		for _, x := range rows {
			require.Equal(t, perKind, x.Errors, "%+v", x)
			require.Zero(t, x.AppliedMore, "%+v", x)
			if x.Profile == byTimeout { // its end is the client's own
				continue
			}
			require.Equal(t, tries[x.Profile], x.MostTries, "%+v", x)
			require.InDelta(t, tries[x.Profile], x.Attempts, 0, "%+v", x)
			require.Equal(t, []string{"262"}, x.Codes, "%+v", x)
			if x.Kind == kindWrite && x.profile.driver {
				require.Equal(t, []string{"NoWritesPerformed", "RetryableWriteError"}, x.Labels, "%+v", x)
			} else {
				require.Empty(t, x.Labels, "%+v", x)
			}
		}
	})
}

// A fence that ends between two tries of a client costs those who try again no
// error, and none of their writes runs twice.
func TestRetryBehindTheFenceSucceeds(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, known bool) {
		all := profiles(long, brief/10)
		f := start(t, settings{known: known, sure: brief, live: brief, profiles: all[1:]})
		refused := make(chan struct{}, 1000)
		rows, err := f.hold(t.Context(), perKind, func(context.Context, *fenced) error { return nil }, func(up *fenced) {
			refused <- struct{}{}
			_ = up.release() // hold tells the error
			f.awaitOpen()
		})
		require.NoError(t, err)
		require.NotEmpty(t, refused, "nobody met the fence")
		for _, x := range rows {
			require.Zero(t, x.Errors, "%+v", x)
			require.LessOrEqual(t, x.MostTries, 2, "%+v", x)
			require.Zero(t, x.AppliedMore, "%+v", x)
		}
	})
}

// Requests that were held once and found the chunk fenced again, or moved on, when
// they were let go once waited for an event that had passed. Twenty switches there
// and back, each with requests in it, cost nobody an error.
func TestManySwitchesInARow(t *testing.T) {
	t.Parallel()
	f := start(t, settings{known: true, sure: long, live: long, profiles: profiles(long, brief)})
	var rows []row
	for range 20 {
		got, err := f.hold(t.Context(), 1, func(ctx context.Context, up *fenced) error {
			for n := 0; n == 0; { // somebody waits: the others come when the route has changed, or in between
				var err error
				if n, err = f.waiting(); err != nil {
					return err
				}
				if err := pause.For(ctx, time.Millisecond/10); err != nil {
					return err
				}
			}
			return up.release()
		}, nil)
		require.NoError(t, err)
		rows = append(rows, got...)
	}
	require.Len(t, rows, 20*len(kinds)*len(f.profiles))
	for _, x := range rows {
		require.Zero(t, x.Errors, "%+v", x)
		require.Equal(t, 1, x.MostTries, "%+v", x)
		require.Zero(t, x.AppliedMore, "%+v", x)
	}
	require.Equal(t, chunk.Token(120), f.route.Token)
}

// awaitOpen waits until a request passes: a proxy may hear of the end later than
// who was refused.
func (f *fleet) awaitOpen() {
	for f.callers[0].once(f.ctx, kindWrite, "open") != nil && f.ctx.Err() == nil {
	}
}

// What is defined follows from the holds and the profile alone.
func TestExpectedOutcomes(t *testing.T) {
	t.Parallel()
	const sure, live = 1500 * time.Millisecond, 10 * time.Second
	for name, want := range map[string][]string{ // fences of 1, 2, 5 s, unknown to the proxy
		noRetry: {noErrors, allErrors, allErrors}, quickRetry: {noErrors, noErrors, allErrors}, byDefault: {noErrors, noErrors, allErrors},
		byTimeout: {noErrors, noErrors, allErrors}, backOff: {noErrors, noErrors, noErrors},
	} {
		for _, p := range profiles(timeoutMS, firstPause) {
			if p.name != name {
				continue
			}
			for i, fence := range []int64{1000, 2000, 5000} {
				x := row{FenceMS: fence, profile: p, Requests: 1}
				require.Equal(t, want[i], expected(x, live, sure), "%s at %d ms", name, fence)
				x.Known = true
				if name != byTimeout || fence < 5000 {
					require.Equal(t, noErrors, expected(x, live, sure), "%s at %d ms", name, fence)
				}
			}
		}
	}
	require.False(t, row{Expected: noErrors, Requests: 2, Errors: 1}.fits())
	require.False(t, row{Expected: allErrors, Requests: 2, Errors: 1}.fits())
	require.True(t, row{Expected: either, Requests: 2, Errors: 1}.fits())
}
