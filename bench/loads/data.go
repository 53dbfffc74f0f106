// Package loads is documents, servers and imports to measure loads with: what the
// import does, beside what a client can do at most.
package loads

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"drover/bulkimport"
	"drover/chunk"
)

// Shape of the data and of the loads.
const (
	Collection = "docs"
	SourceDB   = "bench_0001_p1"
	Padding    = 250
	batchSize  = 1000 // what the import uses
	loaders    = 3    // likewise
)

// document number n: _id is random, and so are a, b, c and d, of which no two
// documents have many alike.
func document(n, pad int) bson.D {
	r := rand.New(rand.NewPCG(7, uint64(n))) //nolint:gosec // data, no secret
	return bson.D{
		{Key: "_id", Value: fmt.Sprintf("%016x", r.Uint64())},
		{Key: "a", Value: fmt.Sprintf("%08x", r.Uint32())}, {Key: "b", Value: r.Int64()}, {Key: "c", Value: r.Int64()}, {Key: "d", Value: r.Int64()},
		{Key: "pad", Value: strings.Repeat("x", pad)},
	}
}

// Documents makes n of them, encoded, each with so much padding.
func Documents(n, pad int) ([]bson.Raw, error) {
	out := make([]bson.Raw, n)
	for i := range out {
		doc, err := bson.Marshal(document(i, pad))
		if err != nil {
			return nil, err
		}
		out[i] = doc
	}
	return out, nil
}

// SortedAs gives documents in the order in which the import loads them.
func SortedAs(docs []bson.Raw, o bulkimport.Order) ([]bson.Raw, error) {
	type entry struct {
		key chunk.Key
		doc bson.Raw
	}
	all := make([]entry, len(docs))
	for i, d := range docs {
		k, err := o.Key(d)
		if err != nil {
			return nil, err
		}
		all[i] = entry{k, d}
	}
	slices.SortFunc(all, func(x, y entry) int { return strings.Compare(string(x.key), string(y.key)) })
	out := make([]bson.Raw, len(docs))
	for i, e := range all {
		out[i] = e.doc
	}
	return out, nil
}

// Prefixed are indexes of the collections that are measured; they begin alike.
func Prefixed(n int) []bson.D {
	return []bson.D{
		{{Key: "a", Value: 1}}, {{Key: "a", Value: 1}, {Key: "b", Value: 1}}, {{Key: "a", Value: 1}, {Key: "c", Value: 1}}, {{Key: "a", Value: 1}, {Key: "d", Value: 1}},
	}[:n]
}

// Independent are indexes of which no two begin alike.
func Independent(n int) []bson.D {
	return []bson.D{{{Key: "a", Value: 1}}, {{Key: "b", Value: 1}}, {{Key: "c", Value: 1}}, {{Key: "d", Value: 1}}}[:n]
}

// Catalog describes the collection to the import.
func Catalog(indexes []bson.D) (chunk.Collection, error) {
	c := chunk.Collection{Name: Collection, ShardKey: "_id"}
	for i, key := range indexes {
		spec, err := bson.Marshal(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: key}, {Key: "name", Value: fmt.Sprintf("i%d", i)}})
		if err != nil {
			return c, err
		}
		c.Indexes = append(c.Indexes, spec)
	}
	return c, nil
}

// Provision makes an empty collection with its indexes.
func Provision(ctx context.Context, db *mongo.Database, indexes []bson.D) error {
	if err := db.Drop(ctx); err != nil {
		return err
	}
	if err := db.CreateCollection(ctx, Collection); err != nil {
		return err
	}
	for i, key := range indexes {
		_, err := db.Collection(Collection).Indexes().CreateOne(ctx, mongo.IndexModel{Keys: key, Options: options.Index().SetName(fmt.Sprintf("i%d", i))})
		if err != nil {
			return err
		}
	}
	return nil
}

// InsertAll inserts documents in the order in which they are, each inserter in its
// own part of it, until all are there or the limit is over. It is what a client
// can do at most.
func InsertAll(ctx context.Context, db *mongo.Database, docs []bson.Raw, limit time.Duration) (*Meter, error) {
	c := db.Collection(Collection, options.Collection().SetWriteConcern(writeconcern.Majority()))
	m := &Meter{}
	var done atomic.Int64
	began := time.Now()
	m.Note(began, 0)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	g, inner := errgroup.WithContext(ctx)
	for w := range loaders {
		part := docs[w*len(docs)/loaders : (w+1)*len(docs)/loaders]
		g.Go(func() error {
			for len(part) > 0 && time.Since(began) < limit {
				n := min(batchSize, len(part))
				batch := make([]any, n)
				for i, d := range part[:n] {
					batch[i] = d
				}
				if _, err := c.InsertMany(inner, batch, options.InsertMany().SetOrdered(false)); err != nil {
					return err
				}
				part = part[n:]
				m.Note(time.Now(), float64(done.Add(int64(n))))
			}
			return nil
		})
	}
	err := g.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || mongo.IsTimeout(err) { // the cap
		m.Note(time.Now(), float64(done.Load()))
		err = nil
	}
	return m, err
}
