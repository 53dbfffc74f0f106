package gate

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCallers(t *testing.T) {
	t.Parallel()

	deadline := Bound{Name: "fence-deadline", Value: time.Second, Source: "default"}
	for name, tc := range map[string]struct {
		all  []Caller
		want string
		ms   float64
	}{
		"nobody":       {nil, "no deadline was seen", 0},
		"no deadline":  {[]Caller{{User: "u", Writes: 5}}, "no deadline was seen", 0},
		"the shortest": {[]Caller{{User: "u", App: "a", Shortest: 2 * time.Second}, {User: "v", Shortest: 300 * time.Millisecond}}, "shortest 300ms (v)", 300},
		"who gave up":  {[]Caller{{App: "a", Shortest: 2 * time.Second, Patience: 40 * time.Millisecond, GaveUp: 1}}, "shortest 40ms (a)", 40},
		"who did not":  {[]Caller{{App: "a", Shortest: 2 * time.Second, Patience: 40 * time.Millisecond}}, "shortest 2s (a)", 2000},
		"two proxies":  {[]Caller{{User: "u", Shortest: 3 * time.Second, Writes: 1, Unrepeated: 1}, {User: "u", Shortest: 2 * time.Second, Writes: 1}}, "shortest 2s (u); writes that no driver repeats: u 50%", 2000},
		"unrepeated": {
			[]Caller{{User: "u", App: "a", Writes: 8, Unrepeated: 2}, {User: "v", Writes: 1, Unrepeated: 1}, {User: "w", Writes: 1, Unrepeated: 1}, {User: "x", Writes: 1, Unrepeated: 1}},
			"no deadline was seen; writes that no driver repeats: u/a 25%, v 100%, w 100%; and of 1 more", 0,
		},
	} {
		c := Callers(tc.all, deadline, nil)
		require.True(t, c.OK, name)
		require.Equal(t, tc.want, c.Value, name)
		require.InDelta(t, tc.ms, c.Measured, 0.001, name)
	}
	c := Callers(nil, deadline, errors.New("no answer"))
	require.True(t, c.OK, "it never refuses")
	require.Contains(t, c.Value, "no answer")
}
