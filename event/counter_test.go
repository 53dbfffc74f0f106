package event_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/event"
	"drover/internal/failure"
)

// record is the i-th record of a partition in which seqs are consecutive.
func record(seq int64) *event.Event {
	return &event.Event{Seq: seq, Prev: seq - 1, Op: event.Insert, ClusterTime: bson.Timestamp{T: 1000}}
}

// mark is a marker that counts n records.
func mark(seq, n int64) *event.Event {
	e := record(seq)
	e.Op, e.Count = event.Mark, n
	return e
}

// accept runs records through a counter and gives the accepted seqs.
func accept(t *testing.T, c *event.Counter, records ...*event.Event) []int64 {
	t.Helper()

	var seqs []int64
	for _, r := range records {
		ok, err := c.Accept(r)
		require.NoError(t, err)
		if ok {
			seqs = append(seqs, r.Seq)
		}
	}
	return seqs
}

func TestCounterDropsRepetitions(t *testing.T) {
	t.Parallel()

	var c event.Counter
	got := accept(t, &c, mark(1, 7), record(2), record(3), record(2), record(3), mark(4, 2), record(3), mark(4, 2), record(5))
	require.Equal(t, []int64{1, 2, 3, 4, 5}, got)
	require.Equal(t, int64(1), c.Since)
}

// The kind of fault B123: the first of two produce requests failed, the second
// did not, and both were sent again.
func TestCounterWaitsForWhatAHoleLeftOut(t *testing.T) {
	t.Parallel()

	c := event.Resume(2, 0)
	got := accept(t, &c, record(5), mark(6, 3), record(3), record(4), record(5), mark(6, 3), record(7))
	require.Equal(t, []int64{3, 4, 5, 6, 7}, got)
}

func TestCounterGivesUpOnAHole(t *testing.T) {
	t.Parallel()

	c := event.Resume(2, 0)
	late := record(6)
	late.ClusterTime.T += 100
	require.Empty(t, accept(t, &c, record(5)))
	_, err := c.Accept(late)
	require.True(t, failure.HasCode(err, "lane.count_mismatch"), "%v", err)
	require.True(t, failure.Is(err, failure.Mismatch))
}

func TestCounterRefuses(t *testing.T) {
	t.Parallel()

	fresh := &event.Event{Seq: 9, Op: event.Mark}
	stranger := record(5)
	stranger.Prev = 2
	for name, tt := range map[string]struct {
		counter event.Counter
		record  *event.Event
		code    string
	}{
		"a marker that counts more": {event.Resume(3, 2), mark(4, 3), "lane.count_mismatch"},
		"a marker that counts less": {event.Resume(3, 2), mark(4, 1), "lane.count_mismatch"},
		"a log that begins anew":    {event.Resume(3, 2), fresh, "lane.log_restarted"},
		"a record between others":   {event.Resume(4, 2), stranger, "lane.count_mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := tt.counter.Accept(tt.record)
			require.True(t, failure.HasCode(err, tt.code), "%v", err)
		})
	}
}
