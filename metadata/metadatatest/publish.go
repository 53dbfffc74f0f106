package metadatatest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
)

// publishCases is what the linearization point of a switch must do.
var publishCases = map[string]func(*testing.T, *fleet){
	"ChangesEverythingAtOnce": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		before, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		r := f.closing(t, m)
		token, err := f.Publish(t.Context(), r)
		require.NoError(t, err)
		require.Greater(t, token, before.Token)
		after, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		require.Equal(t, token, after.Token)
		require.Equal(t, withState(m.Target, chunk.Live), after.Placement)
		a, err := f.Attempt(t.Context(), r.Attempt)
		require.NoError(t, err)
		require.Equal(t, chunk.Published, a.State)
		require.Equal(t, token, a.Token)
		require.Equal(t, chunk.Mirror, a.Source.State)

		again, err := f.Publish(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, token, again, "asked again, the same token")
		history, err := f.RouteHistory(t.Context(), first)
		require.NoError(t, err)
		require.Len(t, history, 2, "and the route changed once")
	},

	"RefusedPublishChangesNothing": refusedPublishes,

	"RehearsalChangesNothing": func(t *testing.T, f *fleet) {
		r := f.preparing(t, f.switching(t))
		was, err := f.Attempt(t.Context(), r.Attempt)
		require.NoError(t, err)
		before, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		require.NoError(t, f.Rehearse(t.Context(), r))
		now, err := f.Attempt(t.Context(), r.Attempt)
		require.NoError(t, err)
		require.Equal(t, was.State, now.State)
		require.Equal(t, was.Timeline, now.Timeline)
		require.Equal(t, was.Deadline, now.Deadline)
		after, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		require.Equal(t, before, after)

		r.CatalogVersion++
		err = f.Rehearse(t.Context(), r)
		require.True(t, failure.HasCode(err, "publish.catalog_changed"), "what the publish will be refused for, before the fence: %v", err)
	},

	"FormerRouteIsNamedUntilItIsOld": func(t *testing.T, f *fleet) {
		before, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		all, err := f.FormerRoutes(t.Context(), "", time.Hour)
		require.NoError(t, err)
		require.Empty(t, all, "a first route replaces none")
		_, err = f.Publish(t.Context(), f.closing(t, f.switching(t)))
		require.NoError(t, err)
		all, err = f.FormerRoutes(t.Context(), first, time.Hour)
		require.NoError(t, err)
		require.Len(t, all, 1)
		before.Placement.State = chunk.Mirror
		require.Equal(t, before, all[0].Route)
		require.Less(t, all[0].Ago, time.Hour)
		require.NoError(t, f.exec(t, `update route_history set at = at - interval '1 hour' where chunk = $1`, string(first)))
		all, err = f.FormerRoutes(t.Context(), "", time.Hour)
		require.NoError(t, err)
		require.Empty(t, all)
	},

	"PastTheDeadlineNothingIsPublished": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		r := metadata.PublishRequest{Attempt: a.ID, CatalogVersion: 1}
		for _, shard := range []string{"a", "c"} {
			l, err := f.AcquireLease(t.Context(), shard, "switch", metadata.SharedLease, time.Minute)
			require.NoError(t, err)
			r.Leases = append(r.Leases, l)
		}
		f.advance(t, a.ID, chunk.Preparing, chunk.Fencing, time.Minute)
		f.advance(t, a.ID, chunk.Fencing, chunk.Closing, 0)
		require.NoError(t, f.exec(t, `update attempts set deadline = clock_timestamp() where id = $1`, int64(a.ID)))
		f.awaitOverdue(t, a.ID)
		before := f.picture(t)
		_, err = f.Publish(t.Context(), r)
		requireFailure(t, err, failure.Invalid, "attempt.deadline_passed")
		require.Equal(t, before, f.picture(t))
	},

	"NothingIsPublishedOverAStraggler": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		late := metadata.Straggler{Shard: "a", Placement: m.Source.ID, Seq: 1, Kind: "write", Event: []byte("x")}
		require.NoError(t, f.AddStraggler(t.Context(), late)) // of an earlier attempt: applied since
		r := f.closing(t, m)
		late.Placement, late.Seq = m.Target.ID, 2
		require.NoError(t, f.AddStraggler(t.Context(), late))
		late.Placement, late.Seq = m.Source.ID, 3
		require.NoError(t, f.AddStraggler(t.Context(), late))
		before := f.picture(t)
		_, err := f.Publish(t.Context(), r)
		requireFailure(t, err, failure.Transient, "publish.straggler")
		require.Equal(t, before, f.picture(t))
		require.NoError(t, f.exec(t, `update stragglers set handled_at = clock_timestamp() where seq = 3`))
		_, err = f.Publish(t.Context(), r)
		require.NoError(t, err)
	},

	"PublishOrAbortNeverBoth": publishOrAbort,

	"SettledDoubtIsFinal": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		r := f.closing(t, m)
		a, err := f.Settle(t.Context(), r.Attempt, "no answer to publish")
		require.NoError(t, err)
		require.Zero(t, a.Token)
		require.Equal(t, chunk.AttemptAborting, a.State)
		_, err = f.Publish(t.Context(), r)
		requireFailure(t, err, failure.Lost, "attempt.is_aborting")
		f.advance(t, r.Attempt, chunk.AttemptAborting, chunk.AttemptAborted, 0)

		r = f.closing(t, m)
		token, err := f.Publish(t.Context(), r)
		require.NoError(t, err)
		a, err = f.Settle(t.Context(), r.Attempt, "no answer to publish")
		require.NoError(t, err)
		require.Equal(t, token, a.Token)
		require.Equal(t, chunk.Published, a.State, "what was published stays")
		_, err = f.Settle(t.Context(), 99, "")
		requireFailure(t, err, failure.Invalid, "attempt.unknown")
	},

	"SettleWaitsForThePublishUnderWay": func(t *testing.T, f *fleet) {
		r := f.closing(t, f.switching(t))
		tx, err := f.raw.Begin(t.Context())
		require.NoError(t, err)
		var token chunk.Token
		require.NoError(t, tx.QueryRow(t.Context(), `select publish_attempt($1, $2, $3, 1)`, int64(r.Attempt),
			[]string{r.Leases[0].Shard, r.Leases[1].Shard}, []int64{r.Leases[0].Epoch, r.Leases[1].Epoch}).Scan(&token))
		settled := make(chan metadata.Attempt, 1)
		failed := make(chan error, 1)
		go func() {
			a, err := f.Settle(context.WithoutCancel(t.Context()), r.Attempt, "no answer")
			settled <- a
			failed <- err
		}()
		require.Eventually(t, func() bool {
			var waits bool
			const q = `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%settle_attempt%')`
			return f.raw.QueryRow(t.Context(), q).Scan(&waits) == nil && waits
		}, patience, time.Millisecond)
		require.NoError(t, tx.Commit(t.Context()))
		a := <-settled
		require.NoError(t, <-failed)
		require.Equal(t, token, a.Token)
	},

	"OverdueWhenPublishedAndNotOpened": func(t *testing.T, f *fleet) {
		r := f.closing(t, f.switching(t))
		_, err := f.Publish(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, f.exec(t, `update attempts set deadline = clock_timestamp() where id = $1`, int64(r.Attempt)))
		f.awaitOverdue(t, r.Attempt)
		f.advance(t, r.Attempt, chunk.Published, chunk.Open, 0)
		open, err := f.OpenAttempts(t.Context())
		require.NoError(t, err)
		require.Len(t, open, 1)
		require.False(t, open[0].Overdue, "an open one holds nobody")
	},
}

// refusedPublishes tries everything that a publish depends on, one at a time.
func refusedPublishes(t *testing.T, f *fleet) {
	m := f.switching(t)
	good := f.closing(t, m)
	for _, c := range []struct {
		name  string
		alter func(r *metadata.PublishRequest)
		kind  failure.Kind
		code  string
	}{
		{"unknown attempt", func(r *metadata.PublishRequest) { r.Attempt = 99 }, failure.Invalid, "attempt.unknown"},
		{"no leases", func(r *metadata.PublishRequest) { r.Leases = nil }, failure.Invalid, "publish.lease_missing"},
		{"one lease", func(r *metadata.PublishRequest) { r.Leases = r.Leases[:1] }, failure.Invalid, "publish.lease_missing"},
		{"old epoch of the source's", func(r *metadata.PublishRequest) { r.Leases[0].Epoch-- }, failure.Lost, "publish.lease_lost"},
		{"old epoch of the target's", func(r *metadata.PublishRequest) { r.Leases[1].Epoch += 100 }, failure.Lost, "publish.lease_lost"},
		{"another catalog", func(r *metadata.PublishRequest) { r.CatalogVersion = 2 }, failure.Invalid, "publish.catalog_changed"},
	} {
		r := good
		r.Leases = append([]metadata.Lease(nil), good.Leases...)
		c.alter(&r)
		before := f.picture(t)
		_, err := f.Publish(t.Context(), r)
		requireFailure(t, err, c.kind, c.code)
		require.Equal(t, before, f.picture(t), c.name)
	}
	// A newer run of the coordinator has taken the lease.
	newer, err := f.AcquireLease(t.Context(), "a", "switch", metadata.SharedLease, time.Minute)
	require.NoError(t, err)
	_, err = f.Publish(t.Context(), good)
	requireFailure(t, err, failure.Lost, "publish.lease_lost")
	good.Leases[0] = newer
	// An expired one is dead, whoever is late to notice.
	require.NoError(t, f.exec(t, `update leases set expires_at = clock_timestamp() where shard = 'c'`))
	_, err = f.Publish(t.Context(), good)
	requireFailure(t, err, failure.Lost, "publish.lease_lost")
	good.Leases[1], err = f.AcquireLease(t.Context(), "c", "switch", metadata.SharedLease, time.Minute)
	require.NoError(t, err)
	// Nothing but the guard of placements stands between an operator and this.
	require.Error(t, f.exec(t, `update placements set state = 'dropping' where id = $1`, int64(m.Target.ID)))
	_, err = f.Publish(t.Context(), good)
	require.NoError(t, err)
}

// publishOrAbort lets a coordinator and a watchdog race for one attempt, again
// and again in both directions.
func publishOrAbort(t *testing.T, f *fleet) {
	m := f.switching(t)
	published, aborted := 0, 0
	for i := range 20 {
		r := f.closing(t, m)
		before, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		errs := f.raceBehind(t, `select from attempts for update`, 4, func(ctx context.Context, who int) error {
			if who%2 == i%2 {
				_, err := f.Publish(ctx, r)
				return err
			}
			_, err := f.AdvanceAttempt(ctx, r.Attempt, chunk.Closing, chunk.AttemptAborting, metadata.AdvanceOptions{})
			return err
		})
		// Publish twice is the same publish; abort twice is one that wins and one that is lost.
		won := errs[i%2] == nil && errs[i%2+2] == nil
		require.Equal(t, map[bool]int{true: 2, false: 1}[won], countNil(errs), "%v", errs)
		a, err := f.Attempt(t.Context(), r.Attempt)
		require.NoError(t, err)
		after, err := f.Route(t.Context(), first)
		require.NoError(t, err)
		if won {
			published++
			require.Equal(t, a.Token, after.Token)
			require.Equal(t, a.Target.ID, after.Placement.ID)
			f.advance(t, a.ID, chunk.Published, chunk.Open, 0)
			f.advance(t, a.ID, chunk.Open, chunk.AttemptDone, 0)
			continue
		}
		aborted++
		requireFailure(t, errs[i%2], failure.Lost, "attempt.is_aborting")
		require.Equal(t, before, after)
		f.advance(t, a.ID, chunk.AttemptAborting, chunk.AttemptAborted, 0)
	}
	t.Logf("published %d, aborted %d", published, aborted)
}
