package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"drover/chunk"
	"drover/contract"
	"drover/internal/failure"
	"drover/metadata"
	"drover/starter"
)

// errInSwitch is what a move in the middle of its switch answers.
var errInSwitch = failure.New(failure.Invalid, "migration.not_now", "the target serves; rollback first, then abort")

// TestRollbackWaitsForTheEndOfASwitch, and asks then for what is possible; what is refused
// for another reason is not asked again.
func TestRollbackWaitsForTheEndOfASwitch(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		phase := func() asked {
			if time.Since(began) < 3*time.Second {
				return asked{Chunk: "shop/0001", Phase: chunk.Switching, Ask: contract.AbortUpdate}
			}
			return asked{Chunk: "shop/0001", Phase: chunk.BurnIn, Ask: contract.RollbackUpdate}
		}
		calls := map[chunk.ID]int{}
		var told []string
		q := asking{
			wait: time.Minute, tell: func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) },
			again: func(_ context.Context, id chunk.ID) (asked, error) {
				switch id {
				case "shop/0001":
					return phase(), nil
				case "shop/0003":
					return asked{Chunk: id, Phase: chunk.Aborted, Ask: contract.AbortUpdate}, nil
				default:
					return asked{Chunk: id, Phase: chunk.BurnIn}, nil
				}
			},
			ask: func(_ context.Context, x asked) error {
				calls[x.Chunk]++
				switch {
				case x.Phase == chunk.BurnIn && x.Chunk == "shop/0005":
					return errInSwitch
				case x.Chunk == "shop/0002":
					return errors.New("no")
				case x.Phase == chunk.Switching && x.Chunk != "shop/0004":
					return errInSwitch
				}
				return nil
			},
		}
		list, err := q.each(t.Context(), []asked{
			phase(), {Chunk: "shop/0002", Phase: chunk.Switching}, {Chunk: "shop/0003", Phase: chunk.Switching}, {Chunk: "shop/0004", Phase: chunk.Switching}, {Chunk: "shop/0005", Phase: chunk.BurnIn},
		})
		require.NoError(t, err)
		require.Equal(t, asked{Chunk: "shop/0001", Phase: chunk.BurnIn, Ask: contract.RollbackUpdate}, list[0])
		require.Equal(t, "no", list[1].Error)
		require.Equal(t, asked{Chunk: "shop/0003", Phase: chunk.Aborted, Ask: contract.AbortUpdate}, list[2], "it went back by itself")
		require.Empty(t, list[3].Error, "one that waits in front of its switch can be given up")
		require.Equal(t, map[chunk.ID]int{"shop/0001": 4, "shop/0002": 1, "shop/0003": 1, "shop/0004": 1, "shop/0005": 1}, calls)
		require.Equal(t, []string{"1 moves are in the middle of a switch: waiting for its end, at most 1m0s"}, told)
	})
}

// TestRollbackDoesNotWaitForEver: the refusal stands when the wait is over.
func TestRollbackDoesNotWaitForEver(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		x := asked{Chunk: "shop/0001", Phase: chunk.Switching, Ask: contract.AbortUpdate}
		q := asking{
			wait: 10 * time.Second, tell: func(string, ...any) {},
			again: func(context.Context, chunk.ID) (asked, error) { return x, nil },
			ask:   func(context.Context, asked) error { return errInSwitch },
		}
		list, err := q.each(t.Context(), []asked{x})
		require.NoError(t, err)
		require.Contains(t, list[0].Error, "the target serves")
		require.Equal(t, 10*time.Second, time.Since(began))
	})
}

// TestRollbackAsksForWhatIsPossibleNow: a move may be further when it is asked than when it
// was listed, in its switch or behind it; its refusal is none of what is wanted.
func TestRollbackAsksForWhatIsPossibleNow(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := func(id chunk.ID) asked {
			switch {
			case id == "shop/0004":
				return asked{Chunk: id, Phase: chunk.Done, Ask: contract.RollbackUpdate}
			case id == "shop/0003":
				return asked{Chunk: id, Phase: chunk.Aborting, Ask: contract.AbortUpdate}
			case id == "shop/0001" && time.Since(began) < 2*time.Second:
				return asked{Chunk: id, Phase: chunk.Switching, Ask: contract.AbortUpdate}
			}
			return asked{Chunk: id, Phase: chunk.BurnIn, Ask: contract.RollbackUpdate}
		}
		asks := map[chunk.ID][]string{}
		q := asking{
			wait: time.Minute, tell: func(string, ...any) {},
			again: func(_ context.Context, id chunk.ID) (asked, error) { return at(id), nil },
			ask: func(_ context.Context, x asked) error {
				asks[x.Chunk] = append(asks[x.Chunk], x.Ask)
				if now := at(x.Chunk); x.Ask != now.Ask || now.Phase != chunk.BurnIn {
					return errInSwitch
				}
				return nil
			},
		}
		list, err := q.each(t.Context(), []asked{
			{Chunk: "shop/0001", Phase: chunk.Validating, Ask: contract.AbortUpdate}, {Chunk: "shop/0002", Phase: chunk.Validating, Ask: contract.AbortUpdate},
			{Chunk: "shop/0003", Phase: chunk.Validating, Ask: contract.AbortUpdate}, {Chunk: "shop/0004", Phase: chunk.BurnIn, Ask: contract.RollbackUpdate},
		})
		require.NoError(t, err)
		require.Equal(t, []asked{at("shop/0001"), at("shop/0002"), at("shop/0003")}, list[:3])
		require.Equal(t, chunk.Done, list[3].Phase)
		require.Contains(t, list[3].Error, "the target serves", "there is no way back any more")
		require.Equal(t, map[chunk.ID][]string{
			"shop/0001": {contract.AbortUpdate, contract.AbortUpdate, contract.AbortUpdate, contract.RollbackUpdate},
			"shop/0002": {contract.AbortUpdate, contract.RollbackUpdate}, "shop/0003": {contract.AbortUpdate}, "shop/0004": {contract.RollbackUpdate},
		}, asks)
	})
}

// TestRowThatCannotBeLookedAtHoldsUpNoOther, and the next move of a chunk is not asked
// for what was wanted of the one before.
func TestRowThatCannotBeLookedAtHoldsUpNoOther(t *testing.T) {
	t.Parallel()

	asks := map[chunk.ID]int{}
	q := asking{
		tell: func(string, ...any) {},
		again: func(_ context.Context, id chunk.ID) (asked, error) {
			switch id {
			case "shop/0001":
				return asked{}, errors.New("metadata is away")
			case "shop/0002":
				return asked{Chunk: id, Phase: chunk.Importing, Ask: contract.AbortUpdate, move: 8}, nil
			default:
				return asked{Chunk: id, Phase: chunk.BurnIn, Ask: contract.RollbackUpdate, move: 3}, nil
			}
		},
		ask: func(_ context.Context, x asked) error {
			if asks[x.Chunk]++; x.Phase != chunk.BurnIn {
				return errInSwitch
			}
			return nil
		},
	}
	var list []asked
	for i, id := range []chunk.ID{"shop/0001", "shop/0002", "shop/0003"} {
		list = append(list, asked{Chunk: id, Phase: chunk.Switching, Ask: contract.AbortUpdate, move: chunk.MigrationID(i + 1)})
	}
	list, err := q.each(t.Context(), list)
	require.NoError(t, err)
	require.Contains(t, list[0].Error, "metadata is away")
	require.True(t, failure.HasCode(list[1].refusal, contract.OtherMove))
	require.Empty(t, list[2].Error)
	require.Equal(t, map[chunk.ID]int{"shop/0001": 1, "shop/0002": 1, "shop/0003": 2}, asks)
}

// updated is a Temporal that keeps what it is asked.
type updated struct {
	client.Client
	in contract.UpdateInput
}

// UpdateWorkflow implements [client.Client].
func (u *updated) UpdateWorkflow(_ context.Context, o client.UpdateWorkflowOptions) (client.WorkflowUpdateHandle, error) {
	u.in, _ = o.Args[0].(contract.UpdateInput)
	return nil, errors.New("no answer")
}

// TestOnlyTheListedMoveIsAsked: a chunk's workflow id is that of its next move too, which
// may have begun since the list was read.
func TestOnlyTheListedMoveIsAsked(t *testing.T) {
	t.Parallel()

	u := &updated{}
	ask := askThrough(starter.New(u), contract.UpdateInput{By: "ann"})
	require.Error(t, ask(t.Context(), asked{Chunk: "shop/0001", Ask: contract.AbortUpdate, move: 7}))
	require.Equal(t, contract.UpdateInput{By: "ann", Migration: 7}, u.in)
	require.Error(t, ask(t.Context(), asked{Chunk: "shop/0002", Ask: contract.PauseUpdate}))
	require.Equal(t, contract.UpdateInput{By: "ann"}, u.in, "a pause of all asks whichever move runs")
}

// split is a chunk that others serve now.
type split struct{}

// Route implements [routes].
func (split) Route(context.Context, chunk.ID) (chunk.Route, error) {
	return chunk.Route{}, failure.New(failure.Invalid, "chunk.unknown", "gone")
}

// TestSplitChunkIsAskedForItsWayBack: its name has no route once the split is published, and the newest
// of its legs is not the one that leads.
func TestSplitChunkIsAskedForItsWayBack(t *testing.T) {
	t.Parallel()

	r, err := served(t.Context(), split{}, "shop/0001")
	require.NoError(t, err)
	m := metadata.Migration{ID: 6, Lead: 5, Chunk: chunk.Chunk{ID: "shop/0001"}, Source: chunk.Placement{ID: 1}, Phase: chunk.BurnIn}
	require.Equal(t, asked{Chunk: "shop/0001", Phase: chunk.BurnIn, Ask: contract.RollbackUpdate, move: 5}, askOf(m, r, contract.RollbackUpdate))
}

// intended is a metadata with intents and moves.
type intended struct {
	all  []metadata.Intent
	open map[chunk.ID]metadata.Migration
}

// Intents implements [intents].
func (m intended) Intents(context.Context, int) ([]metadata.Intent, error) { return m.all, nil }

// OpenMigration implements [intents].
func (m intended) OpenMigration(_ context.Context, id chunk.ID) (metadata.Migration, bool, error) {
	x, ok := m.open[id]
	return x, ok, nil
}

// Route implements [routes]: a move's target serves from burn-in on.
func (m intended) Route(_ context.Context, id chunk.ID) (chunk.Route, error) {
	x := m.open[id]
	if x.Phase == chunk.BurnIn {
		return chunk.Route{Placement: x.Target}, nil
	}
	return chunk.Route{Placement: x.Source}, nil
}

// TestListOfAnIntentsMoves: those of the newest intent of a name that are not over, without what was
// begun before it by somebody else; only what is behind its switch can be completed.
func TestListOfAnIntentsMoves(t *testing.T) {
	t.Parallel()

	opened := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	m := intended{open: map[chunk.ID]metadata.Migration{}}
	put := func(number int, phase chunk.Phase, created time.Time) chunk.ID {
		id := chunk.NewID("shop", number)
		m.open[id] = metadata.Migration{
			ID: chunk.MigrationID(10 + number), Lead: chunk.MigrationID(number), Chunk: chunk.Chunk{ID: id}, Phase: phase, CreatedAt: created,
			Source: chunk.Placement{ID: 1}, Target: chunk.Placement{ID: 2},
		}
		return id
	}
	behind, before := put(1, chunk.BurnIn, opened.Add(time.Minute)), put(2, chunk.Validating, opened)
	others := put(3, chunk.BurnIn, opened.Add(-time.Minute))
	plan, err := json.Marshal([]contract.PlannedMove{{Chunk: behind}, {Chunk: before}, {Chunk: others}, {Chunk: "shop/0004"}})
	require.NoError(t, err)
	over, err := json.Marshal([]contract.PlannedMove{{Chunk: "shop/0004"}})
	require.NoError(t, err)
	m.all = []metadata.Intent{
		{WorkflowID: "rebalance/drain/a", Plan: over}, {WorkflowID: "rebalance/upgrade/a", Plan: plan, OpenedAt: opened},
		{WorkflowID: "rebalance/upgrade/a", Plan: over, OpenedAt: opened.Add(-time.Hour)},
	}

	list, err := movesOf(t.Context(), m, "rebalance/upgrade/a", contract.RollbackUpdate)
	require.NoError(t, err)
	require.Equal(t, []asked{
		{Chunk: behind, Phase: chunk.BurnIn, Ask: contract.RollbackUpdate, move: 1}, {Chunk: before, Phase: chunk.Validating, Ask: contract.AbortUpdate, move: 2},
	}, list)
	list, err = movesOf(t.Context(), m, "rebalance/upgrade/a", contract.CompleteUpdate)
	require.NoError(t, err)
	require.Equal(t, []asked{{Chunk: behind, Phase: chunk.BurnIn, Ask: contract.CompleteUpdate, move: 1}}, list)
	for id, code := range map[string]string{"rebalance/drain/a": "rebalance.nothing_open", "rebalance/drain/b": "rebalance.unknown"} {
		_, err := movesOf(t.Context(), m, id, contract.RollbackUpdate)
		require.True(t, failure.HasCode(err, code), "%v", err)
	}
}

// TestWhatAMoveIsAskedFor, by where it is and who serves.
func TestWhatAMoveIsAskedFor(t *testing.T) {
	t.Parallel()
	m := metadata.Migration{Chunk: chunk.Chunk{ID: "shop/0001"}, Source: chunk.Placement{ID: 1}, Target: chunk.Placement{ID: 2}}
	for _, tc := range []struct {
		phase  chunk.Phase
		serves chunk.PlacementID
		update string
		want   string
	}{
		{chunk.Validating, 1, contract.RollbackUpdate, contract.AbortUpdate},
		{chunk.Switching, 2, contract.RollbackUpdate, contract.AbortUpdate},
		{chunk.BurnIn, 2, contract.RollbackUpdate, contract.RollbackUpdate},
		{chunk.BurnIn, 1, contract.RollbackUpdate, contract.AbortUpdate},
		{chunk.Completing, 2, contract.RollbackUpdate, contract.RollbackUpdate},
		{chunk.BurnIn, 1, contract.CompleteUpdate, contract.CompleteUpdate},
	} {
		m.Phase = tc.phase
		got := askOf(m, chunk.Route{Placement: chunk.Placement{ID: tc.serves}}, tc.update)
		require.Equal(t, asked{Chunk: "shop/0001", Phase: tc.phase, Ask: tc.want}, got)
	}
}
