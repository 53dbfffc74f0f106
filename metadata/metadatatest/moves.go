package metadatatest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// hintOf is what a refusal advises.
func hintOf(t *testing.T, err error) string {
	t.Helper()
	e, ok := errors.AsType[*failure.Error](err)
	require.True(t, ok, "%v", err)
	return e.Hint
}

// moveCases is what migrations and placements must do.
var moveCases = map[string]func(*testing.T, *fleet){
	"RegisterClaimsTheChunk": func(t *testing.T, f *fleet) {
		m := f.register(t)
		require.Equal(t, chunk.Registered, m.Phase)
		require.Equal(t, "a", m.Source.Shard)
		require.Equal(t, "c", m.Target.Shard)
		require.Equal(t, chunk.Loading, m.Target.State)
		require.Equal(t, chunk.PhysicalName(first, m.Target.ID), m.Target.Database)
		require.Equal(t, m, f.register(t), "the same workflow is given what it has")

		_, err := f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: first, Target: "b", WorkflowID: m.WorkflowID})
		requireFailure(t, err, failure.Invalid, "migration.overlapping")
		_, err = f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: first, Target: "c", WorkflowID: "another"})
		requireFailure(t, err, failure.Invalid, "migration.overlapping")
		require.ErrorContains(t, err, "migration 1 ", "the other migration is named")
		require.ErrorContains(t, err, m.WorkflowID)
		require.NotEmpty(t, hintOf(t, err))
		open, ok, err := f.OpenMigration(t.Context(), first)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, m, open)
		_, ok, err = f.OpenMigration(t.Context(), "flights/0002")
		require.NoError(t, err)
		require.False(t, ok)
	},

	"RegisterRefusesWhatCannotBe": func(t *testing.T, f *fleet) {
		before := f.picture(t)
		for code, r := range map[string]metadata.MigrationRequest{
			"migration.chunk_unknown": {Chunk: "flights/0099", Target: "c"},
			"migration.shard_unknown": {Chunk: first, Target: "x"},
			"migration.same_shard":    {Chunk: first, Target: "a"},
		} {
			_, err := f.RegisterMigration(t.Context(), r)
			requireFailure(t, err, failure.Invalid, code)
		}
		require.Equal(t, before, f.picture(t), "nothing is left behind")
	},

	"OneOfManyRegistersWins": func(t *testing.T, f *fleet) {
		const lock = `select from chunks where id = 'flights/0001' for update`
		errs := f.raceBehind(t, lock, 6, func(ctx context.Context, i int) error {
			_, err := f.RegisterMigration(ctx, metadata.MigrationRequest{Chunk: first, Target: "c", WorkflowID: string(rune('a' + i/3))})
			return err
		})
		require.Equal(t, 3, countNil(errs), "one workflow of two, however often each asks: %v", errs)
		for _, err := range errs {
			if err != nil {
				requireFailure(t, err, failure.Invalid, "migration.overlapping")
			}
		}
		var n int
		require.NoError(t, f.raw.QueryRow(t.Context(), `select count(*) from placements where chunk = $1`, string(first)).Scan(&n))
		require.Equal(t, 2, n, "a loser leaves no placement")
	},

	"PhaseIsCompareAndSet": func(t *testing.T, f *fleet) {
		m := f.register(t)
		errs := f.raceBehind(t, `select from migrations for update`, 6, func(ctx context.Context, _ int) error {
			return f.SetPhase(ctx, m.ID, chunk.Registered, chunk.Importing)
		})
		require.Equal(t, 1, countNil(errs), "two coordinators at once: one wins")
		for _, err := range errs {
			if err != nil {
				requireFailure(t, err, failure.Lost, "migration.is_importing")
				found, ok := metadata.Found(err)
				require.True(t, ok)
				require.Equal(t, "importing", found)
			}
		}
		requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.Importing, chunk.Done), failure.Invalid, "migration.transition")
		requireFailure(t, f.SetPhase(t.Context(), 99, chunk.Registered, chunk.Importing), failure.Invalid, "migration.unknown")
		require.Error(t, f.exec(t, `update migrations set phase = 'done'`), "by hand neither")
		require.Error(t, f.exec(t, `update migrations set target = source`))
	},

	"PhaseHasItsTime": func(t *testing.T, f *fleet) {
		m := f.register(t)
		require.NoError(t, f.SetExpected(t.Context(), m.ID, time.Hour))
		was, err := f.Migration(t.Context(), m.ID)
		require.NoError(t, err)
		require.Equal(t, time.Hour, was.Expected)
		require.NoError(t, f.SetPhase(t.Context(), m.ID, chunk.Registered, chunk.Importing))
		next, err := f.Migration(t.Context(), m.ID)
		require.NoError(t, err)
		require.Zero(t, next.Expected, "nobody has said it of this phase")
		require.True(t, next.PhaseAt.After(was.PhaseAt))
	},

	"OpenOnesAreCounted": func(t *testing.T, f *fleet) {
		count := func() int {
			n, err := f.CountOpenMigrations(t.Context())
			require.NoError(t, err)
			return n
		}
		require.Zero(t, count())
		m := f.register(t)
		require.Equal(t, 1, count())
		require.NoError(t, f.exec(t, `alter table migrations disable trigger migrations_guard`))
		require.NoError(t, f.exec(t, `update migrations set phase = 'aborted' where id = `+fmt.Sprint(m.ID)))
		require.Zero(t, count())
	},

	"DetailsAreKept": func(t *testing.T, f *fleet) {
		m := f.register(t)
		require.NoError(t, f.SetPaused(t.Context(), m.ID, true))
		require.NoError(t, f.SetAttention(t.Context(), m.ID, "index cannot be built: \x00 bad"))
		require.NoError(t, f.SetWords(t.Context(), metadata.Word{Migration: m.ID, Progress: json.RawMessage(`{"docs": 5}`)}))
		require.NoError(t, f.SetBusy(t.Context(), m.ID, []byte{1, 0, 2}))
		require.NoError(t, f.SetStep(t.Context(), m.ID, chunk.Registered, json.RawMessage(`{"at": "indexes"}`)))
		got, err := f.Migration(t.Context(), m.ID)
		require.NoError(t, err)
		require.True(t, got.Paused)
		require.Equal(t, "index cannot be built: \uFFFD bad", got.Attention)
		require.JSONEq(t, `{"docs": 5}`, string(got.Progress))
		require.JSONEq(t, `{"at": "indexes"}`, string(got.Step))
		require.Equal(t, []byte{1, 0, 2}, got.Busy)

		f.walk(t, m.ID, chunk.Registered, chunk.Importing)
		requireFailure(t, f.SetStep(t.Context(), m.ID, chunk.Registered, nil), failure.Lost, "migration.is_importing")
		got, err = f.Migration(t.Context(), m.ID)
		require.NoError(t, err)
		require.JSONEq(t, `{}`, string(got.Step), "a new phase begins without the old one's step")
		requireFailure(t, f.SetPaused(t.Context(), 99, true), failure.Invalid, "migration.unknown")
	},

	"FilterChooses": func(t *testing.T, f *fleet) {
		m := f.register(t)
		_, err := f.RegisterMigration(t.Context(), metadata.MigrationRequest{Chunk: "flights/0002", Target: "a", WorkflowID: "w"})
		require.NoError(t, err)
		for want, filter := range map[int]metadata.MigrationFilter{
			2: {Database: "flights", Unfinished: true},
			1: {Chunk: first, Shard: "c"},
			0: {Database: "other"},
		} {
			got, err := f.Migrations(t.Context(), filter)
			require.NoError(t, err)
			require.Len(t, got, want)
		}
		got, err := f.Migrations(t.Context(), metadata.MigrationFilter{Shard: "a", Limit: 1})
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Greater(t, got[0].ID, m.ID, "the newest first")
	},

	"WrongRowsCannotBeWrittenByHand": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		before := f.picture(t)
		for name, sql := range map[string]string{
			"second migration of a chunk": `with p as (insert into placements (chunk, shard, state) values ($1, 'b', 'loading') returning id)
				insert into migrations (chunk, source, target) select $1, $2, id from p`,
			"second attempt of a chunk": `insert into attempts (migration, chunk, source, target, key, deadline)
				select migration, chunk, source, target, 'another', deadline from attempts where chunk = $1 and source = $2`,
			"sides exchanged":        `update attempts set source = target, target = source where chunk = $1 and source = $2`,
			"token without publish":  `update attempts set token = 77 where chunk = $1 and source = $2`,
			"publish without token":  `update attempts set state = 'fencing' where chunk = $1 and source = $2; update attempts set state = 'closing'; update attempts set state = 'published'`,
			"unknown state":          `update attempts set state = 'almost' where chunk = $1 and source = $2`,
			"migration of no chunk":  `update migrations set chunk = 'flights/0002' where chunk = $1 and source = $2`,
			"two exclusive leases":   `insert into leases select 'a', h, 'exclusive', true, nextval('lease_epochs'), now() from unnest(array[$1, $2::text]) h`,
			"a shared lease waiting": `insert into leases select 'a', $1 || $2::text, 'shared', false, nextval('lease_epochs'), now()`,
		} {
			err := f.exec(t, sql, pgx.QueryExecModeSimpleProtocol, string(first), int64(m.Source.ID))
			require.Error(t, err, name)
			require.NotContains(t, err.Error(), "SQLSTATE 42", "%s: the statement itself is wrong", name)
			require.Equal(t, before, f.picture(t), name)
		}
		require.Positive(t, a.ID)
	},

	"AbortLeavesTheSource":     abortedMove,
	"WholeMoveWithRollback":    wholeMove,
	"NothingIsDroppedTooEarly": noEarlyDrop,
}

// abortedMove takes a migration back before it switched.
func abortedMove(t *testing.T, f *fleet) {
	m := f.register(t)
	f.walk(t, m.ID, chunk.Registered, chunk.Importing)
	requireFailure(t, f.DropPlacement(t.Context(), m.Target.ID), failure.Invalid, "placement.migration_open")
	f.walk(t, m.ID, chunk.Importing, chunk.Aborting)
	requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.Aborting, chunk.Aborted), failure.Invalid, "migration.not_dropped")
	require.NoError(t, f.DropPlacement(t.Context(), m.Target.ID))
	require.NoError(t, f.DropPlacement(t.Context(), m.Target.ID), "again is a retry")
	require.NoError(t, f.PlacementGone(t.Context(), m.Target.ID))
	require.NoError(t, f.PlacementGone(t.Context(), m.Target.ID))
	f.walk(t, m.ID, chunk.Aborting, chunk.Aborted)
	r, err := f.Route(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, m.Source.ID, r.Placement.ID)
	again := f.register(t)
	require.NotEqual(t, m.ID, again.ID, "the next move is a new one")
	require.NotEqual(t, m.Target.ID, again.Target.ID, "a placement id is never used again")
}

// wholeMove goes forth, back and forth again, and ends.
func wholeMove(t *testing.T, f *fleet) {
	m := f.switching(t)
	one := f.switchOver(t, m)
	require.Equal(t, m.Source.ID, one.Source.ID)
	require.Zero(t, one.Direction, "the import's lanes feed the first switch")
	f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
	requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.BurnIn, chunk.Aborting), failure.Invalid, "migration.source_not_live")

	back := f.switchOver(t, m)
	require.Equal(t, m.Target.ID, back.Source.ID, "the serving side is the source")
	require.Equal(t, m.Source.ID, back.Target.ID)
	require.Equal(t, one.ID, back.Direction)
	requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.BurnIn, chunk.Completing), failure.Invalid, "migration.target_not_live")

	again := f.switchOver(t, m)
	require.Equal(t, back.ID, again.Direction)
	f.walk(t, m.ID, chunk.BurnIn, chunk.Completing)
	requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.Completing, chunk.Done), failure.Invalid, "migration.not_dropped")
	require.NoError(t, f.DropPlacement(t.Context(), m.Source.ID))
	require.NoError(t, f.PlacementGone(t.Context(), m.Source.ID))
	f.walk(t, m.ID, chunk.Completing, chunk.Done)

	history, err := f.RouteHistory(t.Context(), first)
	require.NoError(t, err)
	require.Len(t, history, 4)
	for i, shard := range []string{"a", "c", "a", "c"} {
		require.Equal(t, shard, history[i].Shard)
		require.Positive(t, history[i].Token)
		require.True(t, i == 0 || history[i].Token > history[i-1].Token && history[i].At.After(history[i-1].At))
	}
	require.Equal(t, []chunk.AttemptID{0, one.ID, back.ID, again.ID},
		[]chunk.AttemptID{history[0].Attempt, history[1].Attempt, history[2].Attempt, history[3].Attempt})
	left, err := f.Placements(t.Context(), "a")
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// noEarlyDrop tries to drop each side at each point where someone may come back to it.
func noEarlyDrop(t *testing.T, f *fleet) {
	m := f.switching(t)
	requireFailure(t, f.DropPlacement(t.Context(), m.Source.ID), failure.Lost, "placement.is_live")
	requireFailure(t, f.DropPlacement(t.Context(), m.Target.ID), failure.Invalid, "placement.migration_open")
	r := f.closing(t, m)
	requireFailure(t, f.DropPlacement(t.Context(), m.Target.ID), failure.Invalid, "placement.attempt_open")
	requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.Switching, chunk.Aborting), failure.Transient, "migration.attempt_open")
	_, err := f.Publish(t.Context(), r)
	require.NoError(t, err)
	requireFailure(t, f.DropPlacement(t.Context(), m.Source.ID), failure.Invalid, "placement.attempt_open")
	f.advance(t, r.Attempt, chunk.Published, chunk.Open, 0)
	f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
	requireFailure(t, f.SetPhase(t.Context(), m.ID, chunk.BurnIn, chunk.Completing), failure.Transient, "migration.attempt_open")
	f.advance(t, r.Attempt, chunk.Open, chunk.AttemptDone, 0)
	requireFailure(t, f.DropPlacement(t.Context(), m.Source.ID), failure.Invalid, "placement.migration_open")
	f.walk(t, m.ID, chunk.BurnIn, chunk.Completing)
	require.NoError(t, f.DropPlacement(t.Context(), m.Source.ID))
	_, err = f.BeginAttempt(t.Context(), m.ID, "too late", time.Minute)
	requireFailure(t, err, failure.Invalid, "attempt.phase")
	requireFailure(t, f.SetPlacementState(t.Context(), m.Source.ID, chunk.Mirror, chunk.Live), failure.Lost, "placement.is_dropping")
	requireFailure(t, f.SetPlacementState(t.Context(), m.Source.ID, chunk.Dropping, chunk.Mirror), failure.Invalid, "placement.transition")
}

// race runs fn n times at once and gives the results.
func race(n int, fn func(i int) error) []error {
	wait := start(n, fn)
	return wait()
}

// start runs fn n times and gives a function that waits for the results.
func start(n int, fn func(i int) error) (wait func() []error) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	return func() []error { wg.Wait(); return errs }
}

// raceBehind is a race whose runners all stand at a lock before one may go on: so
// that they do meet, however fast the machine is. The statement takes the lock.
func (f *fleet) raceBehind(t *testing.T, lock string, n int, fn func(ctx context.Context, i int) error) []error {
	t.Helper()
	tx, err := f.raw.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), lock)
	require.NoError(t, err)
	ctx := context.WithoutCancel(t.Context())
	wait := start(n, func(i int) error { return fn(ctx, i) })
	require.Eventually(t, func() bool {
		var standing int
		const q = `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
		return f.raw.QueryRow(t.Context(), q).Scan(&standing) == nil && standing == n
	}, patience, time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	return wait()
}

// countNil counts successes.
func countNil(errs []error) (n int) {
	for _, err := range errs {
		if err == nil {
			n++
		}
	}
	return n
}
