package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ProxyLife is how long after its last word a proxy counts as alive. Proxies say
// one every second. It must be longer than a proxy takes to notice that it hears
// nothing any more: until then it is waited for.
const ProxyLife = 6 * time.Second

// Proxy is a router that has shown itself.
type Proxy struct {
	ID      string
	Address string
	Hold    time.Duration // for how long it holds a request while a switch is under way; 0: it does not say
	SeenAt  time.Time
}

// SeeProxy records that a proxy lives, and forgets those that have been silent for
// a day.
func (s *Store) SeeProxy(ctx context.Context, id, address string, hold time.Duration) error {
	const q = `with old as (delete from proxies where seen_at < clock_timestamp() - interval '1 day' and id <> $1)
		insert into proxies (id, address, hold) values ($1, $2, $3)
		on conflict (id) do update set address = excluded.address, hold = excluded.hold, seen_at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, id, address, hold)
	return decode(err, "register proxy %s", id)
}

// RemoveProxy forgets a proxy that has stopped: nobody waits for its word.
func (s *Store) RemoveProxy(ctx context.Context, id string) error {
	_, err := s.pool.Exec(ctx, `delete from proxies where id = $1`, id)
	return decode(err, "remove proxy %s", id)
}

// LiveProxies gives the proxies seen within [ProxyLife], by id.
func (s *Store) LiveProxies(ctx context.Context) ([]Proxy, error) {
	const q = `select id, address, hold, seen_at from proxies where seen_at > clock_timestamp() - $1::interval order by id`
	rows, err := s.pool.Query(ctx, q, ProxyLife)
	if err != nil {
		return nil, decode(err, "list proxies")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Proxy, err error) {
		return p, row.Scan(&p.ID, &p.Address, &p.Hold, &p.SeenAt)
	})
	return all, decode(err, "list proxies")
}
