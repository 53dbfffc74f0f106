package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// routeColumns are what scanRoute reads.
const routeColumns = `c.id, c.database, c.lo, c.hi, p.id, p.shard, p.database, p.state, r.token`

// routeTables joins what routeColumns name.
const routeTables = ` from routes r join chunks c on c.id = r.chunk join placements p on p.id = r.placement `

// routeSQL reads the route of one chunk.
const routeSQL = `select ` + routeColumns + routeTables + `where c.id = $1`

// Routes gives the routes of a database in the order of its key space; of every
// active database when database is empty. A database that is not active yet has
// none.
func (s *Store) Routes(ctx context.Context, database string) ([]chunk.Route, error) {
	const q = `select ` + routeColumns + routeTables + `join databases d on d.name = c.database
		where d.active and ($1 = '' or d.name = $1) order by c.database, c.lo`
	rows, err := s.pool.Query(ctx, q, database)
	if err != nil {
		return nil, decode(err, "read routes")
	}
	all, err := pgx.CollectRows(rows, scanRoute)
	return all, decode(err, "read routes")
}

// Route gives the route of one chunk, active or not, or "chunk.unknown".
func (s *Store) Route(ctx context.Context, id chunk.ID) (chunk.Route, error) {
	rows, err := s.pool.Query(ctx, routeSQL, string(id))
	if err != nil {
		return chunk.Route{}, decode(err, "read route of %s", id)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRoute)
	if noRows(err) {
		return r, failure.New(failure.Invalid, "chunk.unknown", "there is no chunk %s", id).
			WithHint("`drover chunk list` shows the chunks")
	}
	return r, decode(err, "read route of %s", id)
}

// routesOf reads the routes of a database whether or not it is active.
func (s *Store) routesOf(ctx context.Context, q querier, database string) ([]chunk.Route, error) {
	rows, err := q.Query(ctx, `select `+routeColumns+routeTables+`where c.database = $1 order by c.lo`, database)
	if err != nil {
		return nil, decode(err, "read routes of %s", database)
	}
	all, err := pgx.CollectRows(rows, scanRoute)
	return all, decode(err, "read routes of %s", database)
}

// scanRoute reads routeColumns.
func scanRoute(row pgx.CollectableRow) (r chunk.Route, err error) {
	var lo, hi []byte
	err = row.Scan(&r.Chunk.ID, &r.Chunk.Database, &lo, &hi, &r.Placement.ID, &r.Placement.Shard,
		&r.Placement.Database, &r.Placement.State, &r.Token)
	r.Chunk.Range = chunk.Range{Lo: chunk.Key(lo), Hi: chunk.Key(hi)}
	r.Placement.Chunk = r.Chunk.ID
	return r, err
}

// RouteChange is one entry of a chunk's history.
type RouteChange struct {
	Token     chunk.Token
	Placement chunk.PlacementID
	Shard     string
	Attempt   chunk.AttemptID // 0 for the first route
	At        time.Time
}

// RouteHistory gives every route that a chunk has had, oldest first.
func (s *Store) RouteHistory(ctx context.Context, id chunk.ID) ([]RouteChange, error) {
	rows, err := s.pool.Query(ctx, `select token, placement, shard, attempt, at from route_history where chunk = $1 order by token`, string(id))
	if err != nil {
		return nil, decode(err, "read route history of %s", id)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c RouteChange, err error) {
		return c, row.Scan(&c.Token, &c.Placement, &c.Shard, &c.Attempt, &c.At)
	})
	return all, decode(err, "read route history of %s", id)
}

// RoutesAt gives the routes that a logical database had at a time, its first ones for a
// time before it was made, in the order of the key space. Chunks that were split or merged
// since are among them.
func (s *Store) RoutesAt(ctx context.Context, database string, at time.Time) ([]chunk.Route, error) {
	const q = `select c.id, c.database, c.lo, c.hi, p.id, p.shard, p.database, p.state, h.token
		from route_history h
		join chunks c on c.id = h.chunk
		join placements p on p.id = h.placement
		where c.database = $1
			and (h.at <= $2 or not exists (select from route_history e join chunks x on x.id = e.chunk
				where e.token < h.token and x.database = c.database and x.lo < c.hi and c.lo < x.hi))
			and not exists (select from route_history n join chunks x on x.id = n.chunk
				where n.token > h.token and n.at <= $2 and x.database = c.database and x.lo < c.hi and c.lo < x.hi)
		order by c.lo`
	rows, err := s.pool.Query(ctx, q, database, at)
	if err != nil {
		return nil, decode(err, "read routes of %s at %s", database, at)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r chunk.Route, err error) {
		var lo, hi []byte
		err = row.Scan(&r.Chunk.ID, &r.Chunk.Database, &lo, &hi, &r.Placement.ID, &r.Placement.Shard, &r.Placement.Database, &r.Placement.State, &r.Token)
		r.Chunk.Range = chunk.Range{Lo: chunk.Key(lo), Hi: chunk.Key(hi)}
		r.Placement.Chunk = r.Chunk.ID
		return r, err
	})
	return all, decode(err, "read routes of %s at %s", database, at)
}

// FormerRoute is a route that a newer one has replaced.
type FormerRoute struct {
	Route chunk.Route
	Ago   time.Duration // since it was replaced, by the clock of the metadata
}

// FormerRoutes gives the routes that were replaced within the given time by ones
// to another placement: those of a part of one chunk's range, whatever their own
// chunk was, or all when id is empty.
func (s *Store) FormerRoutes(ctx context.Context, id chunk.ID, within time.Duration) ([]FormerRoute, error) {
	// A route ends with the next one of any chunk that holds some of its keys.
	const q = `select c.id, c.database, c.lo, c.hi, p.id, p.shard, p.database, p.state, old.token,
			extract(epoch from clock_timestamp() - n.at)::float8
		from route_history n
		join chunks nc on nc.id = n.chunk
		join chunks c on c.database = nc.database and c.lo < nc.hi and nc.lo < c.hi
		join lateral (select o.token, o.placement from route_history o
			where o.chunk = c.id and o.token < n.token order by o.token desc limit 1) old on old.placement <> n.placement
		join placements p on p.id = old.placement
		where n.at > clock_timestamp() - make_interval(secs => $2)
			and ($1 = '' or exists (select from chunks f where f.id = $1 and f.database = c.database and f.lo < c.hi and c.lo < f.hi))
			and not exists (select from route_history h join chunks x on x.id = h.chunk
				where h.token > old.token and h.token < n.token and x.database = c.database and x.lo < c.hi and c.lo < x.hi)
		order by old.token`
	rows, err := s.pool.Query(ctx, q, string(id), within.Seconds())
	if err != nil {
		return nil, decode(err, "read former routes")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f FormerRoute, err error) {
		var lo, hi []byte
		var ago float64
		r := &f.Route
		err = row.Scan(&r.Chunk.ID, &r.Chunk.Database, &lo, &hi, &r.Placement.ID, &r.Placement.Shard,
			&r.Placement.Database, &r.Placement.State, &r.Token, &ago)
		r.Chunk.Range = chunk.Range{Lo: chunk.Key(lo), Hi: chunk.Key(hi)}
		r.Placement.Chunk = r.Chunk.ID
		f.Ago = time.Duration(ago * float64(time.Second))
		return f, err
	})
	return all, decode(err, "read former routes")
}

// Seen is the greatest numbers found outside the metadata, on shards.
type Seen struct {
	Token     chunk.Token
	Placement chunk.PlacementID
	Attempt   chunk.AttemptID
	Migration chunk.MigrationID
}

// RaiseAbove makes every number that will be given greater than those seen:
// metadata that was restored from a backup must not give one again.
func (s *Store) RaiseAbove(ctx context.Context, seen Seen) error {
	const q = `select raise_sequence('tokens', $1), raise_sequence('placement_ids', $2),
		raise_sequence('attempt_ids', $3), raise_sequence('migration_ids', $4)`
	_, err := s.pool.Exec(ctx, q, int64(seen.Token), int64(seen.Placement), int64(seen.Attempt), int64(seen.Migration))
	return decode(err, "raise numbers")
}
