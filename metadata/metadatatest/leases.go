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

// leaseCases is what leases and grant locks must do.
var leaseCases = map[string]func(*testing.T, *fleet){
	"SharedBesideSharedNotExclusive": func(t *testing.T, f *fleet) {
		one := f.lease(t, "a", "s1", metadata.SharedLease)
		two := f.lease(t, "a", "s2", metadata.SharedLease)
		require.Greater(t, two.Epoch, one.Epoch)
		f.noLease(t, "a", "x", metadata.ExclusiveLease, "lease.held_shared")
		f.lease(t, "b", "x", metadata.ExclusiveLease)
		f.noLease(t, "b", "s1", metadata.SharedLease, "lease.held_exclusive")
		f.noLease(t, "b", "y", metadata.ExclusiveLease, "lease.held_exclusive")
		_, err := f.AcquireLease(t.Context(), "nowhere", "s1", metadata.SharedLease, time.Minute)
		requireFailure(t, err, failure.Invalid, "shard.unknown")
		_, err = f.AcquireLease(t.Context(), "a", "s1", metadata.ExclusiveLease, time.Minute)
		requireFailure(t, err, failure.Invalid, "lease.mode")
	},

	"WaitingExclusiveStopsNewShared": func(t *testing.T, f *fleet) {
		f.lease(t, "a", "s1", metadata.SharedLease)
		f.noLease(t, "a", "x", metadata.ExclusiveLease, "lease.held_shared")
		f.noLease(t, "a", "s2", metadata.SharedLease, "lease.exclusive_waiting")
		held := f.lease(t, "a", "s1", metadata.SharedLease) // who holds one already is no newcomer
		_, err := f.RenewLease(t.Context(), held, time.Minute)
		require.NoError(t, err)
		require.NoError(t, f.ReleaseLease(t.Context(), held))
		x := f.lease(t, "a", "x", metadata.ExclusiveLease)
		rows, err := f.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, x, rows[0].Lease)
		require.NoError(t, f.ReleaseLease(t.Context(), x))

		f.lease(t, "b", "s1", metadata.SharedLease)
		f.noLease(t, "b", "x", metadata.ExclusiveLease, "lease.held_shared")
		require.NoError(t, f.StopWaiting(t.Context(), "b", "x"))
		f.lease(t, "b", "s2", metadata.SharedLease)
	},

	"RefusalNamesTheHolderAndWhy": func(t *testing.T, f *fleet) {
		x, err := f.TakeLease(t.Context(), metadata.LeaseRequest{
			Shard: "a", Holder: "operator/ann", Mode: metadata.ExclusiveLease, TTL: time.Hour, Reason: "new disk",
		})
		require.NoError(t, err)
		_, err = f.AcquireLease(t.Context(), "a", "migration/7", metadata.SharedLease, time.Minute)
		requireFailure(t, err, failure.Transient, "lease.held_exclusive")
		require.ErrorContains(t, err, "operator/ann holds it exclusive, until ")
		require.ErrorContains(t, err, "new disk")
		rows, err := f.Leases(t.Context())
		require.NoError(t, err)
		require.Equal(t, []metadata.LeaseRow{{Lease: x, Reason: "new disk", Since: rows[0].Since}}, rows)
		again, err := f.TakeLease(t.Context(), metadata.LeaseRequest{
			Shard: "a", Holder: "operator/ann", Mode: metadata.ExclusiveLease, TTL: time.Hour, Reason: "two disks",
		})
		require.NoError(t, err)
		after, err := f.Leases(t.Context())
		require.NoError(t, err)
		require.Equal(t, []metadata.LeaseRow{{Lease: again, Reason: "two disks", Since: rows[0].Since}}, after)
	},

	"BrokenLeaseIsRefusedEverywhere": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		r := f.closing(t, m)
		require.NoError(t, f.BreakLease(t.Context(), r.Leases[0]))
		requireFailure(t, f.BreakLease(t.Context(), r.Leases[0]), failure.Lost, "lease.changed")
		before := f.picture(t)
		_, err := f.Publish(t.Context(), r)
		requireFailure(t, err, failure.Lost, "publish.lease_lost")
		require.Equal(t, before, f.picture(t))
		_, err = f.RenewLease(t.Context(), r.Leases[0], time.Hour)
		requireFailure(t, err, failure.Lost, "lease.lost")

		old := f.lease(t, "b", "x", metadata.ExclusiveLease)
		newer := f.lease(t, "b", "x", metadata.ExclusiveLease)
		requireFailure(t, f.BreakLease(t.Context(), old), failure.Lost, "lease.changed")
		_, err = f.RenewLease(t.Context(), newer, time.Hour)
		require.NoError(t, err, "an operator who saw an old epoch breaks nothing")
	},

	"WaitingEndsByItself": func(t *testing.T, f *fleet) {
		f.lease(t, "a", "s1", metadata.SharedLease)
		_, err := f.AcquireLease(t.Context(), "a", "x", metadata.ExclusiveLease, time.Millisecond)
		requireFailure(t, err, failure.Transient, "lease.held_shared")
		require.Eventually(t, func() bool {
			_, err := f.AcquireLease(t.Context(), "a", "s2", metadata.SharedLease, time.Minute)
			return err == nil
		}, patience, time.Millisecond)
	},

	"ExpiredLeaseIsDead": func(t *testing.T, f *fleet) {
		l, err := f.AcquireLease(t.Context(), "a", "x", metadata.ExclusiveLease, time.Millisecond)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := f.AcquireLease(t.Context(), "a", "s", metadata.SharedLease, time.Minute)
			return err == nil
		}, patience, time.Millisecond)
		_, err = f.RenewLease(t.Context(), l, time.Minute)
		requireFailure(t, err, failure.Lost, "lease.lost")
		require.NoError(t, f.ReleaseLease(t.Context(), l), "giving back what is gone is no error")
		f.noLease(t, "a", "x", metadata.ExclusiveLease, "lease.held_shared")

		l = f.lease(t, "b", "s", metadata.SharedLease)
		require.NoError(t, f.exec(t, `update leases set expires_at = clock_timestamp() where shard = 'b'`))
		_, err = f.RenewLease(t.Context(), l, time.Minute)
		requireFailure(t, err, failure.Lost, "lease.lost") // though nobody has taken it yet
	},

	"NewerRunOfTheHolderIsTheOne": func(t *testing.T, f *fleet) {
		old := f.lease(t, "a", "switch", metadata.SharedLease)
		newer := f.lease(t, "a", "switch", metadata.SharedLease)
		require.Greater(t, newer.Epoch, old.Epoch)
		_, err := f.RenewLease(t.Context(), old, time.Minute)
		requireFailure(t, err, failure.Lost, "lease.lost")
		require.NoError(t, f.ReleaseLease(t.Context(), old))
		_, err = f.RenewLease(t.Context(), newer, time.Minute)
		require.NoError(t, err, "an old run's release does not take the new one's lease")
	},

	"NoExclusiveWhileAnAttemptNeedsTheShard": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		a, err := f.BeginAttempt(t.Context(), m.ID, "k", time.Minute)
		require.NoError(t, err)
		steps := []chunk.AttemptState{chunk.Preparing, chunk.Fencing, chunk.AttemptAborting, chunk.AttemptAborted}
		for i := range len(steps) - 1 {
			for _, shard := range []string{"a", "c"} {
				f.noLease(t, shard, "x", metadata.ExclusiveLease, "lease.attempt_open")
				require.NoError(t, f.StopWaiting(t.Context(), shard, "x"))
			}
			f.advance(t, a.ID, steps[i], steps[i+1], time.Minute)
		}
		f.lease(t, "b", "x", metadata.ExclusiveLease)
		x := f.lease(t, "c", "x", metadata.ExclusiveLease)
		_, err = f.BeginAttempt(t.Context(), m.ID, "k2", time.Minute)
		requireFailure(t, err, failure.Transient, "lease.held_exclusive")
		require.NoError(t, f.ReleaseLease(t.Context(), x))

		r := f.closing(t, m)
		_, err = f.Publish(t.Context(), r)
		require.NoError(t, err)
		for _, l := range r.Leases {
			require.NoError(t, f.ReleaseLease(t.Context(), l))
		}
		f.noLease(t, "c", "x", metadata.ExclusiveLease, "lease.attempt_open")
		f.advance(t, r.Attempt, chunk.Published, chunk.Open, 0)
		f.lease(t, "c", "x", metadata.ExclusiveLease)
	},

	"ExclusiveOrAttemptNeverBoth": func(t *testing.T, f *fleet) {
		m := f.switching(t)
		for i := range 10 {
			var a metadata.Attempt
			var x metadata.Lease
			errs := f.raceBehind(t, `select from shards for update`, 2, func(ctx context.Context, who int) (err error) {
				if who == i%2 {
					a, err = f.BeginAttempt(ctx, m.ID, string(rune('A'+i)), time.Minute)
				} else {
					x, err = f.AcquireLease(ctx, "c", "x", metadata.ExclusiveLease, time.Minute)
				}
				return err
			})
			require.Equal(t, 1, countNil(errs), "%v", errs)
			if errs[i%2] == nil {
				f.advance(t, a.ID, chunk.Preparing, chunk.AttemptAborting, 0)
				f.advance(t, a.ID, chunk.AttemptAborting, chunk.AttemptAborted, 0)
			}
			require.NoError(t, f.ReleaseLease(t.Context(), x))
			require.NoError(t, f.StopWaiting(t.Context(), "c", "x"))
		}
	},

	"GrantLockIsOneAtATime": func(t *testing.T, f *fleet) {
		l, err := f.LockGrants(t.Context(), "a", "h1", time.Minute)
		require.NoError(t, err)
		_, err = f.TryLockGrants(t.Context(), "a", "h2", time.Minute)
		requireFailure(t, err, failure.Transient, "grants.locked")
		_, err = f.TryLockGrants(t.Context(), "a", "h1", time.Minute)
		requireFailure(t, err, failure.Transient, "grants.locked")
		other, err := f.LockGrants(t.Context(), "b", "h2", time.Minute)
		require.NoError(t, err)
		require.NoError(t, f.UnlockGrants(t.Context(), other))

		got := make(chan metadata.GrantLock, 1)
		go func() {
			l, _ := f.LockGrants(context.WithoutCancel(t.Context()), "a", "h2", time.Minute)
			got <- l
		}()
		require.NoError(t, f.UnlockGrants(t.Context(), l))
		second := <-got
		require.Greater(t, second.Epoch, l.Epoch)
		requireFailure(t, f.UnlockGrants(t.Context(), l), failure.Lost, "grants.lost")
		require.NoError(t, f.UnlockGrants(t.Context(), second))
		_, err = f.TryLockGrants(t.Context(), "nowhere", "h", time.Minute)
		require.Error(t, err)
	},

	"GrantLockOutlivesNoHolder": func(t *testing.T, f *fleet) {
		dead, err := f.LockGrants(t.Context(), "a", "dead", time.Millisecond)
		require.NoError(t, err)
		l, err := f.LockGrants(t.Context(), "a", "next", time.Minute)
		require.NoError(t, err)
		requireFailure(t, f.UnlockGrants(t.Context(), dead), failure.Lost, "grants.lost")
		require.NoError(t, f.UnlockGrants(t.Context(), l))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = f.LockGrants(ended, "a", "late", time.Minute)
		require.Error(t, err)
	},
}

// lease takes a lease that must be given.
func (f *fleet) lease(t *testing.T, shard, holder string, mode metadata.LeaseMode) metadata.Lease {
	t.Helper()
	l, err := f.AcquireLease(t.Context(), shard, holder, mode, time.Minute)
	require.NoError(t, err)
	return l
}

// noLease asks for a lease that must be refused.
func (f *fleet) noLease(t *testing.T, shard, holder string, mode metadata.LeaseMode, code string) {
	t.Helper()
	_, err := f.AcquireLease(t.Context(), shard, holder, mode, time.Minute)
	requireFailure(t, err, failure.Transient, code)
}
