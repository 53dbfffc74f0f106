package workers

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/proxy"
	"drover/shard"
)

// catalog changes the collections of logical databases on all their chunks.
type catalog struct {
	store   *metadata.Store
	clients *shard.Clients
}

var _ proxy.Catalog = (*catalog)(nil)

// catalogWork is one change on its way.
type catalogWork struct {
	*catalog
	proxy.CatalogChange
	db     chunk.Database
	routes []chunk.Route
	known  *chunk.Collection // as it was, nil: not there
}

// Change implements [proxy.Catalog].
//
// Before: nothing of the database is being moved; no other DDL of it runs. After:
// every placement and the catalog have the change. If interrupted: placements may
// have it that the catalog does not name; running it again finishes it. A drop is
// in the catalog first, so that nobody is routed to what is half gone.
func (c *catalog) Change(ctx context.Context, change proxy.CatalogChange) (bson.Raw, error) {
	unlock, err := c.store.LockCatalog(ctx, change.Database)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.store.CheckCatalogStill(ctx, change.Database); err != nil {
		return nil, err
	}
	w := &catalogWork{catalog: c, CatalogChange: change}
	if w.db, err = c.store.Database(ctx, change.Database); err != nil {
		return nil, err
	}
	if w.routes, err = c.store.Routes(ctx, change.Database); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(w.db.Collections, func(o chunk.Collection) bool { return o.Name == change.Collection }); i >= 0 {
		w.known = &w.db.Collections[i]
		w.ShardKey = w.known.ShardKey
	}
	first, err := change.Command.IndexErr(0)
	if err != nil {
		return nil, fmt.Errorf("read command: %w", err)
	}
	if first.Key() == "drop" {
		return w.drop(ctx)
	}
	return w.define(ctx, first.Key() == "create")
}

// drop forgets the collection and then drops it everywhere.
func (w *catalogWork) drop(ctx context.Context) (bson.Raw, error) {
	if w.known != nil {
		if _, err := w.store.ChangeCatalog(ctx, w.Database, w.db.CatalogVersion, nil, w.Collection); err != nil {
			return nil, err
		}
	}
	reply, _, err := w.everywhere(ctx)
	return reply, err
}

// define changes the collection everywhere and takes over what it has become.
func (w *catalogWork) define(ctx context.Context, create bool) (bson.Raw, error) {
	if !create && w.known == nil {
		return nil, failure.New(failure.Invalid, proxy.CatalogUnknown, "database %s has no collection %s", w.Database, w.Collection)
	}
	reply, done, err := w.everywhere(ctx)
	if err != nil {
		return nil, err
	}
	now, err := w.compare(ctx)
	if err != nil {
		return nil, err
	}
	if !create && !done && len(shard.CompareDefined([]chunk.Collection{*w.known}, []shard.CollectionInfo{now})) == 0 {
		return nil, failure.New(failure.Invalid, proxy.CatalogUnchanged, "no chunk of %s.%s has what this would change", w.Database, w.Collection)
	}
	if diff := shard.CompareCreated(w.Command, now); create && len(diff) > 0 { // it was there, made otherwise
		return nil, failure.New(failure.Invalid, proxy.CatalogExists, "%s.%s exists and is defined otherwise: %v", w.Database, w.Collection, diff[0]).
			WithHint("an earlier create with other options was interrupted: repeat it as it was, or drop the collection on the shards")
	}
	known := chunk.Collection{Name: w.Collection, ShardKey: w.ShardKey}
	if w.known != nil {
		known = *w.known
	}
	_, err = w.store.ChangeCatalog(ctx, w.Database, w.db.CatalogVersion, []chunk.Collection{shard.Followed(known, now)})
	return reply, err
}

// everywhere runs the command on every placement, one after the other, and gives
// the first reply. done says that a placement had something to change.
func (w *catalogWork) everywhere(ctx context.Context) (reply bson.Raw, done bool, err error) {
	for i, r := range w.routes {
		set, err := w.set(ctx, r)
		if err != nil {
			return nil, false, err
		}
		raw, changed, err := set.Define(ctx, r.Placement.Database, w.Command)
		if err != nil {
			return nil, false, fmt.Errorf("after %d of %d chunks, run it again: %w", i, len(w.routes), err)
		}
		if changed && !done {
			reply, done = raw, true
		}
	}
	return reply, done, nil
}

// set gives the shard of a route.
func (w *catalogWork) set(ctx context.Context, r chunk.Route) (*shard.Set, error) {
	sh, err := w.store.Shard(ctx, r.Placement.Shard)
	if err != nil {
		return nil, err
	}
	return w.clients.Set(sh)
}

// compare gives the collection as it is now, if it is the same everywhere.
func (w *catalogWork) compare(ctx context.Context) (now shard.CollectionInfo, err error) {
	for i, r := range w.routes {
		set, err := w.set(ctx, r)
		if err != nil {
			return now, err
		}
		all, err := set.Definitions(ctx, r.Placement.Database)
		if err != nil {
			return now, err
		}
		at := slices.IndexFunc(all, func(o shard.CollectionInfo) bool { return o.Name == w.Collection })
		if at < 0 {
			return now, failure.New(failure.Transient, "catalog.differs", "chunk %s has no collection %s", r.Chunk.ID, w.Collection)
		}
		if i == 0 {
			now = all[at]
			continue
		}
		if diff := shard.CompareCatalog([]shard.CollectionInfo{now}, []shard.CollectionInfo{all[at]}); len(diff) > 0 {
			return now, failure.New(failure.Invalid, "catalog.differs", "%s.%s is not the same on all chunks: %v on %s", w.Database, w.Collection, diff[0], r.Chunk.ID).
				WithHint("repeat the command; what differs otherwise is changed back on the shard by hand")
		}
	}
	return now, nil
}

// ChangeCatalog changes a collection of a logical database on all its chunks, as
// a client's command through a proxy would.
func ChangeCatalog(ctx context.Context, store *metadata.Store, secret string, change proxy.CatalogChange) error {
	clients := shard.NewClients(secret, shard.Options{})
	defer func() { _ = clients.Close(context.WithoutCancel(ctx)) }()
	_, err := (&catalog{store: store, clients: clients}).Change(ctx, change)
	return err
}
