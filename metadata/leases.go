package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

// LeaseMode says who may hold a lease beside its holder.
type LeaseMode string

// The modes of a lease.
const (
	SharedLease    LeaseMode = "shared"    // a switch
	ExclusiveLease LeaseMode = "exclusive" // remediation
)

// Lease is the right to act on a shard until it expires. Its epoch is what a
// receiver checks: every new grant has a greater one.
type Lease struct {
	Shard     string
	Holder    string
	Mode      LeaseMode
	Epoch     int64
	ExpiresAt time.Time // by Postgres' clock
}

// LeaseRequest asks for a lease. Reason is for people.
type LeaseRequest struct {
	Shard  string
	Holder string
	Mode   LeaseMode
	TTL    time.Duration
	Reason string
}

// AcquireLease is [Store.TakeLease] without a reason.
func (s *Store) AcquireLease(ctx context.Context, shard, holder string, mode LeaseMode, ttl time.Duration) (Lease, error) {
	return s.TakeLease(ctx, LeaseRequest{Shard: shard, Holder: holder, Mode: mode, TTL: ttl})
}

// TakeLease takes a lease with a new epoch, which makes an older run of the
// same holder harmless. A refusal is transient, names the holder and says what is
// in the way: "lease.held_exclusive", "lease.held_shared",
// "lease.exclusive_waiting", "lease.attempt_open". A refused exclusive lease goes
// on waiting, and keeps new shared ones away, for as long as its TTL: ask again
// within it, or [Store.StopWaiting].
func (s *Store) TakeLease(ctx context.Context, r LeaseRequest) (Lease, error) {
	l := Lease{Shard: r.Shard, Holder: r.Holder, Mode: r.Mode}
	var granted bool
	var code, detail string
	err := s.pool.QueryRow(ctx, `select is_granted, new_epoch, until, code, detail from take_lease($1, $2, $3, $4, $5)`,
		r.Shard, plainText(r.Holder), string(r.Mode), r.TTL, plainText(r.Reason)).Scan(&granted, &l.Epoch, &l.ExpiresAt, &code, &detail)
	if err != nil {
		return Lease{}, decode(err, "lease shard %s", r.Shard)
	}
	if !granted {
		return Lease{}, failure.New(failure.Transient, code, "lease shard %s %s: %s", r.Shard, r.Mode, detail).
			WithHint("it is free when they are done; `drover lease list` shows who holds a shard, `drover lease break %s` takes it from one who is gone", r.Shard)
	}
	return l, nil
}

// RenewLease makes a lease last ttl from now. One that has expired or was taken
// anew is lost: "lease.lost".
func (s *Store) RenewLease(ctx context.Context, l Lease, ttl time.Duration) (Lease, error) {
	const q = `update leases set expires_at = clock_timestamp() + $4
		where shard = $1 and holder = $2 and epoch = $3 and granted and expires_at > clock_timestamp() returning expires_at`
	err := s.pool.QueryRow(ctx, q, l.Shard, l.Holder, l.Epoch, ttl).Scan(&l.ExpiresAt)
	if noRows(err) {
		return Lease{}, failure.New(failure.Lost, "lease.lost", "epoch %d of %s on shard %s is over", l.Epoch, l.Holder, l.Shard)
	}
	return l, decode(err, "renew lease of shard %s", l.Shard)
}

// ReleaseLease gives a lease back. One that is over already is no error.
func (s *Store) ReleaseLease(ctx context.Context, l Lease) error {
	_, err := s.pool.Exec(ctx, `delete from leases where shard = $1 and holder = $2 and epoch = $3`, l.Shard, l.Holder, l.Epoch)
	return decode(err, "release lease of shard %s", l.Shard)
}

// StopWaiting withdraws a holder's wait for an exclusive lease.
func (s *Store) StopWaiting(ctx context.Context, shard, holder string) error {
	_, err := s.pool.Exec(ctx, `delete from leases where shard = $1 and holder = $2 and not granted`, shard, holder)
	return decode(err, "stop waiting for shard %s", shard)
}

// LeaseRow is a lease as it stands, for people.
type LeaseRow struct {
	Lease
	Waiting bool // an exclusive one that is not granted yet
	Reason  string
	Since   time.Time // when this holder's first lease, of those that followed each other, began
}

// Leases gives the leases that have not expired, by shard and age.
func (s *Store) Leases(ctx context.Context) ([]LeaseRow, error) {
	const q = `select shard, holder, mode, epoch, expires_at, not granted, reason, since from leases
		where expires_at > clock_timestamp() order by shard, epoch`
	rows, err := s.pool.Query(ctx, q)
	if err != nil {
		return nil, decode(err, "list leases")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l LeaseRow, err error) {
		return l, row.Scan(&l.Shard, &l.Holder, &l.Mode, &l.Epoch, &l.ExpiresAt, &l.Waiting, &l.Reason, &l.Since)
	})
	return all, decode(err, "list leases")
}

// BreakLease takes a lease from its holder. What is conditional on its epoch is
// refused afterwards: a publish in its own transaction, a renewal. It is lost
// ("lease.changed") where that epoch is not the holder's any more.
func (s *Store) BreakLease(ctx context.Context, l Lease) error {
	var broken bool
	err := s.pool.QueryRow(ctx, `select break_lease($1, $2, $3)`, l.Shard, l.Holder, l.Epoch).Scan(&broken)
	if err == nil && !broken {
		return failure.New(failure.Lost, "lease.changed", "epoch %d of %s on shard %s is over already", l.Epoch, l.Holder, l.Shard).
			WithHint("nothing was broken; `drover lease list` shows what is held now")
	}
	return decode(err, "break lease of shard %s", l.Shard)
}

// GrantLock is the right to change the list of roles that a shard's data user holds.
type GrantLock struct {
	Shard  string
	Holder string
	Epoch  int64
}

// Statements of the fence window, see hotStatements. A lock that a crash of the
// server forgets is one that two may hold: what is done under it is checked afterwards.
const (
	lockGrantsSQL = `insert into grant_locks as g (shard, holder, epoch, expires_at)
		select $1, $2, nextval('lease_epochs'), clock_timestamp() + $3 from ` + unflushed + `
		on conflict (shard) do update set holder = excluded.holder, epoch = excluded.epoch, expires_at = excluded.expires_at
			where g.expires_at <= clock_timestamp()
		returning epoch`
	unlockGrantsSQL = `delete from grant_locks using ` + unflushed + ` where shard = $1 and epoch = $2`
)

// grantLockPoll is how often a taken grant lock is tried again. It is held for a
// few milliseconds, inside a fence window too.
const grantLockPoll = 2 * time.Millisecond

// LockGrants takes a shard's grant lock, waiting for its holder as long as ctx
// allows. It expires after ttl: what is done under it is checked afterwards.
func (s *Store) LockGrants(ctx context.Context, shard, holder string, ttl time.Duration) (GrantLock, error) {
	tick := time.NewTicker(grantLockPoll)
	defer tick.Stop()
	for {
		l, err := s.TryLockGrants(ctx, shard, holder, ttl)
		if !failure.HasCode(err, "grants.locked") {
			return l, err
		}
		select {
		case <-ctx.Done():
			return GrantLock{}, err
		case <-tick.C:
		}
	}
}

// TryLockGrants is LockGrants without waiting: a lock that is held, also by the
// same holder, is transient "grants.locked".
func (s *Store) TryLockGrants(ctx context.Context, shard, holder string, ttl time.Duration) (GrantLock, error) {
	l := GrantLock{Shard: shard, Holder: holder}
	err := s.pool.QueryRow(ctx, lockGrantsSQL, shard, holder, ttl).Scan(&l.Epoch)
	if noRows(err) {
		return GrantLock{}, failure.New(failure.Transient, "grants.locked", "the grants of shard %s are being changed", shard)
	}
	return l, decode(err, "lock grants of shard %s", shard)
}

// UnlockGrants gives a grant lock back. It is lost ("grants.lost") where the lock
// had expired and was taken: what was done may have been done beside another.
func (s *Store) UnlockGrants(ctx context.Context, l GrantLock) error {
	tag, err := s.pool.Exec(ctx, unlockGrantsSQL, l.Shard, l.Epoch)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Lost, "grants.lost", "the grant lock %d of shard %s was taken by another", l.Epoch, l.Shard)
	}
	return decode(err, "unlock grants of shard %s", l.Shard)
}
