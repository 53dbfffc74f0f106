package metadata

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// SetAnswers keeps what a proxy says of the answers of shards, as a JSON array of objects
// with a field shard. Only those are kept that a move copies from or to, until it is in
// sync: nobody asks for the others.
func (s *Store) SetAnswers(ctx context.Context, proxy string, words json.RawMessage) error {
	const q = `with copied as (
			select p.shard from migrations m join placements p on p.id in (m.source, m.target)
			where m.phase in ('registered', 'importing', 'replicating')
		), old as (
			delete from proxy_answers where proxy = $1 and shard not in (select shard from copied)
				or at < clock_timestamp() - interval '1 hour'
		)
		insert into proxy_answers (proxy, shard, word)
			select $1, w ->> 'shard', w from jsonb_array_elements($2::jsonb) w where w ->> 'shard' in (select shard from copied)
		on conflict (proxy, shard) do update set word = excluded.word, at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, proxy, string(words))
	return decode(err, "keep what proxy %s says of the shards", proxy)
}

// Answers gives what the live proxies say of a shard, by proxy.
func (s *Store) Answers(ctx context.Context, shard string) (map[string]json.RawMessage, error) {
	rows, err := s.pool.Query(ctx, `select proxy, word from proxy_answers where shard = $1 and at > clock_timestamp() - $2::interval`, shard, ProxyLife)
	if err != nil {
		return nil, decode(err, "read what proxies say of shard %s", shard)
	}
	out := map[string]json.RawMessage{}
	var proxy string
	var word []byte
	_, err = pgx.ForEachRow(rows, []any{&proxy, &word}, func() error {
		out[proxy], word = word, nil
		return nil
	})
	return out, decode(err, "read what proxies say of shard %s", shard)
}
