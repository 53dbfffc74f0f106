package metadata

import (
	"context"
	"encoding/json"
	"time"

	"drover/chunk"
)

// Lanes gives what the lanes said last and how long ago, by Postgres' clock; ok is
// false when they never said anything.
func (s *Store) Lanes(ctx context.Context, id chunk.MigrationID) (word json.RawMessage, age time.Duration, ok bool, err error) {
	const q = `select lanes, extract(epoch from clock_timestamp() - lanes_at)::float8 from migrations where id = $1 and lanes_at is not null`
	var b []byte
	var seconds float64
	err = s.pool.QueryRow(ctx, q, int64(id)).Scan(&b, &seconds)
	if noRows(err) {
		return nil, 0, false, nil
	}
	return b, time.Duration(seconds * float64(time.Second)), err == nil, decode(err, "read the lanes' word on migration %d", id)
}

// CaptureSilence tells how long ago the capture of a shard saved its position, by
// Postgres' clock; ok is false when it was never captured.
func (s *Store) CaptureSilence(ctx context.Context, shard string) (silence time.Duration, ok bool, err error) {
	const q = `select extract(epoch from clock_timestamp() - saved_at)::float8 from capture_positions where shard = $1 and seq > 0`
	var seconds float64
	err = s.pool.QueryRow(ctx, q, shard).Scan(&seconds)
	if noRows(err) {
		return 0, false, nil
	}
	return time.Duration(seconds * float64(time.Second)), err == nil, decode(err, "read capture of shard %s", shard)
}

// SetSteps keeps the steps of an attempt, in place of those that were kept.
func (s *Store) SetSteps(ctx context.Context, id chunk.AttemptID, steps json.RawMessage) error {
	const q = `insert into attempt_steps (attempt, steps) values ($1, $2) on conflict (attempt) do update set steps = excluded.steps, at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, int64(id), []byte(steps))
	return decode(err, "keep the steps of attempt %d", id)
}

// Steps gives the steps of an attempt; ok is false when none are kept.
func (s *Store) Steps(ctx context.Context, id chunk.AttemptID) (steps json.RawMessage, ok bool, err error) {
	var b []byte
	err = s.pool.QueryRow(ctx, `select steps from attempt_steps where attempt = $1`, int64(id)).Scan(&b)
	if noRows(err) {
		return nil, false, nil
	}
	return b, err == nil, decode(err, "read the steps of attempt %d", id)
}
