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
	kept map[string]keptRate                      // by target, as it is in the metadata
}

// keptRate is a rate that was written lately.
type keptRate struct {
	perSecond float64
	at        time.Time
}

// A rate is worth a statement when it is so much better than the one that was
// written last, or when that is so old: the metadata lets a rate end after a day.
const (
	keptAgain = 1.05
	keptFor   = time.Hour
)

// note takes a leg's rate and gives the sum of its target, when that is worth a
// statement and the leg is held by its target.
func (c *capacities) note(now time.Time, shard string, id chunk.MigrationID, rate float64, saturated bool) (best float64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.legs == nil {
		c.legs, c.kept = map[string]map[chunk.MigrationID]float64{}, map[string]keptRate{}
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
	old := c.kept[shard]
	return best, best >= keptAgain*old.perSecond || now.Sub(old.at) >= keptFor
}

// keep notes that a target's rate was written.
func (c *capacities) keep(now time.Time, shard string, rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[shard] = keptRate{rate, now}
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
	now := time.Now()
	rate, saturated, ok := m.observe(now, applied, f)
	if !ok {
		return
	}
	shard := l.To.Shard
	best, ok := a.capacities.note(now, shard, l.Migration, rate, saturated)
	if !ok {
		return
	}
	err := a.Store.KeepRate(ctx, shard, metadata.ApplyRate, best)
	if err == nil {
		a.capacities.keep(now, shard, best)
	} else if ctx.Err() == nil {
		a.Logger.WarnContext(ctx, "What a target can apply is not kept", slog.String("shard", shard), slog.Any("error", err))
	}
}
