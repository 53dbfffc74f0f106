package workers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/cdc"
	"drover/chunk"
	"drover/event"
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
