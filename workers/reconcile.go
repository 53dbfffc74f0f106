package workers

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/activities"
	"drover/chunk"
	"drover/fleet"
	"drover/metadata"
	"drover/proxy"
)

// newReconciler wires what brings the fleet to its file.
func newReconciler(b *activities.Balancer, store *metadata.Store, secret string) *activities.Reconciler {
	return &activities.Reconciler{
		Balancer: b,
		Present:  func(ctx context.Context) (fleet.Present, error) { return Present(ctx, store) },
		Make: func(ctx context.Context, f *fleet.File, c fleet.Change) error {
			return MakeChange(ctx, store, secret, f, c)
		},
	}
}

// Present reads what a fleet file is compared with.
func Present(ctx context.Context, store *metadata.Store) (p fleet.Present, err error) {
	if p.Shards, err = store.Shards(ctx); err != nil {
		return p, err
	}
	if p.Databases, err = store.Databases(ctx); err != nil {
		return p, err
	}
	if p.Routes, err = store.Routes(ctx, ""); err != nil {
		return p, err
	}
	placements, err := store.Placements(ctx, "")
	if err != nil {
		return p, err
	}
	p.Placed = map[string]int{}
	for _, x := range placements {
		p.Placed[x.Shard]++
	}
	if p.Policies, err = store.Policies(ctx); err != nil {
		return p, err
	}
	users, err := store.ProxyUsers(ctx)
	p.Users = map[string]map[string][]string{}
	for _, u := range users {
		p.Users[u.Name] = u.Grants
	}
	return p, err
}

// MakeChange makes one change of a fleet file that needs no secret of its own; it can be
// repeated.
func MakeChange(ctx context.Context, store *metadata.Store, secret string, f *fleet.File, c fleet.Change) error {
	switch c.Kind {
	case fleet.CreateDatabase:
		return makeDatabase(ctx, store, secret, f, c.Subject)
	case fleet.CreateCollection, fleet.CreateIndex:
		return makeCollection(ctx, store, secret, f, c)
	case fleet.SetQuota:
		d, _ := f.Database(c.Subject)
		return store.SetPolicy(ctx, c.Subject, d.Policy)
	case fleet.GrantUser:
		return store.GrantProxyUser(ctx, c.Subject, c.Database, c.Actions)
	case fleet.RevokeUser:
		return store.RevokeProxyUser(ctx, c.Subject, c.Database, c.Actions)
	default:
		return fmt.Errorf("change %q is unknown", c.Kind)
	}
}

// makeDatabase creates a logical database, its chunks where the file or the rules
// want them.
func makeDatabase(ctx context.Context, store *metadata.Store, secret string, f *fleet.File, name string) error {
	d, _ := f.Database(name)
	db := chunk.Database{Name: d.Name, KeySpace: d.KeySpace, Collections: d.Plain()}
	chunks, err := f.FirstChunks(d)
	if err != nil {
		return err
	}
	made := make([]metadata.NewChunk, 0, len(chunks))
	for i, s := range chunks {
		made = append(made, metadata.NewChunk{Range: d.Ranges[i], Shard: s})
	}
	_, err = CreateDatabase(ctx, store, secret, db, made)
	return err
}

// makeCollection creates a collection or an index on all chunks.
func makeCollection(ctx context.Context, store *metadata.Store, secret string, f *fleet.File, c fleet.Change) error {
	d, _ := f.Database(c.Subject)
	at := slices.IndexFunc(d.Collections, func(x fleet.FileCollection) bool { return x.Name == c.Collection })
	command := bson.D{{Key: "create", Value: c.Collection}}
	if c.Kind == fleet.CreateIndex {
		command = bson.D{{Key: "createIndexes", Value: c.Collection}, {Key: "indexes", Value: bson.A{c.Index}}}
	}
	raw, err := bson.Marshal(command)
	if err != nil {
		return err
	}
	return ChangeCatalog(ctx, store, secret, proxy.CatalogChange{
		Database: c.Subject, Collection: c.Collection, ShardKey: d.Collections[at].ShardKey, Command: raw,
	})
}
