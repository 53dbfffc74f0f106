package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/stoppoint"
	"drover/metadata"
	"drover/shard"
)

// fakeRows keeps placements, stragglers and ledgers in memory.
type fakeRows struct {
	states     map[chunk.PlacementID]chunk.PlacementState
	stragglers map[chunk.PlacementID]int
	ledgers    map[chunk.PlacementID]metadata.Cleanup
	ended      []chunk.PlacementID
}

var _ cleanupRows = (*fakeRows)(nil)

func (f *fakeRows) Placement(_ context.Context, id chunk.PlacementID) (chunk.Placement, error) {
	return chunk.Placement{ID: id, State: f.states[id]}, nil
}

func (f *fakeRows) Stragglers(_ context.Context, of ...chunk.PlacementID) ([]metadata.Straggler, error) {
	return make([]metadata.Straggler, f.stragglers[of[0]]), nil
}

func (f *fakeRows) DropPlacement(_ context.Context, id chunk.PlacementID) error {
	f.states[id] = chunk.Dropping
	return nil
}

func (f *fakeRows) PlacementGone(_ context.Context, id chunk.PlacementID) error {
	f.states[id] = chunk.Gone
	return nil
}

func (f *fakeRows) BeginCleanup(_ context.Context, c metadata.Cleanup) (metadata.Cleanup, error) {
	if had, ok := f.ledgers[c.Placement]; ok {
		return had, nil
	}
	f.ledgers[c.Placement] = c
	return c, nil
}

func (f *fakeRows) CleanupStep(_ context.Context, p chunk.PlacementID, step string) error {
	c := f.ledgers[p]
	c.Done = append(slices.Clone(c.Done), step)
	f.ledgers[p] = c
	return nil
}

func (f *fakeRows) EndCleanup(_ context.Context, p chunk.PlacementID) error {
	f.ended = append(f.ended, p)
	return nil
}

// merge is two legs onto one placement; a third leg goes elsewhere.
func merge() []metadata.Migration {
	at := func(id chunk.PlacementID, of chunk.ID) chunk.Placement { return chunk.Placement{ID: id, Chunk: of} }
	a, b := chunk.Chunk{ID: "f/0001", Range: chunk.Range{Lo: "\x00", Hi: "\x40"}}, chunk.Chunk{ID: "f/0002", Range: chunk.Range{Lo: "\x40", Hi: "\x80"}}
	x, y := chunk.Chunk{ID: "f/0003", Range: chunk.Range{Lo: "\x00", Hi: "\x60"}}, chunk.Chunk{ID: "f/0004", Range: chunk.Range{Lo: "\x60", Hi: "\x80"}}
	return []metadata.Migration{
		{ID: 7, Lead: 7, Chunk: a, TargetChunk: x, Source: at(41, a.ID), Target: at(51, x.ID)},
		{ID: 8, Lead: 7, Chunk: b, TargetChunk: x, Source: at(42, b.ID), Target: at(51, x.ID)},
		{ID: 9, Lead: 7, Chunk: b, TargetChunk: y, Source: at(42, b.ID), Target: at(52, y.ID)},
	}
}

func TestEveryPlacementOfASideIsDoomedWithAllItsLegs(t *testing.T) {
	t.Parallel()

	rows := merge()
	sources := []doomed{
		{placement: rows[0].Source, keys: rows[0].Chunk.Range, lead: 7, legs: []chunk.MigrationID{7}},
		{placement: rows[1].Source, keys: rows[1].Chunk.Range, lead: 7, legs: []chunk.MigrationID{8, 9}},
	}
	targets := []doomed{
		{placement: rows[0].Target, keys: rows[0].TargetChunk.Range, lead: 7, legs: []chunk.MigrationID{7, 8}},
		{placement: rows[2].Target, keys: rows[2].TargetChunk.Range, lead: 7, legs: []chunk.MigrationID{9}},
	}
	require.Equal(t, sources, doomedOf(rows, 41))
	require.Equal(t, sources, doomedOf(rows, 42))
	require.Equal(t, targets, doomedOf(rows, 52))
	require.Equal(t, sources[:1], doomedOf(rows[:1], 41), "a move")

	route := func(m metadata.Migration) chunk.Route {
		return chunk.Route{Chunk: m.TargetChunk, Placement: m.Target, Token: chunk.Token(m.Target.ID)}
	}
	home := func(p chunk.Placement) shard.Home {
		return shard.Home{Chunk: p.Chunk, Forward: shard.Forward{Placement: p.ID, Token: chunk.Token(p.ID)}}
	}
	routes := []chunk.Route{route(rows[0]), route(rows[2])}
	require.Equal(t, []shard.Home{home(rows[0].Target)}, homes(routes, sources[0].keys))
	require.Equal(t, []shard.Home{home(rows[0].Target), home(rows[2].Target)}, homes(routes, sources[1].keys))
}

// A clean-up that dies anywhere, with or without having noted the step, goes on
// where it was, and each placement by its own ledger.
func TestCleanUpGoesOnByItsLedger(t *testing.T) {
	t.Parallel()

	steps := []string{stepMark, stepGrants, stepStragglers, stepLanes, stepDatabase, stepMigration}
	died := errors.New("died")
	for at := range 4 * len(steps) { // twice as many, for two placements: in the step, and behind its note
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()

			rows := &fakeRows{states: map[chunk.PlacementID]chunk.PlacementState{41: chunk.Mirror, 42: chunk.Mirror}, ledgers: map[chunk.PlacementID]metadata.Cleanup{}}
			var done []string
			passed := 0
			dies := func() error {
				if passed++; passed == at+1 {
					return died
				}
				return nil
			}
			drop := func() error {
				for _, d := range doomedOf(merge(), 41) {
					c := &cleanup{doomed: d, direction: 6, rows: rows, stops: stoppoint.New(func(context.Context, string) error { return dies() })}
					c.do = func(_ context.Context, step string) error {
						require.Equal(t, chunk.Dropping, rows.states[d.placement.ID], "decided before anything is done")
						done = append(done, fmt.Sprint(d.placement.ID, step))
						return dies()
					}
					if err := c.run(t.Context(), steps); err != nil {
						return err
					}
				}
				return nil
			}
			require.ErrorIs(t, drop(), died)
			require.NoError(t, drop())
			var want []string
			for _, id := range []chunk.PlacementID{41, 42} {
				for _, step := range steps {
					want = append(want, fmt.Sprint(id, step))
				}
			}
			require.Equal(t, want, slices.Compact(done), "in this order, and none again but the one in which it died")
			require.LessOrEqual(t, len(done), len(want)+1)
			require.Equal(t, chunk.Gone, rows.states[41])
			require.Equal(t, chunk.Gone, rows.states[42])
			require.Subset(t, rows.ended, []chunk.PlacementID{41, 42})
			require.Equal(t, chunk.MigrationID(7), rows.ledgers[42].Migration)
			require.Equal(t, chunk.AttemptID(6), rows.ledgers[42].Direction)
		})
	}
}

// While a write stands in a placement that nobody has dealt with, it is not even
// decided that it goes; and what the last look finds holds the rest.
func TestCleanUpIsHeldByStragglers(t *testing.T) {
	t.Parallel()

	rows := &fakeRows{
		states:     map[chunk.PlacementID]chunk.PlacementState{41: chunk.Mirror},
		stragglers: map[chunk.PlacementID]int{41: 2}, ledgers: map[chunk.PlacementID]metadata.Cleanup{},
	}
	var done []string
	c := &cleanup{doomed: doomedOf(merge(), 41)[0], rows: rows}
	c.do = func(ctx context.Context, step string) error {
		done = append(done, step)
		if step == stepStragglers {
			return c.check(ctx)
		}
		if step == stepGrants {
			rows.stragglers[41] = 1
		}
		return nil
	}
	err := c.run(t.Context(), []string{stepMark, stepGrants, stepStragglers, stepDatabase})
	require.True(t, failure.HasCode(err, "drop.stragglers"), "%v", err)
	require.Equal(t, chunk.Mirror, rows.states[41])
	require.Empty(t, done)

	rows.stragglers[41] = 0 // acknowledged
	err = c.run(t.Context(), []string{stepMark, stepGrants, stepStragglers, stepDatabase})
	require.True(t, failure.HasCode(err, "drop.stragglers"), "%v", err)
	require.NotContains(t, done, stepDatabase)

	rows.stragglers[41] = 0
	require.NoError(t, c.run(t.Context(), []string{stepMark, stepGrants, stepStragglers, stepDatabase}))
	require.Equal(t, []string{stepMark, stepGrants, stepStragglers, stepStragglers, stepDatabase}, done)
}
