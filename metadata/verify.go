package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// Verification is how far the continuous verification of one direction has come.
// Only its own rounds say that both sides are the same: one that stands still
// says nothing.
type Verification struct {
	Migration chunk.MigrationID
	Direction chunk.AttemptID
	State     []byte          // as the verification wrote it
	Report    json.RawMessage // of the newest round
	At        time.Time       // of the newest round
	Age       time.Duration   // since then, by Postgres' clock
}

// SaveVerification keeps the state after a round.
func (s *Store) SaveVerification(ctx context.Context, v Verification) error {
	const q = `insert into verifications (migration, direction, state, report) values ($1, $2, $3, $4)
		on conflict (migration, direction) do update set state = excluded.state, report = excluded.report, at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, int64(v.Migration), int64(v.Direction), v.State, orEmptyJSON(v.Report))
	return decode(err, "keep verification of migration %d", v.Migration)
}

// Verification gives the state of one direction; ok is false when there is none.
func (s *Store) Verification(ctx context.Context, id chunk.MigrationID, d chunk.AttemptID) (v Verification, ok bool, err error) {
	const q = `select migration, direction, state, report, at, extract(epoch from clock_timestamp() - at)::float8
		from verifications where migration = $1 and direction = $2`
	rows, err := s.pool.Query(ctx, q, int64(id), int64(d))
	if err != nil {
		return v, false, decode(err, "read verification of migration %d", id)
	}
	v, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (v Verification, err error) {
		var report []byte
		var age float64
		err = row.Scan(&v.Migration, &v.Direction, &v.State, &report, &v.At, &age)
		v.Report, v.Age = report, time.Duration(age*float64(time.Second))
		return v, err
	})
	if noRows(err) {
		return Verification{}, false, nil
	}
	return v, err == nil, decode(err, "read verification of migration %d", id)
}

// ResolveDocuments closes the open mismatches of documents that were found the
// same; ids are as in [Mismatch].
func (s *Store) ResolveDocuments(ctx context.Context, id chunk.MigrationID, collection string, ids [][]byte) error {
	const q = `update mismatches set resolved_at = clock_timestamp()
		where migration = $1 and collection = $2 and doc_id = any($3) and resolved_at is null`
	_, err := s.pool.Exec(ctx, q, int64(id), plainText(collection), ids)
	return decode(err, "resolve mismatches of migration %d", id)
}
