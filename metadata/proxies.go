package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// ProxyLife is how long after its last word a proxy counts as alive. Proxies say
// one every second. It must be longer than a proxy takes to notice that it hears
// nothing any more: until then it is waited for.
const ProxyLife = 6 * time.Second

// vanishedLife is how long a proxy that fell silent without a goodbye, or whose place
// another run has taken without one, is thought to have requests under way: far longer
// than a shard takes over one.
const vanishedLife = time.Minute

// Proxy is a router that has shown itself.
type Proxy struct {
	ID      string
	Run     string // tells one run of a proxy from another; empty: it does not say
	Address string
	Hold    time.Duration // for how long it holds a request while a switch is under way; 0: it does not say
	Hears   bool          // announcements reach it
	SeenAt  time.Time
	Back    bool // it lives: what vanished is a run before it

	Settings int64           // version of the fleet's settings that it runs; 0: its own only
	Health   json.RawMessage // of its requests within the last minute; nil: it does not say
}

// SeeProxy records that a proxy lives, and forgets those that have been silent for
// a day. When it was seen is the metadata's to say. A run that takes the place of
// another one, which has not said goodbye, leaves it among [Store.VanishedProxies].
func (s *Store) SeeProxy(ctx context.Context, p Proxy) error {
	const q = `with old as (delete from proxies where seen_at < clock_timestamp() - interval '1 day' and id <> $1)
		insert into proxies as p (id, address, hold, hears, settings, health, run) values ($1, $2, $3, $4, $5, $6, $7)
		on conflict (id) do update set address = excluded.address, hold = excluded.hold, hears = excluded.hears, settings = excluded.settings,
			health = excluded.health, seen_at = clock_timestamp(),
			broke_at = case when p.run <> excluded.run then clock_timestamp() else p.broke_at end, run = excluded.run`
	_, err := s.pool.Exec(ctx, q, p.ID, p.Address, p.Hold, p.Hears, p.Settings, orEmptyJSON(p.Health), p.Run)
	return decode(err, "register proxy %s", p.ID)
}

// RemoveProxy forgets a run of a proxy that has stopped: nobody waits for its word.
// Another one that has its name by then stays.
func (s *Store) RemoveProxy(ctx context.Context, id, run string) error {
	_, err := s.pool.Exec(ctx, `delete from proxies where id = $1 and run = $2`, id, run)
	return decode(err, "remove proxy %s", id)
}

// LiveProxies gives the proxies seen within [ProxyLife], by id.
func (s *Store) LiveProxies(ctx context.Context) ([]Proxy, error) {
	return s.proxies(ctx, `seen_at > clock_timestamp() - $1::interval`)
}

// VanishedProxies gives those that were seen a while ago, did not say goodbye, and
// may have left requests behind; also those that are back.
func (s *Store) VanishedProxies(ctx context.Context) ([]Proxy, error) {
	return s.proxies(ctx, `(seen_at > clock_timestamp() - $2::interval and seen_at <= clock_timestamp() - $1::interval or broke_at > clock_timestamp() - $2::interval)`, vanishedLife)
}

// proxies gives those of which something is so. $1 is [ProxyLife].
func (s *Store) proxies(ctx context.Context, where string, more ...any) ([]Proxy, error) {
	const q = `select id, run, address, hold, hears, seen_at, seen_at > clock_timestamp() - $1::interval, settings, health from proxies where `
	rows, err := s.pool.Query(ctx, q+where+` order by id`, append([]any{ProxyLife}, more...)...)
	if err != nil {
		return nil, decode(err, "list proxies")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Proxy, err error) {
		var health []byte
		err = row.Scan(&p.ID, &p.Run, &p.Address, &p.Hold, &p.Hears, &p.SeenAt, &p.Back, &p.Settings, &health)
		p.Health = health
		return p, err
	})
	return all, decode(err, "list proxies")
}
