package metadata

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// Quarantined is an event that a lane could not decide how to apply.
type Quarantined struct {
	Lane   chunk.Lane
	Seq    int64
	Event  []byte // as in the captured log
	Reason string
	At     time.Time
}

// Quarantine keeps an event that could not be applied. The same event again is no
// error; one that was released is quarantined anew.
func (s *Store) Quarantine(ctx context.Context, e Quarantined) error {
	const q = `insert into quarantines (migration, direction, "partition", seq, event, reason) values ($1, $2, $3, $4, $5, $6)
		on conflict (migration, direction, "partition", seq) do update set reason = excluded.reason, released_at = null`
	_, err := s.pool.Exec(ctx, q, int64(e.Lane.Migration), int64(e.Lane.Direction), e.Lane.Partition, e.Seq, e.Event, plainText(e.Reason))
	return decode(err, "quarantine event %d of migration %d", e.Seq, e.Lane.Migration)
}

// Quarantines gives what is quarantined of a migration now, oldest first.
func (s *Store) Quarantines(ctx context.Context, id chunk.MigrationID) ([]Quarantined, error) {
	const q = `select migration, direction, "partition", seq, event, reason, at from quarantines
		where migration = $1 and released_at is null order by id`
	rows, err := s.pool.Query(ctx, q, int64(id))
	if err != nil {
		return nil, decode(err, "list quarantines of migration %d", id)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Quarantined, err error) {
		return e, row.Scan(&e.Lane.Migration, &e.Lane.Direction, &e.Lane.Partition, &e.Seq, &e.Event, &e.Reason, &e.At)
	})
	return all, decode(err, "list quarantines of migration %d", id)
}

// ReleaseQuarantine records that an event has been dealt with.
func (s *Store) ReleaseQuarantine(ctx context.Context, l chunk.Lane, seq int64) error {
	const q = `update quarantines set released_at = clock_timestamp()
		where migration = $1 and direction = $2 and "partition" = $3 and seq = $4 and released_at is null`
	_, err := s.pool.Exec(ctx, q, int64(l.Migration), int64(l.Direction), l.Partition, seq)
	return decode(err, "release event %d of migration %d", seq, l.Migration)
}

// Mismatch is one difference between the two sides of a migration.
type Mismatch struct {
	Collection string
	ID         []byte // raw BSON {_id: value}; nil when it is not about a document
	Path       string // of the field, empty for the whole
	Kind       string
	FirstSeen  time.Time
	LastSeen   time.Time
}

// digest is what tells mismatches apart; _id and path may be too long for an index.
func (m Mismatch) digest() []byte {
	h := sha256.New()
	for _, part := range [][]byte{m.ID, []byte(m.Path), []byte(m.Kind)} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

// RecordMismatches keeps what a comparison found. One that is known keeps the
// time when it was first seen, and is open again if it was resolved.
func (s *Store) RecordMismatches(ctx context.Context, id chunk.MigrationID, found []Mismatch) error {
	const q = `insert into mismatches as x (migration, collection, digest, doc_id, path, kind) values ($1, $2, $3, $4, $5, $6)
		on conflict (migration, collection, digest) do update set last_seen = clock_timestamp(), resolved_at = null,
			first_seen = case when x.resolved_at is null then x.first_seen else clock_timestamp() end`
	b := &pgx.Batch{}
	for _, m := range found {
		b.Queue(q, int64(id), plainText(m.Collection), m.digest(), m.ID, plainText(m.Path), m.Kind)
	}
	return decode(s.pool.SendBatch(ctx, b).Close(), "keep mismatches of migration %d", id)
}

// ResolveMismatches closes the open mismatches of a collection that were last
// seen before a time: that of the comparison that did not find them again.
func (s *Store) ResolveMismatches(ctx context.Context, id chunk.MigrationID, collection string, before time.Time) error {
	const q = `update mismatches set resolved_at = clock_timestamp()
		where migration = $1 and collection = $2 and last_seen < $3 and resolved_at is null`
	_, err := s.pool.Exec(ctx, q, int64(id), plainText(collection), before)
	return decode(err, "resolve mismatches of migration %d", id)
}

// OpenMismatches gives at most limit mismatches that are not resolved, oldest
// first, and how many there are.
func (s *Store) OpenMismatches(ctx context.Context, id chunk.MigrationID, limit int) (some []Mismatch, total int64, err error) {
	const q = `select collection, doc_id, path, kind, first_seen, last_seen, count(*) over () from mismatches
		where migration = $1 and resolved_at is null order by first_seen, digest limit $2`
	rows, err := s.pool.Query(ctx, q, int64(id), max(limit, 1))
	if err != nil {
		return nil, 0, decode(err, "list mismatches of migration %d", id)
	}
	some, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Mismatch, err error) {
		return m, row.Scan(&m.Collection, &m.ID, &m.Path, &m.Kind, &m.FirstSeen, &m.LastSeen, &total)
	})
	return some, total, decode(err, "list mismatches of migration %d", id)
}
