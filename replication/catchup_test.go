package replication

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// drive gives a Catchup a sample each second and the last forecast.
func drive(c *Catchup, from time.Time, seconds int, end, applied func(s int) int64, lanes ...Status) (f Forecast) {
	for s := range seconds {
		f = c.Observe(from.Add(time.Duration(s)*time.Second), end(s), applied(s), lanes)
	}
	return f
}

// rate makes a line.
func rate(start, perSecond int64) func(int) int64 {
	return func(s int) int64 { return start + int64(s)*perSecond }
}

func TestCatchupForecast(t *testing.T) {
	t.Parallel()

	now := time.Unix(1_000_000, 0)
	busy := Status{Lag: time.Minute}
	for name, c := range map[string]struct {
		seconds      int
		end, applied func(int) int64
		pace         Pace
		left         time.Duration
	}{
		"too early":      {3, rate(90_000, 100), rate(0, 1100), Unmeasured, 0},
		"converges":      {11, rate(100_000, 1000), rate(0, 3000), CatchingUp, 40 * time.Second},
		"a little left":  {11, rate(100_900, 100), rate(100_000, 100), InSync, 0},
		"as fast":        {12, rate(50_000, 500), rate(0, 500), CatchingUp, 0}, // not for long enough to say it
		"never":          {30, rate(50_000, 2000), rate(0, 1500), NotConverging, 0},
		"stands still":   {30, rate(50_000, 10), rate(0, 0), NotConverging, 0},
		"nothing behind": {30, rate(0, 0), rate(0, 0), InSync, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := drive(&Catchup{}, now, c.seconds, c.end, c.applied, busy)
			require.Equal(t, c.pace, f.Pace, "%+v", f)
			require.Equal(t, c.left, f.Left, "%+v", f)
		})
	}
}

// TestCatchupRecovers: not converging ends when the lanes are faster again, and
// a log that begins anew is measured anew.
func TestCatchupRecovers(t *testing.T) {
	t.Parallel()

	now := time.Unix(1_000_000, 0)
	c := &Catchup{}
	f := drive(c, now, 30, rate(50_000, 2000), rate(0, 100), Status{Lag: time.Minute})
	require.Equal(t, NotConverging, f.Pace)
	require.Contains(t, f.String(), "limited by the target's writes")
	f = drive(c, now.Add(30*time.Second), 20, rate(110_000, 100), rate(3000, 4000), Status{Lag: time.Minute})
	require.Equal(t, CatchingUp, f.Pace)
	require.Positive(t, f.Left)
	f = c.Observe(now.Add(time.Hour), 10, 5, nil)
	require.Equal(t, Unmeasured, f.Pace)
}

func TestCatchupSaysWhatLimits(t *testing.T) {
	t.Parallel()

	slow, quick := Status{Lag: time.Minute}, Status{Lag: time.Millisecond}
	for want, lanes := range map[string][]Status{
		"the target is not there: down":                                   {slow, {Trouble: "down"}},
		"3 documents wait for a unique key on the target":                 {slow, {Lag: time.Minute, Parked: 3}},
		"reading the captured log":                                        {quick, quick},
		"the target's writes, in 1 of 2 lanes: a chunk is applied by one": {slow, quick},
		"the target's writes":                                             {slow, slow},
	} {
		require.Equal(t, want, limitOf(lanes))
	}
}
