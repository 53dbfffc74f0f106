package activities

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
