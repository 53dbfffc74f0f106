package metadata

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// mostMirrored bounds the reads of one placement that wait to be compared: what comes
// beyond it is dropped, as nothing rests on any of them.
const mostMirrored = 2_000

// Mirror is what is asked, and known, about the mirrored reads of a migration.
type Mirror struct {
	Percent  float64
	Required int64           // compared reads that the gate asks for
	Report   json.RawMessage // as who compares wrote it
}

// SetMirror sets the share of reads that is mirrored, 0 for none, and forgets what
// came of earlier ones.
func (s *Store) SetMirror(ctx context.Context, id chunk.MigrationID, percent float64, required int64) error {
	const q = `insert into mirrors (migration, percent, required) values ($1, $2, $3)
		on conflict (migration) do update set percent = excluded.percent, required = excluded.required, report = '{}'`
	_, err := s.pool.Exec(ctx, q, int64(id), percent, required)
	return decode(err, "mirror reads of migration %d", id)
}

// Mirror gives what is asked of a migration's reads; zero where nothing is.
func (s *Store) Mirror(ctx context.Context, id chunk.MigrationID) (m Mirror, err error) {
	var report []byte
	err = s.pool.QueryRow(ctx, `select percent, required, report from mirrors where migration = $1`, int64(id)).Scan(&m.Percent, &m.Required, &report)
	m.Report = report
	if noRows(err) {
		return Mirror{}, nil
	}
	return m, decode(err, "read mirror of migration %d", id)
}

// SaveMirror keeps what came of a migration's mirrored reads, unless it was set anew
// since: then the report is of others.
func (s *Store) SaveMirror(ctx context.Context, id chunk.MigrationID, was, now json.RawMessage) error {
	const q = `update mirrors set report = $3 where migration = $1 and report = $2::jsonb`
	_, err := s.pool.Exec(ctx, q, int64(id), orEmptyJSON(was), orEmptyJSON(now))
	return decode(err, "keep mirror of migration %d", id)
}

// Mirrored gives the share, in percent, by placement that serves a mirrored chunk.
func (s *Store) Mirrored(ctx context.Context) (map[chunk.PlacementID]float64, error) {
	const q = `select r.placement, max(x.percent) from mirrors x join migrations m on m.id = x.migration
		join routes r on r.placement in (m.source, m.target)
		where x.percent > 0 and m.phase not in ('done', 'aborted') group by r.placement`
	return keyed[chunk.PlacementID, float64](ctx, s, "list mirrors", q)
}

// AddMirrored keeps reads of a placement to be compared, as many as there is room for.
func (s *Store) AddMirrored(ctx context.Context, p chunk.PlacementID, commands [][]byte) error {
	const q = `insert into mirrored_reads (placement, command)
		select $1, c from unnest($2::bytea[]) c
		where (select count(*) from mirrored_reads where placement = $1) < $3`
	_, err := s.pool.Exec(ctx, q, int64(p), commands, mostMirrored)
	return decode(err, "keep mirrored reads of placement %d", p)
}

// TakeMirrored takes the oldest reads of a placement out, and drops what nobody has
// taken for a minute.
func (s *Store) TakeMirrored(ctx context.Context, p chunk.PlacementID, n int) ([][]byte, error) {
	if _, err := s.pool.Exec(ctx, `delete from mirrored_reads where at < clock_timestamp() - interval '1 minute'`); err != nil {
		return nil, decode(err, "drop mirrored reads")
	}
	const q = `delete from mirrored_reads where id in (
		select id from mirrored_reads where placement = $1 order by id limit $2 for update skip locked) returning command`
	rows, err := s.pool.Query(ctx, q, int64(p), n)
	if err != nil {
		return nil, decode(err, "take mirrored reads of placement %d", p)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	return all, decode(err, "take mirrored reads of placement %d", p)
}
