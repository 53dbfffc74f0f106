package metadata

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// loadLasts is how long a proxy's word about the load of a placement counts.
const loadLasts = 90 * time.Second

// setLoadsSQL keeps the requests of each placement and their fan-out, at most every ten
// seconds.
const setLoadsSQL = `insert into proxy_loads as l (proxy, placement, requests, fan_out, spent_us)
		select $1, (w ->> 'placement')::bigint, coalesce((w ->> 'requests')::bigint, 0), coalesce(w -> 'fan_out', '{}'), coalesce((w ->> 'spent_us')::bigint, 0)
		from jsonb_array_elements($2::jsonb) w
	on conflict (proxy, placement) do update set requests = excluded.requests, fan_out = excluded.fan_out, spent_us = excluded.spent_us, at = clock_timestamp()
		where l.at < clock_timestamp() - interval '10 seconds'`

// Loads gives the requests per second of each placement that the proxies have
// sent something to within the last minute.
func (s *Store) Loads(ctx context.Context) (map[chunk.PlacementID]float64, error) {
	const q = `select placement, sum(requests)::float8 / 60 from proxy_loads where at > clock_timestamp() - $1::interval group by placement`
	return keyed[chunk.PlacementID, float64](ctx, s, "read loads", q, loadLasts)
}

// FanOut gives by how many chunks the requests concerned that the proxies have sent to
// a placement within the last minute.
func (s *Store) FanOut(ctx context.Context, p chunk.PlacementID) (sum chunk.FanOut, err error) {
	const q = `select fan_out from proxy_loads where placement = $1 and at > clock_timestamp() - $2::interval`
	rows, err := s.pool.Query(ctx, q, int64(p), loadLasts)
	if err != nil {
		return sum, decode(err, "read the fan-out of placement %d", p)
	}
	var one chunk.FanOut
	_, err = pgx.ForEachRow(rows, []any{&one}, func() error {
		sum.Add(one)
		one = chunk.FanOut{}
		return nil
	})
	return sum, decode(err, "read the fan-out of placement %d", p)
}

// RouteAges gives how long each chunk that was ever moved has been where it is.
func (s *Store) RouteAges(ctx context.Context) (map[chunk.ID]time.Duration, error) {
	rows, err := s.pool.Query(ctx, `select chunk, extract(epoch from clock_timestamp() - since)::float8 from routes where attempt <> 0`)
	if err != nil {
		return nil, decode(err, "read ages of routes")
	}
	out := map[chunk.ID]time.Duration{}
	var id chunk.ID
	var age float64
	_, err = pgx.ForEachRow(rows, []any{&id, &age}, func() error {
		out[id] = time.Duration(age * float64(time.Second))
		return nil
	})
	return out, decode(err, "read ages of routes")
}

// Moving gives the chunks that are part of an unfinished move, with its workflow.
func (s *Store) Moving(ctx context.Context) (map[chunk.ID]string, error) {
	const q = `select c.chunk, m.workflow_id from chunk_claims c join migrations m on m.id = c.migration`
	return keyed[chunk.ID, string](ctx, s, "read moving chunks", q)
}

// Note is something that the balancer refused.
type Note struct {
	Subject string
	Reason  string
}

// KeepRound keeps what a round decided, and which of its refusals were not said
// before. A refusal that is not among notes any more is forgotten: it is said
// again when it comes back.
func (s *Store) KeepRound(ctx context.Context, result json.RawMessage, notes []Note) (fresh []string, err error) {
	subjects := make([]string, 0, len(notes))
	for _, n := range notes {
		subjects = append(subjects, n.Subject)
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		fresh = nil
		if _, err := tx.Exec(ctx, `delete from balance_notes where not subject = any($1)`, subjects); err != nil {
			return err
		}
		for _, n := range notes {
			const q = `insert into balance_notes as b (subject, reason) values ($1, $2)
				on conflict (subject) do update set reason = excluded.reason, since = clock_timestamp() where b.reason <> excluded.reason`
			tag, err := tx.Exec(ctx, q, n.Subject, n.Reason)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 1 {
				fresh = append(fresh, n.Subject)
			}
		}
		_, err := tx.Exec(ctx, `insert into balance_rounds (result) values ($1)`, string(result))
		return err
	})
	return fresh, decode(err, "keep a balancer's round")
}

// BalanceRound is one round of the balancer as it was kept.
type BalanceRound struct {
	ID     int64           `json:"id"`
	At     time.Time       `json:"at"`
	Result json.RawMessage `json:"result"`
}

// BalanceRounds gives the newest rounds.
func (s *Store) BalanceRounds(ctx context.Context, limit int) ([]BalanceRound, error) {
	rows, err := s.pool.Query(ctx, `select id, at, result from balance_rounds order by id desc limit $1`, limit)
	if err != nil {
		return nil, decode(err, "list rounds")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r BalanceRound, err error) {
		var b []byte
		err = row.Scan(&r.ID, &r.At, &b)
		r.Result = b
		return r, err
	})
	return all, decode(err, "list rounds")
}

// DesiredState is one fleet file that was applied.
type DesiredState struct {
	Version   int64           `json:"version"`
	Content   string          `json:"content"`
	Changes   json.RawMessage `json:"changes"`
	AppliedBy string          `json:"appliedBy"`
	AppliedAt time.Time       `json:"appliedAt"`
}

// KeepDesiredState adds a fleet file to the history.
func (s *Store) KeepDesiredState(ctx context.Context, d DesiredState) (version int64, err error) {
	const q = `insert into desired_states (content, changes, applied_by) values ($1, $2, $3) returning version`
	err = s.pool.QueryRow(ctx, q, d.Content, string(d.Changes), d.AppliedBy).Scan(&version)
	return version, decode(err, "keep the desired state")
}

// DesiredStates gives the newest fleet files that were applied.
func (s *Store) DesiredStates(ctx context.Context, limit int) ([]DesiredState, error) {
	rows, err := s.pool.Query(ctx, `select version, content, changes, applied_by, applied_at from desired_states order by version desc limit $1`, limit)
	if err != nil {
		return nil, decode(err, "list desired states")
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DesiredState, err error) {
		var b []byte
		err = row.Scan(&d.Version, &d.Content, &b, &d.AppliedBy, &d.AppliedAt)
		d.Changes = b
		return d, err
	})
	return all, decode(err, "list desired states")
}
