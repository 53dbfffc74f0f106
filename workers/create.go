package workers

import (
	"context"
	"fmt"

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
		if err := set.Provision(ctx, r.Placement.Database, db.Collections, false); err != nil {
			return nil, fmt.Errorf("provision chunk %s on %s: %w", r.Chunk.ID, sh.Name, err)
		}
		if err := set.CreateGrants(ctx, r.Placement, 0); err != nil {
			return nil, err
		}
		if err := set.GrantToData(ctx, r.Placement, 0); err != nil {
			return nil, err
		}
		if err := set.WriteOpenRecord(ctx, r.Placement.ID, 0, r.Token); err != nil {
			return nil, err
		}
	}
	if err := store.Activate(ctx, db.Name); err != nil {
		return nil, err
	}
	return routes, nil
}
