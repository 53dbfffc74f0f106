package fences

import (
	"context"
	"fmt"
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
func start(t *testing.T, s Settings) *Fleet {
	t.Helper()
	f, err := New(s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// bothWays runs a test with a proxy that knows of switches and with one that does not.
func bothWays(t *testing.T, test func(t *testing.T, known bool)) {
	t.Helper()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("known %t", known), func(t *testing.T) {
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
		f := start(t, Settings{Deaf: !known, Blind: !known, Sure: long, Live: long, Profiles: Profiles(long, brief)})
		rows, err := f.Hold(t.Context(), perKind, func(ctx context.Context, up *Fence) error {
			for {
				n, err := f.Waiting()
				if err != nil {
					return err
				}
				if n == perKind*len(Kinds)*len(f.Profiles) {
					return up.Release()
				}
				if err := pause.For(ctx, time.Millisecond); err != nil {
					return err
				}
			}
		}, nil)
		require.NoError(t, err)
		require.Len(t, rows, len(Kinds)*len(f.Profiles))
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
	tries := map[string]int{NoRetry: 1, QuickRetry: 2, ByDefault: 2, BackOff: MostTries}
	bothWays(t, func(t *testing.T, known bool) {
		f := start(t, Settings{Deaf: !known, Blind: !known, Sure: brief, Live: brief, Profiles: Profiles(10*brief, brief/10)})
		rows, err := f.Hold(t.Context(), perKind, func(context.Context, *Fence) error { return nil }, nil)
		require.NoError(t, err)
		for _, x := range rows {
			require.Equal(t, perKind, x.Errors, "%+v", x)
			require.Zero(t, x.AppliedMore, "%+v", x)
			if x.Profile == ByTimeout { // its end is the client's own
				continue
			}
			require.Equal(t, tries[x.Profile], x.MostTries, "%+v", x)
			require.InDelta(t, tries[x.Profile], x.Attempts, 0, "%+v", x)
			require.Equal(t, []string{"262"}, x.Codes, "%+v", x)
			if x.Kind == Write && x.Of.Driver {
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
		all := Profiles(long, brief/10)
		f := start(t, Settings{Deaf: !known, Blind: !known, Sure: brief, Live: brief, Profiles: all[1:]})
		refused := make(chan struct{}, 1000)
		rows, err := f.Hold(t.Context(), perKind, func(context.Context, *Fence) error { return nil }, func(up *Fence) {
			refused <- struct{}{}
			_ = up.Release() // hold tells the error
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
	f := start(t, Settings{Sure: long, Live: long, Profiles: Profiles(long, brief)})
	var rows []Row
	for range 20 {
		got, err := f.Hold(t.Context(), 1, func(ctx context.Context, up *Fence) error {
			for n := 0; n == 0; { // somebody waits: the others come when the route has changed, or in between
				var err error
				if n, err = f.Waiting(); err != nil {
					return err
				}
				if err := pause.For(ctx, time.Millisecond/10); err != nil {
					return err
				}
			}
			return up.Release()
		}, nil)
		require.NoError(t, err)
		rows = append(rows, got...)
	}
	require.Len(t, rows, 20*len(Kinds)*len(f.Profiles))
	for _, x := range rows {
		require.Zero(t, x.Errors, "%+v", x)
		require.Equal(t, 1, x.MostTries, "%+v", x)
		require.Zero(t, x.AppliedMore, "%+v", x)
	}
	require.Equal(t, chunk.Token(120), f.route.Token)
}

// awaitOpen waits until a request passes: a proxy may hear of the end later than
// who was refused.
func (f *Fleet) awaitOpen() {
	for f.Callers[0].Once(f.ctx, Write, "open") != nil && f.ctx.Err() == nil {
	}
}
