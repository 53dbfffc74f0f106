package proxy

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
)

// told is a presence that hears what a proxy says of itself first.
type told struct {
	*fleet
	first chan Life
}

func (p told) Beat(_ context.Context, l Life) error {
	select {
	case p.first <- l:
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
	ports, heard := f.ports(), told{fleet: f, first: make(chan Life, 1)}
	ports.Presence = heard
	p := New(Config{ID: "promises"}, ports)
	f.run(p)
	sure, known := p.Holds()
	require.Equal(t, 1500*time.Millisecond, sure)
	require.Equal(t, 10*time.Second, known)
	select {
	case l := <-heard.first:
		require.Equal(t, sure, l.Hold)
	case <-time.After(waitFor):
		require.FailNow(t, "no sign of life")
	}

	_, known = New(Config{SwitchWait: time.Minute}, f.ports()).Holds()
	require.Equal(t, time.Minute, known, "to know of the switch is no reason to hold for less")
}

// TestRunIsKnownBeforeTheFirstClient: a proxy that dies of its first request is missed,
// and its word is not that of the run that comes after it.
func TestRunIsKnownBeforeTheFirstClient(t *testing.T) {
	t.Parallel()

	f, _ := newFakeFleet(t, 1)
	f.attempts[firstChunk] = chunk.Notice{
		Attempt: 6, Migration: 1, State: chunk.Fencing, Source: f.routes[firstChunk].Placement.ID, Target: 99,
		Chunks: []chunk.ID{firstChunk}, DeadlineUnixMS: time.Now().Add(time.Hour).UnixMilli(),
	}
	runs := map[string]bool{}
	for range 2 {
		ports, heard := f.ports(), told{fleet: f, first: make(chan Life, 1)}
		ports.Presence = heard
		p := New(Config{ID: "again"}, ports)
		f.run(p)
		require.Len(t, heard.first, 1, "it listens, and nobody knows of it")
		l := <-heard.first
		require.False(t, l.Hears, "it does not hear yet")
		require.Equal(t, "again", l.ID)
		runs[l.Run] = true
		for said := (chunk.Ack{}); said.Run != l.Run; { // one run may say more than one word
			said = <-f.acked
			require.True(t, runs[said.Run], "whose word is it? %+v", said)
		}
	}
	require.Len(t, runs, 2)
	require.NotContains(t, runs, "")
}
