package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bulkimport"
	"drover/bulkimport/bulkimporttest"
	"drover/chunk"
	"drover/devstack"
)

// imported is what one import came to.
type imported struct {
	order bulkimport.Order
	store time.Duration
	load  *meter
	whole float64 // documents per second, from the first read to the last insert
}

// importOnce copies the collection from one shard to another, as a move does, without
// giving way to anybody.
func importOnce(ctx context.Context, s *servers, id int, from, to *mongo.Client, indexes []bson.D, limit time.Duration) (r imported, err error) {
	c, err := catalog(indexes)
	if err != nil {
		return r, err
	}
	start, err := mark(ctx, from)
	if err != nil {
		return r, err
	}
	r.load = &meter{}
	done := 0.0
	imp := &bulkimport.Importer{
		Migration: chunk.MigrationID(id), Bucket: s.bucket, Slices: &bulkimporttest.Memory{},
		Source: bulkimport.Source{Client: from, Database: sourceDB, Start: start},
		Target: bulkimport.Target{Client: to, Database: targetDB(id), KeepsEmptyTimestamps: true},
		Progress: func(_ context.Context, p bulkimport.Progress) {
			if p.Stage == bulkimport.Loading {
				r.load.note(time.Now(), float64(p.Documents))
			}
			done = float64(p.Documents)
		},
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = imp.Store(ctx, c)
	r.store = time.Since(began)
	if err != nil && ctx.Err() == nil {
		return r, err
	}
	if err != nil {
		return r, fmt.Errorf("nothing could be loaded within %s: %w", limit, err)
	}
	res, err := imp.Load(ctx, collectionName)
	if err != nil && ctx.Err() == nil {
		return r, err
	}
	r.order = res.Orders[collectionName]
	r.whole = done / time.Since(began).Seconds()
	return r, nil
}

// targetDB is where an import goes.
func targetDB(id int) string { return fmt.Sprintf("bench_%04d_p2", id) }

// padding keeps the bytes what they are when there are fewer documents: a smaller
// cache than these would not hold what the loaders send at once.
func (o settings) padding() int { return int((padding+110)/o.scale) - 110 }

// lastStretch is the end of a run that is compared: the last minute of five, and as
// much of shorter ones.
func (o settings) lastStretch() time.Duration { return o.limit / 5 }

// measureCached is (a): everything fits into the cache.
func measureCached(ctx context.Context, b *bench) (err error) {
	s, err := b.startServers(ctx, "cached")
	defer func() { err = errors.Join(err, s.stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := documents(int(300_000*b.o.scale), padding)
	if err != nil {
		return err
	}
	indexes := prefixed(3)[1:]
	from, source, err := b.filledSource(ctx, s, 1024, indexes, docs)
	if err != nil {
		return err
	}
	to, _, err := s.shard(ctx, "target", 1024)
	if err != nil {
		return err
	}
	r, err := b.cachedImport(ctx, s, from, to, indexes, docs)
	if err != nil {
		return err
	}
	rate, err := b.dumpRestore(ctx, s, source, 1024, indexes)
	if err != nil {
		return err
	}
	b.beside("import_vs_dump_restore_cached", r.whole, "dump_restore_docs_per_s_cached", rate)
	return nil
}

// filledSource starts a server with documents to copy.
func (b *bench) filledSource(ctx context.Context, s *servers, cacheMB int, indexes []bson.D, docs []bson.Raw) (*mongo.Client, devstack.ShardAccess, error) {
	c, access, err := s.shard(ctx, "source", cacheMB)
	if err != nil {
		return nil, access, err
	}
	if err := provision(ctx, c.Database(sourceDB), indexes); err != nil {
		return nil, access, err
	}
	if _, err := insertAll(ctx, c.Database(sourceDB), docs, b.o.limit); err != nil {
		return nil, access, err
	}
	b.say("%d documents are on the source", len(docs))
	return c, access, nil
}

// beside sets the ratio of our rate to another tool's, and that one's where it ran.
func (b *bench) beside(ratio string, ours float64, rate string, theirs float64) {
	b.ratio(ratio, ours, theirs)
	if theirs > 0 {
		b.set(rate, theirs)
	}
}

// cachedImport compares the load with raw inserts of the same documents in the same
// order, before it and after it, so that neither has the warmer server.
func (b *bench) cachedImport(ctx context.Context, s *servers, from, to *mongo.Client, indexes []bson.D, docs []bson.Raw) (r imported, err error) {
	c, err := catalog(indexes)
	if err != nil {
		return r, err
	}
	sorted, err := sortedAs(docs, bulkimport.ChooseOrder(c.Indexes, nil))
	if err != nil {
		return r, err
	}
	ceiling := 0.0
	for n := range 2 {
		if n == 1 {
			if err := provision(ctx, to.Database(targetDB(1)), indexes); err != nil {
				return r, err
			}
			if r, err = importOnce(ctx, s, 1, from, to, indexes, b.o.limit); err != nil {
				return r, err
			}
		}
		if err := provision(ctx, to.Database("raw"), indexes); err != nil {
			return r, err
		}
		m, err := insertAll(ctx, to.Database("raw"), sorted, b.o.limit)
		if err != nil {
			return r, err
		}
		b.say("raw inserts: %.0f documents per second", m.over())
		ceiling += m.over() / 2
	}
	b.set("load_order", r.order.Why)
	b.set("store_seconds_cached", r.store.Seconds())
	b.set("load_docs_per_s_cached", r.load.over())
	b.set("ceiling_docs_per_s_cached", ceiling)
	b.set("import_docs_per_s_cached", r.whole)
	b.ratio("load_vs_ceiling_cached", r.load.over(), ceiling)
	return r, nil
}

// measureLarger is (b): four times the cache of the target.
func measureLarger(ctx context.Context, b *bench) (err error) {
	s, err := b.startServers(ctx, "larger")
	defer func() { err = errors.Join(err, s.stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := documents(int(800_000*b.o.scale), b.o.padding())
	if err != nil {
		return err
	}
	indexes := prefixed(3)
	from, source, err := b.filledSource(ctx, s, 1024, nil, docs)
	if err != nil {
		return err
	}
	const cache = 64
	r, random, err := b.sortedAndRandom(ctx, s, from, indexes, docs, cache, 1)
	if err != nil {
		return err
	}
	b.set("import_docs_per_s", r.whole)
	b.set("sorted_docs_per_s", r.load.last(b.o.lastStretch()))
	b.set("random_docs_per_s", random)
	b.ratio("sorted_vs_random", r.load.last(b.o.lastStretch()), random)
	// With their indexes on the source, as the tools need it.
	for i, key := range indexes {
		spec := mongo.IndexModel{Keys: key}
		if _, err := from.Database(sourceDB).Collection(collectionName).Indexes().CreateOne(ctx, spec); err != nil {
			return fmt.Errorf("index %d of the source: %w", i, err)
		}
	}
	rate, err := b.dumpRestore(ctx, s, source, cache, nil)
	if err != nil {
		return err
	}
	b.beside("import_vs_dump_restore", r.whole, "dump_restore_docs_per_s", rate)
	rate, err = b.pcsmCopy(ctx, s, source, cache)
	if err != nil {
		return err
	}
	b.beside("import_vs_pcsm", r.whole, "pcsm_docs_per_s", rate)
	return nil
}

// sortedAndRandom imports into a server of its own, and inserts the same documents
// in the order of their random _id into another one.
func (b *bench) sortedAndRandom(ctx context.Context, s *servers, from *mongo.Client, indexes []bson.D, docs []bson.Raw, cache, id int) (r imported, random float64, err error) {
	for n, name := range []string{"sorted", "random"} {
		to, access, err := s.shard(ctx, fmt.Sprintf("%s%d", name, id), cache)
		if err != nil {
			return r, 0, err
		}
		db := to.Database(targetDB(id))
		if err := provision(ctx, db, indexes); err != nil {
			return r, 0, err
		}
		if n == 0 {
			r, err = importOnce(ctx, s, id, from, to, indexes, b.o.limit)
			b.say("import: stored in %s, then %.0f/s, at the end %.0f/s, %.0f/s in all", r.store.Round(time.Millisecond), r.load.over(), r.load.last(b.o.lastStretch()), r.whole)
		} else {
			var m *meter
			if m, err = insertAll(ctx, db, docs, b.o.limit); err == nil {
				random = m.last(b.o.lastStretch())
				b.say("random order: %.0f/s, at the end %.0f/s", m.over(), random)
			}
		}
		if err != nil {
			return r, 0, err
		}
		if err := s.stopShard(ctx, access.Name); err != nil {
			return r, 0, err
		}
	}
	return r, random, nil
}

// measureIndexes shows what the order gains for 1, 2 and 4 indexes that begin alike or not.
func measureIndexes(ctx context.Context, b *bench) (err error) {
	s, err := b.startServers(ctx, "indexes")
	defer func() { err = errors.Join(err, s.stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := documents(int(400_000*b.o.scale), b.o.padding())
	if err != nil {
		return err
	}
	from, _, err := b.filledSource(ctx, s, 512, nil, docs)
	if err != nil {
		return err
	}
	id := 0
	for _, n := range []int{1, 2, 4} {
		for kind, indexes := range map[string][]bson.D{"prefixed": prefixed(n), "independent": independent(n)} {
			id++
			r, random, err := b.sortedAndRandom(ctx, s, from, indexes, docs, 32, id)
			if err != nil {
				return err
			}
			b.ratio(fmt.Sprintf("sorted_vs_random_%d_%s", n, kind), r.load.last(b.o.lastStretch()), random)
		}
	}
	return nil
}
