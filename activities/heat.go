package activities

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/cdc"
	"drover/chunk"
	"drover/contract"
	"drover/event"
)

// What is looked at to cut a chunk by heat.
const (
	heatEvents = 50_000    // of the captured log's end
	heatFor    = time.Hour // older ones say nothing
	heatAsked  = 500       // documents in one question
)

// heat weighs keys of a chunk by what was written to them lately, as its source's
// captured log has it: none where nothing was written. Reads leave no trace there.
func (a *Activities) heat(ctx context.Context, in contract.RegisterInput, db chunk.Database, r chunk.Route) ([]chunk.Weighed, error) {
	h := newHeat(db, r.Placement.Database, time.Now().Add(-heatFor))
	p, err := partitionOf(r.Placement.Database, a.Settings.Partitions)
	if err != nil {
		return nil, err
	}
	starts, err := a.Log.StartOffsets(ctx, r.Placement.Shard)
	if err != nil {
		return nil, err
	}
	ends, err := a.Log.EndOffsets(ctx, r.Placement.Shard)
	if err != nil {
		return nil, err
	}
	if from := max(starts[p], ends[p]-heatEvents); from < ends[p] {
		err = a.Log.Read(ctx, r.Placement.Shard, p, from, func(offset int64, e *event.Event) error {
			if e == nil {
				return nil
			}
			if err := h.add(e); err != nil {
				return err
			}
			if offset >= ends[p]-1 {
				return cdc.ErrStop
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the captured log of %s: %w", r.Placement.Shard, err)
		}
	}
	set, err := a.Sides.Set(ctx, r.Placement.Shard)
	if err != nil {
		return nil, err
	}
	reader, _, err := set.Reader(ctx, in.PrimaryReads)
	if err != nil {
		return nil, err
	}
	if err := h.place(ctx, reader.Database(r.Placement.Database)); err != nil {
		return nil, err
	}
	return h.weighed(), nil
}

// HotKey gives the share of a chunk's writes, within an hour, that went to one point of the key
// space; 0 where nothing was written.
func (a *Activities) HotKey(ctx context.Context, db chunk.Database, r chunk.Route) (float64, error) {
	all, err := a.heat(ctx, contract.RegisterInput{MigrateInput: contract.MigrateInput{PrimaryReads: true}}, db, r)
	return hottest(all), err
}

// hottest is the share of the point that weighs most.
func hottest(all []chunk.Weighed) float64 {
	var most, sum int64
	for _, w := range all {
		most, sum = max(most, w.Bytes), sum+w.Bytes
	}
	if sum == 0 {
		return 0
	}
	return float64(most) / float64(sum)
}

// heat counts writes by point of the key space.
type heat struct {
	db       chunk.Database
	physical string
	since    time.Time
	keys     map[string]string // shard keys by collection
	points   map[chunk.Key]int64
	unplaced map[string]map[chunk.Key]*unplaced // by collection and _id
}

// unplaced is a document of which only the _id is known.
type unplaced struct {
	id     bson.RawValue
	writes int64
}

// newHeat counts nothing yet.
func newHeat(db chunk.Database, physical string, since time.Time) *heat {
	h := &heat{db: db, physical: physical, since: since, keys: map[string]string{}, points: map[chunk.Key]int64{}, unplaced: map[string]map[chunk.Key]*unplaced{}}
	for _, c := range db.Collections {
		h.keys[c.Name] = c.ShardKey
		h.unplaced[c.Name] = map[chunk.Key]*unplaced{}
	}
	return h
}

// add counts one event; those of lanes are no heat of the chunk.
func (h *heat) add(e *event.Event) error {
	key, ours := h.keys[e.Collection]
	if e.Database != h.physical || !ours || !e.Op.OnDocument() || e.Label != 0 || e.Wall.Before(h.since) {
		return nil
	}
	if len(e.Document) > 0 {
		return h.count(e.Document, key, 1)
	}
	id, err := chunk.EncodeValue(e.ID())
	if err != nil {
		return fmt.Errorf("read an _id of %s: %w", e.Collection, err)
	}
	known := h.unplaced[e.Collection][id]
	if known == nil {
		known = &unplaced{id: e.ID()}
		h.unplaced[e.Collection][id] = known
	}
	known.writes++
	return nil
}

// count adds writes at a document's point.
func (h *heat) count(doc bson.Raw, key string, writes int64) error {
	at, err := h.db.KeySpace.DocumentPoint(doc, key)
	if err != nil {
		return fmt.Errorf("place a document: %w", err)
	}
	h.points[at] += writes
	return nil
}

// place looks the documents up that an update told the _id of only. What is gone by
// now is no heat any more.
func (h *heat) place(ctx context.Context, source *mongo.Database) error {
	for name, docs := range h.unplaced {
		var ids bson.A
		ask := func() error {
			if len(ids) == 0 {
				return nil
			}
			cursor, err := source.Collection(name).Find(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}})
			if err != nil {
				return fmt.Errorf("look up documents of %s: %w", name, err)
			}
			var found []bson.Raw
			if err := cursor.All(ctx, &found); err != nil {
				return fmt.Errorf("look up documents of %s: %w", name, err)
			}
			ids = ids[:0]
			return h.found(name, found)
		}
		for _, d := range docs {
			if ids = append(ids, d.id); len(ids) == heatAsked {
				if err := ask(); err != nil {
					return err
				}
			}
		}
		if err := ask(); err != nil {
			return err
		}
	}
	return nil
}

// found places documents that were looked up.
func (h *heat) found(collection string, docs []bson.Raw) error {
	for _, doc := range docs {
		id, err := chunk.EncodeValue(doc.Lookup("_id"))
		if err != nil {
			return err
		}
		if d := h.unplaced[collection][id]; d != nil {
			if err := h.count(doc, h.keys[collection], d.writes); err != nil {
				return err
			}
		}
	}
	return nil
}

// weighed is what a range is cut by.
func (h *heat) weighed() []chunk.Weighed {
	out := make([]chunk.Weighed, 0, len(h.points))
	for at, n := range h.points {
		out = append(out, chunk.Weighed{At: at, Bytes: n})
	}
	return out
}
