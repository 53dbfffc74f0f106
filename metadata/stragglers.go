package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// Straggler is an event that nobody may have caused any more: an unlabelled
// change of a placement that has been left. It is kept in full, for ever.
type Straggler struct {
	ID        int64
	Shard     string
	Placement chunk.PlacementID
	Seq       int64
	Kind      string
	Event     []byte // as the shard's server sent it
	SeenAt    time.Time
	HandledAt time.Time // zero: nobody has dealt with it
	HandledBy string
	Note      string
}

// AddStraggler keeps a straggler. The same event again is no error, and opens
// nothing that was dealt with.
func (s *Store) AddStraggler(ctx context.Context, g Straggler) error {
	const q = `insert into stragglers (shard, placement, seq, kind, event) values ($1, $2, $3, $4, $5) on conflict (shard, seq) do nothing`
	_, err := s.pool.Exec(ctx, q, g.Shard, int64(g.Placement), g.Seq, g.Kind, g.Event)
	return decode(err, "keep straggler %d of shard %s", g.Seq, g.Shard)
}

// WithdrawStragglers notes of those between two seqs, both excluded, that they were
// none after all.
func (s *Store) WithdrawStragglers(ctx context.Context, shard string, p chunk.PlacementID, from, to int64, note string) error {
	const q = `update stragglers set handled_at = clock_timestamp(), handled_by = 'capture', note = $5
		where shard = $1 and placement = $2 and seq > $3 and seq < $4 and handled_at is null`
	_, err := s.pool.Exec(ctx, q, shard, int64(p), from, to, plainText(note))
	return decode(err, "take back stragglers of placement %d", p)
}

// AcknowledgeStragglers notes who has dealt with some stragglers, and how. It gives
// how many of them nobody had dealt with before.
func (s *Store) AcknowledgeStragglers(ctx context.Context, ids []int64, by, note string) (int64, error) {
	const q = `update stragglers set handled_at = clock_timestamp(), handled_by = $2, note = $3 where id = any($1) and handled_at is null`
	tag, err := s.pool.Exec(ctx, q, ids, plainText(by), plainText(note))
	return tag.RowsAffected(), decode(err, "acknowledge stragglers")
}

// stragglerColumns are what scanStraggler reads.
const stragglerColumns = `g.id, g.shard, g.placement, g.seq, g.kind, g.event, g.seen_at, g.handled_at, g.handled_by, g.note`

// Stragglers gives the stragglers of some placements that nobody has dealt with,
// oldest first; of all placements when none is named.
func (s *Store) Stragglers(ctx context.Context, placements ...chunk.PlacementID) ([]Straggler, error) {
	ids := make([]int64, 0, len(placements))
	for _, p := range placements {
		ids = append(ids, int64(p))
	}
	return s.stragglers(ctx, `select `+stragglerColumns+` from stragglers g
		where g.handled_at is null and (cardinality($1::bigint[]) = 0 or g.placement = any($1)) order by g.id`, ids)
}

// StragglersOf gives every straggler, dealt with or not, of every placement that a
// chunk ever had.
func (s *Store) StragglersOf(ctx context.Context, id chunk.ID) ([]Straggler, error) {
	return s.stragglers(ctx, `select `+stragglerColumns+` from stragglers g
		join placements p on p.id = g.placement where p.chunk = $1 order by g.id`, string(id))
}

// stragglers runs a statement that gives some.
func (s *Store) stragglers(ctx context.Context, q string, arg any) ([]Straggler, error) {
	rows, err := s.pool.Query(ctx, q, arg)
	if err != nil {
		return nil, decode(err, "list stragglers")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g Straggler, err error) {
		var handled *time.Time
		err = row.Scan(&g.ID, &g.Shard, &g.Placement, &g.Seq, &g.Kind, &g.Event, &g.SeenAt, &handled, &g.HandledBy, &g.Note)
		if handled != nil {
			g.HandledAt = *handled
		}
		return g, err
	})
	return all, decode(err, "list stragglers")
}
