package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/bench/loads"
	"drover/bulkimport"
	"drover/devstack"
)

// padding keeps the bytes what they are when there are fewer documents: a smaller
// cache than these would not hold what the loaders send at once.
func (o settings) padding() int { return int((loads.Padding+110)/o.scale) - 110 }

// lastStretch is the end of a run that is compared: the last minute of five, and as
// much of shorter ones.
func (o settings) lastStretch() time.Duration { return o.limit / 5 }

// measureCached is (a): everything fits into the cache.
func measureCached(ctx context.Context, b *bench) (err error) {
	s, err := loads.Start(ctx, filepath.Join(b.o.dir, "cached"))
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := loads.Documents(int(300_000*b.o.scale), loads.Padding)
	if err != nil {
		return err
	}
	indexes := loads.Prefixed(3)[1:]
	from, source, err := b.filledSource(ctx, s, 1024, indexes, docs)
	if err != nil {
		return err
	}
	to, _, err := s.Shard(ctx, "target", 1024)
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
	b.beside("import_vs_dump_restore_cached", r.Whole, "dump_restore_docs_per_s_cached", rate)
	return nil
}

// filledSource starts a server with documents to copy.
func (b *bench) filledSource(ctx context.Context, s *loads.Servers, cacheMB int, indexes []bson.D, docs []bson.Raw) (*mongo.Client, devstack.ShardAccess, error) {
	c, access, err := s.Shard(ctx, "source", cacheMB)
	if err != nil {
		return nil, access, err
	}
	if err := loads.Provision(ctx, c.Database(loads.SourceDB), indexes); err != nil {
		return nil, access, err
	}
	if _, err := loads.InsertAll(ctx, c.Database(loads.SourceDB), docs, b.o.limit); err != nil {
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
func (b *bench) cachedImport(ctx context.Context, s *loads.Servers, from, to *mongo.Client, indexes []bson.D, docs []bson.Raw) (r loads.Imported, err error) {
	c, err := loads.Catalog(indexes)
	if err != nil {
		return r, err
	}
	sorted, err := loads.SortedAs(docs, bulkimport.ChooseOrder(c.Indexes, nil))
	if err != nil {
		return r, err
	}
	ceiling := 0.0
	for n := range 2 {
		if n == 1 {
			if err := loads.Provision(ctx, to.Database(loads.TargetDB(1)), indexes); err != nil {
				return r, err
			}
			if r, err = loads.ImportOnce(ctx, s.Bucket, 1, from, to, indexes, b.o.limit); err != nil {
				return r, err
			}
		}
		if err := loads.Provision(ctx, to.Database("raw"), indexes); err != nil {
			return r, err
		}
		m, err := loads.InsertAll(ctx, to.Database("raw"), sorted, b.o.limit)
		if err != nil {
			return r, err
		}
		b.say("raw inserts: %.0f documents per second", m.Over())
		ceiling += m.Over() / 2
	}
	b.set("load_order", r.Order.Why)
	b.set("store_seconds_cached", r.Store.Seconds())
	b.set("load_docs_per_s_cached", r.Load.Over())
	b.set("ceiling_docs_per_s_cached", ceiling)
	b.set("import_docs_per_s_cached", r.Whole)
	b.ratio("load_vs_ceiling_cached", r.Load.Over(), ceiling)
	return r, nil
}

// measureLarger is (b): four times the cache of the target.
func measureLarger(ctx context.Context, b *bench) (err error) {
	s, err := loads.Start(ctx, filepath.Join(b.o.dir, "larger"))
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := loads.Documents(int(800_000*b.o.scale), b.o.padding())
	if err != nil {
		return err
	}
	indexes := loads.Prefixed(3)
	from, source, err := b.filledSource(ctx, s, 1024, indexes, docs)
	if err != nil {
		return err
	}
	const cache = 64
	r, random, err := b.sortedAndRandom(ctx, s, from, indexes, docs, cache, 1)
	if err != nil {
		return err
	}
	b.set("import_docs_per_s", r.Whole)
	b.set("sorted_docs_per_s", r.Load.Last(b.o.lastStretch()))
	b.set("random_docs_per_s", random)
	b.ratio("sorted_vs_random", r.Load.Last(b.o.lastStretch()), random)
	rate, err := b.dumpRestore(ctx, s, source, cache, nil)
	if err != nil {
		return err
	}
	b.beside("import_vs_dump_restore", r.Whole, "dump_restore_docs_per_s", rate)
	rate, err = b.pcsmCopy(ctx, s, source, cache)
	if err != nil {
		return err
	}
	b.beside("import_vs_pcsm", r.Whole, "pcsm_docs_per_s", rate)
	return nil
}

// sortedAndRandom imports into a server of its own, and inserts the same documents
// in the order of their random _id into another one.
func (b *bench) sortedAndRandom(ctx context.Context, s *loads.Servers, from *mongo.Client, indexes []bson.D, docs []bson.Raw, cache, id int) (r loads.Imported, random float64, err error) {
	for n, name := range []string{"sorted", "random"} {
		to, access, err := s.Shard(ctx, fmt.Sprintf("%s%d", name, id), cache)
		if err != nil {
			return r, 0, err
		}
		db := to.Database(loads.TargetDB(id))
		if err := loads.Provision(ctx, db, indexes); err != nil {
			return r, 0, err
		}
		if n == 0 {
			r, err = loads.ImportOnce(ctx, s.Bucket, id, from, to, indexes, b.o.limit)
			b.say("import: stored in %s, then %.0f/s, at the end %.0f/s, %.0f/s in all", r.Store.Round(time.Millisecond), r.Load.Over(), r.Load.Last(b.o.lastStretch()), r.Whole)
		} else {
			var m *loads.Meter
			if m, err = loads.InsertAll(ctx, db, docs, b.o.limit); err == nil {
				random = m.Last(b.o.lastStretch())
				b.say("random order: %.0f/s, at the end %.0f/s", m.Over(), random)
				if random == 0 { // it stands still: compared by all that it did
					random = m.Over()
				}
			}
		}
		if err != nil {
			return r, 0, err
		}
		if err := s.StopShard(ctx, access.Name); err != nil {
			return r, 0, err
		}
	}
	return r, random, nil
}

// measureIndexes shows what the order gains for 1, 2 and 4 indexes that begin alike or not.
func measureIndexes(ctx context.Context, b *bench) (err error) {
	s, err := loads.Start(ctx, filepath.Join(b.o.dir, "indexes"))
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	docs, err := loads.Documents(int(400_000*b.o.scale), b.o.padding())
	if err != nil {
		return err
	}
	from, _, err := b.filledSource(ctx, s, 512, nil, docs)
	if err != nil {
		return err
	}
	id := 0
	for _, n := range []int{1, 2, 4} {
		for kind, indexes := range map[string][]bson.D{"prefixed": loads.Prefixed(n), "independent": loads.Independent(n)} {
			id++
			r, random, err := b.sortedAndRandom(ctx, s, from, indexes, docs, 32, id)
			if err != nil {
				return err
			}
			b.ratio(fmt.Sprintf("sorted_vs_random_%d_%s", n, kind), r.Load.Last(b.o.lastStretch()), random)
		}
	}
	return nil
}
