package contract_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/contract"
)

func TestWindowGoesOverMidnight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		window, at string
		until      time.Duration
	}{
		{"22:00-04:00", "22:00", 0}, {"22:00-04:00", "23:59", 0}, {"22:00-04:00", "03:59", 0},
		{"22:00-04:00", "04:00", 18 * time.Hour}, {"22:00-04:00", "21:59", time.Minute},
		{"09:30-10:00", "09:45", 0}, {"09:30-10:00", "10:00", 23*time.Hour + 30*time.Minute}, {"09:30-10:00", "00:00", 9*time.Hour + 30*time.Minute},
	} {
		w, err := contract.ParseWindow(c.window)
		require.NoError(t, err)
		at, err := time.Parse("15:04", c.at)
		require.NoError(t, err)
		require.Equal(t, c.until, w.Until(at), "%s at %s", c.window, c.at)
		require.Equal(t, c.until == 0, w.Left(at) > 0)
		require.Equal(t, c.until, w.Until(at.In(time.FixedZone("", 7200))), "a window is in UTC")
	}
}

func TestWindowTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	w, err := contract.ParseWindow("22:00-04:00")
	require.NoError(t, err)
	require.Equal(t, 5*time.Hour, w.Left(time.Date(2026, 1, 1, 23, 0, 0, 0, time.UTC)))
	require.Equal(t, time.Minute, w.Left(time.Date(2026, 1, 1, 3, 59, 0, 0, time.UTC)))
	require.Zero(t, w.Left(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)))
}

func TestBadWindowsAreNamed(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "22:00", "22-4", "25:00-04:00", "22:00-22:00", "now-then"} {
		_, err := contract.ParseWindow(s)
		require.ErrorContains(t, err, "is no window", s)
		require.ErrorContains(t, err, s)
	}
}
