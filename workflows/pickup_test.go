package workflows_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/contract"
)

// A move whose workflow was terminated goes on, when it is started again, where the
// metadata says that it stands. It never does again what is beyond undoing, and
// never takes who serves from the way in which moves usually go.
func TestTerminatedMoveGoesOn(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		at        chunk.Phase
		published bool // the target serves
		back      bool // and was left again
		abort     bool // an operator gives up in burn-in
		never     []string
		dropped   chunk.PlacementID
		switches  int
		first     chunk.Phase // that is recorded
	}{
		"importing":                {at: chunk.Importing, dropped: source.ID, switches: 1, first: chunk.Importing},
		"replicating":              {at: chunk.Replicating, dropped: source.ID, switches: 1, first: chunk.Replicating, never: []string{"ImportChunk"}},
		"validating":               {at: chunk.Validating, dropped: source.ID, switches: 1, first: chunk.Replicating, never: []string{"ImportChunk"}},
		"before the switch":        {at: chunk.Switching, dropped: source.ID, switches: 1, first: chunk.Replicating, never: []string{"ImportChunk"}},
		"behind the publish":       {at: chunk.Switching, published: true, dropped: source.ID, first: chunk.Switching, never: []string{"ImportChunk", "ValidateChunk"}},
		"burn-in":                  {at: chunk.BurnIn, published: true, dropped: source.ID, first: chunk.BurnIn, never: []string{"ImportChunk", "ValidateChunk"}},
		"rolled back":              {at: chunk.BurnIn, published: true, back: true, abort: true, dropped: target.ID, first: chunk.BurnIn, never: []string{"ImportChunk", "DropSource"}},
		"while the source dropped": {at: chunk.Completing, published: true, dropped: source.ID, first: chunk.Completing, never: []string{"ImportChunk", "ReplicateChanges"}},
		"while the copy dropped":   {at: chunk.Aborting, dropped: target.ID, first: chunk.Aborting, never: []string{"ImportChunk", "ReplicateChanges", "DropSource"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			w.standsAt = c.at
			if c.published {
				w.attempts, w.serving, w.published = 1, target.ID, map[chunk.AttemptID]bool{1: true}
			}
			if c.back {
				w.attempts, w.serving, w.published[2] = 2, source.ID, true
			}
			env := newEnv(t, w)
			end := contract.CompleteUpdate
			if c.abort {
				end = contract.AbortUpdate
			}
			ask(env, time.Hour, end, new(error))
			in := input
			in.OnMismatch = contract.RestartOnMismatch
			start(env, in)

			require.Equal(t, map[chunk.PlacementID]bool{c.dropped: true}, w.dropped)
			require.Equal(t, c.switches, w.calls["SwitchRoute"])
			restarts := 1
			if c.published || c.at == chunk.Aborting {
				restarts = 0
			}
			require.Equal(t, restarts, w.calls["RestartSlices"], "what served has newer documents than the old source")
			for _, activity := range c.never {
				require.Zero(t, w.calls[activity], "%s", activity)
			}
			require.Equal(t, c.first, w.phases[0])
			was := c.at
			for _, p := range w.phases {
				require.True(t, p == was || was.CanBecome(p), "%s cannot become %s", was, p)
				was = p
			}
			require.True(t, was.Final(), "%v", w.phases)
			if c.dropped == source.ID {
				require.NoError(t, env.GetWorkflowError())
			}
			if c.published && !c.back && len(w.lanes) > 0 {
				require.False(t, slices.ContainsFunc(w.lanes, func(in contract.DirectionInput) bool { return in.From.ID == source.ID }), "lanes overwrote what serves: %v", w.lanes)
			}
		})
	}
}
