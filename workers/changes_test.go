package workers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
	"drover/metadata"
)

// recorded is a captured log in memory.
type recorded []*event.Event

// Read implements [replayed].
func (r recorded) Read(_ context.Context, _ string, _ int32, from int64, fn func(int64, *event.Event) error) error {
	for i := from; i < int64(len(r)); i++ {
		if err := fn(i, r[i]); err != nil {
			if errors.Is(err, cdc.ErrStop) {
				return nil
			}
			return err
		}
	}
	return errors.New("the log ends")
}

// A switch that met an election writes a final marker in each of its rounds. What
// lies between two of them was applied: a stream leaves the placement at the last.
func TestStreamLeavesAtTheLastFinalMarker(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int, m *chunk.Marker) *event.Event {
		e := &event.Event{Op: event.Insert, Wall: began.Add(time.Duration(seconds) * time.Second), Marker: m}
		if m != nil {
			e.Op = event.Mark
		}
		return e
	}
	final := func(a chunk.AttemptID, p chunk.PlacementID) *chunk.Marker {
		return &chunk.Marker{Kind: chunk.FinalMarker, Attempt: a, Placement: p}
	}
	beat := &chunk.Marker{Kind: chunk.HeartbeatMarker}
	for name, tt := range map[string]struct {
		log  recorded
		want bool
	}{
		"one round":            {recorded{at(1, nil), at(2, beat), at(9, beat)}, false},
		"two rounds":           {recorded{at(1, nil), at(2, final(6, 42)), at(9, beat)}, true},
		"another attempt":      {recorded{at(1, final(7, 42)), at(9, beat)}, false},
		"another placement":    {recorded{at(1, final(6, 43)), at(9, beat)}, false},
		"too late to be of it": {recorded{at(9, beat), at(10, final(6, 42))}, false},
	} {
		got, err := another(t.Context(), tt.log, "s", 42, 0, seam{attempt: 6, at: began}, 5*time.Second)
		require.NoError(t, err, name)
		require.Equal(t, tt.want, got, name)
	}
}

// Two chunks become two others with another border, while a third goes on: what the new
// ones tell comes behind all that the old ones did, whichever ended first, and a position
// names the chunks that are to be followed.
func TestStreamGoesOnBehindAReshaping(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	place := func(id chunk.PlacementID, c chunk.ID) chunk.Placement { return chunk.Placement{ID: id, Chunk: c} }
	a1, a2, b1, b2 := place(1, "d/0001"), place(2, "d/0002"), place(4, "d/0004"), place(5, "d/0005")
	attempt := metadata.Attempt{ID: 9, Legs: []metadata.Leg{{Source: a1, Target: b1}, {Source: a1, Target: b2}, {Source: a2, Target: b2}}}
	said := map[chunk.ID][]link{}
	tells := func(c chunk.ID, seconds ...int) {
		for _, s := range seconds {
			said[c] = append(said[c], link{change: Change{Chunk: c, At: at(s)}, next: Where{Offset: int64(s)}})
		}
	}
	ends := func(c chunk.ID, second int) {
		said[c] = append(said[c], link{change: Change{At: at(second)}, reshaped: &attempt})
	}
	tells("d/0001", 1, 3)
	ends("d/0001", 4)
	tells("d/0002", 2, 6)
	ends("d/0002", 7)
	tells("d/0003", 1, 5, 8, 11)
	tells("d/0004", 9)
	tells("d/0005", 10)

	m := &merger{at: Position{}, strands: map[chunk.ID]*strand{}}
	notBefore := map[chunk.ID]time.Time{}
	m.begin = func(id chunk.ID, w Where, not time.Time) {
		s := &strand{id: id, at: w, out: make(chan link, 10), time: not}
		m.strands[id], m.at[id], notBefore[id] = s, w, not
		for _, l := range said[id] {
			s.out <- l
		}
		for range 2 { // heartbeats, far away
			s.out <- link{change: Change{Chunk: id, At: at(100)}}
		}
	}
	m.opened = func(_ context.Context, a metadata.Attempt, target chunk.Placement) (Where, error) {
		require.Equal(t, attempt.ID, a.ID)
		return Where{Placement: target.ID, Offset: 1000}, nil
	}
	for _, id := range []chunk.ID{"d/0001", "d/0002", "d/0003"} {
		m.begin(id, Where{}, time.Time{})
	}
	var got []string
	end := errors.New("enough")
	err := m.run(t.Context(), func(c Change, p Position) error {
		if c.At.Equal(at(100)) {
			return end
		}
		second := int(c.At.Sub(began).Seconds())
		got = append(got, fmt.Sprintf("%s@%d", c.Chunk, second))
		if _, fresh := p["d/0005"]; fresh != (second > 7) || fresh && len(p) != 3 || second == 6 && p["d/0001"].Offset != 3 {
			return fmt.Errorf("position %v at %d", p, second) // in front of the end, who goes on from it meets that again
		}
		return nil
	})
	require.ErrorIs(t, err, end)
	require.Len(t, got, 10)
	require.Equal(t, []string{"d/0002@2", "d/0001@3", "d/0003@5", "d/0002@6", "d/0003@8", "d/0004@9", "d/0005@10", "d/0003@11"}, got[2:])
	require.Equal(t, at(7), notBefore["d/0004"], "clocks of shards differ")
}
