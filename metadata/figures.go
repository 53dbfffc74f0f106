package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// Figures is the state of the fleet in numbers, for alarms and the console. All
// ages are by Postgres' clock.
type Figures struct {
	Moves      []MoveFigures // each leg of each unfinished move
	Overdue    time.Duration // how long the most overdue open attempt is past its deadline; 0: none is
	Captures   []CaptureFigures
	Stragglers map[string]int64              // by shard: that nobody has dealt with
	Leases     []LeaseFigures                // expired ones too, as long as their row is there
	Overrides  []Override                    // expired ones too, until somebody takes them away
	Proxies    int                           // that are alive
	Waited     []WaitedFigures               // by logical database
	Pressures  map[string]chunk.KeptPressure // by shard, as the balancer read them last
}

// WaitedFigures is how long switches have kept writes of a logical database waiting
// in this calendar month, UTC: the windows of all its chunks together, those that
// went back too.
type WaitedFigures struct {
	Database string
	Seconds  float64
}

// waitedSQL adds the windows up: from the fence until the source or the target has
// its grants again.
const waitedSQL = `select d.name, coalesce(sum(extract(epoch from
		least(coalesce(x.ended, n.now), n.now) - greatest(x.began, n.month))) filter (where x.began is not null and coalesce(x.ended, n.now) > n.month), 0)::float8
	from (select clock_timestamp() as now, date_trunc('month', clock_timestamp(), 'UTC') as month) n
	cross join databases d
	left join attempts a on split_part(a.chunk, '/', 1) = d.name and a.changed_at >= n.month
	left join lateral (select min((e->>'at')::timestamptz) filter (where e->>'state' = 'fencing') as began,
		min((e->>'at')::timestamptz) filter (where e->>'state' in ('open', 'aborted')) as ended from jsonb_array_elements(a.timeline) e) x on x.began is not null
	group by d.name order by d.name`

// Window is how long one attempt kept writes waiting.
type Window struct {
	Seconds   float64
	Published bool // else it went back
}

// Windows gives the windows of the attempts that ended within a time, oldest first: from
// the fence until the source or the target had its grants again.
func (s *Store) Windows(ctx context.Context, within time.Duration) ([]Window, error) {
	const q = `select extract(epoch from x.ended - x.began)::float8, a.token is not null
		from attempts a
		join lateral (select min((e->>'at')::timestamptz) filter (where e->>'state' = 'fencing') as began,
			min((e->>'at')::timestamptz) filter (where e->>'state' in ('open', 'aborted')) as ended from jsonb_array_elements(a.timeline) e) x on true
		where x.began is not null and x.ended > clock_timestamp() - $1::interval order by x.ended`
	rows, err := s.pool.Query(ctx, q, within)
	if err != nil {
		return nil, decode(err, "read the windows of switches")
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Window])
	return all, decode(err, "read the windows of switches")
}

// MoveFigures is one leg of an unfinished move.
type MoveFigures struct {
	Migration   chunk.MigrationID
	Chunk       chunk.ID
	Phase       chunk.Phase
	Paused      bool
	Attention   string
	Step        json.RawMessage // the detail of the phase
	Progress    json.RawMessage
	Lanes       json.RawMessage // their last word
	LanesAge    *float64        // seconds since then; nil: they never said anything
	Report      json.RawMessage // of the newest round of the verification
	ReportAge   *float64        // seconds since then; nil: there was none
	Mismatches  int64           // that are open
	Quarantined int64           // that are not released
	PhaseFor    float64         // seconds in its phase
	Expected    float64         // seconds that were expected of it; 0: nobody said
	ServedFor   float64         // seconds since the placement that serves began to
}

// CaptureFigures is one shard's capture.
type CaptureFigures struct {
	Shard   string
	Silence float64 // seconds since it saved its position; where it never did, since the shard was added
}

// LeaseFigures is one lease.
type LeaseFigures struct {
	Shard, Holder, Mode string
	Waiting             bool
	Held                float64 // seconds since its first one
	Left                float64 // seconds until it ends; negative past that
}

// moveFiguresSQL reads every leg of every unfinished move.
const moveFiguresSQL = `select m.id, m.chunk, m.phase, m.paused, m.needs_attention, m.step, m.progress, m.lanes,
	extract(epoch from clock_timestamp() - m.lanes_at)::float8,
	coalesce(v.report, '{}'), extract(epoch from clock_timestamp() - v.at)::float8,
	(select count(*) from mismatches x where x.migration = m.id and x.resolved_at is null),
	(select count(*) from quarantines q where q.migration = m.id and q.released_at is null),
	coalesce((select extract(epoch from clock_timestamp() - max(r.since)) from routes r where r.placement in (m.source, m.target)), 0)::float8,
	extract(epoch from clock_timestamp() - m.phase_at)::float8, extract(epoch from m.expected)::float8
	from migrations m
	left join lateral (select report, at from verifications where migration = m.id order by direction desc limit 1) v on true
	where m.phase not in ('done', 'aborted') order by m.id`

// Figures reads the state of the fleet in numbers.
func (s *Store) Figures(ctx context.Context) (f Figures, err error) {
	if f.Moves, err = figures(ctx, s, moveFiguresSQL, func(row pgx.CollectableRow) (m MoveFigures, err error) {
		var step, progress, lanes, report []byte
		err = row.Scan(&m.Migration, &m.Chunk, &m.Phase, &m.Paused, &m.Attention, &step, &progress, &lanes, &m.LanesAge,
			&report, &m.ReportAge, &m.Mismatches, &m.Quarantined, &m.ServedFor, &m.PhaseFor, &m.Expected)
		m.Step, m.Progress, m.Lanes, m.Report = step, progress, lanes, report
		return m, err
	}); err != nil {
		return f, err
	}
	const captures = `select s.name, extract(epoch from clock_timestamp() - coalesce(c.saved_at, s.added_at))::float8
		from shards s left join capture_positions c on c.shard = s.name order by s.name`
	if f.Captures, err = figures(ctx, s, captures, pgx.RowToStructByPos[CaptureFigures]); err != nil {
		return f, err
	}
	const leases = `select shard, holder, mode, not granted, extract(epoch from clock_timestamp() - since)::float8,
		extract(epoch from expires_at - clock_timestamp())::float8 from leases order by shard, epoch`
	if f.Leases, err = figures(ctx, s, leases, pgx.RowToStructByPos[LeaseFigures]); err != nil {
		return f, err
	}
	if f.Waited, err = figures(ctx, s, waitedSQL, pgx.RowToStructByPos[WaitedFigures]); err != nil {
		return f, err
	}
	if f.Overrides, err = s.Overrides(ctx); err != nil {
		return f, err
	}
	if f.Pressures, err = s.Pressures(ctx); err != nil {
		return f, err
	}
	type open struct {
		Shard string
		N     int64
	}
	const stragglers = `select s.name, count(g.id) from shards s left join stragglers g on g.shard = s.name and g.handled_at is null group by s.name`
	counts, err := figures(ctx, s, stragglers, pgx.RowToStructByPos[open])
	if err != nil {
		return f, err
	}
	f.Stragglers = map[string]int64{}
	for _, c := range counts {
		f.Stragglers[c.Shard] = c.N
	}
	var overdue float64
	const rest = `select coalesce((select extract(epoch from clock_timestamp() - min(deadline)) from attempts
			where state in ('fencing', 'closing', 'published', 'aborting')), 0)::float8,
		(select count(*) from proxies where seen_at > clock_timestamp() - $1::interval)`
	err = s.pool.QueryRow(ctx, rest, ProxyLife).Scan(&overdue, &f.Proxies)
	f.Overdue = time.Duration(max(0, overdue) * float64(time.Second))
	return f, decode(err, "read the figures of the fleet")
}

// figures runs one of the statements.
func figures[T any](ctx context.Context, s *Store, q string, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := s.pool.Query(ctx, q)
	if err != nil {
		return nil, decode(err, "read the figures of the fleet")
	}
	all, err := pgx.CollectRows(rows, scan)
	return all, decode(err, "read the figures of the fleet")
}

// Past is what became of the fleet's moves so far.
type Past struct {
	Done      int           // moves that were completed
	Aborted   int           // moves that were given up
	Longest   time.Duration // from the registration of a completed move to its end, burn-in included
	Switches  int           // attempts that were published
	WentBack  int           // attempts that were not
	Rollbacks int           // of the published ones, those back to the old placement
	Rollback  *time.Time    // when the newest of them was
}

// Past reads what became of the fleet's moves so far.
func (s *Store) Past(ctx context.Context) (p Past, err error) {
	const q = `select
		(select count(*) from migrations where id = lead and phase = 'done'), (select count(*) from migrations where id = lead and phase = 'aborted'),
		coalesce((select extract(epoch from max(updated_at - created_at)) from migrations where id = lead and phase = 'done'), 0)::float8,
		count(*) filter (where a.token is not null), count(*) filter (where a.state = 'aborted'),
		count(*) filter (where a.token is not null and a.source = m.target), max(h.at) filter (where a.source = m.target)
		from attempts a join migrations m on m.id = a.migration left join route_history h on h.token = a.token`
	var longest float64
	err = s.pool.QueryRow(ctx, q).Scan(&p.Done, &p.Aborted, &longest, &p.Switches, &p.WentBack, &p.Rollbacks, &p.Rollback)
	p.Longest = time.Duration(longest * float64(time.Second))
	return p, decode(err, "read the past of the fleet")
}
