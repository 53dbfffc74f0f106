package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// OwedBarrier is a member that has not been shown that a placement is closed.
type OwedBarrier struct {
	Placement chunk.Placement
	Access    string // "writes" or "reads"
	Host      string
	Attempt   chunk.AttemptID // that closed it
	Since     time.Time
}

// OweBarrier notes the members that a barrier could not reach. Again is no error.
func (s *Store) OweBarrier(ctx context.Context, p chunk.PlacementID, access string, a chunk.AttemptID, hosts []string) error {
	const q = `insert into owed_barriers as o (placement, access, host, attempt) select $1, $2, h, $3 from unnest($4::text[]) h
		on conflict (placement, access, host) do update set attempt = greatest(o.attempt, excluded.attempt)`
	_, err := s.pool.Exec(ctx, q, int64(p), access, int64(a), hosts)
	return decode(err, "owe a barrier of placement %d", p)
}

// OwedBarriers gives what is owed now, oldest first: of placements that are closed.
// What was owed for one that serves again, or is gone, is forgotten: the next fence
// shows itself.
func (s *Store) OwedBarriers(ctx context.Context) ([]OwedBarrier, error) {
	const forget = `delete from owed_barriers o using placements p where p.id = o.placement and p.state = 'gone'
		or p.id = o.placement and p.state = 'live' and not exists (
			select from attempts a where a.source = p.id and a.state not in ('done', 'aborted'))`
	if _, err := s.pool.Exec(ctx, forget); err != nil {
		return nil, decode(err, "forget owed barriers")
	}
	const q = `select p.id, p.chunk, p.shard, p.database, p.state, o.access, o.host, o.attempt, o.since
		from owed_barriers o join placements p on p.id = o.placement where p.state in ('mirror', 'dropping') order by o.since, o.host`
	rows, err := s.pool.Query(ctx, q)
	if err != nil {
		return nil, decode(err, "list owed barriers")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o OwedBarrier, err error) {
		p := &o.Placement
		return o, row.Scan(&p.ID, &p.Chunk, &p.Shard, &p.Database, &p.State, &o.Access, &o.Host, &o.Attempt, &o.Since)
	})
	return all, decode(err, "list owed barriers")
}

// BarrierPaid records that a member was shown the barrier that an attempt owed it.
// One that a newer attempt owes stays.
func (s *Store) BarrierPaid(ctx context.Context, o OwedBarrier) error {
	const q = `delete from owed_barriers where placement = $1 and access = $2 and host = $3 and attempt <= $4`
	_, err := s.pool.Exec(ctx, q, int64(o.Placement.ID), o.Access, o.Host, int64(o.Attempt))
	return decode(err, "note that %s was shown the barrier of placement %d", o.Host, o.Placement.ID)
}
