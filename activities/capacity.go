package activities

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"drover/chunk"
	"drover/metadata"
	"drover/replication"
)

// capacities measures what targets can apply: what the lanes of this process apply
// to a shard together, while they are behind because of it.
type capacities struct {
	mu   sync.Mutex
	legs map[string]map[chunk.MigrationID]float64 // changes a second, by target
	kept map[string]float64                       // by target, as it is in the metadata
}

// keptAgain is how much better a rate must be to be worth a statement.
const keptAgain = 1.05

// note takes a leg's rate and gives the sum of its target, when that is better than
// what was kept and the leg is held by its target.
func (c *capacities) note(shard string, id chunk.MigrationID, rate float64, saturated bool) (best float64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.legs == nil {
		c.legs, c.kept = map[string]map[chunk.MigrationID]float64{}, map[string]float64{}
	}
	if c.legs[shard] == nil {
		c.legs[shard] = map[chunk.MigrationID]float64{}
	}
	c.legs[shard][id] = rate
	if !saturated {
		return 0, false
	}
	for _, r := range c.legs[shard] {
		best += r
	}
	if best < keptAgain*c.kept[shard] {
		return best, false
	}
	c.kept[shard] = best
	return best, true
}

// forget takes a leg out whose lanes have ended.
func (c *capacities) forget(shard string, id chunk.MigrationID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.legs[shard], id)
}

// applyMeter measures one leg.
type applyMeter struct {
	at      time.Time
	applied int64
	behind  bool
}

// Bounds of a measurement: over a while, with a backlog from its beginning to its
// end, and most of the records that the lanes deal with being the leg's own: lanes
// that skip what is not theirs are not held by their target.
const (
	capacityOver = 2 * time.Second
	capacityLast = 1000 // records
	capacityOwn  = 0.5
)

// observe gives the leg's rate, when there is a new one.
func (m *applyMeter) observe(now time.Time, applied int64, f replication.Forecast) (rate float64, saturated, ok bool) {
	behind := f.Backlog >= capacityLast
	if m.at.IsZero() || applied < m.applied {
		*m = applyMeter{now, applied, behind}
		return 0, false, false
	}
	took := now.Sub(m.at)
	if took < capacityOver {
		m.behind = m.behind && behind
		return 0, false, false
	}
	rate = float64(applied-m.applied) / took.Seconds()
	saturated = m.behind && behind && rate >= capacityOwn*f.Apply
	*m = applyMeter{now, applied, behind}
	return rate, saturated, true
}

// measureApply keeps what the target of a leg was seen to apply. Nothing waits for it, so
// a failure is only logged.
func (a *Activities) measureApply(ctx context.Context, l leg, m *applyMeter, status []replication.Status, f replication.Forecast) {
	var applied int64
	for _, s := range status {
		applied += s.Applied
	}
	rate, saturated, ok := m.observe(time.Now(), applied, f)
	if !ok {
		return
	}
	best, ok := a.capacities.note(l.To.Shard, l.Migration, rate, saturated)
	if !ok {
		return
	}
	if err := a.Store.KeepRate(ctx, l.To.Shard, metadata.ApplyRate, best); err != nil && ctx.Err() == nil {
		a.Logger.WarnContext(ctx, "What a target can apply is not kept", slog.String("shard", l.To.Shard), slog.Any("error", err))
	}
}
