package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// Answer is what a live proxy says of a shard.
type Answer struct {
	Proxy  string
	Word   json.RawMessage // nil: nothing yet since a move copies from or to the shard
	Before json.RawMessage // the field lately of its last word before an import began; nil: not known
}

// SetAnswers keeps what a proxy says of the answers of shards, as a JSON array of objects
// with a field shard. Only those are kept that a move copies from or to, until it is in
// sync: nobody asks for the others. Of those on which the proxy sent nothing it is kept
// that it said so. What was before an import is what was said last of a minute in which none
// was at work there, whichever worker's, or hardly.
func (s *Store) SetAnswers(ctx context.Context, proxy string, words json.RawMessage) error {
	const q = `with copied as (
			select p.shard, bool_or(m.phase = 'importing') as busy, bool_or(m.phase = 'importing' and m.created_at < clock_timestamp() - $4::interval) as felt
			from migrations m join placements p on p.id in (m.source, m.target)
			where m.phase in ('registered', 'importing', 'replicating') group by p.shard
		), said as (
			select c.shard, coalesce(w, jsonb_build_object('shard', c.shard)) as word, case when not c.felt then w -> 'lately' end as before,
				case when c.busy then clock_timestamp() end as busy_at
			from copied c left join jsonb_array_elements($2::jsonb) w on w ->> 'shard' = c.shard
		), old as (
			delete from proxy_answers where proxy = $1 and shard not in (select shard from copied)
				and coalesce(busy_at, '-infinity') < clock_timestamp() - $3::interval or at < clock_timestamp() - interval '1 hour'
		)
		insert into proxy_answers as a (proxy, shard, word, before, busy_at)
			select $1, shard, word, before, busy_at from said
		on conflict (proxy, shard) do update set word = excluded.word, at = clock_timestamp(), busy_at = coalesce(excluded.busy_at, a.busy_at),
			before = case when coalesce(excluded.busy_at, a.busy_at, '-infinity') < clock_timestamp() - $3::interval then excluded.word -> 'lately' else a.before end`
	_, err := s.pool.Exec(ctx, q, proxy, string(words), importFades, importFelt)
	return decode(err, "keep what proxy %s says of the shards", proxy)
}

// Of what proxies say of late, as they look back a minute and speak every second.
const (
	importFades = 65 * time.Second // after the end of an import it tells nothing of that
	importFelt  = 5 * time.Second  // after the beginning of a move it tells hardly anything of its import
)

// Answers gives what the live proxies say of a shard.
func (s *Store) Answers(ctx context.Context, shard string) ([]Answer, error) {
	const q = `select proxy, word, before from proxy_answers where shard = $1 and at > clock_timestamp() - $2::interval
		union all select id, null, null from proxies p where seen_at > clock_timestamp() - $2::interval
			and not exists (select from proxy_answers a where a.proxy = p.id and a.shard = $1 and a.at > clock_timestamp() - $2::interval)`
	rows, err := s.pool.Query(ctx, q, shard, ProxyLife)
	if err != nil {
		return nil, decode(err, "read what proxies say of shard %s", shard)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Answer, err error) {
		var word, before []byte
		err = row.Scan(&a.Proxy, &word, &before)
		a.Word, a.Before = word, before
		return a, err
	})
	return all, decode(err, "read what proxies say of shard %s", shard)
}
