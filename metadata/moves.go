package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// Migration is one move of one chunk, or one leg of a split or merge: the keys
// that one source and one target of it have in common. All legs go through the
// phases together, under the id of the one that leads.
type Migration struct {
	ID          chunk.MigrationID
	Lead        chunk.MigrationID // itself, but for the further legs of a split or merge
	Chunk       chunk.Chunk
	TargetChunk chunk.Chunk     // the same one, but in a split or merge
	Source      chunk.Placement // where the chunk was when the migration was registered
	Target      chunk.Placement
	Phase       chunk.Phase
	Step        json.RawMessage // detail of the phase; the shape belongs to the workflow
	Progress    json.RawMessage // for people; the shape belongs to the workflow
	WorkflowID  string
	RequestedBy string
	Paused      bool
	Attention   string // why it waits for a person, empty when it does not
	Busy        []byte // documents that the last round of validation left, as the validator wrote it
	CreatedAt   time.Time
	UpdatedAt   time.Time
	PhaseAt     time.Time     // when the phase began
	Expected    time.Duration // how long the phase was expected to take; 0: nobody said
}

// migrationColumns are what scanMigration reads.
const migrationColumns = `m.id, m.lead, c.id, c.database, c.lo, c.hi, n.id, n.lo, n.hi,
	s.id, s.shard, s.database, s.state, t.id, t.shard, t.database, t.state,
	m.phase, m.step, m.progress, m.workflow_id, m.requested_by, m.paused, m.needs_attention, m.busy, m.created_at, m.updated_at, m.phase_at, m.expected`

// migrationSQL reads migrations; a condition follows.
const migrationSQL = `select ` + migrationColumns + ` from migrations m join chunks c on c.id = m.chunk
	join chunks n on n.id = m.target_chunk
	join placements s on s.id = m.source join placements t on t.id = m.target `

// scanMigration reads migrationColumns.
func scanMigration(row pgx.CollectableRow) (m Migration, err error) {
	var lo, hi, newLo, newHi, step, progress []byte
	err = row.Scan(&m.ID, &m.Lead, &m.Chunk.ID, &m.Chunk.Database, &lo, &hi, &m.TargetChunk.ID, &newLo, &newHi,
		&m.Source.ID, &m.Source.Shard, &m.Source.Database, &m.Source.State,
		&m.Target.ID, &m.Target.Shard, &m.Target.Database, &m.Target.State,
		&m.Phase, &step, &progress, &m.WorkflowID, &m.RequestedBy, &m.Paused, &m.Attention, &m.Busy, &m.CreatedAt, &m.UpdatedAt, &m.PhaseAt, &m.Expected)
	m.Chunk.Range = chunk.Range{Lo: chunk.Key(lo), Hi: chunk.Key(hi)}
	m.TargetChunk.Database, m.TargetChunk.Range = m.Chunk.Database, chunk.Range{Lo: chunk.Key(newLo), Hi: chunk.Key(newHi)}
	m.Source.Chunk, m.Target.Chunk = m.Chunk.ID, m.TargetChunk.ID
	m.Step, m.Progress = step, progress
	return m, err
}

// MigrationRequest asks for a chunk to be moved.
type MigrationRequest struct {
	Chunk       chunk.ID
	Target      string // shard
	WorkflowID  string
	RequestedBy string
}

// RegisterMigration claims a chunk and gives its target placement an id, state
// loading. The same workflow asking again while the migration is unfinished is
// given the same one.
//
// Refusals: "migration.chunk_unknown", "migration.shard_unknown",
// "migration.same_shard", "migration.overlapping", "migration.database_inactive".
func (s *Store) RegisterMigration(ctx context.Context, r MigrationRequest) (Migration, error) {
	var id chunk.MigrationID
	const q = `select register_migration($1, $2, $3, $4)`
	err := s.pool.QueryRow(ctx, q, string(r.Chunk), r.Target, r.WorkflowID, plainText(r.RequestedBy)).Scan(&id)
	if err != nil {
		return Migration{}, decode(err, "register migration of %s to %s", r.Chunk, r.Target)
	}
	return s.Migration(ctx, id)
}

// Migration gives one migration, or "migration.unknown".
func (s *Store) Migration(ctx context.Context, id chunk.MigrationID) (Migration, error) {
	m, err := s.oneMigration(ctx, `where m.id = $1`, int64(id))
	if noRows(err) {
		return m, failure.New(failure.Invalid, "migration.unknown", "there is no migration %d", id)
	}
	return m, decode(err, "read migration %d", id)
}

// OpenMigration gives the unfinished migration that a chunk is part of, on
// whichever side; ok is false when there is none.
func (s *Store) OpenMigration(ctx context.Context, id chunk.ID) (m Migration, ok bool, err error) {
	m, err = s.oneMigration(ctx, `where m.id = (select k.migration from chunk_claims k where k.chunk = $1)`, string(id))
	if noRows(err) {
		return m, false, nil
	}
	return m, err == nil, decode(err, "read open migration of %s", id)
}

// oneMigration reads the migration that a condition names.
func (s *Store) oneMigration(ctx context.Context, where string, args ...any) (Migration, error) {
	rows, err := s.pool.Query(ctx, migrationSQL+where, args...)
	if err != nil {
		return Migration{}, err
	}
	return pgx.CollectExactlyOneRow(rows, scanMigration)
}

// MigrationFilter chooses migrations; its zero value chooses all.
type MigrationFilter struct {
	Chunk      chunk.ID
	Database   string
	Shard      string // source or target
	Unfinished bool
	Limit      int // the newest so many; 0 for all
}

// Migrations gives migrations, newest first; of a split or merge the leg that leads.
func (s *Store) Migrations(ctx context.Context, f MigrationFilter) ([]Migration, error) {
	const where = `where m.id = m.lead and ($1 = '' or $1 in (select unnest(array[l.chunk, l.target_chunk]) from migrations l where l.lead = m.id))
		and ($2 = '' or c.database = $2)
		and ($3 = '' or $3 in (select p.shard from migrations l join placements p on p.id in (l.source, l.target) where l.lead = m.id))
		and (not $4 or m.phase not in ('done', 'aborted'))
		order by m.id desc limit nullif($5, 0)`
	rows, err := s.pool.Query(ctx, migrationSQL+where, string(f.Chunk), f.Database, f.Shard, f.Unfinished, f.Limit)
	if err != nil {
		return nil, decode(err, "list migrations")
	}
	all, err := pgx.CollectRows(rows, scanMigration)
	return all, decode(err, "list migrations")
}

// CountOpenMigrations counts the migrations that are under way, burn-in included; those
// of a split or merge as one.
func (s *Store) CountOpenMigrations(ctx context.Context) (n int, err error) {
	const q = `select count(*) from migrations where id = lead and phase not in ('done', 'aborted')`
	err = s.pool.QueryRow(ctx, q).Scan(&n)
	return n, decode(err, "count open migrations")
}

// SetPhase moves a migration, with all its legs, from one phase to another and
// clears its step. It is
// lost ("migration.is_<phase>") where another phase is found.
//
// What a phase says must be true already, else it is refused: burn-in and
// completing need a live target ("migration.target_not_live"), replicating and
// aborting a live source ("migration.source_not_live"), completing and aborting
// no open attempt (transient "migration.attempt_open"), done and aborted that the leaving
// placement is gone ("migration.not_dropped").
func (s *Store) SetPhase(ctx context.Context, id chunk.MigrationID, from, to chunk.Phase) error {
	if !from.CanBecome(to) {
		return failure.New(failure.Invalid, "migration.transition", "migration %d cannot go from %s to %s", id, from, to)
	}
	const q = `update migrations set phase = $3, step = '{}' where lead = (select m.lead from migrations m where m.id = $1) and phase = $2`
	tag, err := s.pool.Exec(ctx, q, int64(id), string(from), string(to))
	if err != nil {
		return decode(err, "set migration %d to %s", id, to)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	m, err := s.Migration(ctx, id)
	if err != nil {
		return err
	}
	return lostTo("migration", string(m.Phase), "migration %d is %s, not %s: it was not set to %s", id, m.Phase, from, to)
}

// SetStep keeps the detail of a phase. It is lost where the migration has left
// the phase.
func (s *Store) SetStep(ctx context.Context, id chunk.MigrationID, in chunk.Phase, step json.RawMessage) error {
	tag, err := s.pool.Exec(ctx, `update migrations set step = $3 where id = $1 and phase = $2`, int64(id), string(in), orEmptyJSON(step))
	if err != nil {
		return decode(err, "set step of migration %d", id)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	m, err := s.Migration(ctx, id)
	if err != nil {
		return err
	}
	return lostTo("migration", string(m.Phase), "migration %d is %s, not %s: its step was not set", id, m.Phase, in)
}

// SetPaused says whether a migration's bulk work and replication are to rest.
func (s *Store) SetPaused(ctx context.Context, id chunk.MigrationID, paused bool) error {
	return s.updateMigration(ctx, id, `update migrations set paused = $2 where id = $1`, paused)
}

// SetExpected says how long the phase of a migration with all its legs should take.
func (s *Store) SetExpected(ctx context.Context, id chunk.MigrationID, expected time.Duration) error {
	return s.updateMigration(ctx, id, `update migrations set expected = $2::interval where lead = (select m.lead from migrations m where m.id = $1)`, expected)
}

// SetAttention says why a migration waits for a person; empty when it no longer does.
func (s *Store) SetAttention(ctx context.Context, id chunk.MigrationID, why string) error {
	return s.updateMigration(ctx, id, `update migrations set needs_attention = $2 where id = $1`, plainText(why))
}

// SetBusy keeps the documents that the last round of validation could not compare.
func (s *Store) SetBusy(ctx context.Context, id chunk.MigrationID, busy []byte) error {
	return s.updateMigration(ctx, id, `update migrations set busy = $2 where id = $1`, busy)
}

// updateMigration writes one value that no state machine guards.
func (s *Store) updateMigration(ctx context.Context, id chunk.MigrationID, q string, value any) error {
	tag, err := s.pool.Exec(ctx, q, int64(id), value)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "migration.unknown", "there is no migration %d", id)
	}
	return decode(err, "update migration %d", id)
}

// orEmptyJSON makes a missing value an empty object.
func orEmptyJSON(j json.RawMessage) []byte {
	if len(j) == 0 {
		return []byte(`{}`)
	}
	return j
}
