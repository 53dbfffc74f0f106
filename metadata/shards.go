package metadata

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
	"drover/internal/failure"
)

// shardColumns are what scanShard reads.
const shardColumns = `name, uri, capabilities, added_at`

// AddShard registers a shard. The same name and URI again is no error and brings
// the capabilities up to date; the name with another URI is "shard.exists".
func (s *Store) AddShard(ctx context.Context, sh chunk.Shard) error {
	caps, err := json.Marshal(sh.Capabilities)
	if err != nil {
		return failure.New(failure.Invalid, "shard.capabilities", "encode capabilities of shard %s: %w", sh.Name, err)
	}
	const q = `insert into shards as s (name, uri, capabilities) values ($1, $2, $3)
		on conflict (name) do update set capabilities = excluded.capabilities, removing_at = null where s.uri = excluded.uri`
	tag, err := s.pool.Exec(ctx, q, sh.Name, sh.URI, caps)
	if err != nil {
		return decode(err, "add shard %s", sh.Name)
	}
	if tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "shard.exists", "shard %s is registered with another address", sh.Name).
			WithHint("choose another name; `drover shard list` shows the shards")
	}
	return nil
}

// Shard gives one shard, or "shard.unknown".
func (s *Store) Shard(ctx context.Context, name string) (chunk.Shard, error) {
	rows, err := s.pool.Query(ctx, `select `+shardColumns+` from shards where name = $1`, name)
	if err != nil {
		return chunk.Shard{}, decode(err, "read shard %s", name)
	}
	sh, err := pgx.CollectExactlyOneRow(rows, scanShard)
	if noRows(err) {
		return sh, failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", name).
			WithHint("`drover shard list` shows the shards")
	}
	return sh, decode(err, "read shard %s", name)
}

// Shards gives every shard by name.
func (s *Store) Shards(ctx context.Context) ([]chunk.Shard, error) {
	rows, err := s.pool.Query(ctx, `select `+shardColumns+` from shards order by name`)
	if err != nil {
		return nil, decode(err, "list shards")
	}
	all, err := pgx.CollectRows(rows, scanShard)
	return all, decode(err, "list shards")
}

// SetCapabilities keeps what the newest trial found a shard able to do.
func (s *Store) SetCapabilities(ctx context.Context, name string, c chunk.Capabilities) error {
	caps, err := json.Marshal(c)
	if err != nil {
		return failure.New(failure.Invalid, "shard.capabilities", "encode capabilities of shard %s: %w", name, err)
	}
	tag, err := s.pool.Exec(ctx, `update shards set capabilities = $2 where name = $1`, name, caps)
	if err == nil && tag.RowsAffected() == 0 {
		return failure.New(failure.Invalid, "shard.unknown", "there is no shard %s", name)
	}
	return decode(err, "set capabilities of shard %s", name)
}

// scanShard reads shardColumns.
func scanShard(row pgx.CollectableRow) (chunk.Shard, error) {
	var sh chunk.Shard
	var caps []byte
	if err := row.Scan(&sh.Name, &sh.URI, &caps, &sh.AddedAt); err != nil {
		return sh, err
	}
	return sh, json.Unmarshal(caps, &sh.Capabilities)
}
