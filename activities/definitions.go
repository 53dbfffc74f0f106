package activities

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/event"
	"drover/internal/failure"
	"drover/metadata"
	"drover/replication"
	"drover/shard"
)

// shownDifferences is how many differences of definitions a refusal names.
const shownDifferences = 3

// defined gives the collections of a source. It refuses one that is not defined as
// the catalog says: its target is made by the catalog, and would be found to differ
// when everything has been copied.
func (a *Activities) defined(ctx context.Context, set *shard.Set, p chunk.Placement) ([]shard.CollectionInfo, error) {
	database := databaseOf(p.Chunk)
	look := func() ([]shard.CollectionInfo, []shard.Difference, error) {
		infos, err := set.Inventory(ctx, p.Database)
		if err != nil {
			return nil, nil, err
		}
		if err := shard.CheckMovable(p.Database, infos); err != nil {
			return nil, nil, err
		}
		catalog, err := a.Store.Collections(ctx, database)
		return infos, shard.CompareDefined(catalog, infos), err
	}
	infos, differ, err := look()
	if err != nil || len(differ) == 0 {
		return infos, err
	}
	unlock, err := a.Store.LockCatalog(ctx, database) // DDL through a proxy may be on its way from the shards to the catalog
	if err != nil {
		return nil, err
	}
	defer unlock()
	if infos, differ, err = look(); err != nil || len(differ) == 0 {
		return infos, err
	}
	return nil, undefined(p, differ)
}

// undefined is the refusal of a source that the catalog does not describe.
func undefined(p chunk.Placement, differ []shard.Difference) error {
	var shown []string
	for _, d := range differ[:min(len(differ), shownDifferences)] {
		shown = append(shown, d.String())
	}
	if more := len(differ) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", more))
	}
	return failure.New(failure.Invalid, "migration.catalog_differs", "database %s on shard %s is not as %s is defined: %s",
		p.Database, p.Shard, databaseOf(p.Chunk), strings.Join(shown, "; ")).
		WithHint("somebody changed it on the shard itself: make the same change through a proxy, which brings it to all chunks and the catalog, or undo it on the shard")
}

// catalogStore is what the catalog is read from and kept in.
type catalogStore interface {
	LockCatalog(ctx context.Context, database string) (unlock func(), err error)
	Database(ctx context.Context, name string) (chunk.Database, error)
	Routes(ctx context.Context, database string) ([]chunk.Route, error)
	FollowCatalog(ctx context.Context, database string, from int64, changed chunk.Collection) (int64, error)
}

var _ catalogStore = (*metadata.Store)(nil)

// definitionsPort changes collections of the target as they changed on the source,
// and the catalog with them.
type definitionsPort struct {
	set       *shard.Set // of to
	from, to  chunk.Placement
	store     catalogStore
	inventory func(context.Context, chunk.Placement) ([]shard.CollectionInfo, error)
	log       *slog.Logger
}

var _ replication.Definitions = definitionsPort{}

// definitions makes the port of a leg.
func (a *Activities) definitions(set *shard.Set, from, to chunk.Placement) replication.Definitions {
	inventory := func(ctx context.Context, p chunk.Placement) ([]shard.CollectionInfo, error) {
		set, err := a.Sides.Set(ctx, p.Shard)
		if err != nil {
			return nil, err
		}
		return set.Definitions(ctx, p.Database)
	}
	return definitionsPort{set: set, from: from, to: to, store: a.Store, inventory: inventory, log: a.Logger}
}

// Follow implements [replication.Definitions].
func (p definitionsPort) Follow(ctx context.Context, e *event.Event) error {
	description, _ := bson.Raw(e.Description).Lookup("operationDescription").DocumentOK()
	if err := p.set.Follow(ctx, p.to.Database, e.Collection, string(e.Op), description); err != nil {
		return err
	}
	if err := p.keep(ctx, e.Collection); err != nil {
		return failure.New(failure.Transient, "catalog.not_kept", "%s of %s was followed, but is not in the catalog yet: %w", e.Op, e.Collection, err)
	}
	return nil
}

// keep takes what a collection of the target has become into the catalog, from which
// the next move of the chunk makes its target. The catalog is that of all chunks:
// while another one has the collection as it was, it stays, and the next move of
// this chunk is refused until they are alike.
func (p definitionsPort) keep(ctx context.Context, collection string) error {
	database := databaseOf(p.to.Chunk)
	unlock, err := p.store.LockCatalog(ctx, database)
	if err != nil {
		return err
	}
	defer unlock()
	db, err := p.store.Database(ctx, database)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(db.Collections, func(c chunk.Collection) bool { return c.Name == collection })
	now, err := p.named(ctx, p.to, collection)
	if err != nil || at < 0 || len(now) == 0 {
		return err // what is in no catalog is none's to keep
	}
	known := db.Collections[at]
	if len(shard.CompareDefined([]chunk.Collection{known}, now)) == 0 {
		return nil
	}
	routes, err := p.store.Routes(ctx, database)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Placement.ID == p.from.ID || r.Placement.ID == p.to.ID {
			continue
		}
		other, err := p.named(ctx, r.Placement, collection)
		if err != nil || len(shard.CompareCatalog(now, other)) > 0 {
			p.log.WarnContext(ctx, "DDL of the source was followed, but not taken into the catalog: another chunk differs or cannot be asked",
				slog.String("collection", collection), slog.String("chunk_id", string(r.Chunk.ID)), slog.Any("error", err))
			return nil
		}
	}
	_, err = p.store.FollowCatalog(ctx, database, db.CatalogVersion, shard.Followed(known, now[0]))
	return err
}

// named gives one collection of a placement, or nothing where it has none.
func (p definitionsPort) named(ctx context.Context, of chunk.Placement, collection string) ([]shard.CollectionInfo, error) {
	all, err := p.inventory(ctx, of)
	return slices.DeleteFunc(all, func(x shard.CollectionInfo) bool { return x.Name != collection }), err
}
