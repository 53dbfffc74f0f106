package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// Provision makes the collections of a placement's database with all their options,
// and all their indexes with all their options; with parkTTL, TTL indexes are made
// parked. At the end the database is read back and compared with what was asked.
//
// Before: the placement is registered. After: the database is as defined. If
// interrupted: run again; what is there already must be alike. Codes:
// collection.exists_differently, collection.index_unbuildable,
// collection.index_conflict, collection.differs.
func (s *Set) Provision(ctx context.Context, db string, collections []chunk.Collection, parkTTL bool) error {
	var broken []error
	for _, c := range collections {
		if err := s.createCollection(ctx, db, c); err != nil {
			return err
		}
		for _, spec := range c.Indexes { // one at a time: the others go on, the broken one is named
			if err := s.createIndex(ctx, db, c, spec, parkTTL); err != nil {
				broken = append(broken, err)
			}
		}
	}
	if len(broken) > 0 {
		return errors.Join(broken...)
	}
	return s.checkProvisioned(ctx, db, collections)
}

// createCollection makes one collection, or sees that the one that is there has
// the same options.
func (s *Set) createCollection(ctx context.Context, db string, c chunk.Collection) error {
	cmd := bson.D{{Key: "create", Value: c.Name}}
	for k, v := range ordered(c.Options) {
		if !slices.Contains(ignoredInOptions, k) {
			cmd = append(cmd, bson.E{Key: k, Value: v})
		}
	}
	_, err := run(ctx, s.admin(), db, append(cmd, majority()))
	if mongocode.IsNamespaceExists(err) {
		return nil // compared at the end with everything else
	}
	return s.wrap(err, "create %s.%s", db, c.Name)
}

// createIndex builds one index. It is a matter of milliseconds: the collection is
// empty, or the index is there; else more says for whom the build waits.
func (s *Set) createIndex(ctx context.Context, db string, c chunk.Collection, spec bson.Raw, parkTTL bool, more ...bson.E) error {
	name := indexName(spec)
	_, err := run(ctx, s.admin(), db, append(bson.D{
		{Key: "createIndexes", Value: c.Name}, {Key: "indexes", Value: bson.A{indexToBuild(c.Options, spec, parkTTL)}}, majority(),
	}, more...))
	switch {
	case err == nil:
		return nil
	case mongocode.IsIndexConflict(err):
		return failure.New(failure.Invalid, "collection.index_conflict", "index %s of %s.%s on shard %s: %w", name, db, c.Name, s.Name(), err).
			WithHint("an index of that name or key exists already with another definition; drop it there")
	case len(mongocode.Codes(err)) > 0 && !mongocode.IsRetryable(err) && !mongocode.IsUnauthorized(err):
		return failure.New(failure.Invalid, "collection.index_unbuildable", "index %s of %s.%s cannot be built on shard %s: %w", name, db, c.Name, s.Name(), err).
			WithHint("the server there does not accept this definition; drop the index or define it anew before the move")
	default:
		return s.wrap(err, "create index %s of %s.%s", name, db, c.Name)
	}
}

// indexToBuild turns a specification as it is listed into one that makes the same
// index: without what the server fills in itself, and with the simple collation
// stated where the collection's default would otherwise be taken.
func indexToBuild(options, spec bson.Raw, parkTTL bool) bson.D {
	var d bson.D
	collated := false
	for k, v := range ordered(spec) {
		switch {
		case slices.Contains(ignoredInSpecs, k):
			continue
		case k == "expireAfterSeconds" && parkTTL:
			d = append(d, bson.E{Key: k, Value: int32(ParkedTTL)})
			continue
		case k == "collation":
			collated = true
		}
		d = append(d, bson.E{Key: k, Value: v})
	}
	if _, err := options.LookupErr("collation"); err == nil && !collated {
		d = append(d, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}})
	}
	return d
}

// ordered iterates over a document's fields; nothing over nil.
func ordered(r bson.Raw) func(yield func(string, bson.RawValue) bool) {
	return func(yield func(string, bson.RawValue) bool) {
		elements, err := r.Elements()
		if len(r) == 0 || err != nil {
			return
		}
		for _, e := range elements {
			if !yield(e.Key(), e.Value()) {
				return
			}
		}
	}
}

// checkProvisioned compares the database with its definition.
func (s *Set) checkProvisioned(ctx context.Context, db string, collections []chunk.Collection) error {
	have, err := s.Definitions(ctx, db)
	if err != nil {
		return err
	}
	diff := CompareCatalog(Definition(collections), have)
	if len(diff) == 0 {
		return nil
	}
	code := "collection.differs"
	if slices.ContainsFunc(diff, func(d Difference) bool { return d.Index == "" && d.Field != "" }) {
		code = "collection.exists_differently"
	}
	return failure.New(failure.Invalid, code, "database %s on shard %s is not as defined: %s, and %d more points", db, s.Name(), diff[0], len(diff)-1).
		WithHint("a collection that was there before has another definition, or the server there keeps another one than it was given")
}

// Definition turns a logical database's collections into what [CompareCatalog]
// compares.
func Definition(collections []chunk.Collection) []CollectionInfo {
	out := make([]CollectionInfo, 0, len(collections))
	for _, c := range collections {
		out = append(out, CollectionInfo{Name: c.Name, Kind: "collection", Options: c.Options, Indexes: c.Indexes, HasIDIndex: true})
	}
	return out
}

// Collections turns an inventory into the definition of a logical database; key
// gives the shard key of each collection.
func Collections(infos []CollectionInfo, key func(collection string) string) []chunk.Collection {
	out := make([]chunk.Collection, 0, len(infos))
	for _, x := range infos {
		out = append(out, chunk.Collection{Name: x.Name, ShardKey: key(x.Name), Options: x.Options, Indexes: x.Indexes})
	}
	return out
}

// Pace is called between the parts of a long clean-up; it returns when the shard's
// users can bear the next one.
type Pace func(ctx context.Context) error

// DropDatabase drops a placement's collections, index by index, then its database and
// every role that was made for the placement. To give back many files at once would
// stall everything else on the shard: pace is asked before each part.
//
// Before: the placement is `dropping`. It refuses a name that is not this
// placement's, and a placement that the data plane may still touch (kind Lost).
// If interrupted: run again.
func (s *Set) DropDatabase(ctx context.Context, p chunk.Placement, pace Pace) error {
	if err := s.checkName(ctx, p); err != nil {
		return err
	}
	held, err := s.HeldGrants(ctx, p.ID)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		return failure.New(failure.Lost, "placement.in_use", "placement %d on shard %s is still granted by %s", p.ID, s.Name(), held[0].Role).
			WithHint("only a placement that nobody serves from can be dropped")
	}
	infos, err := s.Definitions(ctx, p.Database)
	if err != nil {
		return err
	}
	for _, c := range infos {
		if err := s.dropCollection(ctx, p.Database, c, pace); err != nil {
			return err
		}
	}
	if err := pace(ctx); err != nil {
		return err
	}
	if _, err := run(ctx, s.admin(), p.Database, bson.D{{Key: "dropDatabase", Value: 1}, majority()}); err != nil {
		return s.wrap(err, "drop database %s", p.Database)
	}
	return s.dropRolesOf(ctx, p.ID)
}

// checkName refuses a database that is not a placement's: its name says so, or, of
// one that was adopted, what the shard remembers of it.
func (s *Set) checkName(ctx context.Context, p chunk.Placement) error {
	own := p.OwnName()
	if own == "" && p.Database != "" {
		return nil
	}
	f, ok, err := s.ReadFence(ctx, p.ID)
	if err != nil {
		return err
	}
	if _, ours := chunk.PlacementOf(own); own == "" || ours || !ok || f.Database != own {
		return failure.New(failure.Invalid, "placement.wrong_database", "%q is not the database of placement %d of chunk %s", p.Database, p.ID, p.Chunk)
	}
	return nil
}

// dropCollection drops a collection's indexes one by one, then the collection.
func (s *Set) dropCollection(ctx context.Context, db string, c CollectionInfo, pace Pace) error {
	for _, index := range c.Indexes {
		name, ok := index.Lookup("name").StringValueOK()
		if !ok || name == "_id_" {
			continue
		}
		if err := pace(ctx); err != nil {
			return err
		}
		_, err := run(ctx, s.admin(), db, bson.D{{Key: "dropIndexes", Value: c.Name}, {Key: "index", Value: name}, majority()})
		if err != nil && !mongocode.Has(err, mongocode.IndexNotFound, mongocode.NamespaceNotFound) {
			return s.wrap(err, "drop index %s of %s.%s", name, db, c.Name)
		}
	}
	if err := pace(ctx); err != nil {
		return err
	}
	_, err := run(ctx, s.admin(), db, bson.D{{Key: "drop", Value: c.Name}, majority()})
	if err != nil && !mongocode.Has(err, mongocode.NamespaceNotFound) {
		return s.wrap(err, "drop %s.%s", db, c.Name)
	}
	return nil
}

// Answer measures how long the primary takes for a command that does nothing.
func (s *Set) Answer(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	_, err := s.adminRun(ctx, bson.D{{Key: "ping", Value: 1}})
	return time.Since(began), s.wrap(err, "ping")
}

// dropRolesOf drops every role that is named for a placement.
func (s *Set) dropRolesOf(ctx context.Context, p chunk.PlacementID) error {
	names, _, err := s.roleNames(ctx)
	if err != nil {
		return err
	}
	for _, n := range names {
		if roleConcerns(n, p) {
			if err := s.dropRole(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// roleConcerns reports whether a role is named for a placement.
func roleConcerns(role string, p chunk.PlacementID) bool {
	for _, kind := range []string{"w", "r", "l", "a"} {
		prefix := fmt.Sprintf("%s_p%d_", kind, p)
		if len(role) > len(prefix) && role[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}

// LeftoverDatabases lists the databases on the shard that have a placement's name.
func (s *Set) LeftoverDatabases(ctx context.Context) (map[chunk.PlacementID]string, error) {
	names, err := s.admin().ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return nil, s.wrap(err, "list databases")
	}
	found := map[chunk.PlacementID]string{}
	for _, n := range names {
		if p, ok := chunk.PlacementOf(n); ok {
			found[p] = n
		}
	}
	return found, nil
}
