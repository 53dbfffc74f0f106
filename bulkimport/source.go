package bulkimport

import (
	"context"
	"fmt"
	"time"

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
	Client     *mongo.Client // as [chunk.ReaderUser]
	Database   string        // the physical one
	Preference *readpref.ReadPref
	// Pinned says that a trial showed snapshot reads at a time to be pinned
	// ([chunk.Capabilities].PinsSnapshots). Elsewhere slices are read in
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
}

// snapshot is what one read of a slice gave.
type snapshot struct {
	docs     []bson.Raw
	bytes    Bytes
	from, to bson.Timestamp
	next     bson.Raw // where the read was cut, nil when it came to the end
}

// collection is what the reader must know of a collection.
type collection struct {
	name     string
	collated bool // its _id index does not stand in the order of simple comparison
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
	if _, clustered := found[0].Options.Lookup("clusteredIndex", "key").DocumentOK(); clustered {
		return c, nil
	}
	specs, err := db.Collection(name).Indexes().ListSpecifications(ctx)
	if err != nil {
		return c, fmt.Errorf("list indexes of %s.%s: %w", s.Database, name, err)
	}
	for _, spec := range specs {
		if e, err := spec.KeysDocument.Elements(); err == nil && len(e) == 1 && e[0].Key() == "_id" {
			return c, nil
		}
	}
	return c, failure.New(failure.Invalid, "import.no_id_index", "%s.%s has no index on _id", s.Database, name).
		WithHint("a collection without an _id index cannot be cut into slices: build the index, or copy the collection into a new one")
}

// find gives the command that reads a range in the order of _id.
func (c collection) find(filter bson.D) bson.D {
	cmd := bson.D{{Key: "find", Value: c.name}, {Key: "filter", Value: filter}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}}
	if c.collated {
		// The index is of no use for this order: the server sorts.
		return append(cmd, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}},
			bson.E{Key: "allowDiskUse", Value: true})
	}
	return append(cmd, bson.E{Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}})
}

// read reads a slice at one snapshot, as far as limits allow.
func (s Source) read(ctx context.Context, c collection, slice Slice, limits Limits) (snapshot, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longestSnapshot, fmt.Errorf("%s could not be read within %v", slice, longestSnapshot))
	defer cancel()
	if s.Pinned {
		return s.readPinned(ctx, c, slice, limits)
	}
	return s.readInTransaction(ctx, c, slice, limits)
}

// readPinned reads at a time that a majority has passed.
func (s Source) readPinned(ctx context.Context, c collection, slice Slice, limits Limits) (snapshot, error) {
	db := s.Client.Database(s.Database)
	at, err := s.operationTime(ctx, c, readconcern.Majority())
	if err != nil {
		return snapshot{}, err
	}
	if at.Before(s.Start) {
		at = s.Start
	}
	cmd := append(c.find(idFilter(slice.Lo, slice.Hi)), bson.E{Key: "readConcern", Value: bson.D{
		{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at},
	}})
	cursor, err := db.RunCommandCursor(ctx, cmd, options.RunCmd().SetReadPreference(s.preference()))
	if err != nil {
		return snapshot{}, fmt.Errorf("read %s at %v: %w", slice, at, err)
	}
	read, err := collect(ctx, cursor, slice, limits)
	read.from, read.to = at, at
	return read, err
}

// readInTransaction reads inside a transaction, which pins its snapshot from its
// first statement on, somewhere between two operation times.
func (s Source) readInTransaction(ctx context.Context, c collection, slice Slice, limits Limits) (snapshot, error) {
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
	if err := session.AdvanceOperationTime(&from); err != nil {
		return snapshot{}, fmt.Errorf("wait for %v: %w", from, err)
	}
	if err := session.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).
		SetReadPreference(readpref.Primary())); err != nil {
		return snapshot{}, fmt.Errorf("start transaction: %w", err)
	}
	inTransaction := mongo.NewSessionContext(ctx, session)
	cursor, err := s.Client.Database(s.Database).RunCommandCursor(inTransaction, c.find(idFilter(slice.Lo, slice.Hi)))
	if err != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", slice, err)
	}
	to, err := s.operationTime(ctx, c, readconcern.Local())
	if err != nil {
		return snapshot{}, err
	}
	read, err := collect(inTransaction, cursor, slice, limits)
	read.from, read.to = from, to
	return read, err
}

// operationTime asks for the operation time with a read that has seen Start.
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
		{Key: "find", Value: c.name}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true},
		{Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "readConcern", Value: level},
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

// collect drains a cursor into memory until a limit, checking that _id ascends
// within the slice: every later step leans on that.
func collect(ctx context.Context, cursor *mongo.Cursor, slice Slice, limits Limits) (read snapshot, err error) {
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }()
	within, err := slice.keyRange()
	if err != nil {
		return read, err
	}
	end := time.Now().Add(limits.Snapshot)
	last, first := within.Lo, true
	for cursor.Next(ctx) {
		id, err := cursor.Current.LookupErr("_id")
		if err != nil {
			return read, fmt.Errorf("document without _id in %s: %w", slice, err)
		}
		key, err := chunk.EncodeValue(id)
		if err != nil {
			return read, fmt.Errorf("_id in %s: %w", slice, err)
		}
		if key < last || key >= within.Hi || key == last && !first {
			return read, failure.New(failure.Invalid, "import.unordered", "%s: the server does not return %v in MongoDB's order of _id", slice, id).
				WithHint("_id values of these types cannot be moved from this server")
		}
		last, first = key, false
		size := Bytes(len(cursor.Current))
		if n := Documents(len(read.docs)); n > 0 && (n >= limits.Documents || read.bytes+size > limits.Bytes || time.Now().After(end)) {
			read.next, err = boundOf(id)
			return read, err
		}
		read.docs = append(read.docs, append(bson.Raw(nil), cursor.Current...))
		read.bytes += size
	}
	if err := cursor.Err(); err != nil {
		return read, fmt.Errorf("read %s: %w", slice, err)
	}
	return read, nil
}
