package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/proxy/wire"
)

func TestGateStates(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		state                                    chunk.AttemptState
		sourceReads, sourceWrites, target, reads bool // may pass
	}{
		{state: chunk.Preparing, sourceReads: true, sourceWrites: true, target: true, reads: true},
		{state: chunk.Fencing, sourceReads: true},
		{state: chunk.Closing},
		{state: chunk.Published},
		{state: chunk.Open, target: true, reads: true},
		{state: chunk.AttemptDone, target: true, reads: true},
		{state: chunk.AttemptAborting},
		{state: chunk.AttemptAborted, sourceReads: true, sourceWrites: true, target: true, reads: true},
	} {
		n := chunk.Notice{Attempt: 7, State: tc.state, Source: 1, Target: 2}
		source, target := &gate{placement: 1}, &gate{placement: 2}
		require.True(t, source.apply(n, time.Now()))
		require.True(t, target.apply(n, time.Now()))
		require.False(t, source.apply(n, time.Now()), "no news twice")
		require.Equal(t, tc.sourceReads, source.enter(reads), tc.state)
		require.Equal(t, tc.sourceWrites, source.enter(writes), tc.state)
		require.Equal(t, tc.target, target.enter(writes), tc.state)
		require.Equal(t, tc.reads, target.enter(reads), tc.state)
	}
}

func TestGateIgnoresWhatIsOlder(t *testing.T) {
	t.Parallel()

	g := &gate{placement: 1}
	notice := func(a chunk.AttemptID, s chunk.AttemptState) chunk.Notice {
		return chunk.Notice{Attempt: a, State: s, Source: 1, Target: 2}
	}
	require.True(t, g.apply(notice(7, chunk.AttemptAborted), time.Now()))
	require.False(t, g.apply(notice(7, chunk.Closing), time.Now()))
	require.False(t, g.apply(notice(6, chunk.Fencing), time.Now()))
	require.True(t, g.open(writes))
	require.True(t, g.apply(notice(8, chunk.Fencing), time.Now()))
	require.False(t, g.open(writes))
	// A later attempt the other way round opens what was left behind.
	require.True(t, g.apply(notice(8, chunk.AttemptDone), time.Now()))
	require.False(t, g.open(writes))
	require.True(t, g.apply(chunk.Notice{Attempt: 9, State: chunk.AttemptDone, Source: 2, Target: 1}, time.Now()))
	require.True(t, g.open(writes))
}

func TestGateExpires(t *testing.T) {
	t.Parallel()

	g := &gate{placement: 1}
	now := time.Now()
	// The deadline is by another clock, which may be far off.
	g.apply(chunk.Notice{Attempt: 7, State: chunk.Fencing, Source: 1, DeadlineUnixMS: now.Add(-time.Hour).UnixMilli()}, now)
	until, live := g.live(writes, now.Add(leastNotice))
	require.True(t, live)
	require.True(t, until.After(now.Add(leastNotice)))
	g.lapse(now.Add(leastNotice))
	require.False(t, g.open(writes))
	_, live = g.live(writes, now.Add(leastNotice+2*noticeGrace))
	require.False(t, live)
	require.False(t, g.open(writes), "an expired one still holds until the row was asked for")
	g.lapse(now.Add(leastNotice + 2*noticeGrace))
	require.True(t, g.open(writes), "nobody can be asked: the shard decides")
}

func TestGateWord(t *testing.T) {
	t.Parallel()

	g := &gate{placement: 1}
	require.True(t, g.enter(writes))
	word, changed := g.word(writes, time.Now())
	require.Equal(t, ackRunning, word)
	clean, _ := g.word(reads, time.Now())
	require.Equal(t, ackClean, clean)
	g.leave(writes, true)
	<-changed
	word, _ = g.word(writes, time.Now())
	require.Equal(t, ackUnknown, word)
	word, _ = g.word(writes, time.Now().Add(doubt+time.Second))
	require.Equal(t, ackClean, word)
}

// A retry that went to another placement than the first try must be noticed;
// the later parts of one batch must not be taken for one.
func TestSessionRemembersPlacements(t *testing.T) {
	t.Parallel()

	s := newSessions().of(make([]byte, 16), "", time.Now())
	at := func(p chunk.PlacementID) *route {
		return &route{Route: chunk.Route{Chunk: chunk.Chunk{ID: "d/0001"}, Placement: chunk.Placement{ID: p}}}
	}
	var last uint64
	q := func(n int64) *request {
		last++
		q := &request{id: last, cmd: &wire.Command{}}
		q.cmd.TxnNumber = n
		return q
	}
	first := q(1)
	require.False(t, s.begin(first, at(1)))
	require.False(t, s.begin(first, at(2)), "its own chunk may move between two parts")
	require.True(t, s.begin(q(1), at(2)), "a retry does not know where each part ran")
	second := q(2)
	require.False(t, s.begin(second, at(2)))
	s.undo(second, at(2))
	require.False(t, s.begin(q(2), at(3)), "a refused part has not run")
	require.False(t, s.begin(q(3), at(1)))
	require.True(t, s.begin(q(3), at(2)))
}

func TestUpstreamSession(t *testing.T) {
	t.Parallel()

	all := newSessions()
	id := []byte("0123456789abcdef")
	a, b := all.of(id, "", time.Now()), all.of(id, "other", time.Now())
	require.NotSame(t, a, b)
	require.Same(t, a, all.of(id, "", time.Now()))
	x, y := a.upstreamSession(42), a.upstreamSession(43)
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 42}, x[:8])
	require.Equal(t, x[8:], y[8:])
	z := b.upstreamSession(42)
	require.NotEqual(t, x, z, "another user's session is another one")
	all.sweep(time.Now().Add(sessionLife + time.Second))
	require.NotSame(t, a, all.of(id, "", time.Now()))
}
