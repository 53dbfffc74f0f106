package metadata

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// InUse lists what keeps a shard from being removed, for people: placements that are
// not gone, open intents that move something to it, and leases. "shard.unknown" where
// there is no such shard.
func (s *Store) InUse(ctx context.Context, shard string) ([]string, error) {
	if _, err := s.Shard(ctx, shard); err != nil {
		return nil, err
	}
	return inUse(ctx, s.pool, shard)
}

// inUse is [Store.InUse] in a transaction too.
func inUse(ctx context.Context, q querier, shard string) ([]string, error) {
	const sql = `select 'chunk ' || p.chunk || ' (placement ' || p.id || ', ' || p.state || ', database ' || p.database || ')'
			from placements p where p.shard = $1 and p.state <> 'gone'
		union all select 'intent ' || i.workflow_id || ' moves chunks to it' from intents i where i.ended_at is null and $1 = any (i.filled)
		union all select 'a lease of ' || l.holder || coalesce(': ' || nullif(l.reason, ''), '') from leases l
			where l.shard = $1 and l.expires_at > clock_timestamp()
		union all select 'clone ' || c.id || ' of ' || c.chunk || ' (' || c.state || ', database ' || c.database || ')' from clones c
			where c.shard = $1 and c.state not in ('failed', 'dropped')
		union all select 'clone ' || c.id || ' of ' || c.chunk || ' reads its log' from clones c
			where c.ended_at is null and exists (select from route_history h where h.chunk = c.chunk and h.shard = $1) order by 1`
	rows, err := q.Query(ctx, sql, shard)
	if err != nil {
		return nil, decode(err, "see what uses shard %s", shard)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return all, decode(err, "see what uses shard %s", shard)
}

// BeginRemoval decides that a shard is removed: nothing can be placed on it from
// then on. "shard.in_use" names what still uses it. Asking again is no error.
func (s *Store) BeginRemoval(ctx context.Context, shard string) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var name string
		err := tx.QueryRow(ctx, `select name from shards where name = $1 for update`, shard).Scan(&name)
		if noRows(err) {
			return failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", shard).WithHint("`drover shard list` shows the shards")
		}
		if err != nil {
			return err
		}
		used, err := inUse(ctx, tx, shard)
		if err != nil {
			return err
		}
		if len(used) > 0 {
			return failure.New(failure.Invalid, "shard.in_use", "shard %s is in use: %s", shard, strings.Join(used, "; ")).
				WithHint("drover shard drain %s moves its chunks away", shard)
		}
		_, err = tx.Exec(ctx, `update shards set removing_at = coalesce(removing_at, clock_timestamp()) where name = $1`, shard)
		return err
	})
	return decode(err, "remove shard %s", shard)
}

// RowsOf counts the rows that go with a shard, by table: those of every table that
// belongs to it by its schema.
func (s *Store) RowsOf(ctx context.Context, shard string) (map[string]int64, error) {
	const tables = `select c.conrelid::regclass::text, a.attname from pg_constraint c
		join pg_attribute a on a.attrelid = c.conrelid and a.attnum = c.conkey[1]
		where c.contype = 'f' and c.confrelid = 'shards'::regclass and c.confdeltype = 'c'`
	rows, err := s.pool.Query(ctx, tables)
	if err != nil {
		return nil, decode(err, "list the tables of shard %s", shard)
	}
	batch := &pgx.Batch{}
	names := []string{"shards", "archive_positions"}
	batch.Queue(`select count(*) from shards where name = $1`, shard)
	batch.Queue(`select count(*) from archive_positions where topic = $1`, chunk.Topic(shard))
	var table, column string
	if _, err := pgx.ForEachRow(rows, []any{&table, &column}, func() error {
		names = append(names, table)
		batch.Queue(`select count(*) from `+table+` where `+pgx.Identifier{column}.Sanitize()+` = $1`, shard)
		return nil
	}); err != nil {
		return nil, decode(err, "list the tables of shard %s", shard)
	}
	out := map[string]int64{}
	results := s.pool.SendBatch(ctx, batch)
	for _, name := range names {
		var n int64
		if err := results.QueryRow().Scan(&n); err != nil {
			return nil, decode(errors.Join(err, results.Close()), "count rows of shard %s", shard)
		}
		if n > 0 {
			out[name] = n
		}
	}
	return out, decode(results.Close(), "count rows of shard %s", shard)
}

// RemoveShard deletes the rows of a shard whose removal has begun: its capture and
// archive positions, leases, layout. Asking again is no error.
func (s *Store) RemoveShard(ctx context.Context, shard string) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var removing bool
		err := tx.QueryRow(ctx, `select removing_at is not null from shards where name = $1 for update`, shard).Scan(&removing)
		if noRows(err) {
			return nil
		}
		if err == nil && !removing {
			err = failure.New(failure.Invalid, "shard.not_removing", "the removal of shard %s was taken back", shard)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `delete from archive_positions where topic = $1`, chunk.Topic(shard)); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `delete from shards where name = $1`, shard)
		return err
	})
	return decode(err, "remove shard %s", shard)
}
