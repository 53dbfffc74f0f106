package metadata

import (
	"context"

	"github.com/jackc/pgx/v5"

	"drover/internal/failure"
)

// CapturePosition is how far a shard's log is captured. Seq, the resume token
// and the state are one value: they are read and saved together.
type CapturePosition struct {
	Shard       string
	Owner       string
	Epoch       int64 // of the owner; a save with an older one is lost
	Seq         int64
	ResumeToken []byte
	State       []byte // as capture wrote it
}

// TakeCapture makes owner the one who captures a shard, with a new epoch, and
// gives the position to go on from. Whoever captured it before can save no more.
func (s *Store) TakeCapture(ctx context.Context, shard, owner string) (CapturePosition, error) {
	const q = `insert into capture_positions as c (shard, owner, epoch) values ($1, $2, 1)
		on conflict (shard) do update set owner = excluded.owner, epoch = c.epoch + 1
		returning shard, owner, epoch, seq, resume_token, state`
	rows, err := s.pool.Query(ctx, q, shard, owner)
	if err != nil {
		return CapturePosition{}, decode(err, "take capture of shard %s", shard)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanCapture)
	return p, decode(err, "take capture of shard %s", shard)
}

// SaveCapture saves a position of the current owner's. One who has been replaced
// gets "capture.lost"; so does a position that would go back.
func (s *Store) SaveCapture(ctx context.Context, p CapturePosition) error {
	const q = `update capture_positions set seq = $3, resume_token = $4, state = $5, saved_at = clock_timestamp()
		where shard = $1 and epoch = $2 and seq <= $3`
	tag, err := s.pool.Exec(ctx, q, p.Shard, p.Epoch, p.Seq, p.ResumeToken, p.State)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Lost, "capture.lost", "epoch %d of the capture of shard %s is over, or seq %d goes back", p.Epoch, p.Shard, p.Seq)
	}
	return decode(err, "save capture of shard %s", p.Shard)
}

// Capture gives the position of a shard's capture without taking it; ok is false
// when it was never captured.
func (s *Store) Capture(ctx context.Context, shard string) (p CapturePosition, ok bool, err error) {
	rows, err := s.pool.Query(ctx, `select shard, owner, epoch, seq, resume_token, state from capture_positions where shard = $1`, shard)
	if err != nil {
		return p, false, decode(err, "read capture of shard %s", shard)
	}
	p, err = pgx.CollectExactlyOneRow(rows, scanCapture)
	if noRows(err) {
		return CapturePosition{}, false, nil
	}
	return p, err == nil, decode(err, "read capture of shard %s", shard)
}

// scanCapture reads a row of capture_positions.
func scanCapture(row pgx.CollectableRow) (p CapturePosition, err error) {
	return p, row.Scan(&p.Shard, &p.Owner, &p.Epoch, &p.Seq, &p.ResumeToken, &p.State)
}

// ArchivePosition is how far a partition of a captured log is archived.
type ArchivePosition struct {
	Topic     string
	Partition int32
	Offset    int64  // the next one to archive
	Manifest  string // object key of the newest manifest
}

// ArchivePosition gives the position of a partition, zero when nothing is archived.
func (s *Store) ArchivePosition(ctx context.Context, topic string, partition int32) (ArchivePosition, error) {
	p := ArchivePosition{Topic: topic, Partition: partition}
	const q = `select "offset", manifest from archive_positions where topic = $1 and "partition" = $2`
	err := s.pool.QueryRow(ctx, q, topic, partition).Scan(&p.Offset, &p.Manifest)
	if noRows(err) {
		return p, nil
	}
	return p, decode(err, "read archive position of %s/%d", topic, partition)
}

// SaveArchive moves a partition's position from one offset to a later one. It is
// lost ("archive.lost") where another archiver has moved it.
func (s *Store) SaveArchive(ctx context.Context, from int64, p ArchivePosition) error {
	if p.Offset < from {
		return failure.New(failure.Invalid, "archive.backwards", "archive position of %s/%d would go from %d to %d", p.Topic, p.Partition, from, p.Offset)
	}
	const q = `insert into archive_positions as a (topic, "partition", "offset", manifest)
		select $1, $2, $4, $5 where $3 = 0 or exists (select from archive_positions where topic = $1 and "partition" = $2)
		on conflict (topic, "partition") do update
			set "offset" = excluded."offset", manifest = excluded.manifest, saved_at = clock_timestamp()
			where a."offset" = $3`
	tag, err := s.pool.Exec(ctx, q, p.Topic, p.Partition, from, p.Offset, p.Manifest)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Lost, "archive.lost", "archive position of %s/%d is no longer %d", p.Topic, p.Partition, from)
	}
	return decode(err, "save archive position of %s/%d", p.Topic, p.Partition)
}
