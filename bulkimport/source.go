package bulkimport

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"drover/chunk"
	"drover/internal/failure"
)

// Source is the placement that is read.
type Source struct {
	Client     *mongo.Client // as drover_read
	Database   string        // the physical one
	Preference *readpref.ReadPref
	// Pinned says that a trial showed snapshot reads at a time to be pinned
	// (capability pins_snapshots). Elsewhere slices are read in
	// transactions, on the primary, whatever Preference says.
	Pinned bool
	// Start is the cluster time of the start marker, as it came out of the
	// captured log: what the log held before it, is committed.
	Start bson.Timestamp
	// Settled gives the cluster time of a later event that came out of the
	// captured log; nil stands for Start. It only serves to make the windows of
	// servers without pinned reads shorter: the operation time such a server
	// reports may lie after writes that are not visible yet.
	Settled func(context.Context) (bson.Timestamp, error)
	// Keep says which documents are copied; nil stands for all.
	Keep *chunk.Keep
}

// collection is what the reader must know of a collection.
type collection struct {
	name      string
	collated  bool // its _id index does not stand in the order of simple comparison
	clustered bool // it has no _id index: the collection itself is one
}

// inspect looks a collection up and refuses one that cannot be read by _id.
func (s Source) inspect(ctx context.Context, name string) (collection, error) {
	db := s.Client.Database(s.Database)
	found, err := db.ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return collection{}, fmt.Errorf("list collection %s.%s: %w", s.Database, name, err)
	}
	if len(found) == 0 {
		return collection{}, failure.New(failure.Invalid, "import.no_collection", "%s has no collection %s", s.Database, name)
	}
	if found[0].Type != "collection" {
		return collection{}, failure.New(failure.Invalid, "import.not_a_collection", "%s.%s is a %s", s.Database, name, found[0].Type)
	}
	c := collection{name: name}
	if locale, ok := found[0].Options.Lookup("collation", "locale").StringValueOK(); ok {
		c.collated = locale != "simple"
	}
	if _, ok := found[0].Options.Lookup("clusteredIndex", "key").DocumentOK(); ok {
		c.clustered = true
		return c, nil
	}
	specs, err := db.Collection(name).Indexes().ListSpecifications(ctx)
	if err != nil {
		return c, fmt.Errorf("list indexes of %s.%s: %w", s.Database, name, err)
	}
	keys := make([]bson.Raw, len(specs))
	for n, spec := range specs {
		keys[n] = spec.KeysDocument
	}
	return c, requireIDIndex(s.Database+"."+name, keys)
}

// requireIDIndex refuses a collection of which no index is the one on _id.
func requireIDIndex(name string, keys []bson.Raw) error {
	for _, key := range keys {
		if e, err := key.Elements(); err == nil && len(e) == 1 && e[0].Key() == "_id" {
			return nil
		}
	}
	return failure.New(failure.Invalid, "import.no_id_index", "%s has no index on _id", name).
		WithHint("a collection without an _id index cannot be cut into slices: build the index, or copy the collection into a new one")
}

// divides reports whether the collection can be cut at an _id. Binary values are
// only safe as the bounds of an index scan (see find), which needs an index that
// stands in the order of BSON; code is not safe at all, SecantusDB compares it
// with and without scope.
func (c collection) divides(id bson.RawValue) bool {
	switch id.Type {
	case bson.TypeBinary:
		return !c.collated && !c.clustered
	case bson.TypeJavaScript, bson.TypeCodeWithScope:
		return false
	default:
		return true
	}
}

// find gives the command that reads a range in the order of _id. exact says that
// the range is meant by the command's min and max and not by its filter: MongoDB
// orders binary values by their length first, and SecantusDB does so in its
// indexes but not when it compares, nor does it then sort.
func (c collection) find(lo, hi bson.Raw) (cmd bson.D, exact bool) {
	cmd = bson.D{{Key: "find", Value: c.name}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}}
	exact = isBinary(lo) || isBinary(hi)
	if !exact {
		cmd = append(cmd, bson.E{Key: "filter", Value: idFilter(lo, hi)})
	}
	if c.collated {
		// The index is of no use for this order: the server sorts.
		cmd = append(cmd, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}, bson.E{Key: "allowDiskUse", Value: true})
	}
	if exact { // min and max need it; nothing but the index of _id fits a range and an order of _id, and SecantusDB takes twice the time for a hint
		cmd = append(cmd, bson.E{Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	if exact && len(lo) > 0 {
		cmd = append(cmd, bson.E{Key: "min", Value: lo})
	}
	if exact && len(hi) > 0 {
		cmd = append(cmd, bson.E{Key: "max", Value: hi})
	}
	return cmd, exact
}

// isBinary reports whether a boundary is a binary value.
func isBinary(b bson.Raw) bool {
	v, ok := bound(b)
	return ok && v.Type == bson.TypeBinary
}

// read reads a slice at one snapshot, as far as limits allow.
func (s Source) read(ctx context.Context, turns turns, c collection, slice Slice, limits Limits) (snapshot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longestSnapshot, fmt.Errorf("%s could not be read within %v", slice, longestSnapshot))
	defer cancel()
	if s.Pinned {
		return s.readPinned(ctx, turns, c, slice, limits)
	}
	return s.readInTransaction(ctx, turns, c, slice, limits)
}

// readPinned reads at a time that a majority has passed.
func (s Source) readPinned(ctx context.Context, turns turns, c collection, slice Slice, limits Limits) (snapshot, error) {
	db := s.Client.Database(s.Database)
	at, err := s.operationTime(ctx, c, readconcern.Majority())
	if err != nil {
		return snapshot{}, err
	}
	if at.Before(s.Start) {
		at = s.Start
	}
	cmd, _ := c.find(slice.Lo, slice.Hi)
	cmd = append(cmd, bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at}}})
	cursor, err := turns.open(func() (*mongo.Cursor, error) {
		return db.RunCommandCursor(ctx, turns.first(cmd, firstTurn), options.RunCmd().SetReadPreference(s.preference()))
	})
	if err != nil {
		return snapshot{}, fmt.Errorf("read %s at %v: %w", slice, at, err)
	}
	read, err := collect(ctx, turns, cursor, c, slice, limits, s.Keep)
	read.from, read.to = at, at
	return read, err
}

// readInTransaction reads inside a transaction, which pins its snapshot from its
// first statement on, somewhere between two operation times.
func (s Source) readInTransaction(ctx context.Context, turns turns, c collection, slice Slice, limits Limits) (snapshot, error) {
	from := s.Start
	if s.Settled != nil {
		settled, err := s.Settled(ctx)
		if err != nil {
			return snapshot{}, fmt.Errorf("position of the captured log: %w", err)
		}
		if settled.After(from) {
			from = settled
		}
	}
	session, err := s.Client.StartSession(options.Session().SetCausalConsistency(true))
	if err != nil {
		return snapshot{}, fmt.Errorf("start session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	if !from.IsZero() {
		if err := session.AdvanceOperationTime(&from); err != nil {
			return snapshot{}, fmt.Errorf("wait for %v: %w", from, err)
		}
	}
	if err := session.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).
		SetReadPreference(readpref.Primary())); err != nil {
		return snapshot{}, fmt.Errorf("start transaction: %w", err)
	}
	inTransaction := mongo.NewSessionContext(ctx, session)
	cmd, exact := c.find(slice.Lo, slice.Hi)
	cursor, err := turns.open(func() (*mongo.Cursor, error) {
		return s.Client.Database(s.Database).RunCommandCursor(inTransaction, turns.first(cmd, firstTurn))
	})
	if err != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", slice, err)
	}
	to, err := s.operationTime(ctx, c, readconcern.Local())
	if err != nil {
		return snapshot{}, err
	}
	collecting := collect
	if exact {
		collecting = collectUnordered
	}
	read, err := collecting(inTransaction, turns, cursor, c, slice, limits, s.Keep)
	read.from, read.to = from, to
	return read, err
}

// operationTime asks for the operation time with a read that has seen Start. It looks
// for one _id, whether there or not: a find without a filter walks the collection on
// SecantusDB, however few documents it wants, and this is asked for each slice.
func (s Source) operationTime(ctx context.Context, c collection, concern *readconcern.ReadConcern) (bson.Timestamp, error) {
	preference := s.preference()
	if !s.Pinned {
		preference = readpref.Primary()
	}
	level := bson.D{{Key: "level", Value: concern.Level}}
	if !s.Start.IsZero() {
		level = append(level, bson.E{Key: "afterClusterTime", Value: s.Start})
	}
	reply, err := s.Client.Database(s.Database).RunCommand(ctx, bson.D{
		{Key: "find", Value: c.name},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.MinKey{}}}},
		{Key: "limit", Value: 1},
		{Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: level},
	}, options.RunCmd().SetReadPreference(preference)).Raw()
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("read operation time of %s.%s: %w", s.Database, c.name, err)
	}
	t, i, ok := reply.Lookup("operationTime").TimestampOK()
	if !ok {
		return bson.Timestamp{}, failure.New(failure.Invalid, "import.no_operation_time", "%s is not on a replica set", s.Database)
	}
	return bson.Timestamp{T: t, I: i}, nil
}

// preference is the primary where the caller has none.
func (s Source) preference() *readpref.ReadPref {
	if s.Preference == nil {
		return readpref.Primary()
	}
	return s.Preference
}
