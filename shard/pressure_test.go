package shard_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/shard/shardsim"
)

// TestCountersOfAPrimary: what it counts is read by one command, the cores of a host are
// asked for once, and a server that is started anew is seen as such.
func TestCountersOfAPrimary(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	status := s.sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: shardsim.Command("serverStatus", "")})
	info := s.sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: shardsim.Command("hostInfo", "")})
	s.sim.SetWork(shardsim.Work{CPU: time.Minute, Cores: 8, Writes: 100, WriteTime: time.Second, Reads: 7, ReadTime: time.Millisecond}, time.Hour)
	before, err := s.set.Counters(t.Context(), chunk.Counters{})
	require.NoError(t, err)
	require.Equal(t, chunk.Counters{
		Host: s.sim.Primary(), At: before.At, Up: time.Hour, CPU: time.Minute, Cores: 8,
		Writes: chunk.Latency{Ops: 100, Time: time.Second}, Reads: chunk.Latency{Ops: 7, Time: time.Millisecond},
	}, before)

	s.sim.SetWork(shardsim.Work{CPU: 3 * time.Minute, Cores: 8, Writes: 200, WriteTime: 5 * time.Second, Reads: 7, ReadTime: time.Millisecond}, time.Hour)
	s.sim.Advance(time.Minute)
	now, err := s.set.Counters(t.Context(), before)
	require.NoError(t, err)
	p := now.Since(before)
	require.InDelta(t, 0.25, *p.CPU, 1e-9)
	require.Equal(t, 40*time.Millisecond, *p.Write)
	require.Nil(t, p.Read)
	require.Equal(t, 2, status.Hits())
	require.Equal(t, 1, info.Hits())

	s.sim.SetWork(shardsim.Work{CPU: 5 * time.Minute, Cores: 8, Writes: 300, WriteTime: 6 * time.Second}, 2*time.Second)
	s.sim.Advance(2 * time.Hour)
	again, err := s.set.Counters(t.Context(), now)
	require.NoError(t, err)
	require.Contains(t, again.Since(now).Unknown, "started anew")

	s.sim.SetWork(shardsim.Work{Writes: 400, WriteTime: 7 * time.Second}, time.Hour)
	again, err = s.set.Counters(t.Context(), now)
	require.NoError(t, err)
	require.Contains(t, again.Unknown, "CPU: the server does not count it")
}

// TestCountersNeedRights: cores that may not be asked for leave the CPU unknown; a server
// that says nothing at all is an error.
func TestCountersNeedRights(t *testing.T) {
	t.Parallel()

	s := simulate(t)
	s.sim.SetWork(shardsim.Work{CPU: time.Minute, Cores: 8}, time.Hour)
	const unauthorized = 13
	s.sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: shardsim.Command("hostInfo", ""), Code: unauthorized})
	c, err := s.set.Counters(t.Context(), chunk.Counters{})
	require.NoError(t, err)
	require.Zero(t, c.Cores)
	require.Contains(t, c.Unknown, "drover shard add")
	s.sim.Inject(shardsim.Fault{Stage: shardsim.Arrived, Match: shardsim.Command("serverStatus", ""), Code: unauthorized})
	_, err = s.set.Counters(t.Context(), chunk.Counters{})
	require.ErrorContains(t, err, "read the counters")
}

// testCountersAreKnownOrUnknown on a development shard: they come out without an error.
func testCountersAreKnownOrUnknown(t *testing.T, b *bundle) {
	before, err := b.set.Counters(t.Context(), chunk.Counters{})
	require.NoError(t, err)
	require.NotEmpty(t, before.Host)
	require.Positive(t, before.Up)
	now, err := b.set.Counters(t.Context(), before)
	require.NoError(t, err)
	require.Equal(t, before.Host, now.Host)
	if now.CPU == 0 {
		require.Contains(t, now.Unknown, "CPU")
	} else {
		require.GreaterOrEqual(t, now.CPU, before.CPU)
	}
	require.GreaterOrEqual(t, now.Writes.Ops, before.Writes.Ops)
}
