package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"drover/chunk"
	"drover/event"
)

// parkedDocument is a document that waits, in Drover's database, for a unique
// key that another document holds. It is not in its own collection meanwhile.
// Loaders park in the same form.
type parkedDocument struct {
	ID        bson.Raw          `bson:"_id"` // {m: migration, c: collection, id: the document's _id}
	Migration chunk.MigrationID `bson:"migration"`
	Doc       bson.Binary       `bson:"doc"`             // the raw image
	Index     bson.Raw          `bson:"index,omitempty"` // key pattern of the index, as far as the server said
	Key       bson.Raw          `bson:"key,omitempty"`   // the values that another document holds there
	At        time.Time         `bson:"at"`
}

// parkedEntry is what a lane remembers of a parked document.
type parkedEntry struct {
	id         bson.Raw // of the parked document
	collection string
	value      bson.Raw // the key it waits for, as far as the server said
}

// parkedSet is the parked documents of one lane's partition. Only their lane
// changes them, so it need not ask. The number is read by others.
type parkedSet struct {
	entries map[docKey]parkedEntry
	count   atomic.Int64
	tried   time.Time // all of them, see [Lane.retryParked]
}

func (p *parkedSet) has(key docKey) bool { _, ok := p.entries[key]; return ok }

func (p *parkedSet) len() int { return len(p.entries) }

func (p *parkedSet) put(key docKey, e parkedEntry) {
	if p.entries == nil {
		p.entries = map[docKey]parkedEntry{}
	}
	p.entries[key] = e
	p.count.Store(int64(len(p.entries)))
}

func (p *parkedSet) drop(key docKey) {
	delete(p.entries, key)
	p.count.Store(int64(len(p.entries)))
}

// ParkedCount counts the documents of a migration that wait for a unique key,
// read with majority.
func ParkedCount(ctx context.Context, client *mongo.Client, m chunk.MigrationID) (int64, error) {
	n, err := parkedCollection(client, options.Collection().SetReadConcern(readconcern.Majority())).
		CountDocuments(ctx, bson.D{{Key: "_id.m", Value: m}})
	if err != nil {
		return 0, fmt.Errorf("count parked documents of migration %d: %w", m, err)
	}
	return n, nil
}

func parkedCollection(client *mongo.Client, opts ...options.Lister[options.CollectionOptions]) *mongo.Collection {
	return client.Database(chunk.SystemDatabase).Collection(chunk.ParkedCollection, opts...)
}

// loadParked reads which documents of the lane's partition are parked.
func (l *Lane) loadParked(ctx context.Context) error {
	return l.patiently(ctx, func(ctx context.Context) error {
		cur, err := parkedCollection(l.cfg.Target, options.Collection().SetReadConcern(readconcern.Majority())).
			Find(ctx, bson.D{{Key: "_id.m", Value: l.lane.Migration}}, options.Find().SetProjection(bson.D{{Key: "doc", Value: 0}}))
		if err != nil {
			return fmt.Errorf("read parked documents: %w", err)
		}
		var docs []parkedDocument
		if err := cur.All(ctx, &docs); err != nil {
			return fmt.Errorf("read parked documents: %w", err)
		}
		for _, d := range docs {
			if err := l.remember(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// remember takes a parked document into the set if it is of this partition.
func (l *Lane) remember(d parkedDocument) error {
	collection, ok := d.ID.Lookup("c").StringValueOK()
	id := d.ID.Lookup("id")
	if !ok {
		return errors.New("a parked document of unknown form")
	}
	key, err := keyOf(collection, id)
	if err != nil {
		return err
	}
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}})
	if err != nil {
		return fmt.Errorf("read a parked document's _id: %w", err)
	}
	e := event.Event{Database: l.cfg.Direction.Source.Database, Collection: collection, Key: raw}
	p, err := e.Partition(l.cfg.Direction.Partitions, l.cfg.Direction.Spread)
	if err != nil || p != l.lane.Partition {
		return err //nolint:wrapcheck // says what it is about
	}
	l.parked.put(key, parkedEntry{id: d.ID, collection: collection, value: d.Key})
	return nil
}

// readParked gets the parked images of documents that are not in their
// collections, in the transaction.
func (l *Lane) readParked(ctx context.Context, docs []*document) error {
	if l.parked.len() == 0 {
		return nil
	}
	for _, d := range docs {
		e, ok := l.parked.entries[d.key]
		if !ok {
			continue
		}
		if d.old != nil { // a loader that ran twice: what is in the collection counts
			d.parked = true
			continue
		}
		var p parkedDocument
		err := parkedCollection(l.cfg.Target).FindOne(ctx, bson.D{{Key: "_id", Value: e.id}}).Decode(&p)
		if errors.Is(err, mongo.ErrNoDocuments) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read a parked document of %s: %w", d.collection, err)
		}
		d.parked, d.was = true, p.Doc.Data
	}
	return nil
}

// writeParked brings the parked documents in line, in the transaction: one that
// stays aside gets its new image, one that does not is taken out.
func (l *Lane) writeParked(ctx context.Context, docs []*document) error {
	for _, d := range docs {
		switch {
		case d.way == aside && d.now != nil:
			if err := l.park(ctx, d); err != nil {
				return err
			}
		case d.parked:
			if err := l.unpark(ctx, l.parked.entries[d.key].id); err != nil {
				return err
			}
		}
	}
	return nil
}

// park writes a document's image aside.
func (l *Lane) park(ctx context.Context, d *document) error {
	id, err := l.parkedID(d)
	if err != nil {
		return err
	}
	doc := parkedDocument{ID: id, Migration: l.lane.Migration, Doc: bson.Binary{Data: d.now}, At: time.Now()}
	if d.holder != nil {
		doc.Index, doc.Key = d.holder.pattern, d.holder.value
	}
	_, err = l.run(ctx, chunk.SystemDatabase, bson.D{
		{Key: "update", Value: chunk.ParkedCollection},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: doc}, {Key: "upsert", Value: true},
		}}},
	})
	if err != nil {
		return fmt.Errorf("park a document of %s: %w", d.collection, err)
	}
	return nil
}

// parkedID is the _id of d's parked document, the one it has if there is one.
func (l *Lane) parkedID(d *document) (bson.Raw, error) {
	if e, ok := l.parked.entries[d.key]; ok {
		return e.id, nil
	}
	id, err := bson.Marshal(bson.D{{Key: "m", Value: l.lane.Migration}, {Key: "c", Value: d.collection}, {Key: "id", Value: d.id}})
	if err != nil {
		return nil, fmt.Errorf("name a parked document of %s: %w", d.collection, err)
	}
	return id, nil
}

// unpark takes a document out of the parked ones.
func (l *Lane) unpark(ctx context.Context, id bson.Raw) error {
	_, err := l.run(ctx, chunk.SystemDatabase, bson.D{
		{Key: "delete", Value: chunk.ParkedCollection},
		{Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "limit", Value: int32(1)}}}},
	})
	if err != nil {
		return fmt.Errorf("take out a parked document: %w", err)
	}
	return nil
}

// noteParked remembers what a committed batch parked and took out.
func (l *Lane) noteParked(docs []*document) {
	for _, d := range docs {
		switch {
		case d.way == aside && d.now != nil:
			id, err := l.parkedID(d)
			if err != nil {
				continue // it was written under that very id
			}
			e := parkedEntry{id: id, collection: d.collection}
			if d.holder != nil {
				e.value = d.holder.value
			}
			if !l.parked.has(d.key) {
				l.cfg.Metrics.parked.Inc()
			}
			l.parked.put(d.key, e)
		case d.parked:
			l.parked.drop(d.key)
			l.cfg.Metrics.unparked.Inc()
		}
	}
}

// parkedRound is how often each parked document is tried even if its key seems
// to be held, and parkedLook how many are looked at in between.
const (
	parkedRound = time.Second
	parkedLook  = 128
)

// retryParked brings parked documents home. Each gets a transaction of its own:
// one that still has to wait must not hold up the others. Between rounds only
// those are tried whose key is free as far as can be seen.
func (l *Lane) retryParked(ctx context.Context, all bool) error {
	if l.parked.len() == 0 {
		return nil
	}
	all = all || time.Since(l.parked.tried) > parkedRound
	if all {
		l.parked.tried = time.Now()
	}
	looked := 0
	for key, e := range l.parked.entries {
		if !all {
			if looked++; looked > parkedLook {
				return nil
			}
			held, err := l.held(ctx, e)
			if err != nil {
				return err
			}
			if held {
				continue
			}
		}
		if err := l.bringHome(ctx, key, e); err != nil {
			return err
		}
	}
	return nil
}

// held looks whether another document has the key that a parked one waits for.
// It may be wrong, where the index is partial or has a collation.
func (l *Lane) held(ctx context.Context, e parkedEntry) (bool, error) {
	if len(e.value) == 0 {
		return false, nil
	}
	var found bool
	err := l.patiently(ctx, func(ctx context.Context) error {
		err := l.cfg.Target.Database(l.cfg.Direction.Target.Database).Collection(e.collection).
			FindOne(ctx, equalTo(e.value), options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}})).Err()
		found = err == nil
		if errors.Is(err, mongo.ErrNoDocuments) {
			return nil
		}
		return err //nolint:wrapcheck // logged and tried again
	})
	return found, err
}

// equalTo is the filter for a key.
func equalTo(key bson.Raw) bson.D {
	var filter bson.D
	eachField(key, func(f *field) {
		v := bson.RawValue{Type: bson.Type(f.kind), Value: f.raw}
		filter = append(filter, bson.E{Key: f.name, Value: bson.D{{Key: "$eq", Value: v}}})
	})
	return filter
}

// bringHome tries to put one parked document into its collection.
func (l *Lane) bringHome(ctx context.Context, key docKey, e parkedEntry) error {
	d := &document{collection: e.collection, key: key, id: e.id.Lookup("id"), probe: true, way: anew}
	err := l.tryHome(ctx, d)
	var c *conflict
	if errors.As(err, &c) && len(c.pattern) > 0 && !c.onID {
		e.value = c.value
		l.parked.put(key, e)
		held, lookErr := l.held(ctx, e)
		if lookErr != nil {
			return lookErr
		}
		if !held {
			d.way, d.holder = around, c
			err = l.tryHome(ctx, d)
		}
	}
	switch {
	case errors.As(err, &c):
		return nil // it waits on
	case err != nil:
		return err
	}
	l.noteParked([]*document{d})
	l.parked.drop(key) // it may have been gone already
	l.released()
	return nil
}

// tryHome is one try of [Lane.bringHome].
func (l *Lane) tryHome(ctx context.Context, d *document) error {
	g := goal{pos: l.reached, marker: l.marker}
	return l.commitDocs(ctx, g, []*document{d}, func() error { d.now = d.was; return nil })
}

// standIn gives raw with a value of its own in the last field of an index's key
// pattern. A server may refuse the insert of a value that nobody holds, though
// not the update to it: the dev server does so with a value that came by an
// insert and went by an update. Where somebody does hold it, the update that
// follows is refused as well.
func standIn(raw, pattern bson.Raw) bson.D {
	last := ""
	eachField(pattern, func(f *field) { last = f.name })
	names := strings.Split(last, ".")
	var own any = bson.NewObjectID()
	for _, name := range slices.Backward(names[1:]) {
		own = bson.D{{Key: name, Value: own}}
	}
	var doc bson.D
	found := false
	eachField(raw, func(f *field) {
		var v any = bson.RawValue{Type: bson.Type(f.kind), Value: f.raw}
		if f.name == names[0] {
			v, found = own, true
		}
		doc = append(doc, bson.E{Key: f.name, Value: v})
	})
	if !found {
		doc = append(doc, bson.E{Key: names[0], Value: own})
	}
	return doc
}

// indexName is the name that an index has unless it was given another.
func indexName(pattern bson.Raw) string {
	elements, err := pattern.Elements()
	if err != nil {
		return ""
	}
	parts := make([]string, 0, len(elements))
	for _, e := range elements {
		direction, ok := e.Value().AsInt64OK()
		if !ok {
			direction = 1
		}
		parts = append(parts, fmt.Sprintf("%s_%d", e.Key(), direction))
	}
	return strings.Join(parts, "_")
}
