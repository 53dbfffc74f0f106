package metadatatest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// attemptStates lists every state of an attempt.
var attemptStates = []chunk.AttemptState{
	chunk.Preparing, chunk.Fencing, chunk.Closing, chunk.Published, chunk.Open, chunk.AttemptDone, chunk.AttemptAborting, chunk.AttemptAborted,
}

// placementStates lists every state of a placement.
var placementStates = []chunk.PlacementState{chunk.Loading, chunk.Mirror, chunk.Live, chunk.Dropping, chunk.Gone}

// attemptCases is what attempts must do.
var attemptCases = map[string]func(*testing.T, *fleet){
	"StateMachinesAreThoseOfPackageChunk": func(t *testing.T, f *fleet) {
		agree(t, f, "attempt", attemptStates)
		agree(t, f, "migration", chunk.Phases())
		agree(t, f, "placement", placementStates)
		agree(t, f, "slice", []metadata.SliceState{metadata.SlicePlanned, metadata.SliceStored, metadata.SliceLoaded})
	},

	"RandomWalksAgreeWithTheTable": randomWalks,

	"BeginIsIdempotentByKey": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k1", time.Minute)
		require.NoError(t, err)
		require.Equal(t, chunk.Preparing, a.State)
		require.Equal(t, m.Source, withState(a.Source, m.Source.State))
		require.Equal(t, m.Target, a.Target)
		require.Positive(t, a.Left)
		again, err := f.BeginAttempt(t.Context(), m.ID, "k1", time.Hour)
		require.NoError(t, err)
		require.Equal(t, a.ID, again.ID)
		require.Equal(t, a.Deadline, again.Deadline)
		_, err = f.BeginAttempt(t.Context(), m.ID, "k2", time.Minute)
		requireFailure(t, err, failure.Transient, "attempt.open")

		f.advance(t, a.ID, chunk.Preparing, chunk.AttemptAborting, 0)
		f.advance(t, a.ID, chunk.AttemptAborting, chunk.AttemptAborted, 0)
		again, err = f.BeginAttempt(t.Context(), m.ID, "k1", time.Minute)
		require.NoError(t, err)
		require.Equal(t, chunk.AttemptAborted, again.State, "a retry is told what became of it")
		b, err := f.BeginAttempt(t.Context(), m.ID, "k2", time.Minute)
		require.NoError(t, err)
		require.Greater(t, b.ID, a.ID)
		_, err = f.BeginAttempt(t.Context(), 99, "k", time.Minute)
		requireFailure(t, err, failure.Invalid, "migration.unknown")
	},

	"RestartOfTheServerShows": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k1", time.Minute)
		require.NoError(t, err)
		require.True(t, a.Unbroken)
		// Another server has another time of its start.
		require.NoError(t, f.exec(t, `create or replace function this_server() returns text language sql stable as $$ select 'another' $$`))
		a, err = f.Attempt(t.Context(), a.ID)
		require.NoError(t, err)
		require.False(t, a.Unbroken)
	},

	"WayBackHasADeadlineOfItsOwn": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k1", time.Hour)
		require.NoError(t, err)
		a, err = f.Settle(t.Context(), a.ID, "because")
		require.NoError(t, err)
		require.Equal(t, chunk.AttemptAborting, a.State)
		require.Less(t, a.Left, time.Minute, "nobody would look after it for an hour")
	},

	"BarriersAreOwedUntilPaid": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		r := f.closing(t, m)
		owed := func() (hosts []string) {
			all, err := f.OwedBarriers(t.Context())
			require.NoError(t, err)
			for _, o := range all {
				hosts = append(hosts, o.Access+" "+o.Host)
			}
			return hosts
		}
		require.NoError(t, f.OweBarrier(t.Context(), m.Source.ID, "writes", r.Attempt, []string{"h2", "h1"}))
		require.NoError(t, f.OweBarrier(t.Context(), m.Source.ID, "writes", r.Attempt, []string{"h2"}))
		require.Empty(t, owed(), "nobody is shown a door that may open again")
		_, err := f.Publish(t.Context(), r)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"writes h1", "writes h2"}, owed())
		all, err := f.OwedBarriers(t.Context())
		require.NoError(t, err)
		require.Equal(t, m.Source.Database, all[0].Placement.Database)
		older := all[0]
		older.Attempt--
		require.NoError(t, f.BarrierPaid(t.Context(), older))
		require.Len(t, owed(), 2, "a late payer of an older attempt")
		require.NoError(t, f.BarrierPaid(t.Context(), all[0]))
		require.Len(t, owed(), 1)

		f.advance(t, r.Attempt, chunk.Published, chunk.Open, 0)
		f.advance(t, r.Attempt, chunk.Open, chunk.AttemptDone, 0)
		f.walk(t, m.ID, chunk.Switching, chunk.BurnIn)
		f.switchOver(t, m)
		require.Empty(t, owed(), "it serves again: the next fence shows itself")
	},

	"ManyBeginnersGetOneAttempt": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		ids := make([]chunk.AttemptID, 6)
		errs := f.raceBehind(t, `select from migrations for update`, 6, func(ctx context.Context, i int) error {
			a, err := f.BeginAttempt(ctx, m.ID, "same", time.Minute)
			ids[i] = a.ID
			return err
		})
		require.Equal(t, 6, countNil(errs), "%v", errs)
		for _, id := range ids {
			require.Equal(t, ids[0], id)
		}
	},

	"BeginNeedsPhaseAndMirror": func(t *testing.T, f *fleet) {
		m := f.register(t)
		_, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		requireFailure(t, err, failure.Invalid, "attempt.phase")
		f.walk(t, m.ID, chunk.Registered, chunk.Importing, chunk.Replicating, chunk.Validating, chunk.Switching)
		_, err = f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		requireFailure(t, err, failure.Invalid, "attempt.placements")
		require.Error(t, f.exec(t, `insert into attempts (migration, chunk, source, target, key, deadline) values ($1, $2, $3, $4, 'x', now())`,
			int64(m.ID), string(first), int64(m.Target.ID), int64(m.Source.ID)), "sides swapped by hand")
	},

	"AdvanceIsCompareAndSet": func(t *testing.T, f *fleet) {
		a, err := f.BeginAttempt(t.Context(), f.switching(t).ID, "k", time.Minute)
		require.NoError(t, err)
		errs := f.raceBehind(t, `select from attempts for update`, 6, func(ctx context.Context, _ int) error {
			_, err := f.AdvanceAttempt(ctx, a.ID, chunk.Preparing, chunk.Fencing, metadata.AdvanceOptions{Deadline: time.Minute})
			return err
		})
		require.Equal(t, 1, countNil(errs), "two coordinators at once: one wins")
		for _, err := range errs {
			if err != nil {
				requireFailure(t, err, failure.Lost, "attempt.is_fencing")
			}
		}
		before := f.picture(t)
		_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Fencing, chunk.Open, metadata.AdvanceOptions{})
		requireFailure(t, err, failure.Invalid, "attempt.transition")
		_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Closing, chunk.Published, metadata.AdvanceOptions{})
		requireFailure(t, err, failure.Invalid, "attempt.transition")
		_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Fencing, chunk.Closing, metadata.AdvanceOptions{Deadline: time.Hour})
		requireFailure(t, err, failure.Invalid, "attempt.deadline_fixed")
		_, err = f.AdvanceAttempt(t.Context(), 99, chunk.Preparing, chunk.Fencing, metadata.AdvanceOptions{})
		requireFailure(t, err, failure.Invalid, "attempt.unknown")
		require.Equal(t, before, f.picture(t))
	},

	"TimelineTellsEveryState": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Preparing, chunk.Fencing, metadata.AdvanceOptions{Deadline: time.Minute, Term: 7, Process: "65f0"})
		require.NoError(t, err)
		_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Fencing, chunk.AttemptAborting, metadata.AdvanceOptions{Reason: "term changed"})
		require.NoError(t, err)
		f.advance(t, a.ID, chunk.AttemptAborting, chunk.AttemptAborted, 0)
		a, err = f.LatestAttempt(t.Context(), first)
		require.NoError(t, err)
		require.Equal(t, int64(7), a.Term)
		require.Equal(t, "65f0", a.Process)
		require.Equal(t, "term changed", a.Reason)
		require.Len(t, a.Timeline, 4)
		for i, s := range []chunk.AttemptState{chunk.Preparing, chunk.Fencing, chunk.AttemptAborting, chunk.AttemptAborted} {
			require.Equal(t, s, a.Timeline[i].State)
			require.True(t, i == 0 || !a.Timeline[i].At.Before(a.Timeline[i-1].At))
		}
		none, err := f.LatestAttempt(t.Context(), "flights/0002")
		require.NoError(t, err)
		require.Zero(t, none.ID)
		all, err := f.Attempts(t.Context(), m.ID)
		require.NoError(t, err)
		require.Len(t, all, 1)
	},

	"DeadlinesAreJudgedByPostgres": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		f.advance(t, a.ID, chunk.Preparing, chunk.Fencing, time.Millisecond)
		f.awaitOverdue(t, a.ID)
		_, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Fencing, chunk.Closing, metadata.AdvanceOptions{})
		requireFailure(t, err, failure.Invalid, "attempt.deadline_passed")
		a, err = f.AdvanceAttempt(t.Context(), a.ID, chunk.Fencing, chunk.AttemptAborting, metadata.AdvanceOptions{Deadline: time.Minute, Reason: "past its deadline"})
		require.NoError(t, err)
		require.False(t, a.Overdue)
		f.advance(t, a.ID, chunk.AttemptAborting, chunk.AttemptAborted, 0)
		open, err := f.OpenAttempts(t.Context())
		require.NoError(t, err)
		require.Empty(t, open)
	},
}

// awaitOverdue waits until the watchdog's query shows an attempt as overdue.
func (f *fleet) awaitOverdue(t *testing.T, id chunk.AttemptID) {
	t.Helper()
	require.Eventually(t, func() bool {
		open, err := f.OpenAttempts(t.Context())
		return err == nil && len(open) == 1 && open[0].ID == id && open[0].Overdue && open[0].Left <= 0
	}, patience, time.Millisecond)
}

// withState is p in another state.
func withState(p chunk.Placement, s chunk.PlacementState) chunk.Placement {
	p.State = s
	return p
}

// agree compares one machine of the schema with its table in Go, pair by pair.
func agree[S interface {
	~string
	CanBecome(S) bool
}](t *testing.T, f *fleet, machine string, states []S) {
	t.Helper()
	for _, from := range states {
		for _, to := range states {
			var there bool
			const q = `select exists (select from transitions where machine = $1 and old = $2 and new = $3)`
			require.NoError(t, f.raw.QueryRow(t.Context(), q, machine, string(from), string(to)).Scan(&there))
			require.Equal(t, from.CanBecome(to), there, "%s from %s to %s", machine, from, to)
		}
	}
	var n, want int
	require.NoError(t, f.raw.QueryRow(t.Context(), `select count(*) from transitions where machine = $1`, machine).Scan(&n))
	for _, from := range states {
		for _, to := range states {
			if from.CanBecome(to) {
				want++
			}
		}
	}
	require.Equal(t, want, n, "the schema knows states of %s that Go does not", machine)
}

// randomWalks drives an attempt by plain UPDATE through random states. The
// database must take exactly the steps that the table in Go has.
func randomWalks(t *testing.T, f *fleet) {
	m := f.switching(t)
	rapid.Check(t, func(rt *rapid.T) {
		tx, err := f.raw.Begin(t.Context())
		require.NoError(rt, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		var id int64
		const begin = `insert into attempts (migration, chunk, source, target, key, deadline)
			values ($1, $2, $3, $4, 'walk', now() + interval '1 hour') returning id`
		require.NoError(rt, tx.QueryRow(t.Context(), begin, int64(m.ID), string(first), int64(m.Source.ID), int64(m.Target.ID)).Scan(&id))
		at := chunk.Preparing
		for _, to := range rapid.SliceOfN(rapid.SampledFrom(attemptStates), 1, 25).Draw(rt, "states") {
			err := pgx.BeginFunc(t.Context(), tx, func(sub pgx.Tx) error {
				const step = `update attempts set state = $2,
					token = case when $2 in ('published', 'open', 'done') then coalesce(token, 1) end where id = $1`
				_, err := sub.Exec(t.Context(), step, id, string(to))
				return err
			})
			want := at == to || at.CanBecome(to)
			if (err == nil) != want {
				rt.Fatalf("from %s to %s: table says %v, database says %v", at, to, want, err)
			}
			if err == nil {
				at = to
			}
		}
		var left string
		var moments int
		require.NoError(rt, tx.QueryRow(t.Context(), `select state, jsonb_array_length(timeline) from attempts where id = $1`, id).Scan(&left, &moments))
		require.Equal(rt, string(at), left)
		require.Positive(rt, moments)
	})
}
