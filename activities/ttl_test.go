package activities

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// Whoever comes late with a change of TTL, before or while it is made, leaves TTL as
// the newest attempt needs it: parked for ever is a leak, restored under a fence are
// deletes that no grant stops.
func TestLateChangesOfTTLAreVoid(t *testing.T) {
	t.Parallel()

	row := func(id chunk.AttemptID, s chunk.AttemptState) metadata.Attempt {
		lead, other := chunk.Placement{ID: 41}, chunk.Placement{ID: 42} // a merge: 42 does not lead
		to := chunk.Placement{ID: 43}
		return metadata.Attempt{ID: id, State: s, Source: lead, Target: to, Legs: []metadata.Leg{{Source: lead, Target: to}, {Source: other, Target: to}}}
	}
	for name, tt := range map[string]struct {
		park          bool
		before, after metadata.Attempt // the newest attempt, at both looks
		start, want   string
		lost          bool
	}{
		"park in time":                         {true, row(6, chunk.Preparing), row(6, chunk.Preparing), "restored", "parked", false},
		"park after the way back":              {true, row(6, chunk.AttemptAborted), row(6, chunk.AttemptAborted), "restored", "restored", true},
		"way back while it parks":              {true, row(6, chunk.Preparing), row(6, chunk.AttemptAborted), "restored", "restored", true},
		"next attempt while it parks":          {true, row(6, chunk.Preparing), row(7, chunk.Fencing), "parked", "parked", true},
		"park for a later attempt":             {true, row(7, chunk.Preparing), row(7, chunk.Preparing), "parked", "parked", true},
		"restore in time":                      {false, row(6, chunk.AttemptAborting), row(6, chunk.AttemptAborted), "parked", "restored", false},
		"restore after the switch":             {false, row(6, chunk.Open), row(6, chunk.Open), "parked", "restored", false},
		"restore under a later fence":          {false, row(7, chunk.Closing), row(7, chunk.Closing), "parked", "parked", true},
		"fence while it restores":              {false, row(6, chunk.AttemptAborted), row(7, chunk.Fencing), "parked", "parked", true},
		"later attempt ends while it restores": {false, row(6, chunk.AttemptAborted), row(7, chunk.AttemptAborted), "parked", "restored", true},
		"restore while it fences itself":       {false, row(6, chunk.Fencing), row(6, chunk.Fencing), "parked", "parked", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			state, looks := tt.start, 0
			g := ttlGuard{
				placement: 42, attempt: 6,
				latest: func(context.Context) (metadata.Attempt, error) {
					if looks++; looks == 1 {
						return tt.before, nil
					}
					return tt.after, nil
				},
				park:    func(context.Context) error { state = "parked"; return nil },
				restore: func(context.Context) error { state = "restored"; return nil },
			}
			change := g.Restore
			if tt.park {
				change = g.Park
			}
			err := change(t.Context())
			require.Equal(t, tt.lost, failure.Is(err, failure.Lost), "%v", err)
			require.Equal(t, tt.want, state)
		})
	}
}
