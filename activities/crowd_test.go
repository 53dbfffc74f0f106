package activities

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCrowdSlowsDownWhatEachDoes: together they do it about as often, however many
// there are, and none more rarely than it must.
func TestCrowdSlowsDownWhatEachDoes(t *testing.T) {
	t.Parallel()
	c := &Crowd{}
	var leave []func()
	for range 100 {
		leave = append(leave, c.join())
	}
	require.Equal(t, 2*time.Second, c.every(time.Second, time.Minute))
	require.Equal(t, time.Second, c.every(time.Second, time.Second), "not more rarely than it must")
	for _, l := range leave[:80] {
		l()
	}
	require.Equal(t, time.Second, c.every(time.Second, time.Minute), "a few do it as usual")
}

// TestRestsShortlyAtFirst and later in proportion to what was waited; in a crowd nobody
// begins as if it were alone.
func TestRestsShortlyAtFirst(t *testing.T) {
	t.Parallel()
	c := &Crowd{}
	require.Equal(t, 5*time.Millisecond, c.rest(0))
	require.Equal(t, 125*time.Millisecond, c.rest(time.Second))
	require.Equal(t, 500*time.Millisecond, c.rest(time.Hour))
	for range 1000 {
		defer c.join()()
	}
	require.Equal(t, 100*time.Millisecond, c.rest(0))
	require.Equal(t, 125*time.Millisecond, c.rest(time.Second))
}
