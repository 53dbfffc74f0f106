package proxy

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// told is a presence that hears what a proxy promises.
type told struct {
	*fleet
	holds chan time.Duration
}

func (p told) Beat(_ context.Context, l Life) error {
	select {
	case p.holds <- l.Hold:
	default:
	}
	return nil
}

// A proxy promises the hold that needs no news of the switch: it once promised
// the longer one, and a fence of 5 s was let through although a proxy that reads
// nothing gives up after 1.5 s.
func TestPromisedHoldNeedsNoNews(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	ports, heard := f.ports(), told{fleet: f, holds: make(chan time.Duration, 1)}
	ports.Presence = heard
	p := New(Config{ID: "promises"}, ports)
	f.run(p)
	sure, known := p.Holds()
	require.Equal(t, 1500*time.Millisecond, sure)
	require.Equal(t, 10*time.Second, known)
	select {
	case hold := <-heard.holds:
		require.Equal(t, sure, hold)
	case <-time.After(waitFor):
		require.FailNow(t, "no sign of life")
	}

	_, known = New(Config{SwitchWait: time.Minute}, f.ports()).Holds()
	require.Equal(t, time.Minute, known, "to know of the switch is no reason to hold for less")
}
