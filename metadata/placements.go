package metadata

import (
	"context"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// placementColumns are what scanPlacement reads.
const placementColumns = `id, chunk, shard, database, state`

// Placement gives one placement, or "placement.unknown".
func (s *Store) Placement(ctx context.Context, id chunk.PlacementID) (chunk.Placement, error) {
	rows, err := s.pool.Query(ctx, `select `+placementColumns+` from placements where id = $1`, int64(id))
	if err != nil {
		return chunk.Placement{}, decode(err, "read placement %d", id)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPlacement)
	if noRows(err) {
		return p, failure.New(failure.Invalid, "placement.unknown", "there is no placement %d", id)
	}
	return p, decode(err, "read placement %d", id)
}

// Placements gives the placements on a shard that are not gone; on every shard
// when shard is empty.
func (s *Store) Placements(ctx context.Context, shard string) ([]chunk.Placement, error) {
	rows, err := s.pool.Query(ctx, `select `+placementColumns+` from placements
		where state <> 'gone' and ($1 = '' or shard = $1) order by id`, shard)
	if err != nil {
		return nil, decode(err, "list placements")
	}
	all, err := pgx.CollectRows(rows, scanPlacement)
	return all, decode(err, "list placements")
}

// scanPlacement reads placementColumns.
func scanPlacement(row pgx.CollectableRow) (p chunk.Placement, err error) {
	return p, row.Scan(&p.ID, &p.Chunk, &p.Shard, &p.Database, &p.State)
}

// SetPlacementState moves a placement from one state to another. It is lost
// ("placement.is_<state>") where another state is found. Going to dropping is
// refused while an open attempt names the placement ("placement.attempt_open") or
// its migration still needs it ("placement.migration_open"); live and not live
// change only with a route, in [Store.Publish].
func (s *Store) SetPlacementState(ctx context.Context, id chunk.PlacementID, from, to chunk.PlacementState) error {
	if !from.CanBecome(to) {
		return failure.New(failure.Invalid, "placement.transition", "placement %d cannot go from %s to %s", id, from, to)
	}
	tag, err := s.pool.Exec(ctx, `update placements set state = $3 where id = $1 and state = $2`, int64(id), string(from), string(to))
	if err != nil {
		return decode(err, "set placement %d to %s", id, to)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	p, err := s.Placement(ctx, id)
	if err != nil {
		return err
	}
	return lostTo("placement", string(p.State), "placement %d is %s, not %s: it was not set to %s", id, p.State, from, to)
}

// DropPlacement decides that a placement that serves nobody is removed: there is
// no way back. Asking again is no error. The refusals are those of
// [Store.SetPlacementState].
func (s *Store) DropPlacement(ctx context.Context, id chunk.PlacementID) error {
	const q = `update placements set state = 'dropping' where id = $1 and state in ('loading', 'mirror')`
	tag, err := s.pool.Exec(ctx, q, int64(id))
	if err != nil {
		return decode(err, "drop placement %d", id)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	p, err := s.Placement(ctx, id)
	if err != nil {
		return err
	}
	if p.State == chunk.Dropping || p.State == chunk.Gone {
		return nil
	}
	return lostTo("placement", string(p.State), "placement %d is %s: it is not dropped", id, p.State)
}

// PlacementGone records that nothing of a dropping placement is left. Asking
// again is no error.
func (s *Store) PlacementGone(ctx context.Context, id chunk.PlacementID) error {
	err := s.SetPlacementState(ctx, id, chunk.Dropping, chunk.Gone)
	if found, ok := Found(err); ok && chunk.PlacementState(found) == chunk.Gone {
		return nil
	}
	return err
}
