package metadata

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// Cleanup is the ledger of one placement's end.
type Cleanup struct {
	Placement chunk.PlacementID
	Migration chunk.MigrationID
	Direction chunk.AttemptID
	Done      []string // steps, in the order in which they were done
	BeganAt   time.Time
	EndedAt   time.Time // zero: something is left
}

// Has reports whether a step is done.
func (c Cleanup) Has(step string) bool { return slices.Contains(c.Done, step) }

// cleanupColumns are what scanCleanup reads.
const cleanupColumns = `placement, migration, direction, done, began_at, ended_at`

// scanCleanup reads a row of cleanups.
func scanCleanup(row pgx.CollectableRow) (c Cleanup, err error) {
	var ended *time.Time
	err = row.Scan(&c.Placement, &c.Migration, &c.Direction, &c.Done, &c.BeganAt, &ended)
	if ended != nil {
		c.EndedAt = *ended
	}
	return c, err
}

// BeginCleanup opens the ledger of a placement, or gives the one that is there.
func (s *Store) BeginCleanup(ctx context.Context, c Cleanup) (Cleanup, error) {
	const q = `insert into cleanups (placement, migration, direction) values ($1, $2, $3)
		on conflict (placement) do update set migration = excluded.migration returning ` + cleanupColumns
	rows, err := s.pool.Query(ctx, q, int64(c.Placement), int64(c.Migration), int64(c.Direction))
	if err != nil {
		return c, decode(err, "begin to clean up placement %d", c.Placement)
	}
	c, err = pgx.CollectExactlyOneRow(rows, scanCleanup)
	return c, decode(err, "begin to clean up placement %d", c.Placement)
}

// CleanupStep crosses a step off. Again is no error.
func (s *Store) CleanupStep(ctx context.Context, p chunk.PlacementID, step string) error {
	const q = `update cleanups set done = done || $2::text where placement = $1 and not $2 = any(done)`
	_, err := s.pool.Exec(ctx, q, int64(p), step)
	return decode(err, "note %s of placement %d", step, p)
}

// EndCleanup closes the ledger.
func (s *Store) EndCleanup(ctx context.Context, p chunk.PlacementID) error {
	_, err := s.pool.Exec(ctx, `update cleanups set ended_at = clock_timestamp() where placement = $1 and ended_at is null`, int64(p))
	return decode(err, "end the clean-up of placement %d", p)
}

// Cleanups gives the ledgers in which something is left, oldest first.
func (s *Store) Cleanups(ctx context.Context) ([]Cleanup, error) {
	rows, err := s.pool.Query(ctx, `select `+cleanupColumns+` from cleanups where ended_at is null order by began_at`)
	if err != nil {
		return nil, decode(err, "list clean-ups")
	}
	all, err := pgx.CollectRows(rows, scanCleanup)
	return all, decode(err, "list clean-ups")
}
