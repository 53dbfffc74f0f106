package metadata

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"drover/chunk"
)

// Times gives how many seconds the operations of a second on each placement take, by the
// proxies' word of the last minute.
func (s *Store) Times(ctx context.Context) (map[chunk.PlacementID]float64, error) {
	const q = `select placement, sum(spent_us)::float8 / 60e6 from proxy_loads where at > clock_timestamp() - $1::interval group by placement`
	return keyed[chunk.PlacementID, float64](ctx, s, "read loads", q, loadLasts)
}

// Pressures gives what was read last of each shard.
func (s *Store) Pressures(ctx context.Context) (map[string]chunk.KeptPressure, error) {
	rows, err := s.pool.Query(ctx, `select shard, counters, pressure, extract(epoch from clock_timestamp() - at)::float8 from shard_pressures`)
	if err != nil {
		return nil, decode(err, "read the pressure of shards")
	}
	out := map[string]chunk.KeptPressure{}
	var shard string
	var counters, pressure []byte
	var age float64
	_, err = pgx.ForEachRow(rows, []any{&shard, &counters, &pressure, &age}, func() error {
		k := chunk.KeptPressure{Age: time.Duration(age * float64(time.Second))}
		if err := json.Unmarshal(counters, &k.Counters); err != nil {
			return fmt.Errorf("counters of %s: %w", shard, err)
		}
		if err := json.Unmarshal(pressure, &k.Pressure); err != nil {
			return fmt.Errorf("pressure of %s: %w", shard, err)
		}
		out[shard] = k
		return nil
	})
	return out, decode(err, "read the pressure of shards")
}

// KeepPressure keeps a reading of a shard in place of the one before.
func (s *Store) KeepPressure(ctx context.Context, shard string, c chunk.Counters, p chunk.Pressure) error {
	counters, err := json.Marshal(c)
	if err != nil {
		return err
	}
	pressure, err := json.Marshal(p)
	if err != nil {
		return err
	}
	const q = `insert into shard_pressures (shard, counters, pressure) select name, $2, $3 from shards where name = $1
		on conflict (shard) do update set counters = excluded.counters, pressure = excluded.pressure, at = clock_timestamp()`
	_, err = s.pool.Exec(ctx, q, shard, string(counters), string(pressure))
	return decode(err, "keep the pressure of shard %s", shard)
}

// Copying gives the shards that moves copy from or to now, each with the workflow of one.
// A move in burn-in only follows.
func (s *Store) Copying(ctx context.Context) (map[string]string, error) {
	const q = `select p.shard, min(m.workflow_id) from migrations m join placements p on p.id in (m.source, m.target)
		where m.phase not in ('burn-in', 'done', 'aborted') group by p.shard`
	return keyed[string, string](ctx, s, "read the shards of moves", q)
}

// heatsLast is how long the heat of a chunk is remembered that nobody observes any more.
const heatsLast = 48 * time.Hour

// Heats gives what is remembered of chunks' heat.
func (s *Store) Heats(ctx context.Context) (map[chunk.ID]json.RawMessage, error) {
	const q = `select chunk, heat from chunk_heats where at > clock_timestamp() - $1::interval`
	return keyed[chunk.ID, json.RawMessage](ctx, s, "read the heat of chunks", q, heatsLast)
}

// KeepHeats keeps the heat of some chunks; what is too old to matter is forgotten.
func (s *Store) KeepHeats(ctx context.Context, all map[chunk.ID]json.RawMessage) error {
	ids, heats := make([]string, 0, len(all)), make([]string, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) { // two that keep some at once must not wait for each other
		ids, heats = append(ids, string(id)), append(heats, string(all[id]))
	}
	const q = `with old as (delete from chunk_heats where at < clock_timestamp() - $3::interval and chunk <> all($1::text[]))
		insert into chunk_heats (chunk, heat) select * from unnest($1::text[], $2::jsonb[])
		on conflict (chunk) do update set heat = excluded.heat, at = clock_timestamp()`
	_, err := s.pool.Exec(ctx, q, ids, heats, heatsLast)
	return decode(err, "keep the heat of chunks")
}
