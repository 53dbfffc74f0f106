package activities

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/metadata"
)

// cloned is a log in memory that a clone's lane reads.
type cloned struct {
	records  []*event.Event
	attempts map[chunk.AttemptID]metadata.Attempt
}

var cloneDay = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// add appends an event at a second of the day.
func (c *cloned) add(second int, e event.Event) {
	e.Wall = cloneDay.Add(time.Duration(second) * time.Second)
	e.Seq = int64(len(c.records) + 1)
	c.records = append(c.records, &e)
}

func (c *cloned) mark(second int, m chunk.Marker) {
	c.add(second, event.Event{Op: event.Mark, Database: chunk.SystemDatabase, Marker: &m})
}

// log reads what was added, as placement 2 of chunk d/0001 until a second.
func (c *cloned) log(until int) *cloneLog {
	return &cloneLog{
		place: chunk.Placement{ID: 2, Chunk: "d/0001", Shard: "a", Database: "d_0001_p2"}, of: 7, clone: 99, at: cloneDay.Add(time.Duration(until) * time.Second),
		read: func(_ context.Context, _ string, _ int32, from int64, fn func(int64, *event.Event) error) error {
			for i := from; i < int64(len(c.records)); i++ {
				if err := fn(i, c.records[i]); err != nil {
					if errors.Is(err, cdc.ErrStop) {
						return nil
					}
					return err
				}
			}
			return errors.New("the log ends")
		},
		attempt: func(_ context.Context, id chunk.AttemptID) (metadata.Attempt, error) { return c.attempts[id], nil },
	}
}

// events gives the numbers of what a lane is handed, and why that ends.
func (l *cloneLog) events(t *testing.T) (seqs []int64, err error) {
	t.Helper()
	err = l.Read(t.Context(), "a", 0, 0, func(_ int64, e *event.Event) error {
		seqs = append(seqs, e.Seq)
		return nil
	})
	return seqs, err
}

// A clone's log ends at its time, at the last final marker of an attempt that led
// away, and nowhere else; what cannot be followed is an error and never left out.
func TestCloneReadsUpToItsTime(t *testing.T) {
	t.Parallel()
	insert := event.Event{Op: event.Insert, Database: "d_0001_p2", Collection: "c"}
	final := func(a chunk.AttemptID, round int64) chunk.Marker {
		return chunk.Marker{Kind: chunk.FinalMarker, Migration: 7, Attempt: a, Placement: 2, Round: round}
	}
	c := &cloned{attempts: map[chunk.AttemptID]metadata.Attempt{
		3: {ID: 3, State: chunk.AttemptAborted},
		4: {ID: 4, Migration: 7, State: chunk.AttemptDone, Target: chunk.Placement{ID: 5, Chunk: "d/0001", Shard: "b"}, ChangedAt: cloneDay.Add(20 * time.Second)},
	}}
	c.mark(0, chunk.Marker{Kind: chunk.StartMarker, Migration: 7, Placement: 2})
	c.add(1, insert)
	c.mark(2, final(3, 1)) // it went back
	c.add(3, insert)
	c.mark(10, final(4, 1))
	c.add(11, insert) // slipped through between the rounds, and was applied
	c.mark(12, final(4, 2))
	c.add(13, insert) // a straggler
	c.mark(200, chunk.Marker{Kind: chunk.HeartbeatMarker})

	seqs, err := c.log(2).events(t)
	require.ErrorIs(t, err, errCloneReached)
	require.Equal(t, []int64{1, 2, 3}, seqs)

	seqs, err = c.log(100).events(t)
	hop, ok := errors.AsType[*hopError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, chunk.AttemptID(4), hop.attempt.ID)
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6}, seqs, "all of the rounds, and no straggler")

	back := c.log(100) // the placement served before, was left, and serves again since attempt 9
	c.attempts[9] = metadata.Attempt{ID: 9}
	back.began = 9
	c.records = c.records[:len(c.records)-1]
	c.mark(30, chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 9, Placement: 2})
	c.add(31, insert)
	c.mark(200, chunk.Marker{Kind: chunk.HeartbeatMarker})
	seqs, err = back.events(t)
	require.ErrorIs(t, err, errCloneReached)
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, seqs, "a lane leaves out by itself what is before its start")
	back.seek = -1 // one that goes on behind its start
	_, err = back.events(t)
	_, ok = errors.AsType[*hopError](err)
	require.True(t, ok, "%v", err)

	reshaped := c.attempts[4]
	reshaped.Target.Chunk = "d/0002"
	c.attempts[4] = reshaped
	_, err = c.log(100).events(t)
	require.True(t, failure.HasCode(err, "clone.reshaped"), "%v", err)
}

// The marker that the replay begins at bears the clone's number, no other does; DDL
// on indexes is passed by, a drop is refused.
func TestCloneSeesItsOwnStart(t *testing.T) {
	t.Parallel()
	l := (&cloned{}).log(100)
	marker := func(m chunk.Marker) chunk.MigrationID {
		e, err := l.seen(&event.Event{Op: event.Mark, Marker: &m})
		require.NoError(t, err)
		return e.Marker.Migration
	}
	start := chunk.Marker{Kind: chunk.StartMarker, Migration: 7, Placement: 2}
	open := chunk.Marker{Kind: chunk.OpenMarker, Migration: 7, Attempt: 4, Placement: 2}
	require.Equal(t, chunk.MigrationID(99), marker(start))
	require.Equal(t, chunk.MigrationID(7), start.Migration, "the log itself is not changed")
	require.Equal(t, chunk.MigrationID(7), marker(open))
	require.Equal(t, chunk.MigrationID(8), marker(chunk.Marker{Kind: chunk.StartMarker, Migration: 8, Placement: 2}))
	l.began = 4
	require.Equal(t, chunk.MigrationID(99), marker(open))
	require.Equal(t, chunk.MigrationID(7), marker(start))

	for op, database := range map[event.Op]string{"createIndexes": "", "dropIndexes": "", "modify": "", "create": "", event.Insert: l.place.Database} {
		was := &event.Event{Op: op, Database: l.place.Database, Collection: "c"}
		e, err := l.seen(was)
		require.NoError(t, err)
		require.Equal(t, database, e.Database, op)
		require.Equal(t, l.place.Database, was.Database)
	}
	for _, op := range []event.Op{"drop", "dropDatabase", "rename", "of a later version"} {
		_, err := l.seen(&event.Event{Op: op, Database: l.place.Database, Collection: "c"})
		require.True(t, failure.HasCode(err, "clone.ddl"), "%s: %v", op, err)
		e, err := l.seen(&event.Event{Op: op, Database: "elsewhere"})
		require.NoError(t, err)
		require.Equal(t, "elsewhere", e.Database)
	}
}

// An import counts only when it is whole, and over before the clone's time.
func TestCloneBeginsWithAWholeImport(t *testing.T) {
	t.Parallel()
	at := cloneDay
	slice := func(state metadata.SliceState, hi time.Time) metadata.Slice {
		return metadata.Slice{State: state, THi: bson.Timestamp{T: uint32(hi.Unix())}} //nolint:gosec // a time
	}
	before, after := at.Add(-time.Minute), at.Add(time.Minute)
	require.True(t, storedBefore([]metadata.Slice{slice(metadata.SliceStored, before), slice(metadata.SliceLoaded, before)}, at))
	require.False(t, storedBefore(nil, at))
	require.False(t, storedBefore([]metadata.Slice{slice(metadata.SliceLoaded, before), slice(metadata.SlicePlanned, before)}, at))
	require.False(t, storedBefore([]metadata.Slice{slice(metadata.SliceLoaded, before), slice(metadata.SliceLoaded, after)}, at))
	require.False(t, storedBefore([]metadata.Slice{slice(metadata.SliceLoaded, at)}, at), "its window ends within that second")
	require.False(t, storedBefore([]metadata.Slice{{State: metadata.SliceStored}}, at))
}
