package metadata

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/pause"
)

// Word is what runs for a migration says about itself; the shapes belong to it.
type Word struct {
	Migration chunk.MigrationID
	Progress  json.RawMessage // for people; empty: as it was
	Lanes     json.RawMessage // for the gate, which wants to know its age; empty: as it was
}

// How patient words are with rows that somebody else changes.
const (
	wordTries = 4
	wordPause = 20 * time.Millisecond
)

// SetWords keeps what several migrations say, in one statement: each of many moves says
// something every moment. None waits for a row that somebody else changes: it is tried
// again on its own, a few times, and then left to the next word. Those of migrations that
// are known are kept in any case.
func (s *Store) SetWords(ctx context.Context, words ...Word) error {
	known, busy, err := s.setWords(ctx, words)
	for try := 1; err == nil && len(busy) > 0 && try < wordTries; try++ {
		if err = pause.For(ctx, wordPause); err == nil {
			_, busy, err = s.setWords(ctx, busy)
		}
	}
	if err == nil && known < len(words) {
		return failure.New(failure.Invalid, "migration.unknown", "of %d migrations that say something %d are known", len(words), known)
	}
	return decode(err, "keep what %d migrations say", len(words))
}

// setWords is one statement: it tells how many of the migrations are known, and gives the
// words of those whose rows somebody else changes.
func (s *Store) setWords(ctx context.Context, words []Word) (known int, busy []Word, err error) {
	const q = `with said as (select * from unnest($1::bigint[], $2::jsonb[], $3::jsonb[]) as w (id, progress, lanes)),
			free as (select m.id from migrations m where m.id = any($1) for no key update skip locked),
			kept as (update migrations m set progress = coalesce(said.progress, m.progress), lanes = coalesce(said.lanes, m.lanes),
				lanes_at = case when said.lanes is null then m.lanes_at else clock_timestamp() end
				from said, free where said.id = free.id and m.id = free.id returning m.id)
		select m.id, m.id in (select id from kept) from migrations m where m.id = any($1)`
	ids := make([]int64, 0, len(words))
	progress, lanes := make([][]byte, 0, len(words)), make([][]byte, 0, len(words))
	for _, w := range words {
		ids, progress, lanes = append(ids, int64(w.Migration)), append(progress, plainJSON(w.Progress)), append(lanes, plainJSON(w.Lanes))
	}
	rows, err := s.pool.Query(ctx, q, ids, progress, lanes)
	if err != nil {
		return 0, nil, err //nolint:wrapcheck // decoded by the caller
	}
	var id int64
	var kept bool
	_, err = pgx.ForEachRow(rows, []any{&id, &kept}, func() error {
		if known++; !kept {
			busy = append(busy, words[slices.Index(ids, id)])
		}
		return nil
	})
	return known, busy, err //nolint:wrapcheck // decoded by the caller
}
