package workers

import (
	"context"
	"fmt"

	"drover/activities"
	"drover/chunk"
	"drover/metadata"
	"drover/shard"
)

// CreateDatabase makes a logical database: rows first, then the physical
// databases with their indexes and first grants, and only then is it visible to
// proxies. A creation that was interrupted is finished by running it again.
func CreateDatabase(ctx context.Context, store *metadata.Store, secret string, db chunk.Database, chunks []metadata.NewChunk) ([]chunk.Route, error) {
	if err := shard.CheckUnique(db.Name, db.Collections); err != nil {
		return nil, err
	}
	routes, err := store.CreateDatabase(ctx, db, chunks)
	if err != nil {
		return nil, err
	}
	ledger := activities.Ledger{Store: store, Owner: "create " + db.Name}
	clients := shard.NewClients(secret, shard.Options{})
	defer func() { clients.Close(context.WithoutCancel(ctx)) }()
	for _, r := range routes {
		sh, err := store.Shard(ctx, r.Placement.Shard)
		if err != nil {
			return nil, err
		}
		set, err := clients.Set(sh)
		if err != nil {
			return nil, err
		}
		if err := place(ctx, ledger, set, r, db.Collections); err != nil {
			return nil, err
		}
	}
	if err := store.Activate(ctx, db.Name); err != nil {
		return nil, err
	}
	return routes, nil
}

// grantLocks are the metadata's locks of shards' grants.
type grantLocks interface {
	GrantLock(ctx context.Context, shard string, do func(context.Context) error) error
}

// granter gives the proxies' user of a shard a placement's grants.
type granter interface {
	GrantToData(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
}

// newSide is a shard that gets a new placement.
type newSide interface {
	granter
	Provision(ctx context.Context, db string, collections []chunk.Collection, parkTTL bool) error
	CreateGrants(ctx context.Context, p chunk.Placement, a chunk.AttemptID) error
	WriteOpenRecord(ctx context.Context, p chunk.PlacementID, a chunk.AttemptID, t chunk.Token) error
}

// place makes one placement and opens it. If interrupted: run again.
func place(ctx context.Context, locks grantLocks, set newSide, r chunk.Route, collections []chunk.Collection) error {
	p := r.Placement
	if err := set.Provision(ctx, p.Database, collections, false); err != nil {
		return fmt.Errorf("provision chunk %s on %s: %w", r.Chunk.ID, p.Shard, err)
	}
	if err := set.CreateGrants(ctx, p, 0); err != nil {
		return err
	}
	if err := grantFirst(ctx, locks, set, p); err != nil {
		return err
	}
	return set.WriteOpenRecord(ctx, p.ID, 0, r.Token)
}

// grantFirst gives the proxies a placement's first grants, not beside a switch that
// changes what their user of the same shard holds.
func grantFirst(ctx context.Context, locks grantLocks, set granter, p chunk.Placement) error {
	return locks.GrantLock(ctx, p.Shard, func(ctx context.Context) error { return set.GrantToData(ctx, p, 0) })
}
