package metadata

import (
	"context"

	"drover/chunk"
	"drover/internal/failure"
)

// Adopted gives the placement that a logical database was adopted with, active or
// not, while that serves all of it. Refusals: "database.unknown",
// "adoption.not_adopted" and "adoption.moved", when other placements serve it.
func (s *Store) Adopted(ctx context.Context, name string) (chunk.Route, error) {
	if _, _, err := readDatabase(ctx, s.pool, name); err != nil {
		return chunk.Route{}, decode(err, "read database %s", name)
	}
	routes, err := s.routesOf(ctx, s.pool, name)
	if err != nil {
		return chunk.Route{}, err
	}
	if len(routes) == 1 && routes[0].Placement.OwnName() != "" {
		return routes[0], nil
	}
	var was *string
	const q = `select min(p.shard || '/' || p.database) from placements p join chunks c on c.id = p.chunk
		where c.database = $1 and p.database <> replace(p.chunk, '/', '_') || '_p' || p.id::text`
	if err := s.pool.QueryRow(ctx, q, name).Scan(&was); err != nil {
		return chunk.Route{}, decode(err, "read what %s was adopted from", name)
	}
	if was == nil {
		return chunk.Route{}, failure.New(failure.Invalid, "adoption.not_adopted", "database %s was created by Drover, not adopted", name)
	}
	return chunk.Route{}, failure.New(failure.Invalid, "adoption.moved", "database %s was adopted from %s and has been moved or split since", name, *was).
		WithHint("while the move is in burn-in, drover migrate rollback %s brings it back; afterwards it is Drover's", routes[0].Chunk.ID)
}

// WithdrawDatabase takes an adopted database away from the proxies, so that it can
// be forgotten. Further refusals than those of [Store.Adopted]: "adoption.move_open".
// Asking again is no error.
func (s *Store) WithdrawDatabase(ctx context.Context, name string) (chunk.Route, error) {
	r, err := s.Adopted(ctx, name)
	if err != nil {
		return r, err
	}
	const q = `update databases d set active = false where name = $1 and not exists (
			select from placements p where p.chunk = $2 and p.id <> $3 and p.state <> 'gone'
		) and not exists (
			select from chunk_claims k where k.chunk = $2
		) returning pg_notify('drover_routes', json_build_object('database', d.name, 'chunk', '', 'token', 0)::text) is null`
	var told bool
	err = s.pool.QueryRow(ctx, q, name, string(r.Chunk.ID), int64(r.Placement.ID)).Scan(&told)
	if noRows(err) {
		return r, failure.New(failure.Invalid, "adoption.move_open", "chunk %s is being moved, or a copy of it is left elsewhere", r.Chunk.ID).
			WithHint("drover migrate abort %s ends the move; drover migrate list shows it", r.Chunk.ID)
	}
	return r, decode(err, "withdraw database %s", name)
}
