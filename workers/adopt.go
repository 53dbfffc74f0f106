package workers

import (
	"context"

	"drover/activities"
	"drover/chunk"
	"drover/internal/failure"
	"drover/metadata"
	"drover/shard"
)

// Adoption is a database that is to become the one placement of a logical one.
type Adoption struct {
	Name     string // of the logical database
	Shard    string
	Database string // on the shard; it keeps its name
	KeySpace chunk.KeySpace
	ShardKey func(collection string) string
}

// setOf connects to a shard; end disconnects.
func setOf(ctx context.Context, store *metadata.Store, secret, name string) (s *shard.Set, end func(), err error) {
	sh, err := store.Shard(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	clients := shard.NewClients(secret, shard.Options{})
	end = func() { _ = clients.Close(context.WithoutCancel(ctx)) } // nothing is left to lose
	if s, err = clients.Set(sh); err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// CheckAdoption looks at what is to be adopted and changes nothing.
func CheckAdoption(ctx context.Context, store *metadata.Store, secret string, a Adoption) (shard.Adoption, error) {
	set, end, err := setOf(ctx, store, secret, a.Shard)
	if err != nil {
		return shard.Adoption{}, err
	}
	defer end()
	return set.CheckAdoptable(ctx, a.Database, a.ShardKey)
}

// Adopt makes a database of a shard, in place and under its own name, the one
// placement of a new logical database: no document is copied. What forbids it is
// looked for first. An adoption that was interrupted is finished by running it again.
func Adopt(ctx context.Context, store *metadata.Store, secret string, a Adoption) (shard.Adoption, chunk.Route, error) {
	set, end, err := setOf(ctx, store, secret, a.Shard)
	if err != nil {
		return shard.Adoption{}, chunk.Route{}, err
	}
	defer end()
	seen, err := set.CheckAdoptable(ctx, a.Database, a.ShardKey)
	if err != nil {
		return seen, chunk.Route{}, err
	}
	if !seen.OK() {
		return seen, chunk.Route{}, failure.New(failure.Invalid, "adoption.refused", "%s/%s cannot be adopted as it is", a.Shard, a.Database).
			WithHint("the findings say why; nothing was changed")
	}
	db := chunk.Database{Name: a.Name, KeySpace: a.KeySpace, Collections: shard.Collections(seen.Collections, a.ShardKey)}
	routes, err := store.CreateDatabase(ctx, db, []metadata.NewChunk{{
		Range: chunk.Range{Lo: chunk.KeyMin, Hi: chunk.KeyMax}, Shard: a.Shard, Own: a.Database,
	}})
	if err != nil {
		return seen, chunk.Route{}, err
	}
	if err := adopt(ctx, activities.Ledger{Store: store, Owner: "adopt " + a.Name}, set, routes[0]); err != nil {
		return seen, chunk.Route{}, err
	}
	return seen, routes[0], store.Activate(ctx, a.Name)
}

// adopter is a shard one of whose databases becomes a placement.
type adopter interface {
	granter
	Adopt(ctx context.Context, p chunk.Placement, t chunk.Token) error
}

// adopt makes a database the placement of a route and opens it. If interrupted: run again.
func adopt(ctx context.Context, locks grantLocks, set adopter, r chunk.Route) error {
	if err := set.Adopt(ctx, r.Placement, r.Token); err != nil {
		return err
	}
	return grantFirst(ctx, locks, set, r.Placement)
}

// Release takes an adoption back: the proxies no longer know the logical database,
// no grant of it is left on the shard, and the database there stays as it is. An
// interrupted one is finished by running it again.
func Release(ctx context.Context, store *metadata.Store, secret, name string, evenInUse bool) (chunk.Route, error) {
	r, err := store.Adopted(ctx, name)
	if err != nil {
		return r, err
	}
	loads, err := store.Loads(ctx)
	if err != nil {
		return r, err
	}
	if rate := loads[r.Placement.ID]; rate > 0 && !evenInUse {
		return r, failure.New(failure.Invalid, "adoption.in_use", "the proxies sent %.1f requests/s to %s within the last minute", rate, name).
			WithHint("point its applications at %s/%s again first, or give it back with --force: what still comes through a proxy is refused", r.Placement.Shard, r.Placement.Database)
	}
	if r, err = store.WithdrawDatabase(ctx, name); err != nil {
		return r, err
	}
	set, end, err := setOf(ctx, store, secret, r.Placement.Shard)
	if err != nil {
		return r, err
	}
	defer end()
	if err := set.Release(ctx, r.Placement); err != nil {
		return r, err
	}
	return r, store.ForgetDatabase(ctx, name)
}

// CheckAdopted says who is still beside the proxies at an adopted database, and how
// its collections differ from what Drover knows of them.
func CheckAdopted(ctx context.Context, store *metadata.Store, secret string, r chunk.Route, db chunk.Database) (shard.Adoption, []shard.Difference, error) {
	a := shard.Adoption{Database: r.Placement.Database}
	set, end, err := setOf(ctx, store, secret, r.Placement.Shard)
	if err != nil {
		return a, nil, err
	}
	defer end()
	sh, err := store.Shard(ctx, r.Placement.Shard)
	if err != nil {
		return a, nil, err
	}
	a.Listed = sh.Capabilities.ListsOperations
	if a.Collections, err = set.Inventory(ctx, a.Database); err != nil {
		return a, nil, err
	}
	for _, x := range a.Collections {
		a.Documents, a.Bytes = a.Documents+x.Count, a.Bytes+x.Size
	}
	return a, shard.CompareCatalog(shard.Definition(db.Collections), a.Collections), set.CheckBeside(ctx, &a)
}
