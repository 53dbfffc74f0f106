package metadata

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// RateKind is what a shard was measured at.
type RateKind string

// The kinds of rates.
const (
	ApplyRate     RateKind = "apply"      // changes that lanes applied while they were behind, a second
	LoadRate      RateKind = "load"       // documents of an import, a second
	LoadBytesRate RateKind = "load-bytes" // likewise in bytes
)

// Rate is the best that a shard was seen to do lately.
type Rate struct {
	PerSecond float64
	Age       time.Duration
}

// rateLife is how long the best of a rate stands against lower ones: a shard may
// have changed since.
const rateLife = 24 * time.Hour

// KeepRate keeps a measured rate, unless a better one was seen lately.
func (s *Store) KeepRate(ctx context.Context, shard string, kind RateKind, perSecond float64) error {
	const q = `insert into shard_rates (shard, kind, per_second) values ($1, $2, $3)
		on conflict (shard, kind) do update set per_second = excluded.per_second, at = clock_timestamp()
		where excluded.per_second >= shard_rates.per_second or shard_rates.at < clock_timestamp() - $4::interval`
	_, err := s.pool.Exec(ctx, q, shard, string(kind), perSecond, rateLife)
	return decode(err, "keep the rate of shard %s", shard)
}

// Rates gives what a shard was seen to do.
func (s *Store) Rates(ctx context.Context, shard string) (map[RateKind]Rate, error) {
	const q = `select kind, per_second, extract(epoch from clock_timestamp() - at)::float8 from shard_rates where shard = $1`
	rows, err := s.pool.Query(ctx, q, shard)
	if err != nil {
		return nil, decode(err, "read the rates of shard %s", shard)
	}
	out := map[RateKind]Rate{}
	var kind string
	var rate, age float64
	_, err = pgx.ForEachRow(rows, []any{&kind, &rate, &age}, func() error {
		out[RateKind(kind)] = Rate{rate, time.Duration(age * float64(time.Second))}
		return nil
	})
	return out, decode(err, "read the rates of shard %s", shard)
}

// MoveRates gives the bytes per second that imports to each shard were seen to reach.
func (s *Store) MoveRates(ctx context.Context) (map[string]float64, error) {
	const q = `select shard, per_second from shard_rates where kind = $1 and per_second > 0`
	return keyed[string, float64](ctx, s, "read the rates of moves", q, string(LoadBytesRate))
}

// Admission is what a move met that wants to begin its import.
type Admission struct {
	Admitted   bool
	Shard      string  // the target with the least room
	Capacity   float64 // changes a second that it was seen to apply; 0: never measured
	Converging float64 // changes a second of the moves that were admitted to it and go on
	Others     int     // how many those are
	Demand     float64 // changes a second of this move
	Held       string  // why nothing begins now: a person's pause
}

// convergingSQL sums what the admitted moves to a shard that it does not serve yet ask of it now:
// what their lanes apply, or what they were admitted with while they have none.
const convergingSQL = `select count(*), coalesce(sum(case when m.progress ->> 'step' = 'replicate' and m.progress ? 'perSecond'
		then (m.progress ->> 'perSecond')::float8 else m.demand end), 0)
	from migrations m join placements t on t.id = m.target
	where t.shard = $1 and m.lead <> $2 and m.admitted_at is not null and m.phase not in ('burn-in', 'completing', 'done', 'aborted')`

// Admit lets a move with all its legs begin its import when each of its targets was
// seen to apply factor times what then converges on it, was never measured, or has
// nothing else that converges on it: alone, no waiting makes more room. It
// is decided for one move at a time; an admitted move stays admitted. demand is by
// leg, in changes a second.
func (s *Store) Admit(ctx context.Context, lead chunk.MigrationID, demand map[chunk.MigrationID]float64, factor float64, always bool) (a Admission, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock(hashtext('drover.admission'))`); err != nil {
			return err
		}
		targets, already, err := admissionTargets(ctx, tx, lead, demand)
		if err != nil {
			return err
		}
		a.Admitted = true
		for shard, asked := range targets {
			one := Admission{Shard: shard, Demand: asked}
			if err := tx.QueryRow(ctx, convergingSQL, shard, int64(lead)).Scan(&one.Others, &one.Converging); err != nil {
				return err
			}
			const capacity = `select coalesce((select per_second from shard_rates where shard = $1 and kind = 'apply'), 0)`
			if err := tx.QueryRow(ctx, capacity, shard).Scan(&one.Capacity); err != nil {
				return err
			}
			one.Admitted = already || always || one.Capacity == 0 || one.Others == 0 || one.Capacity >= factor*(one.Converging+asked)
			if a.Shard == "" || a.Admitted && !one.Admitted {
				one.Admitted = one.Admitted && a.Admitted
				a = one
			}
		}
		if !a.Admitted || already {
			return nil
		}
		for id, d := range demand {
			if _, err := tx.Exec(ctx, `update migrations set admitted_at = clock_timestamp(), demand = $2 where id = $1`, int64(id), d); err != nil {
				return err
			}
		}
		return nil
	})
	return a, decode(err, "admit migration %d", lead)
}

// Converging gives what a shard was seen to apply and what converges on it now.
func (s *Store) Converging(ctx context.Context, shard string) (a Admission, err error) {
	a.Shard = shard
	if err := s.pool.QueryRow(ctx, convergingSQL, shard, int64(0)).Scan(&a.Others, &a.Converging); err != nil {
		return a, decode(err, "read what converges on shard %s", shard)
	}
	rates, err := s.Rates(ctx, shard)
	a.Capacity = rates[ApplyRate].PerSecond
	return a, err
}

// admissionTargets gives what a migration asks of each of its targets, and whether
// it was admitted before.
func admissionTargets(ctx context.Context, tx pgx.Tx, lead chunk.MigrationID, demand map[chunk.MigrationID]float64) (map[string]float64, bool, error) {
	rows, err := tx.Query(ctx, `select m.id, t.shard, m.admitted_at is not null from migrations m join placements t on t.id = m.target where m.lead = $1`, int64(lead))
	if err != nil {
		return nil, false, err
	}
	targets := map[string]float64{}
	already := false
	var id int64
	var shard string
	var admitted bool
	_, err = pgx.ForEachRow(rows, []any{&id, &shard, &admitted}, func() error {
		targets[shard] += demand[chunk.MigrationID(id)]
		already = already || admitted
		return nil
	})
	return targets, already, err
}
