package metadata

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// SetTraffic keeps what a proxy says of the placements it talked to, as a JSON array
// of objects with a field placement, in place of what it said before. Only those of
// unfinished moves are kept whole; of all others the requests, see [Store.Loads].
func (s *Store) SetTraffic(ctx context.Context, proxy string, words json.RawMessage) error {
	const q = `with said as (
			select (w ->> 'placement')::bigint as placement, w as word from jsonb_array_elements($2::jsonb) w
		), old as (
			delete from proxy_traffic where proxy = $1 and placement not in (select placement from said)
				or at < clock_timestamp() - interval '1 hour'
		)
		insert into proxy_traffic (proxy, placement, word)
			select $1, placement, word from said
			where placement in (select unnest(array[source, target]) from migrations where phase not in ('done', 'aborted'))
		on conflict (proxy, placement) do update set word = excluded.word, at = clock_timestamp()`
	if _, err := s.pool.Exec(ctx, q, proxy, string(words)); err != nil {
		return decode(err, "keep the traffic of proxy %s", proxy)
	}
	_, err := s.pool.Exec(ctx, setLoadsSQL, proxy, string(words))
	return decode(err, "keep the loads of proxy %s", proxy)
}

// Traffic gives what the live proxies say of a placement, one word each.
func (s *Store) Traffic(ctx context.Context, p chunk.PlacementID) ([]json.RawMessage, error) {
	rows, err := s.pool.Query(ctx, `select word from proxy_traffic where placement = $1 and at > clock_timestamp() - $2::interval order by proxy`, int64(p), ProxyLife)
	if err != nil {
		return nil, decode(err, "read the traffic of placement %d", p)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (json.RawMessage, error) {
		var b []byte
		return b, row.Scan(&b)
	})
	return all, decode(err, "read the traffic of placement %d", p)
}
