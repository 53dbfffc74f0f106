package metadata

import (
	"context"
	"encoding/json"

	"drover/chunk"
	"drover/internal/failure"
)

// Word is what runs for a migration says about itself; the shapes belong to it.
type Word struct {
	Migration chunk.MigrationID
	Progress  json.RawMessage // for people; empty: as it was
	Lanes     json.RawMessage // for the gate, which wants to know its age; empty: as it was
}

// SetWords keeps what several migrations say, in one statement: each of many moves says
// something every moment. It may come from several processes at once, so the rows are
// taken in one order. Those of migrations that are known are kept in any case.
func (s *Store) SetWords(ctx context.Context, words ...Word) error {
	const q = `with said as (select * from unnest($1::bigint[], $2::jsonb[], $3::jsonb[]) as w (id, progress, lanes)),
			taken as (select m.id from migrations m where m.id = any($1) order by m.id for update)
		update migrations m set progress = coalesce(said.progress, m.progress), lanes = coalesce(said.lanes, m.lanes),
			lanes_at = case when said.lanes is null then m.lanes_at else clock_timestamp() end
		from said, taken where said.id = taken.id and m.id = taken.id`
	ids := make([]int64, 0, len(words))
	progress, lanes := make([][]byte, 0, len(words)), make([][]byte, 0, len(words))
	for _, w := range words {
		ids, progress, lanes = append(ids, int64(w.Migration)), append(progress, w.Progress), append(lanes, w.Lanes)
	}
	tag, err := s.pool.Exec(ctx, q, ids, progress, lanes)
	if err == nil && int(tag.RowsAffected()) < len(words) {
		return failure.New(failure.Invalid, "migration.unknown", "of %d migrations that say something %d are known", len(words), tag.RowsAffected())
	}
	return decode(err, "keep what %d migrations say", len(words))
}
