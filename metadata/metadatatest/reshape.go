package metadatatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// reshapeCases is what splits and merges must do.
var reshapeCases = map[string]func(*testing.T, *fleet){
	"SplitChangesTheKeySpaceAtOnce": splitChangesTheKeySpaceAtOnce,
	"SplitGoesBackAndForth":         splitGoesBackAndForth,
	"MergeEndsWithOneChunk":         mergeEndsWithOneChunk,
	"AbortedSplitLeavesTheChunk":    abortedSplitLeavesTheChunk,
	"ReshapeIsRefused":              reshapeIsRefused,
	"ManyToMany":                    manyToMany,
	"NoAttemptPastALegThatIsBehind": noAttemptPastALegThatIsBehind,
	"RoutesAtAnyTime":               routesAtAnyTime,
	"StandingsAgree": func(t *testing.T, f *fleet) {
		agree(t, f, "chunk", []chunk.Standing{chunk.PlannedChunk, chunk.CurrentChunk, chunk.EndedChunk})
	},
}

// halves is a split of the first chunk.
func halves(onto ...string) metadata.ReshapeRequest {
	return metadata.ReshapeRequest{
		Chunks: []chunk.ID{first}, WorkflowID: "split", RequestedBy: "test",
		Targets: []metadata.NewRange{
			{Range: chunk.Range{Lo: chunk.KeyMin, Hi: "\x20"}, Shard: onto[0]},
			{Range: chunk.Range{Lo: "\x20", Hi: "\x40"}, Shard: onto[1]},
		},
	}
}

// reshape registers and brings all legs to where they may switch.
func (f *fleet) reshape(t *testing.T, r metadata.ReshapeRequest) (metadata.Migration, []metadata.Migration) {
	t.Helper()
	m, err := f.RegisterReshape(t.Context(), r)
	require.NoError(t, err)
	f.walk(t, m.ID, chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching)
	legs, err := f.Legs(t.Context(), m.ID)
	require.NoError(t, err)
	seen := map[chunk.PlacementID]bool{}
	for _, l := range legs {
		require.Equal(t, chunk.Switching, l.Phase, "all legs go together")
		require.Equal(t, m.ID, l.Lead)
		if !seen[l.Target.ID] {
			require.NoError(t, f.SetPlacementState(t.Context(), l.Target.ID, chunk.Loading, chunk.Mirror))
		}
		seen[l.Target.ID] = true
	}
	return m, legs
}

// switchAll runs a whole switch of a reshaping, with leases on every shard.
func (f *fleet) switchAll(t *testing.T, m metadata.Migration) metadata.Attempt {
	t.Helper()
	all, err := f.Attempts(t.Context(), m.ID)
	require.NoError(t, err)
	a, err := f.BeginAttempt(t.Context(), m.ID, fmt.Sprintf("try %d", len(all)), time.Minute)
	require.NoError(t, err)
	r := metadata.PublishRequest{Attempt: a.ID, CatalogVersion: 1}
	for _, shard := range []string{"a", "b", "c"} {
		l, err := f.AcquireLease(t.Context(), shard, "switch", metadata.SharedLease, time.Minute)
		require.NoError(t, err)
		r.Leases = append(r.Leases, l)
	}
	f.advance(t, a.ID, chunk.Preparing, chunk.Fencing, time.Minute)
	f.advance(t, a.ID, chunk.Fencing, chunk.Closing, 0)
	token, err := f.Publish(t.Context(), r)
	require.NoError(t, err)
	again, err := f.Publish(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, token, again)
	f.advance(t, a.ID, chunk.Published, chunk.Open, 0)
	f.advance(t, a.ID, chunk.Open, chunk.AttemptDone, 0)
	a, err = f.Attempt(t.Context(), a.ID)
	require.NoError(t, err)
	return a
}

// served says who serves which range, in the order of the key space.
func (f *fleet) served(t *testing.T) (out []string) {
	t.Helper()
	routes, err := f.Routes(t.Context(), flights.Name)
	require.NoError(t, err)
	at := chunk.KeyMin
	for _, r := range routes {
		require.Equal(t, at, r.Chunk.Range.Lo, "a gap or an overlap")
		require.Equal(t, chunk.Live, r.Placement.State)
		at = r.Chunk.Range.Hi
		out = append(out, fmt.Sprintf("%s on %s", r.Chunk.ID, r.Placement.Shard))
	}
	require.Equal(t, chunk.KeyMax, at)
	return out
}

var unsplit = []string{"flights/0001 on a", "flights/0002 on b", "flights/0003 on a", "flights/0004 on b"}

// routesAtAnyTime: who asks what was served at a time finds the chunks of that time, the
// whole key space of them.
func routesAtAnyTime(t *testing.T, f *fleet) {
	t.Helper()
	at := func(then time.Time) (out []string) {
		routes, err := f.RoutesAt(t.Context(), flights.Name, then)
		require.NoError(t, err)
		next := chunk.KeyMin
		for _, r := range routes {
			require.Equal(t, next, r.Chunk.Range.Lo, "a gap or an overlap")
			next = r.Chunk.Range.Hi
			out = append(out, fmt.Sprintf("%s on %s", r.Chunk.ID, r.Placement.Shard))
		}
		require.Equal(t, chunk.KeyMax, next)
		return out
	}
	now := func() time.Time {
		n, err := f.Now(t.Context())
		require.NoError(t, err)
		return n
	}
	made := now()
	m, _ := f.reshape(t, halves("c", "b"))
	f.switchAll(t, m)
	split := now()
	wanted := f.served(t)
	require.Equal(t, wanted, at(split))
	require.Equal(t, unsplit, at(made))
	require.Equal(t, unsplit, at(made.Add(-24*time.Hour)), "before it was made: as it was made")
	require.Equal(t, wanted, at(split.Add(time.Hour)))
	f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
	f.switchAll(t, m)
	require.Equal(t, unsplit, f.served(t))
	require.Equal(t, unsplit, at(now()))
	require.Equal(t, wanted, at(split))
	none, err := f.RoutesAt(t.Context(), "unknown", split)
	require.NoError(t, err)
	require.Empty(t, none)
}

func splitChangesTheKeySpaceAtOnce(t *testing.T, f *fleet) {
	t.Helper()
	m, legs := f.reshape(t, halves("c", "b"))
	require.Len(t, legs, 2)
	require.Equal(t, unsplit, f.served(t), "until the publish nothing changes")
	before, err := f.Route(t.Context(), first)
	require.NoError(t, err)
	a := f.switchAll(t, m)
	require.Equal(t, []string{"flights/0005 on c", "flights/0006 on b", "flights/0002 on b", "flights/0003 on a", "flights/0004 on b"}, f.served(t))
	require.Len(t, a.Legs, 2)
	require.Equal(t, legs[1].ID, a.Legs[1].Migration)
	require.Equal(t, legs[1].Target.ID, a.Legs[1].Target.ID)
	require.Equal(t, chunk.ID("flights/0006"), a.Legs[1].Target.Chunk)
	_, err = f.Route(t.Context(), first)
	requireFailure(t, err, failure.Invalid, "chunk.unknown")
	for _, id := range []chunk.ID{first, "flights/0005", "flights/0006"} {
		latest, err := f.LatestAttempt(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, a.ID, latest.ID, "whoever asks about %s finds the attempt", id)
		open, ok, err := f.OpenMigration(t.Context(), id)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, m.ID, open.ID)
	}
	for _, id := range []chunk.ID{"flights/0005", "flights/0006", ""} {
		former, err := f.FormerRoutes(t.Context(), id, time.Hour)
		require.NoError(t, err)
		require.Len(t, former, 1, "who retries a write on %q must know where it was sent before", id)
		require.Equal(t, before.Token, former[0].Route.Token)
	}
	other, err := f.FormerRoutes(t.Context(), "flights/0002", time.Hour)
	require.NoError(t, err)
	require.Empty(t, other)
	for _, id := range []chunk.ID{"flights/0005", "flights/0006"} {
		r, err := f.Route(t.Context(), id)
		require.NoError(t, err)
		require.Greater(t, r.Token, before.Token)
		require.LessOrEqual(t, r.Token, a.Token)
	}
	f.walk(t, m.ID, chunk.Switching, chunk.BurnIn, chunk.Completing)
	require.NoError(t, f.DropPlacement(t.Context(), legs[0].Source.ID))
	require.NoError(t, f.PlacementGone(t.Context(), legs[0].Source.ID))
	f.walk(t, m.ID, chunk.Completing, chunk.Done)
	_, ok, err := f.OpenMigration(t.Context(), "flights/0005")
	require.NoError(t, err)
	require.False(t, ok, "what was made may be moved on")
	_, err = f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: "flights/0005", Target: "a", WorkflowID: "w"})
	require.NoError(t, err)
	_, err = f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: first, Target: "b", WorkflowID: "w"})
	requireFailure(t, err, failure.Invalid, "migration.chunk_unknown")
}

func splitGoesBackAndForth(t *testing.T, f *fleet) {
	t.Helper()
	m, legs := f.reshape(t, halves("c", "b"))
	out := f.switchAll(t, m)
	f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
	back := f.switchAll(t, m)
	require.Equal(t, unsplit, f.served(t))
	require.Equal(t, legs[0].Target.ID, back.Source.ID)
	require.Equal(t, legs[1].Source.ID, back.Legs[1].Target.ID)
	require.Equal(t, out.ID, back.Direction)
	former, err := f.FormerRoutes(t.Context(), first, time.Hour)
	require.NoError(t, err)
	require.Len(t, former, 3, "its own first route, and those of both halves")
	forth := f.switchAll(t, m)
	require.Equal(t, back.ID, forth.Direction)
	require.Equal(t, []string{"flights/0005 on c", "flights/0006 on b", "flights/0002 on b", "flights/0003 on a", "flights/0004 on b"}, f.served(t))
}

func mergeEndsWithOneChunk(t *testing.T, f *fleet) {
	t.Helper()
	r := metadata.ReshapeRequest{
		Chunks: []chunk.ID{"flights/0003", "flights/0002"}, WorkflowID: "merge",
		Targets: []metadata.NewRange{{Range: chunk.Range{Lo: "\x40", Hi: "\xc0"}, Shard: "c"}},
	}
	m, legs := f.reshape(t, r)
	require.Len(t, legs, 2)
	require.Equal(t, legs[0].Target, legs[1].Target)
	f.switchAll(t, m)
	require.Equal(t, []string{"flights/0001 on a", "flights/0005 on c", "flights/0004 on b"}, f.served(t))
	f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
	require.Error(t, f.DropPlacement(t.Context(), legs[1].Source.ID), "it is needed for the way back")
	f.walk(t, m.ID, chunk.BurnIn, chunk.Completing)
	for _, l := range legs {
		_, err := f.Migration(t.Context(), l.ID)
		require.NoError(t, err)
		require.Error(t, f.SetPhase(t.Context(), m.ID, chunk.Completing, chunk.Done), "every source must be gone")
		require.NoError(t, f.DropPlacement(t.Context(), l.Source.ID))
		require.NoError(t, f.PlacementGone(t.Context(), l.Source.ID))
	}
	f.walk(t, m.ID, chunk.Completing, chunk.Done)
}

func abortedSplitLeavesTheChunk(t *testing.T, f *fleet) {
	t.Helper()
	m, legs := f.reshape(t, halves("c", "b"))
	f.walk(t, m.ID, chunk.Switching, chunk.Aborting)
	for _, l := range legs {
		require.NoError(t, f.DropPlacement(t.Context(), l.Target.ID))
		require.NoError(t, f.PlacementGone(t.Context(), l.Target.ID))
	}
	f.walk(t, m.ID, chunk.Aborting, chunk.Aborted)
	require.Equal(t, unsplit, f.served(t))
	again, err := f.RegisterReshape(t.Context(), halves("c", "b"))
	require.NoError(t, err)
	require.Equal(t, chunk.ID("flights/0007"), again.TargetChunk.ID, "a name is never given twice")
}

func reshapeIsRefused(t *testing.T, f *fleet) {
	t.Helper()
	change := func(fn func(*metadata.ReshapeRequest)) metadata.ReshapeRequest {
		r := halves("c", "b")
		fn(&r)
		return r
	}
	before := f.picture(t)
	for name, c := range map[string]struct {
		code    string
		request metadata.ReshapeRequest
	}{
		"no such chunk":    {"migration.chunk_unknown", change(func(r *metadata.ReshapeRequest) { r.Chunks = []chunk.ID{"flights/0099"} })},
		"no such shard":    {"migration.shard_unknown", change(func(r *metadata.ReshapeRequest) { r.Targets[1].Shard = "z" })},
		"a gap":            {"migration.not_contiguous", change(func(r *metadata.ReshapeRequest) { r.Targets[1].Range.Lo = "\x21" })},
		"an overlap":       {"migration.not_contiguous", change(func(r *metadata.ReshapeRequest) { r.Targets[1].Range.Lo = "\x1f" })},
		"empty":            {"migration.not_contiguous", change(func(r *metadata.ReshapeRequest) { r.Targets[0].Range.Hi = "" })},
		"short":            {"migration.not_covered", change(func(r *metadata.ReshapeRequest) { r.Targets[1].Range.Hi = "\x3f" })},
		"late":             {"migration.not_covered", change(func(r *metadata.ReshapeRequest) { r.Targets[0].Range.Lo = "\x01" })},
		"not side by side": {"migration.not_contiguous", change(func(r *metadata.ReshapeRequest) { r.Chunks = []chunk.ID{first, "flights/0003"} })},
	} {
		_, err := f.RegisterReshape(t.Context(), c.request)
		require.Error(t, err, name)
		requireFailure(t, err, failure.Invalid, c.code)
		require.Equal(t, before, f.picture(t), name)
	}
	m, err := f.RegisterReshape(t.Context(), halves("c", "b"))
	require.NoError(t, err)
	again, err := f.RegisterReshape(t.Context(), halves("c", "b"))
	require.NoError(t, err)
	require.Equal(t, m, again, "the same workflow is given what it has")
	_, err = f.RegisterReshape(t.Context(), halves("b", "c"))
	requireFailure(t, err, failure.Invalid, "migration.overlapping")
	_, err = f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: first, Target: "c", WorkflowID: "split"})
	requireFailure(t, err, failure.Invalid, "migration.overlapping")
	_, err = f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: "flights/0005", Target: "c", WorkflowID: "w"})
	requireFailure(t, err, failure.Invalid, "migration.chunk_unknown")
}

// manyToMany replaces three chunks by two that meet elsewhere.
func manyToMany(t *testing.T, f *fleet) {
	t.Helper()
	r := metadata.ReshapeRequest{
		Chunks: []chunk.ID{first, "flights/0002", "flights/0003"}, WorkflowID: "reshape",
		Targets: []metadata.NewRange{
			{Range: chunk.Range{Lo: chunk.KeyMin, Hi: "\x60"}, Shard: "c"},
			{Range: chunk.Range{Lo: "\x60", Hi: "\xc0"}, Shard: "a"},
		},
	}
	m, legs := f.reshape(t, r)
	var pairs []string
	for _, l := range legs {
		pairs = append(pairs, fmt.Sprintf("%s to %s", l.Chunk.ID, l.TargetChunk.ID))
	}
	require.Equal(t, []string{
		"flights/0001 to flights/0005", "flights/0002 to flights/0005", "flights/0002 to flights/0006", "flights/0003 to flights/0006",
	}, pairs)
	f.switchAll(t, m)
	require.Equal(t, []string{"flights/0005 on c", "flights/0006 on a", "flights/0004 on b"}, f.served(t))
	list, err := f.Migrations(t.Context(), metadata.MigrationFilter{Chunk: "flights/0006", Shard: "b"})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, m.ID, list[0].ID)
}

func noAttemptPastALegThatIsBehind(t *testing.T, f *fleet) {
	t.Helper()
	m, err := f.RegisterReshape(t.Context(), halves("c", "b"))
	require.NoError(t, err)
	f.walk(t, m.ID, chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching)
	require.NoError(t, f.SetPlacementState(t.Context(), m.Target.ID, chunk.Loading, chunk.Mirror))
	_, err = f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
	requireFailure(t, err, failure.Invalid, "attempt.placements")
	legs, err := f.Legs(t.Context(), m.ID)
	require.NoError(t, err)
	require.NoError(t, f.SetPlacementState(t.Context(), legs[1].Target.ID, chunk.Loading, chunk.Mirror))
	_, err = f.BeginAttempt(t.Context(), legs[1].ID, "k", time.Minute)
	requireFailure(t, err, failure.Invalid, "attempt.sides")
	_, err = f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
	require.NoError(t, err)
	_, err = f.AcquireLease(t.Context(), "b", "repair", metadata.ExclusiveLease, time.Minute)
	require.Error(t, err, "the second leg's shard is in a switch too")
}
