package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/remediation"
)

// small is a fleet and a time that are enough to see everything.
func small() Config {
	c := Defaults()
	c.Shards, c.Days, c.Moves = 300, 15, 600
	c.Faults = Mix{Misconfigured: 8000, NodeDown: 3000, Stalled: 1500, ZoneLoss: 12}
	c.Cells, c.Spares = 20, 4
	return c
}

// TestFleetRecovers: with hundreds of faults, workers that die, and moves beside
// it, remediation loses no majority, meets no switch, and needs fewer people.
func TestFleetRecovers(t *testing.T) {
	t.Parallel()

	aided, err := Run(small())
	require.NoError(t, err)
	require.Zero(t, aided.LostMajorities)
	require.Zero(t, aided.LostPrimaries)
	require.Zero(t, aided.Races)
	require.Positive(t, aided.Rebuilds)
	require.Positive(t, aided.Crashes)
	require.Positive(t, aided.Replans)
	require.Positive(t, aided.MovesTold)
	require.Positive(t, aided.SwitchesDelayed)
	require.Equal(t, aided.Moves, small().Moves*small().Days)

	c := small()
	c.Unaided = true
	unaided, err := Run(c)
	require.NoError(t, err)
	require.Equal(t, aided.Faults, unaided.Faults, "both meet the same faults")
	require.Zero(t, unaided.LostMajorities)
	require.Less(t, 2*aided.PersonCases, unaided.PersonCases)
	require.Less(t, aided.Hours(Misconfigured, NodeDown, Stalled), unaided.Hours(Misconfigured, NodeDown, Stalled))
}

// TestLeaseKeepsSwitchesAndRemediationApart: without it they meet.
func TestLeaseKeepsSwitchesAndRemediationApart(t *testing.T) {
	t.Parallel()

	c := small()
	c.Leaseless, c.Moves, c.Days = true, 4000, 8
	c.Faults[ZoneLoss] = 0
	r, err := Run(c)
	require.NoError(t, err)
	require.Positive(t, r.Races)
	c.Leaseless = false
	r, err = Run(c)
	require.NoError(t, err)
	require.Zero(t, r.Races)
}

func TestSameSeedSameReport(t *testing.T) {
	t.Parallel()

	c := small()
	c.Days = 10
	first, err := Run(c)
	require.NoError(t, err)
	again, err := Run(c)
	require.NoError(t, err)
	require.Equal(t, first, again)
	c.Seed++
	other, err := Run(c)
	require.NoError(t, err)
	require.NotEqual(t, first, other)
}

func TestMixes(t *testing.T) {
	t.Parallel()

	m, err := ParseMix(DefaultMix().String())
	require.NoError(t, err)
	require.Equal(t, DefaultMix(), m)
	for s, want := range map[string]string{
		"misconfigured": "want KIND=NUMBER", "fire=1": `kind "fire" is not known`, "node-down=-1": "want KIND=NUMBER", "stalled=NaN": "want KIND=NUMBER",
	} {
		_, err := ParseMix(s)
		require.ErrorContains(t, err, want)
	}
	c := Config{Rates: remediation.Rates{AtOnce: 0}}
	for _, field := range []string{"shards", "days", "cells", "person", "at-once"} {
		require.ErrorContains(t, c.Validate(), field)
	}
}

// scene is a fleet of two shards of three voters in which nothing happens by
// itself: a test says what does.
func scene(t *testing.T) (w *world, a, b *shard) {
	t.Helper()

	c := Defaults()
	c.Shards, c.Crashes, c.Rates.Settle = 2, 0, 0
	w = newWorld(c)
	require.NoError(t, w.build())
	w.after(watchEvery, w.watch)
	require.Len(t, w.shards[0].layout.Slots, 3)
	return w, w.shards[0], w.shards[1]
}

// TestAnElectionIsWantedWhileTheShardIsFenced: the source's primary dies inside
// the window. The attempt goes back, remediation does not touch the shard
// before that, and the move switches afterwards.
func TestAnElectionIsWantedWhileTheShardIsFenced(t *testing.T) {
	t.Parallel()

	w, a, b := scene(t)
	m := &move{from: a, to: b}
	w.moving[m] = true
	w.after(watchEvery-windowTakes/2, func() { w.gate(m) })
	w.after(watchEvery-windowTakes/4, func() {
		require.Equal(t, 1, a.lease.attempts, "the window is open")
		w.fell(a, 0, remediation.Down, NodeDown)
		require.True(t, a.mute, "an election is wanted")
	})
	w.clock.run(watchEvery)
	require.NotNil(t, a.run, "remediation has been started inside the window")
	require.False(t, a.run.granted, "and does not get the lease")
	require.False(t, a.lease.share(), "but keeps the next switch away")
	w.clock.run(watchEvery + windowTakes)
	require.Equal(t, 1, w.report.AttemptsWentBack)
	require.False(t, a.run.granted)
	w.clock.run(3 * 24 * time.Hour)
	require.False(t, a.sick)
	require.Zero(t, w.report.Races)
	require.Positive(t, w.report.LeaseWaitMax)
	require.Equal(t, 1, w.report.Switches)
	require.Equal(t, 1, w.report.Rebuilds)
}

// TestATargetIsRebuiltDuringItsImport: a member of the target is rebuilt while
// a move imports to it. The move is told and goes on; its switch waits for the
// lease and happens.
func TestATargetIsRebuiltDuringItsImport(t *testing.T) {
	t.Parallel()

	w, a, b := scene(t)
	m := &move{from: a, to: b}
	w.moving[m] = true
	w.after(2*time.Hour, func() {
		require.False(t, m.switching)
		m.asked, m.switching = w.now, true
		w.gate(m)
	})
	w.fell(b, 2, remediation.Stalled, Stalled)
	w.clock.run(2*time.Hour - time.Second)
	require.Equal(t, 1, w.report.MovesTold)
	require.Equal(t, 1, w.report.TargetsRebuiltDuringImport)
	w.clock.run(3 * 24 * time.Hour)
	require.False(t, b.sick)
	require.Equal(t, 1, w.report.Switches)
	require.Zero(t, w.report.Races)
	require.Zero(t, w.report.LostMajorities)
}

// The published mix gives exactly its numbers in half a year.
func TestSchedule(t *testing.T) {
	t.Parallel()

	c := Defaults()
	counts := map[Kind]int{}
	c.Days = 182
	for _, f := range schedule(&c) {
		counts[f.kind]++
		require.Less(t, f.at, time.Duration(c.Days)*24*time.Hour)
	}
	require.Equal(t, map[Kind]int{Misconfigured: 124, NodeDown: 32, Stalled: 16, ZoneLoss: 1}, counts)
}
