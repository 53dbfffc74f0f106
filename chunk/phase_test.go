package chunk

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tables as they are promised to operators and stored in the metadata: a
// change here is a change of the protocol.
func TestMachines(t *testing.T) {
	t.Parallel()

	require.Equal(t, map[Phase][]Phase{
		"registered":  {"importing", "aborting"},
		"importing":   {"replicating", "aborting"},
		"replicating": {"validating", "aborting"},
		"validating":  {"switching", "replicating", "aborting"},
		"switching":   {"burn-in", "replicating", "aborting"},
		"burn-in":     {"completing", "aborting"},
		"completing":  {"done"},
		"done":        {},
		"aborting":    {"aborted"},
		"aborted":     {},
	}, phaseSuccessors)
	require.Equal(t, map[AttemptState][]AttemptState{
		"preparing": {"fencing", "aborting"},
		"fencing":   {"closing", "aborting"},
		"closing":   {"published", "aborting"},
		"published": {"open"},
		"open":      {"done"},
		"done":      {},
		"aborting":  {"aborted"},
		"aborted":   {},
	}, attemptSuccessors)
	require.Equal(t, map[PlacementState][]PlacementState{
		"loading":  {"mirror", "dropping"},
		"mirror":   {"live", "dropping"},
		"live":     {"mirror"},
		"dropping": {"gone"},
		"gone":     {},
	}, placementSuccessors)
}

// requireMachine wants that every state can be reached from start, that every
// state named is known, and that from each a final one can be reached.
func requireMachine[S ~string](t *testing.T, successors map[S][]S, start S, final func(S) bool) {
	t.Helper()

	reach := func(from S) map[S]bool {
		seen := map[S]bool{from: true}
		for queue := []S{from}; len(queue) > 0; queue = queue[1:] {
			for _, next := range successors[queue[0]] {
				if !seen[next] {
					seen[next] = true
					queue = append(queue, next)
				}
			}
		}
		return seen
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(successors)), slices.Collect(maps.Keys(reach(start))))
	for s, next := range successors {
		require.Equal(t, final(s), len(next) == 0, "%s is final, or goes on", s)
		require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(reach(s))), final), "%s is a dead end", s)
	}
}

func TestMachinesHaveNoDeadEnds(t *testing.T) {
	t.Parallel()

	requireMachine(t, phaseSuccessors, Registered, Phase.Final)
	requireMachine(t, attemptSuccessors, Preparing, AttemptState.Terminal)
	requireMachine(t, placementSuccessors, Loading, func(s PlacementState) bool { return s == Gone })
	require.Len(t, Phases(), len(phaseSuccessors))
	for _, p := range Phases() {
		require.Contains(t, phaseSuccessors, p)
		for _, q := range Phases() {
			require.Equal(t, slices.Contains(phaseSuccessors[p], q), p.CanBecome(q))
		}
	}
	require.False(t, Phase("unknown").CanBecome(Done))
	require.False(t, AttemptState("unknown").CanBecome(AttemptDone))
	require.False(t, PlacementState("unknown").CanBecome(Gone))
}

// What is held is exactly the time in which neither side may serve: between the
// first grant that is dropped and the last that is given.
func TestHolds(t *testing.T) {
	t.Parallel()

	for s := range attemptSuccessors {
		require.Equal(t, slices.Contains([]AttemptState{Fencing, Closing, Published, AttemptAborting}, s), s.HoldsWrites(), "%s", s)
		require.Equal(t, slices.Contains([]AttemptState{Closing, Published, AttemptAborting}, s), s.HoldsReads(), "%s", s)
		require.True(t, !s.HoldsReads() || s.HoldsWrites(), "%s holds reads but lets writes through", s)
		require.False(t, s.Terminal() && s.HoldsWrites(), "%s would hold for ever", s)
	}
	require.False(t, Published.CanBecome(AttemptAborting), "a published attempt only goes forward")
	require.Equal(t, []PlacementState{Gone}, placementSuccessors[Dropping], "dropping has no way back")
}
