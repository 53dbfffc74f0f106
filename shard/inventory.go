package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"drover/chunk"
	"drover/internal/failure"
	"drover/internal/mongocode"
)

// ParkedTTL is the expireAfterSeconds of a parked TTL index: 68 years.
const ParkedTTL = 2147483647

// CollectionInfo describes one collection of a database as the server does.
type CollectionInfo struct {
	Name        string
	Kind        string     // "collection", "view" or "timeseries"
	Options     bson.Raw   // create options, whole
	Indexes     []bson.Raw // whole specifications, without _id_
	HasIDIndex  bool
	Building    []string // indexes that are being built
	UUID        bson.Binary
	Count       int64
	Size        int64 // bytes of documents
	StorageSize int64
}

// functions is the collection in which applications keep functions on the server: it is
// theirs, whatever its name, and no change stream tells of it.
const functions = "system.js"

// Inventory describes every collection of a database, in the order of their names.
// Collections that belong to the server (system.* but for system.js) are left out.
func (s *Set) Inventory(ctx context.Context, db string) ([]CollectionInfo, error) {
	infos, err := inventory(ctx, s.admin(), db, true)
	return infos, s.wrap(err, "describe database %s", db)
}

// Definitions is [Set.Inventory] without sizes, for which some servers look at every
// document.
func (s *Set) Definitions(ctx context.Context, db string) ([]CollectionInfo, error) {
	infos, err := inventory(ctx, s.admin(), db, false)
	return infos, s.wrap(err, "describe database %s", db)
}

// inventory is [Set.Inventory] over any client that may look, with sizes or without.
func inventory(ctx context.Context, c *mongo.Client, db string, sized bool) ([]CollectionInfo, error) {
	cur, err := c.Database(db).ListCollections(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("list collections: %w", err)
	}
	var listed []struct {
		Name    string   `bson:"name"`
		Type    string   `bson:"type"`
		Options bson.Raw `bson:"options"`
		Info    struct {
			UUID bson.Binary `bson:"uuid"`
		} `bson:"info"`
	}
	if err := cur.All(ctx, &listed); err != nil {
		return nil, fmt.Errorf("list collections: %w", err)
	}
	var infos []CollectionInfo
	for _, l := range listed {
		own := l.Name == functions
		if strings.HasPrefix(l.Name, "system.") && !own {
			continue
		}
		x := CollectionInfo{Name: l.Name, Kind: l.Type, Options: l.Options, UUID: l.Info.UUID}
		if l.Type == "collection" && !own {
			if err := x.describe(ctx, c, db, sized); err != nil {
				return nil, fmt.Errorf("collection %s: %w", l.Name, err)
			}
		}
		infos = append(infos, x)
	}
	slices.SortFunc(infos, func(a, b CollectionInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// describe reads indexes, and sizes if they are wanted. Where the list of indexes does not
// tell which are being built, the statistics do.
func (x *CollectionInfo) describe(ctx context.Context, c *mongo.Client, db string, sized bool) error {
	specs, builds, err := listIndexes(ctx, c, db, x.Name)
	if err != nil {
		return err
	}
	for _, spec := range specs {
		switch {
		case building(spec):
			x.Building = append(x.Building, indexName(spec))
		case indexName(spec) == "_id_":
			x.HasIDIndex = true
		default:
			x.Indexes = append(x.Indexes, spec)
		}
	}
	if builds && !sized {
		return nil
	}
	st, err := run(ctx, c, db, bson.D{{Key: "collStats", Value: x.Name}})
	if err != nil {
		return fmt.Errorf("read statistics: %w", err)
	}
	x.Count, x.Size, x.StorageSize = lookup(st, "count"), lookup(st, "size"), lookup(st, "storageSize")
	var now struct {
		Builds []string `bson:"indexBuilds"`
	}
	if err := bson.Unmarshal(st, &now); err == nil {
		for _, n := range now.Builds {
			x.addBuilding(n)
		}
	}
	return nil
}

// addBuilding notes an index under construction, which listIndexes may show as if
// it were finished.
func (x *CollectionInfo) addBuilding(name string) {
	x.Indexes = slices.DeleteFunc(x.Indexes, func(r bson.Raw) bool { return indexName(r) == name })
	if !slices.Contains(x.Building, name) {
		x.Building = append(x.Building, name)
	}
}

// listIndexes gives the raw specifications of a collection's indexes. An index that
// is being built comes as {spec, buildUUID} where the server can tell, which builds reports.
func listIndexes(ctx context.Context, c *mongo.Client, db, collection string) (specs []bson.Raw, builds bool, err error) {
	list := func(cmd bson.D) ([]bson.Raw, error) {
		cur, err := c.Database(db).RunCommandCursor(ctx, cmd)
		if err != nil {
			return nil, err
		}
		var specs []bson.Raw
		return specs, cur.All(ctx, &specs)
	}
	plain := bson.D{{Key: "listIndexes", Value: collection}}
	specs, err = list(append(slices.Clone(plain), bson.E{Key: "includeBuildUUIDs", Value: true}))
	builds = err == nil
	if len(mongocode.Codes(err)) > 0 && !mongocode.IsNamespaceNotFound(err) && !mongocode.IsUnauthorized(err) {
		specs, err = list(plain)
	}
	if err != nil {
		return nil, false, fmt.Errorf("list indexes: %w", err)
	}
	return specs, builds, nil
}

// building reports whether a specification is of an index under construction.
func building(spec bson.Raw) bool {
	_, err := spec.LookupErr("buildUUID")
	return err == nil
}

// indexName gives the name in a specification.
func indexName(spec bson.Raw) string {
	if n := text(spec, "name"); n != "" {
		return n
	}
	return text(spec, "spec", "name")
}

// CheckMovable tells, for all collections at once, what cannot be moved. Codes:
// collection.view, collection.timeseries, collection.capped, collection.clustered,
// collection.encrypted, collection.no_id_index, collection.building, collection.functions.
func CheckMovable(db string, infos []CollectionInfo) error {
	var errs []error
	for _, x := range infos {
		if err := x.movable(db); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// movable is [CheckMovable] for one collection.
func (x CollectionInfo) movable(db string) error {
	has := func(option string) bool { _, err := x.Options.LookupErr(option); return err == nil }
	refuse := func(code, what, hint string) error {
		return failure.New(failure.Invalid, code, "%s.%s %s", db, x.Name, what).WithHint("%s", hint)
	}
	capped, _ := x.Options.Lookup("capped").BooleanOK()
	switch {
	case x.Name == functions:
		return refuse("collection.functions", "holds functions that are kept on the server", "no change stream tells of them: drop them, and let the applications bring them along")
	case x.Kind == "view":
		return refuse("collection.view", "is a view", "drop it and make it again where the database is served after the move")
	case x.Kind == "timeseries" || has("timeseries"):
		return refuse("collection.timeseries", "is a time-series collection", "Drover does not move time-series collections; copy it into an ordinary one")
	case capped:
		return refuse("collection.capped", "is capped", "Drover does not move capped collections: their order cannot be kept; copy it into an ordinary one")
	case has("clusteredIndex"):
		return refuse("collection.clustered", "is clustered", "Drover does not move clustered collections; copy it into an ordinary one")
	case has("encryptedFields"):
		return refuse("collection.encrypted", "has queryable encryption", "Drover does not move the state collections of queryable encryption")
	case len(x.Building) > 0:
		return failure.New(failure.Transient, "collection.building", "%s.%s is building index %s", db, x.Name, strings.Join(x.Building, ", ")).
			WithHint("wait until the build is over, or drop the index")
	case !x.HasIDIndex:
		return refuse("collection.no_id_index", "has no index on _id", "create the collection anew with one: every slice is a range of _id")
	default:
		return nil
	}
}

// CheckUnique refuses unique indexes that do not begin with the collection's shard
// key: over several chunks, such an index is unique in each of them only. Code:
// collection.unique_not_prefixed.
func CheckUnique(database string, collections []chunk.Collection) error {
	var errs []error
	for _, c := range collections {
		for _, spec := range c.Indexes {
			unique, _ := spec.Lookup("unique").BooleanOK()
			pattern, _ := spec.Lookup("key").DocumentOK()
			if !unique || beginsWith(pattern, chunk.KeyFields(c.ShardKey)) {
				continue
			}
			errs = append(errs, failure.New(failure.Invalid, "collection.unique_not_prefixed", "unique index %s of %s.%s does not begin with the shard key %s",
				indexName(spec), database, c.Name, c.ShardKey).
				WithHint("make it begin with %s, or drop its uniqueness", c.ShardKey))
		}
	}
	return errors.Join(errs...)
}

// beginsWith reports whether an index's pattern begins with the fields, in their order.
func beginsWith(pattern bson.Raw, fields []string) bool {
	elements, err := pattern.Elements()
	if err != nil || len(elements) < len(fields) {
		return false
	}
	for i, f := range fields {
		if elements[i].Key() != f {
			return false
		}
	}
	return true
}

// TTL is one TTL index.
type TTL struct {
	Collection string
	Index      string
	Seconds    int64
}

// TTLs lists the TTL indexes among specifications.
func TTLs(collection string, indexes []bson.Raw) []TTL {
	var found []TTL
	for _, spec := range indexes {
		if v, err := spec.LookupErr("expireAfterSeconds"); err == nil {
			n, _ := v.AsInt64OK()
			found = append(found, TTL{Collection: collection, Index: indexName(spec), Seconds: n})
		}
	}
	return found
}

// OwnExpiry reports whether what a collMod says of an index gives it an expiry as Drover
// does: parked, or as the catalog states it.
func OwnExpiry(catalog []chunk.Collection, collection string, index bson.Raw) bool {
	seconds := index.Lookup("expireAfterSeconds")
	if isParked(seconds) {
		return true
	}
	pattern, byPattern := index.Lookup("keyPattern").DocumentOK()
	for _, c := range catalog {
		for _, spec := range c.Indexes {
			named := indexName(spec) == indexName(index)
			if byPattern {
				named = sameKey(spec.Lookup("key"), bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: pattern})
			}
			if c.Name == collection && named {
				return sameValue(spec.Lookup("expireAfterSeconds"), seconds)
			}
		}
	}
	return false
}

// ParkTTL makes every TTL index of a database expire in 68 years, and gives those
// that it changed as they were. The server's TTL thread knows no fence.
// If interrupted: run again, and take the seconds from the catalog, which
// [Set.RestoreTTL] is given anyway.
func (s *Set) ParkTTL(ctx context.Context, db string) ([]TTL, error) {
	infos, err := s.Definitions(ctx, db)
	if err != nil {
		return nil, err
	}
	var parked []TTL
	for _, x := range infos {
		for _, t := range TTLs(x.Name, x.Indexes) {
			if t.Seconds == ParkedTTL {
				continue
			}
			if err := s.setTTL(ctx, db, t, ParkedTTL); err != nil {
				return parked, err
			}
			parked = append(parked, t)
		}
	}
	return parked, nil
}

// RestoreTTL gives every TTL index the seconds that the catalog states.
func (s *Set) RestoreTTL(ctx context.Context, db string, catalog []chunk.Collection) error {
	for _, c := range catalog {
		for _, t := range TTLs(c.Name, c.Indexes) {
			err := s.setTTL(ctx, db, t, t.Seconds)
			if mongocode.IsNamespaceNotFound(err) || mongocode.Has(err, mongocode.IndexNotFound) {
				continue // dropped since
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// setTTL changes one TTL index.
func (s *Set) setTTL(ctx context.Context, db string, t TTL, seconds int64) error {
	_, err := run(ctx, s.admin(), db, bson.D{
		{Key: "collMod", Value: t.Collection},
		{Key: "index", Value: bson.D{{Key: "name", Value: t.Index}, {Key: "expireAfterSeconds", Value: seconds}}},
		majority(),
	})
	return s.wrap(err, "set expiry of %s.%s index %s", db, t.Collection, t.Index)
}

// IndexBuilds names the index builds under way in a database, as "collection.index".
func (s *Set) IndexBuilds(ctx context.Context, db string) ([]string, error) {
	infos, err := s.Definitions(ctx, db)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, x := range infos {
		for _, n := range x.Building {
			names = append(names, x.Name+"."+n)
		}
	}
	return names, nil
}
